"use strict";

const SVG = "http://www.w3.org/2000/svg";

/** A new element of an SVG; listeners come later. */
function draw(parent, name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

/** From a range of numbers to pixels. */
const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

/** `M x y L x y ...` through what is finite. */
function path(xs, ys) {
  let text = "", pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (Number.isFinite(ys[i])) text += `${pen}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
    pen = Number.isFinite(ys[i]) ? "L" : "M";
  }
  return text;
}

/** Three digits, for people. */
function digits(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-4) return value.toExponential(0).replace("e-", " × 10^−");
  return String(Number(value.toPrecision(value < 0.1 ? 1 : 2)));
}

/** Room for an SVG that is as wide as its place. */
function canvas(svg, height) {
  const width = Math.max(120, svg.parentElement.clientWidth);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  return { width, height };
}

/**
 * Lines over the loops 1 to `last`, both axes logarithmic, with a mark at loop `t`.
 * lines: [{ name, values, style }], a value for each loop so far; levels: [{ name, value, style }], the same at all.
 */
function loopsChart(svg, { lines, levels = [], t, last, floor, band, ticks, title, span = null, empty = "" }) {
  const { width, height } = canvas(svg, 168);
  const left = 50, right = width - 10, top = 8, bottom = height - 30;
  const values = [...lines.flatMap((line) => [...line.values]), ...levels.map((level) => level.value)];
  const sound = values.filter((value) => Number.isFinite(value) && value > 0);
  const low = span ? span[0] : Math.max(floor, Math.min(...sound, 1) / 1.3);
  const high = span ? span[1] : Math.max(low * 20, ...sound.map((value) => 1.3 * value));
  const logarithm = scale(Math.log(low), Math.log(high), bottom, top);
  const position = scale(0, Math.log(Math.max(2, last)), left, right), x = (loop) => position(Math.log(loop));
  const y = (value) => logarithm(Math.log(Math.min(high, Math.max(low, value))));
  draw(svg, "title", {}, title);
  if (band) {
    const [from, to] = band.map((loop) => x(Math.min(last, Math.max(1, loop))));
    draw(svg, "rect", { class: "trained", x: from, y: top, width: Math.max(2, to - from), height: bottom - top });
  }
  const shown = (value) => value >= low * 0.999 && value <= high;
  const few = ticks.filter(shown).length < 3, finer = (tick) => [1, 2, 5].map((times) => Number((times * tick).toPrecision(1)));
  for (const tick of (few ? ticks.flatMap(finer) : ticks).filter(shown)) {
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    draw(svg, "text", { class: "tick", x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, tick >= 1e-4 ? tick : tick.toExponential(0));
  }
  for (const loop of [1, 2, 5, 10, 20, 50, 100, 200, 500].filter((value) => value <= last)) {
    draw(svg, "text", { class: "tick", x: x(loop), y: bottom + 15, "text-anchor": loop >= 0.8 * last ? "end" : "middle" }, loop);
  }
  draw(svg, "text", { class: "tick", x: (left + right) / 2, y: bottom + 27, "text-anchor": "middle" }, "loop");
  for (const level of levels.filter(({ value }) => Number.isFinite(value))) {
    draw(svg, "line", { class: level.style, x1: left, x2: right, y1: y(level.value), y2: y(level.value) });
  }
  if (empty) draw(svg, "text", { class: "hint small", x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, empty);
  for (const line of lines) {
    const xs = [...line.values].map((_, index) => x(index + 1));
    draw(svg, "path", { class: `${line.style} ahead`, d: path(xs, [...line.values].map(y)) });
    draw(svg, "path", { class: line.style, d: path(xs.slice(0, t), [...line.values].slice(0, t).map(y)) });
    if (line.values.length >= t && Number.isFinite(line.values[t - 1])) {
      draw(svg, "circle", { class: `dot ${line.style}`, cx: x(t), cy: y(line.values[t - 1]), r: 4 });
    }
  }
}

/** A row for each head: the share of its attention that the query gives to each point, as bars at the points' places. */
function attentionChart(svg, { shares, heads, points, probe, reach }) {
  const row = 66, gap = 22, { width } = canvas(svg, heads * row + 20), left = 40, right = width - 10;
  const x = scale(-reach, reach, left, right), count = 2 * points.length + 1;
  draw(svg, "title", {}, "How much each attention head reads each point when it answers the query");
  draw(svg, "line", { class: "probe", x1: x(probe), x2: x(probe), y1: row - gap - 30, y2: heads * row - 4 });
  for (let head = 0; head < heads; head++) {
    const bottom = (head + 1) * row - 4, full = row - gap, of = (k) => (shares ? shares[head * count + k] : 0);
    const onPoints = sum(points.map((_, index) => of(2 * index) + of(2 * index + 1)));
    const told = !shares ? "" : onPoints < 0.02 ? ": reads no point now, only the query" : `: ${Math.round(100 * onPoints)}% on the points`;
    draw(svg, "text", { class: "tick name", x: left, y: bottom - full - 6 }, `head ${head + 1}${told}`);
    for (const share of [0, 0.5, 1]) {
      const y = bottom - share * full;
      draw(svg, "line", { class: share ? "grid" : "axis", x1: left, x2: right, y1: y, y2: y });
      if (share !== 0.5) draw(svg, "text", { class: "tick", x: left - 6, y: y + (share ? 8 : 1), "text-anchor": "end" }, `${100 * share}%`);
    }
    points.forEach((point, index) => {
      const bar = (value, from, style) => draw(svg, "line", {
        class: `bar ${style}`, x1: x(point.x), x2: x(point.x), y1: bottom - from, y2: bottom - from - value,
      });
      const asX = full * of(2 * index), asY = full * of(2 * index + 1);
      bar(asY, 0, "label");
      bar(asX, asY, "place");
    });
  }
  draw(svg, "text", { class: "tick", x: x(probe), y: heads * row + 12, "text-anchor": "middle" }, "query");
}
