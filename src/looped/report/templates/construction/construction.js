"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent), LAST = DATA.errors.length;
const $ = (id) => document.getElementById(id);
let t = 1, timer = null;

/** A range that holds these numbers, with room around them. */
function range(values) {
  const sound = values.filter(Number.isFinite), low = Math.min(0, ...sound), high = Math.max(0, ...sound);
  const room = 0.08 * (high - low || 1);
  return [low - room, high + room];
}

/** The earlier loops that are drawn faintly, with their strength. */
function earlier() {
  const loops = Array.from({ length: t - 1 }, (_, index) => index + 1).slice(-8);
  return loops.map((loop, index) => [loop, (0.16 + (0.4 * (index + 1)) / loops.length).toFixed(2)]);
}

function around() {
  const svg = $("around"), { width, height } = canvas(svg, 320), { curves, points, query, weights } = DATA;
  const turns = curves[0].map((_, index) => (2 * Math.PI * index) / (curves[0].length - 1));
  const best = weights && turns.map((turn) => weights.best[0] * Math.cos(turn) + weights.best[1] * Math.sin(turn));
  const ends = [...curves[LAST - 1], ...(best || []), ...points.y], [low, high] = range(ends);
  const x = scale(0, 2 * Math.PI, 0, width), y = scale(low, high, height - 24, 6), px = turns.map(x);
  draw(svg, "title", {}, `The function after loop ${t}`);
  draw(svg, "line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) });
  ["90°", "180°", "270°"].forEach((label, index) => {
    const at = x(((index + 1) * Math.PI) / 2);
    draw(svg, "line", { class: "grid", x1: at, x2: at, y1: 0, y2: height - 24 });
    draw(svg, "text", { class: "tick", x: at, y: height - 8, "text-anchor": "middle" }, `α = ${label}`);
  });
  for (const [loop, opacity] of earlier()) draw(svg, "path", { class: "before", d: path(px, curves[loop - 1].map(y)), opacity });
  if (best) draw(svg, "path", { class: "truth", d: path(px, best.map(y)) });
  points.turn.forEach((turn, index) => draw(svg, "circle", { class: "dot guess", cx: x(turn), cy: y(points.y[index]), r: 4.5 }));
  draw(svg, "path", { class: "now", d: path(px, curves[t - 1].map(y)) });
  draw(svg, "circle", { class: "answer", cx: x(query.turn), cy: y(query.y[t - 1]), r: 6 });
}

function descent() {
  const svg = $("weights"), { width, height } = canvas(svg, 320), { path: all, best, gram } = DATA.weights;
  const path2 = [[0, 0], ...all], [low0, high0] = range([...path2.map((w) => w[0]), best[0]]);
  const [low1, high1] = range([...path2.map((w) => w[1]), best[1]]);
  const unit = Math.max((high0 - low0) / width, (high1 - low1) / height), middle = [(low0 + high0) / 2, (low1 + high1) / 2];
  const x = (w) => width / 2 + (w - middle[0]) / unit, y = (w) => height / 2 - (w - middle[1]) / unit;
  draw(svg, "title", {}, `The weights after loop ${t}`);
  // the ellipse (w - best)' gram (w - best) = r: along the eigenvectors, 1 / sqrt(eigenvalue) long
  const [[a, b], [, c]] = gram, mid = (a + c) / 2, spread = Math.hypot((a - c) / 2, b);
  const angle = Math.atan2(b, (a - c) / 2) / 2, start = [best[0], best[1]];
  const loss = a * start[0] ** 2 + 2 * b * start[0] * start[1] + c * start[1] ** 2;
  for (const share of [2.2, 1, 0.4, 0.12, 0.02]) {
    const [rx, ry] = [mid + spread, mid - spread].map((value) => Math.sqrt((share * loss) / value) / unit);
    draw(svg, "ellipse", { class: "contour", cx: 0, cy: 0, rx, ry, transform: `translate(${x(best[0])} ${y(best[1])}) rotate(${(-180 * angle) / Math.PI})` });
  }
  draw(svg, "line", { class: "axis", x1: x(0), x2: x(0), y1: 0, y2: height });
  draw(svg, "line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) });
  const seen = path2.slice(0, t + 1);
  draw(svg, "path", { class: "before", d: path(path2.map((w) => x(w[0])), path2.map((w) => y(w[1]))), opacity: 0.3 });
  draw(svg, "path", { class: "now", d: path(seen.map((w) => x(w[0])), seen.map((w) => y(w[1]))) });
  for (const w of seen) draw(svg, "circle", { class: "dot now", cx: x(w[0]), cy: y(w[1]), r: 3.5 });
  draw(svg, "circle", { class: "answer", cx: x(seen.at(-1)[0]), cy: y(seen.at(-1)[1]), r: 6 });
  draw(svg, "circle", { class: "dot guess", cx: x(best[0]), cy: y(best[1]), r: 4.5 });
}

function pairs() {
  const svg = $("pairs"), { width, height } = canvas(svg, 320), [ours, theirs] = DATA.pairs.map((answers) => answers[t - 1]);
  const [low, high] = range(DATA.pairs.flat(2)), x = scale(low, high, 8, width - 8), y = scale(low, high, height - 8, 8);
  draw(svg, "title", {}, `Answers of transformer and algorithm after loop ${t}`);
  draw(svg, "line", { class: "axis", x1: x(low), y1: y(low), x2: x(high), y2: y(high) });
  draw(svg, "text", { class: "tick", x: width - 10, y: height - 10, "text-anchor": "end" }, "algorithm →");
  draw(svg, "text", { class: "tick", x: 10, y: 18 }, "↑ transformer");
  ours.forEach((value, index) => draw(svg, "circle", { class: "dot guess", cx: x(theirs[index]), cy: y(value), r: 4.5 }));
}

function render() {
  $("loop").value = t;
  $("count").textContent = t;
  $("play").classList.toggle("playing", timer !== null);
  if (DATA.curves) around();
  if (DATA.weights) descent();
  pairs();
  const ticks = [1e-16, 1e-12, 1e-8, 1e-4, 1], span = [1e-18, Math.max(3, ...DATA.errors)];
  const lines = [{ values: DATA.errors, style: "now" }];
  loopsChart($("errors"), { lines, t, last: LAST, ticks, span, title: "Largest difference by loop" });
}

function stop() {
  clearInterval(timer);
  timer = null;
}

$("play").addEventListener("click", () => {
  if (timer !== null) stop();
  else {
    if (t === LAST) t = 1;
    timer = setInterval(() => {
      if (t < LAST) t++;
      else stop();
      render();
    }, 420);
  }
  render();
});
$("loop").addEventListener("input", (event) => {
  stop();
  t = Number(event.target.value);
  render();
});
addEventListener("resize", render);
render();
