"use strict";

/** Seeded numbers: uniform on [0, 1), and normal. */
class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }

  uniform(low = 0, high = 1) {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let z = this.state;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return low + (high - low) * (((z ^ (z >>> 14)) >>> 0) / 4294967296);
  }

  normal() {
    return Math.sqrt(-2 * Math.log(1 - this.uniform())) * Math.cos(2 * Math.PI * this.uniform());
  }

  list(count, draw = () => this.normal()) {
    return Array.from({ length: count }, draw);
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;

/** Random functions of one x, by kind: those of looped/tasks/mixture.py, a little tamer, so that all of them show. */
const KINDS = {
  line(random) {
    const slope = random.uniform(0.4, 1.1) * (random.uniform() < 0.5 ? -1 : 1), height = random.uniform(-0.7, 0.7);
    return (x) => height + slope * x;
  },
  proportional(random) {
    const slope = random.uniform(0.5, 1.5) * (random.uniform() < 0.5 ? -1 : 1);
    return (x) => slope * x;
  },
  kinks(random) {
    const units = random.list(5, () => [random.normal(), random.normal(), random.normal() / Math.sqrt(5)]);
    return (x) => sum(units.map(([w, c, v]) => v * Math.max(0, w * x + c)));
  },
  stairs(random) {
    const heights = random.list(3, () => random.uniform(-1.6, 1.6));
    const edges = [random.uniform(-1.1, -0.3), random.uniform(0.3, 1.1)];
    return (x) => heights[edges.filter((edge) => x > edge).length];
  },
  wave(random) {
    const frequency = random.uniform(1.6, 3), phase = random.uniform(0, 2 * Math.PI), size = random.uniform(0.9, 1.5);
    return (x) => size * Math.cos(frequency * x + phase);
  },
  smooth(random) {
    const frequency = random.uniform(0.7, 1.6);
    const units = random.list(24, () => [frequency * random.normal(), random.uniform(0, 2 * Math.PI), random.normal()]);
    return (x) => sum(units.map(([w, c, v]) => v * Math.cos(w * x + c))) / Math.sqrt(12);
  },
};

/** The lower triangle L of a positive definite matrix, L L' = matrix; both are arrays of rows. */
function cholesky(matrix) {
  const lower = matrix.map((row) => row.map(() => 0));
  for (let i = 0; i < matrix.length; i++) {
    for (let j = 0; j <= i; j++) {
      let rest = matrix[i][j];
      for (let k = 0; k < j; k++) rest -= lower[i][k] * lower[j][k];
      lower[i][j] = i === j ? Math.sqrt(rest) : rest / lower[j][j];
    }
  }
  return lower;
}

/** The solution z of L z = b, and w of L' w = z. */
function forward(lower, b) {
  const z = [];
  lower.forEach((row, i) => z.push((b[i] - sum(z.map((value, k) => row[k] * value))) / row[i]));
  return z;
}
function backward(lower, z) {
  const w = z.slice();
  for (let i = w.length - 1; i >= 0; i--) {
    for (let k = i + 1; k < w.length; k++) w[i] -= lower[k][i] * w[k];
    w[i] /= lower[i][i];
  }
  return w;
}

/** Ridge regression on the powers of x up to a degree: the w that minimises sum (y - phi'w)^2 + penalty |w|^2. */
function polynomial(points, xs, { degree, penalty, intercept = true }) {
  const powers = (x) => Array.from({ length: degree + 1 }, (_, k) => (x / 1.75) ** k).slice(intercept ? 0 : 1);
  const rows = points.map(({ x }) => powers(x)), count = powers(0).length;
  const entry = (i, j) => sum(rows.map((row) => row[i] * row[j])) + (i === j ? penalty : 0);
  const gram = Array.from({ length: count }, (_, i) => Array.from({ length: count }, (_, j) => entry(i, j)));
  const moments = Array.from({ length: count }, (_, i) => sum(rows.map((row, k) => row[i] * points[k].y)));
  const lower = cholesky(gram), w = backward(lower, forward(lower, moments));
  return xs.map((x) => sum(powers(x).map((value, k) => value * w[k])));
}

const LENGTHS = [0.25, 0.5, 0.8, 1.3, 2.2], NOISES = [0.03, 0.1, 0.25, 0.5];

/** The mean of a Gaussian process with the RBF length and the noise that make these points likeliest. */
function gaussianProcess(points, xs) {
  const ys = points.map(({ y }) => y);
  let best = null;
  for (const length of LENGTHS) {
    const kernel = (u, v) => 1 + Math.exp(-((u - v) ** 2) / (2 * length ** 2));
    for (const noise of NOISES) {
      const gram = points.map((p, i) => points.map((q, j) => kernel(p.x, q.x) + (i === j ? noise ** 2 : 0)));
      const lower = cholesky(gram), z = forward(lower, ys);
      const likelihood = -sum(z.map((value) => value ** 2)) / 2 - sum(lower.map((row, i) => Math.log(row[i])));
      if (!best || likelihood > best.likelihood) best = { likelihood, kernel, w: backward(lower, z) };
    }
  }
  return xs.map((x) => sum(points.map((p, i) => best.w[i] * best.kernel(p.x, x))));
}

/** What a person would use instead: (points, xs) -> answers; without points all answer 0. */
const RIVALS = {
  "least squares": (points, xs) => polynomial(points, xs, { degree: 1, penalty: 1e-9 }),
  "ridge, degree 5": (points, xs) => polynomial(points, xs, { degree: 5, penalty: 0.1 }),
  "Gaussian process": gaussianProcess,
};
