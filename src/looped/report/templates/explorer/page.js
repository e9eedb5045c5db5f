"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const MODEL = new Decoder(DATA.model), TRAINED = DATA.model.config.loops, LAST = 100;
const REACH = 2.8, HEIGHT = 3.2, QUERIES = 100, MOST = Math.floor(MODEL.positions / 2) - 1;
const MOST_LOOPS = DATA.loops[1];
const $ = (id) => document.getElementById(id);

/** What the person chose. A point of a hidden function knows its clean y and its share of the noise. */
const state = {
  points: [], truth: null, shift: 0, noise: 0.1, t: 1, probe: 0.4, chosen: null, kind: null, rival: "Gaussian process",
  random: new Random(5), playing: null,
};
/** What was computed for it. */
const examples = new Examples(MODEL);
const grid = Array.from({ length: QUERIES }, (_, index) => -REACH + (2 * REACH * index) / (QUERIES - 1));
let queries = null, guessErrors = [], rivalCurve = null, rivalError = NaN, waiting = false;

/** Begin again at the first loop; the points' states are computed only where points have changed. */
function restart() {
  examples.set(state.points);
  queries = Object.assign(new Queries(MODEL, examples, [...grid, state.probe]), { errors: [], typical: [], changes: [] });
  guessErrors = [];
  rivalCurve = state.points.length && state.rival ? RIVALS[state.rival](state.points, grid) : null;
  rivalError = rivalCurve ? truthError(rivalCurve) : NaN;
  schedule();
}

function advance() {
  queries.advance();
  queries.errors.push(truthError(queries.curves.at(-1)));
  const [now, last] = [queries.curves.at(-1), queries.curves.at(-2)];
  queries.typical.push(last ? inTraining((index) => queries.moves.at(-1)[index]) : NaN);
  queries.changes.push(last ? inTraining((index) => Math.abs(now[index] - last[index])) : NaN);
  const answers = examples.guesses(queries.t);
  const errors = state.points.map(({ y }, index) => (y - answers[index]) ** 2).slice(1);
  guessErrors.push(errors.length ? mean(errors) : NaN);
}

/** Compute up to the loop that is shown, draw it, and go on in the background. */
function work() {
  waiting = false;
  const until = performance.now() + (queries.t < state.t ? 60 : 12);
  const shown = queries.t >= state.t;
  while (queries.t < LAST && performance.now() < until) advance();
  if (!shown || queries.t % 8 === 0 || queries.t === LAST) render();
  if (queries.t < LAST) schedule();
}

function schedule() {
  if (!waiting) requestAnimationFrame(work);
  waiting = true;
}

/** Everything for `t` loops at once; for whoever measures or tests the page. */
function redraw(t) {
  state.t = t;
  restart();
  while (queries.t < t) advance();
  render();
}

/** Mean squared distance from the hidden function where the model was trained. */
function truthError(curve) {
  if (!state.truth) return NaN;
  return inTraining((index) => (curve[index] - hidden(grid[index])) ** 2);
}

/** The mean over the x that the model was trained on. */
const inTraining = (value) => mean(grid.flatMap((x, index) => (Math.abs(x) <= DATA.task.reach ? [value(index)] : [])));

const hidden = (x) => state.truth(x - state.shift);

function render() {
  const ready = Math.min(state.t, queries.t), at = ready - 1, none = !state.points.length;
  const moves = none || ready < 2 ? null : grid.map((_, index) => Math.abs(queries.curves[at][index] - queries.curves[at - 1][index]));
  const earlier = [1, 2, 3, 4, 5, 6, 8, 10, 13, 21, 34, 55, 89].filter((loop) => loop < ready).slice(-7);
  const before = earlier.map((loop, index) => ({ curve: queries.curves[loop - 1].subarray(0, QUERIES), strength: 0.16 + (0.42 * (index + 1)) / earlier.length }));
  plane.render({
    points: state.points, chosen: state.chosen, xs: grid, truth: state.truth && grid.map(hidden), rival: rivalCurve,
    curves: { now: none || !ready ? null : queries.curves[at].subarray(0, QUERIES), before: none ? [] : before },
    probe: state.probe, answer: none || !ready ? NaN : queries.curves[at][QUERIES], heads: MODEL.heads,
    moves, shares: none || !ready ? null : queries.shares[at],
  });
  $("loop").value = state.t;
  $("count").textContent = state.t;
  $("play").classList.toggle("playing", state.playing !== null);
  $("play").setAttribute("aria-label", state.playing === null ? "Play the loops" : "Stop");
  $("remove").disabled = state.chosen === null;
  $("more").disabled = state.points.length >= MOST;
  $("noise-value").textContent = digits(state.noise);
  for (const button of document.querySelectorAll("[data-kind][aria-pressed]")) button.setAttribute("aria-pressed", String(button.dataset.kind === state.kind));
  $("ahead").textContent = none || queries.t === LAST ? "pale: loops still to come" : `pale: loops still to come, computing ${queries.t} of ${LAST}`;
  $("shift").textContent = state.shift ? "Move all points back" : "Move all points right";
  $("truth-key").hidden = $("truth-error").hidden = !state.truth;
  $("rival-key").textContent = rivalCurve ? state.rival : "";
  $("rival-error").textContent = Number.isFinite(rivalError) ? state.rival : "";
  const { errors, typical, changes } = queries;
  const shared = { t: state.t, last: LAST, band: DATA.loops, floor: 1e-6, ticks: [1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1, 10, 100] };
  const empty = (values) => (none ? [] : values);
  loopsChart($("errors"), {
    ...shared, title: "Error by loop",
    lines: [{ values: empty(guessErrors), style: "guess" }, { values: state.truth ? empty(errors) : [], style: "now" }],
    levels: none ? [] : [{ value: rivalError, style: "rival" }],
  });
  loopsChart($("moves"), {
    ...shared, title: "Movement of the curve and of the state by loop", span: [1e-4, 2], levels: [{ value: AT_REST, style: "rest" }],
    lines: [{ values: empty(typical), style: "state" }, { values: empty(changes), style: "now" }],
  });
  attentionChart($("attention"), { shares: none || !ready ? null : queries.shares[at], heads: MODEL.heads, points: state.points, probe: state.probe, reach: REACH });
  if (none) $("story").textContent = "No points yet: the model has nothing to go by.";
  else if (ready === state.t) {
    const dark = moves ? mean(moves.map((move) => Number(move > AT_REST))) : 0;
    $("story").textContent = story({ t: state.t, changes, dark, errors, where: DATA.task.varied ? " between the grey bands" : "", most: MOST_LOOPS });
  } else $("story").textContent = `Computing loop ${state.t} …`; // the words of the curve before this one would be wrong
}

/** New points of a hidden function of this kind. */
function preset(kind, count = 11) {
  const { random } = state, kinds = DATA.task.varied ? ["line", "kinks", "stairs", "wave", "smooth"] : ["proportional"];
  const chosen = kind === "surprise" ? kinds[Math.floor(random.uniform() * kinds.length)] : kind;
  Object.assign(state, { kind: chosen, truth: KINDS[chosen](random), points: [], shift: 0, chosen: null });
  more(Math.min(MOST, kind === "surprise" ? 6 + Math.floor(random.uniform() * 9) : count));
}

/** More points: of the hidden function, or at random where there is none. */
function more(count) {
  const { random } = state;
  for (let index = 0; index < count && state.points.length < MOST; index++) {
    const x = random.uniform(-1, 1) * Math.min(DATA.task.reach, 1.7), clean = state.truth ? state.truth(x) : random.normal();
    state.points.push({ x: x + state.shift, clean, noise: state.truth ? random.normal() : 0, y: 0 });
  }
  setNoise(state.noise);
}

function setNoise(noise) {
  state.noise = noise;
  const inside = (y) => Math.max(-HEIGHT, Math.min(HEIGHT, y));
  for (const point of state.points) if (point.clean !== undefined) point.y = inside(point.clean + noise * point.noise);
  restart();
}

function setShift(shift) {
  for (const point of state.points) point.x = Math.max(-REACH, Math.min(REACH, point.x + shift - state.shift));
  state.shift = shift;
  restart();
}

function stop() {
  clearTimeout(state.playing);
  state.playing = null;
}

/** One loop after the other up to `last`, slowly while much happens. */
function play(last = LAST) {
  stop();
  if (state.t >= last) state.t = 1;
  const tick = () => {
    if (state.t >= last) stop();
    else {
      if (queries.t > state.t) state.t++;
      state.playing = setTimeout(tick, state.t < 2 * TRAINED ? 320 : 60);
    }
    render();
  };
  state.playing = setTimeout(tick, 320);
  render();
}

const plane = new Plane($("plane"), {
  reach: REACH, trained: DATA.task.varied ? DATA.task.reach : REACH, height: HEIGHT,
  actions: {
    add({ x, y }) {
      if (state.points.length >= MOST) {
        $("story").textContent = `This model has room for ${MOST} points. Delete one to add another.`;
        return;
      }
      state.points.push({ x, y });
      state.chosen = state.points.length - 1;
      restart();
    },
    move(index, place, by) {
      const { x, y } = state.points[index], inside = (value, most) => Math.max(-most, Math.min(most, value));
      state.points[index] = place || { x: inside(x + by[0], REACH), y: inside(y + by[1], HEIGHT) };
      restart();
    },
    remove(index) {
      state.points.splice(index, 1);
      state.chosen = null;
      restart();
    },
    choose(index) {
      state.chosen = index;
      render();
    },
    ask() {
      plane.actions.add({ x: state.probe, y: 0 });
      render();
      document.querySelector(`.point[data-index="${state.chosen}"]`)?.focus();
    },
    probe(x, by) {
      state.probe = x ?? Math.max(-REACH, Math.min(REACH, state.probe + by));
      restart();
    },
  },
});

for (const button of document.querySelectorAll("[data-kind]")) {
  button.addEventListener("click", () => {
    preset(button.dataset.kind);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      state.t = 1;
      play(TRAINED);
    }
  });
}
$("clear").addEventListener("click", () => {
  Object.assign(state, { kind: null, points: [], truth: null, shift: 0, chosen: null });
  restart();
});
$("play").addEventListener("click", () => {
  if (state.playing === null) play();
  else stop();
  render();
});
$("loop").addEventListener("input", (event) => {
  stop();
  state.t = Number(event.target.value);
  schedule();
  render();
});
$("noise").addEventListener("input", (event) => setNoise(Number(event.target.value)));
$("more").addEventListener("click", () => more(5));
$("shift").addEventListener("click", () => setShift(state.shift ? 0 : 1));
$("remove").addEventListener("click", () => plane.actions.remove(state.chosen));
$("rival").addEventListener("change", (event) => {
  state.rival = event.target.value;
  restart();
});
document.addEventListener("keydown", (event) => {
  if (event.key === " " && !event.target.closest("button, select, input, label")) {
    event.preventDefault();
    $("play").click();
  }
});
let seen = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== seen) render(); // a phone's address bar changes the height alone
  seen = innerWidth;
});

preset(DATA.task.varied ? "wave" : "proportional");
for (const loop of [1, 5, MOST_LOOPS, LAST]) {
  const mark = document.createElement("span");
  mark.textContent = loop === MOST_LOOPS ? `${loop}: most in training` : loop;
  mark.style.setProperty("--at", (loop - 1) / (LAST - 1));
  mark.classList.toggle("last", loop === LAST);
  $("marks").append(mark);
}

// inside another page: the plane alone, as high as it needs, in the colours of that page
if (location.hash === "#small") {
  document.documentElement.classList.add("inside");
  new ResizeObserver(() => parent.postMessage({ explorerHeight: document.body.scrollHeight }, "*")).observe(document.body);
}
addEventListener("message", ({ data }) => {
  const theme = ["auto", "light", "dark"].includes(data?.theme) && $(`theme-${data.theme}`);
  if (theme) theme.checked = true;
});
