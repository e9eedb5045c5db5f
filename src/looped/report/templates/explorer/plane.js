"use strict";

/** The plane: points, curves, the query line, and what a hand can do to them. */
class Plane {
  /** `actions` are called with what the person did: add, move, remove, choose, probe. */
  constructor(svg, { reach, trained, height, actions }) {
    Object.assign(this, { svg, reach, trained, high: height, actions, dragging: null });
    svg.addEventListener("pointerdown", (event) => this.press(event));
    svg.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, (event) => this.release(event));
    svg.addEventListener("dblclick", (event) => {
      const index = this.indexAt(event.target);
      if (index !== null) this.actions.remove(index);
    });
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  /** The place of an event in the units of the plane, inside its edges. */
  place(event) {
    const box = this.svg.getBoundingClientRect(), inside = (value, most) => Math.max(-most, Math.min(most, value));
    const x = ((event.clientX - box.left) / box.width) * 2 * this.reach - this.reach;
    const ratio = (event.clientY - box.top) / (box.height * (this.floor / this.height));
    return { x: inside(x, this.reach), y: inside(this.high * (1 - 2 * ratio), this.high) };
  }

  indexAt(target) {
    const point = target.closest(".point");
    return point ? Number(point.dataset.index) : null;
  }

  press(event) {
    if (event.button) return;
    const index = this.indexAt(event.target), handle = event.target.closest(".handle");
    this.dragging = { index, handle: Boolean(handle), from: [event.clientX, event.clientY], moved: false };
    if (index !== null) this.actions.choose(index);
    if (index !== null || handle) {
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    }
  }

  drag(event) {
    const { dragging } = this;
    if (!dragging) return;
    const [x, y] = dragging.from;
    dragging.moved ||= Math.hypot(event.clientX - x, event.clientY - y) > 4;
    if (!dragging.moved) return;
    if (dragging.handle) this.actions.probe(this.place(event).x);
    else if (dragging.index !== null) this.actions.move(dragging.index, this.place(event));
  }

  release(event) {
    const { dragging } = this;
    this.dragging = null;
    if (dragging && event.type === "pointerup" && !dragging.moved && !dragging.handle && dragging.index === null) {
      this.actions.add(this.place(event));
    }
  }

  key(event) {
    const step = event.shiftKey ? 0.5 : 0.1;
    const by = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    const index = this.indexAt(event.target);
    if (index !== null && by) this.actions.move(index, null, by);
    else if (index !== null && ["Delete", "Backspace"].includes(event.key)) this.actions.remove(index);
    else if (event.target.closest(".handle") && by) this.actions.probe(null, by[0] || by[1]);
    else if (event.target.closest(".handle") && event.key === "Enter") this.actions.ask();
    else return;
    event.preventDefault();
  }

  /** Everything anew, except while a point has focus: then the element is moved, so that it keeps the focus. */
  render({ points, chosen, xs, curves, truth, rival, probe, answer, moves, shares, heads }) {
    const { svg, reach } = this, focused = document.activeElement?.closest?.("#plane .point, #plane .handle");
    const focus = focused && (focused.dataset.index ?? "handle");
    const wide = svg.parentElement.clientWidth;
    const { width, height } = canvas(svg, Math.round(Math.min(520, Math.max(300, wide * (wide < 500 ? 0.9 : 0.76)))));
    this.height = height;
    const floor = (this.floor = height - 12);
    const x = scale(-reach, reach, 0, width), y = scale(-this.high, this.high, floor, 0), px = [...xs].map(x);
    for (let at = -Math.floor(this.high); at <= this.high; at++) {
      draw(svg, "line", { class: at ? "grid" : "axis", x1: 0, x2: width, y1: y(at), y2: y(at) });
      if (at && at + 0.5 < this.high) draw(svg, "text", { class: "tick", x: 6, y: y(at) - 4 }, at < 0 ? `−${-at}` : at);
    }
    for (let at = -Math.floor(reach); at <= reach; at++) {
      draw(svg, "line", { class: at ? "grid" : "axis", x1: x(at), x2: x(at), y1: 0, y2: floor });
      if (at) draw(svg, "text", { class: "tick", x: x(at) + 4, y: floor - 5 }, at < 0 ? `−${-at}` : at);
    }
    if (this.trained < reach) {
      for (const [from, to] of [[-reach, -this.trained], [this.trained, reach]]) {
        draw(svg, "rect", { class: "outside", x: x(from), y: 0, width: x(to) - x(from), height: floor });
      }
      ["x outside", "its training"].forEach((words, index) => {
        draw(svg, "text", { class: "tick", x: 6, y: 15 + 13 * index }, words);
        draw(svg, "text", { class: "tick", x: width - 6, y: 15 + 13 * index, "text-anchor": "end" }, words);
      });
    }
    if (moves) {
      moves.forEach((move, index) => {
        const left = index ? (px[index - 1] + px[index]) / 2 : 0, right = index + 1 < px.length ? (px[index] + px[index + 1]) / 2 : width;
        const strength = Math.max(0, Math.min(1, Math.log(move / AT_REST) / Math.log(0.5 / AT_REST)));
        draw(svg, "rect", { class: "strip", x: left, y: floor, width: right - left, height: height - floor, opacity: strength.toFixed(2) });
      });
    }
    const line = (style, ys, more = {}) => draw(svg, "path", { class: style, d: path(px, [...ys].map(y)), ...more });
    for (const { curve, strength } of curves.before) line("before", curve, { opacity: strength.toFixed(2) });
    if (truth) line("truth", truth);
    if (rival) line("rival", rival);
    if (curves.now) line("now", curves.now);
    draw(svg, "line", { class: "probe", x1: x(probe), x2: x(probe), y1: 0, y2: floor });
    points.forEach((point, index) => {
      const all = shares ? mean(Array.from({ length: heads }, (_, head) => {
        const at = head * (2 * points.length + 1) + 2 * index;
        return shares[at] + shares[at + 1];
      })) : 0;
      if (all > 0.004) draw(svg, "circle", { class: "halo", cx: x(point.x), cy: y(point.y), r: 7 + 34 * Math.sqrt(all) });
    });
    points.forEach((point, index) => {
      const label = `point ${index + 1}: x ${point.x.toFixed(1)}, y ${point.y.toFixed(1)}`;
      const group = draw(svg, "g", {
        class: index === chosen ? "point chosen" : "point", tabindex: 0, role: "button", "aria-label": label, "data-index": index,
      });
      draw(group, "circle", { class: "touch", cx: x(point.x), cy: y(point.y), r: 17 });
      draw(group, "circle", { class: "mark", cx: x(point.x), cy: y(point.y), r: 6 });
    });
    if (Number.isFinite(answer)) draw(svg, "circle", { class: "answer", cx: x(probe), cy: y(answer), r: 5.5 });
    const handle = draw(svg, "circle", {
      class: "handle", cx: x(probe), cy: floor - 10, r: 9, tabindex: 0, role: "slider", "aria-label": "query x",
      "aria-valuenow": probe.toFixed(1), "aria-valuemin": -reach, "aria-valuemax": reach,
    });
    if (!points.length) {
      draw(svg, "text", { class: "hint", x: width / 2, y: floor / 2 - 16, "text-anchor": "middle" }, "Click here to put the first point");
    }
    if (focus === "handle") handle.focus();
    else if (focus) svg.querySelector(`.point[data-index="${focus}"]`)?.focus();
  }
}
