"use strict";

/** The tensors of a model by name, in float64: base64 of little-endian float32, or of float16 where that is exact. */
function unpackTensors({ format, tensors, base64 }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = format === "float16" ? 2 : 4;
  const read = format === "float16" ? (at) => fromHalf(view.getUint16(at, true)) : (at) => view.getFloat32(at, true);
  const byName = {};
  let place = 0;
  for (const [name, count] of tensors) {
    byName[name] = Float64Array.from({ length: count }, (_, index) => read(size * (place + index)));
    place += count;
  }
  return byName;
}

/** The number behind the 16 bits of a float16. */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = (bits & 1023) / 1024;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
}

/** out = x W' + b for `rows` rows; four rows and two columns at a time, so that weights are read from memory less. */
function affine(out, x, rows, weight, bias, inputs, outputs) {
  let r = 0;
  for (; r + 4 <= rows; r += 4) {
    const x0 = r * inputs, x1 = x0 + inputs, x2 = x1 + inputs, x3 = x2 + inputs;
    let o = 0;
    for (; o + 2 <= outputs; o += 2) {
      const w0 = o * inputs, w1 = w0 + inputs;
      let a0 = bias[o], a1 = a0, a2 = a0, a3 = a0, b0 = bias[o + 1], b1 = b0, b2 = b0, b3 = b0;
      for (let i = 0; i < inputs; i++) {
        const u = weight[w0 + i], v = weight[w1 + i];
        const y0 = x[x0 + i], y1 = x[x1 + i], y2 = x[x2 + i], y3 = x[x3 + i];
        a0 += u * y0; a1 += u * y1; a2 += u * y2; a3 += u * y3;
        b0 += v * y0; b1 += v * y1; b2 += v * y2; b3 += v * y3;
      }
      const at = r * outputs + o;
      out[at] = a0; out[at + outputs] = a1; out[at + 2 * outputs] = a2; out[at + 3 * outputs] = a3;
      out[at + 1] = b0; out[at + outputs + 1] = b1; out[at + 2 * outputs + 1] = b2; out[at + 3 * outputs + 1] = b3;
    }
    for (; o < outputs; o++) {
      for (let k = r; k < r + 4; k++) out[k * outputs + o] = dot(x, k * inputs, weight, o * inputs, inputs) + bias[o];
    }
  }
  for (; r < rows; r++) {
    for (let o = 0; o < outputs; o++) {
      out[r * outputs + o] = dot(x, r * inputs, weight, o * inputs, inputs) + bias[o];
    }
  }
}

function dot(a, from, b, start, length) {
  let sum = 0;
  for (let i = 0; i < length; i++) sum += a[from + i] * b[start + i];
  return sum;
}

/** LayerNorm of each row. */
function layerNorm(out, x, rows, width, weight, bias) {
  for (let r = 0; r < rows; r++) {
    const at = r * width;
    let mean = 0, square = 0;
    for (let i = 0; i < width; i++) mean += x[at + i];
    mean /= width;
    for (let i = 0; i < width; i++) square += (x[at + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(square / width + 1e-5);
    for (let i = 0; i < width; i++) out[at + i] = (x[at + i] - mean) * scale * weight[i] + bias[i];
  }
}

/** GPT-2's GELU, in place. */
function gelu(x, count) {
  const c = Math.sqrt(2 / Math.PI);
  for (let i = 0; i < count; i++) x[i] = 0.5 * x[i] * (1 + Math.tanh(c * (x[i] + 0.044715 * x[i] ** 3)));
}

/** The looped decoder of looped/models/decoder.py. */
class Decoder {
  constructor(data) {
    Object.assign(this, data.config);
    this.headWidth = this.width / this.heads;
    this.tensors = unpackTensors(data.weights);
    this.buffers = {};
  }

  /** What every loop reads of tokens: rows of (x, 0, ...) and (y, 0, ...), each at its position. */
  embed(values, positions) {
    const { "read_in.weight": weight, "read_in.bias": bias, positions: learned } = this.tensors;
    const added = this.inject === "add" || !this.inside, width = this.width;
    const tokens = new Float64Array(values.length * width);
    values.forEach((value, row) => {
      for (let i = 0; i < width; i++) {
        const position = added ? learned[positions[row] * width + i] : 0;
        tokens[row * width + i] = value * weight[i * this.d] + bias[i] + position;
      }
    });
    return tokens;
  }

  /** The state before the first loop. */
  start(tokens) {
    if (this.inject === "none") return tokens.slice();
    return new Float64Array(tokens.length).fill(this.inject === "add" ? 0 : 1);
  }

  /** One loop over some rows; `attend(layer, qkv, mixed)` fills `mixed` with what each row reads. */
  step(state, tokens, positions, attend) {
    const { width, tensors } = this, rows = positions.length;
    const [normal, qkv, mixed, added, hidden] = this.scratch(rows);
    const stream = new Float64Array(rows * width);
    for (let i = 0; i < rows * width; i++) {
      if (this.inject === "add") stream[i] = state[i] + tokens[i];
      else stream[i] = this.inject === "multiply" ? state[i] * tokens[i] : state[i];
    }
    if (this.inject !== "add" && this.inside) {
      const learned = tensors.positions;
      for (let i = 0; i < rows * width; i++) stream[i] += learned[positions[(i / width) | 0] * width + (i % width)];
    }
    for (let layer = 0; layer < this.layers; layer++) {
      const weights = (name) => [tensors[`blocks.${layer}.${name}.weight`], tensors[`blocks.${layer}.${name}.bias`]];
      layerNorm(normal, stream, rows, width, ...weights("norm_1"));
      affine(qkv, normal, rows, ...weights("attention.qkv"), width, 3 * width);
      attend(layer, qkv, mixed);
      affine(added, mixed, rows, ...weights("attention.proj"), width, width);
      for (let i = 0; i < rows * width; i++) stream[i] += added[i];
      layerNorm(normal, stream, rows, width, ...weights("norm_2"));
      affine(hidden, normal, rows, ...weights("mlp.fc"), width, 4 * width);
      gelu(hidden, rows * 4 * width);
      affine(added, hidden, rows, ...weights("mlp.proj"), 4 * width, width);
      for (let i = 0; i < rows * width; i++) stream[i] += added[i];
    }
    if (this.inside) layerNorm(stream, stream, rows, width, tensors["norm.weight"], tensors["norm.bias"]);
    return stream;
  }

  /** The answer at each row of a state. */
  readout(state, rows) {
    const { width, tensors } = this, answers = new Float64Array(rows);
    let read = state;
    if (!this.inside) {
      read = new Float64Array(rows * width);
      layerNorm(read, state, rows, width, tensors["norm.weight"], tensors["norm.bias"]);
    }
    affine(answers, read, rows, tensors["read_out.weight"], tensors["read_out.bias"], width, 1);
    return answers;
  }

  /**
   * Softmax attention of row `row` of `qkv`: to the first `count` rows of `keys`, and to itself where `itself`.
   * Adds what it reads to row `row` of `mixed`; `shares`, where given, gets the weights, `count + itself` a head.
   */
  read(qkv, row, keys, values, count, itself, mixed, shares) {
    const { width, heads, headWidth } = this, own = row * 3 * width, total = count + itself;
    const scores = new Float64Array(total), scale = 1 / Math.sqrt(headWidth);
    for (let head = 0; head < heads; head++) {
      const lane = head * headWidth;
      let largest = -Infinity, sum = 0;
      for (let k = 0; k < total; k++) {
        const key = k < count ? dot(qkv, own + lane, keys, k * width + lane, headWidth)
          : dot(qkv, own + lane, qkv, own + width + lane, headWidth);
        scores[k] = key * scale;
        if (scores[k] > largest) largest = scores[k];
      }
      for (let k = 0; k < total; k++) sum += scores[k] = Math.exp(scores[k] - largest);
      for (let i = 0; i < headWidth; i++) {
        let value = 0;
        for (let k = 0; k < count; k++) value += scores[k] * values[k * width + lane + i];
        if (itself) value += scores[count] * qkv[own + 2 * width + lane + i];
        mixed[row * width + lane + i] = value / sum;
      }
      if (shares) for (let k = 0; k < total; k++) shares[head * total + k] = scores[k] / sum;
    }
  }

  scratch(rows) {
    const sizes = [1, 3, 1, 1, 4];
    if (!(this.buffers.rows >= rows)) {
      this.buffers = { rows, arrays: sizes.map((size) => new Float64Array(rows * size * this.width)) };
    }
    return this.buffers.arrays;
  }
}

/** The points' side of the loops. Attention is causal, so a change of point i leaves all rows before 2i as they are. */
class Examples {
  constructor(model) {
    Object.assign(this, { model, values: [], tokens: new Float64Array(0), loops: [] });
  }

  /** Take these points; returns whether any differs from those before. */
  set(points) {
    const values = points.flatMap(({ x, y }) => [x, y]);
    let same = 0;
    while (same < values.length && values[same] === this.values[same]) same++;
    if (same === values.length && same === this.values.length) return false;
    this.values = values;
    this.positions = values.map((_, row) => row);
    this.tokens = this.model.embed(values, this.positions);
    for (const loop of this.loops) loop.done = Math.min(loop.done, same);
    return true;
  }

  /** States, keys and values of all points after loop `t`, from 1; only rows that have changed are computed. */
  at(t) {
    const { model, values } = this, { width, layers } = model, rows = values.length;
    const size = model.positions * width;
    while (this.loops.length < t) {
      const keys = Array.from({ length: layers }, () => new Float64Array(size));
      this.loops.push({ done: 0, state: new Float64Array(size), keys, values: keys.map((array) => array.slice()) });
    }
    const loop = this.loops[t - 1], from = loop.done;
    if (from >= rows) return loop;
    const part = (array) => array.subarray(from * width, rows * width), tokens = part(this.tokens);
    const state = t === 1 ? model.start(tokens) : part(this.at(t - 1).state);
    const next = model.step(state, tokens, this.positions.slice(from), (layer, qkv, mixed) => {
      for (let row = from; row < rows; row++) {
        const at = (row - from) * 3 * width;
        loop.keys[layer].set(qkv.subarray(at + width, at + 2 * width), row * width);
        loop.values[layer].set(qkv.subarray(at + 2 * width, at + 3 * width), row * width);
        model.read(qkv, row - from, loop.keys[layer], loop.values[layer], row + 1, 0, mixed, null);
      }
    });
    loop.state.set(next, from * width);
    loop.done = rows;
    return loop;
  }

  /** What the model answers at each point's x from the points before it, after loop `t`. */
  guesses(t) {
    const answers = this.model.readout(this.at(t).state, this.values.length);
    return answers.filter((_, row) => row % 2 === 0);
  }
}

/** Many queries after the same points: each reads the points and itself, at the position that comes next. */
class Queries {
  constructor(model, examples, xs) {
    Object.assign(this, { model, examples, t: 0, curves: [], moves: [], shares: [] });
    this.positions = xs.map(() => examples.values.length);
    this.tokens = model.embed(xs, this.positions);
    this.state = model.start(this.tokens);
  }

  /** One loop more: keeps the answers, how far each state moved relative to its size, and the last query's attention. */
  advance() {
    const { model, examples, positions } = this, { width, heads, layers } = model;
    const count = examples.values.length, rows = positions.length;
    const loop = examples.at(++this.t), shares = new Float64Array(heads * (count + 1));
    const next = model.step(this.state, this.tokens, positions, (layer, qkv, mixed) => {
      for (let row = 0; row < rows; row++) {
        const probe = row === rows - 1 && layer === layers - 1 ? shares : null;
        model.read(qkv, row, loop.keys[layer], loop.values[layer], count, 1, mixed, probe);
      }
    });
    const moves = new Float64Array(rows);
    for (let row = 0; row < rows; row++) {
      let moved = 0, size = 0;
      for (let i = row * width; i < (row + 1) * width; i++) {
        moved += (next[i] - this.state[i]) ** 2;
        size += next[i] ** 2;
      }
      moves[row] = Math.sqrt(moved / (size || 1));
    }
    this.state = next;
    this.curves.push(model.readout(next, rows));
    this.moves.push(moves);
    this.shares.push(shares);
  }
}
