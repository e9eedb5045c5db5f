"""gao24's programs with random prompts, and the answers of their algorithms after every loop in plain NumPy.

The theorem checks and `looped construct` run these same cases. Each is named after its result, takes its sizes and the
number of loops `steps`, and chooses a step size that is safe for its prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from looped.constructions.compiler import Limits, construct
from looped.constructions.gao24 import gradient, newton_regression, prefix_descent, sequence
from looped.constructions.gao24.gradient import Dense
from looped.constructions.interpreter import interpret
from looped.constructions.language import Program
from looped.models.algoformer import AlgoFormer, given, pairs

Array = np.ndarray
BATCH = 2
"""Prompts in each case."""
SLOPE = 0.25
"""The slope of the leaky ReLU in chains of thought, below 0."""


@dataclass(frozen=True)
class Case:
    """A prompt for a program, and the answers of the algorithm that the program runs."""

    program: Program
    tokens: Float[Array, "batch seq token"]
    expected: Float[Array, "loops batch compared outputs"]
    """The algorithm's answers after every loop."""
    compared: slice = field(default_factory=lambda: slice(None))
    """The positions of the program's answers that are compared."""

    @property
    def loops(self) -> int:
        """How many loops the algorithm was run for."""
        return len(self.expected)

    def model(self, limits: Limits | None = None) -> AlgoFormer:
        """The compiled weights."""
        return construct(self.program, limits=limits, loops=self.loops)

    def answers(self, limits: Limits, *, loops: int | None = None) -> Float[Array, "batch compared outputs"]:
        """The answers of the compiled weights after `loops` loops; by default all."""
        out = self.model(limits).predict(given(torch.from_numpy(self.tokens)), loops=loops).numpy()
        return (out[..., None] if out.ndim == 2 else out)[:, self.compared]

    def error(self, limits: Limits) -> float:
        """The largest difference from the algorithm's last answers, relative to the largest of them."""
        return _relative(self.answers(limits), self.expected[-1])

    def interpreter_error(self) -> float:
        """The same error of the program itself, run exactly: no softmax, no weights."""
        answers = interpret(self.program, self.tokens, loops=self.loops)[:, self.compared]
        return _relative(answers, self.expected[-1])


def descend(
    features: Float[Array, "batch n p"], labels: Float[Array, "batch n m"], *, eta: float, steps: int, start: Any = 0.0
) -> Float[Array, "steps batch m p"]:
    """A <- A - eta / n sum_j (A f_j - y_j) f_j', after every step."""
    n = features.shape[1]
    a = np.zeros((len(features), labels.shape[-1], features.shape[-1])) + start
    iterates = []
    for _ in range(steps):
        a = a - eta / n * (features @ a.swapaxes(1, 2) - labels).swapaxes(1, 2) @ features
        iterates.append(a)
    return np.stack(iterates)


def safe_rate(features: Float[Array, "batch n p"]) -> float:
    """A step size that is safe for every prompt: 1 / the largest eigenvalue of F'F / n."""
    return float(1.0 / np.linalg.norm(features.swapaxes(1, 2) @ features / features.shape[1], 2, axis=(1, 2)).max())


def random_phi(sizes: Sequence[int], draws: np.random.Generator) -> list[Dense]:
    """A leaky-ReLU network with biases; its weights have variance 1/fan-in."""
    shapes = zip(sizes[1:], sizes, strict=False)
    return [Dense(draws.normal(size=(o, i)) / i**0.5, 0.3 * draws.normal(size=o)) for o, i in shapes]


def inputs(kappa: float, shape: tuple[int, int], draws: np.random.Generator) -> Float[Array, "batch n d"]:
    """Examples whose S = X'X has eigenvalues from 1 down to 1/kappa, evenly on a log scale, in random directions."""
    n, d = shape
    u, _, v = np.linalg.svd(draws.normal(size=(BATCH, n, d)), full_matrices=False)
    return u * np.geomspace(1.0, kappa**-0.5, d) @ v


def newton(
    s: Float[Array, "batch d d"], start: Float[Array, "batch d d"], *, steps: int
) -> Float[Array, "steps batch d d"]:
    """M <- 2 M - M S M, after every step."""
    m, iterates = start, []
    for _ in range(steps):
        m = 2 * m - m @ s @ m
        iterates.append(m)
    return np.stack(iterates)


def decoder_weights(
    xs: Float[Array, "batch n d"], ys: Float[Array, "batch n"], w: Float[Array, "batch n d"], *, eta: float, steps: int
) -> Float[Array, "steps batch n d"]:
    """w^i <- w^i - eta / (i-1) sum over j < i of (<w^i, x_j> - y_j) x_j, after every step; w^1 never changes."""
    before = np.tril(np.ones((xs.shape[1], xs.shape[1])), -1)
    share = eta / np.maximum(before.sum(-1), 1.0)[:, None]
    iterates = []
    for _ in range(steps):
        residual = (w @ xs.swapaxes(1, 2) - ys[:, None, :]) * before
        w = w - share * (residual @ xs)
        iterates.append(w)
    return np.stack(iterates)


def prefix_rate(xs: Float[Array, "batch n d"]) -> float:
    """A step size that is safe for every prefix of every prompt."""
    return min(safe_rate(xs[:, :i]) for i in range(1, xs.shape[1]))


def lemma_a2(d: int, outputs: int, n: int, *, seed: int = 0, steps: int = 20) -> Case:
    """Multivariate regression from a random A_0."""
    draws = np.random.default_rng(seed)
    xs, ys = draws.normal(size=(BATCH, n, d)), draws.normal(size=(BATCH, n, outputs))
    query, start = draws.normal(size=(BATCH, d)), draws.normal(size=(outputs, d))
    eta = safe_rate(xs)
    a = descend(xs, ys, eta=eta, steps=steps, start=start).swapaxes(2, 3)
    expected = np.concatenate([xs @ a - ys, query[:, None] @ a], axis=2)
    program = gradient.lemma_a2(d=d, outputs=outputs, num_examples=n, eta=eta)
    return Case(program, gradient.lemma_a2_tokens(xs, ys, query, start), expected, slice(0, None, 2))


def lemma_a3(d: int, copies: int, seq: int, *, seed: int = 0, steps: int = 1) -> Case:
    """Random sequences; x_t = 0 before the start. Every further loop adds the copies again."""
    xs = np.random.default_rng(seed).normal(size=(BATCH, seq, d))
    padded = np.concatenate([np.zeros((BATCH, copies, d)), xs], axis=1)
    copied = np.concatenate([padded[:, copies - i : copies - i + seq] for i in range(1, copies + 1)], axis=-1)
    expected = copied * np.arange(1.0, steps + 1)[:, None, None, None]
    return Case(sequence.lemma_a3(d=d, copies=copies, seq=seq), xs, expected)


def lemma_a4(d: int, n: int, *, kappa: float, seed: int = 0, steps: int = 15) -> Case:
    """Newton's method from M_0 = S, for inputs of condition number `kappa`."""
    xs = inputs(kappa, (n, d), np.random.default_rng(seed))
    s = xs.swapaxes(1, 2) @ xs
    tokens = newton_regression.lemma_a4_tokens(xs, s)
    program = newton_regression.lemma_a4(d=d, num_examples=n)
    return Case(program, tokens, xs @ newton(s, s, steps=steps), slice(0, -2, 2))


def lemma_a5(d: int, n: int, *, seed: int = 0, steps: int = 20) -> Case:
    """Linear regression at every prefix, from random w^i."""
    draws = np.random.default_rng(seed)
    xs, ys = draws.normal(size=(BATCH, n, d)), draws.normal(size=(BATCH, n))
    start = draws.normal(size=(BATCH, n, d))
    eta = prefix_rate(xs)
    expected = decoder_weights(xs, ys, start, eta=eta, steps=steps)
    program = prefix_descent.lemma_a5(d=d, num_pairs=n, eta=eta)
    return Case(program, prefix_descent.lemma_a5_tokens(xs, ys, start), expected, slice(0, None, 2))


def theorem_31(sizes: Sequence[int], outputs: int, n: int, *, seed: int = 0, steps: int = 20) -> Case:
    """Regression with a representation whose layers have these `sizes`, the first that of x."""
    draws = np.random.default_rng(seed)
    phi = random_phi(sizes, draws)
    xs = draws.normal(size=(BATCH, n + 1, sizes[0]))
    features = gradient.represent(phi, xs)
    ys = features @ draws.normal(size=(BATCH, sizes[-1], outputs)) + 0.1 * draws.normal(size=(BATCH, n + 1, outputs))
    eta = safe_rate(features[:, :-1])
    a = descend(features[:, :-1], ys[:, :-1], eta=eta, steps=steps)
    program = gradient.theorem_31(phi, outputs=outputs, num_examples=n, eta=eta)
    return Case(program, _tokens(xs, ys), features[:, -1:] @ a.swapaxes(2, 3))


def theorem_32(d: int, order: int, sizes: Sequence[int], n: int, *, seed: int = 0, steps: int = 20) -> Case:
    """AR(q) with a representation whose layers have these `sizes`; the sequence follows its own dynamics."""
    draws = np.random.default_rng(seed)
    phi = random_phi((order * d, *sizes), draws)
    a = draws.normal(size=(BATCH, d, sizes[-1])) / sizes[-1] ** 0.5
    xs = np.zeros((BATCH, order + n, d))  # the first `order` - 1 stay 0: they lie before the start
    xs[:, order - 1] = draws.normal(size=(BATCH, d))
    for t in range(order, order + n):
        window = xs[:, t - order : t].reshape(BATCH, -1)
        xs[:, t] = np.einsum("bmp,bp->bm", a, gradient.represent(phi, window)) + draws.normal(size=(BATCH, d))
    windows = np.concatenate([xs[:, i : i + n + 1] for i in range(order)], axis=-1)
    features, tokens = gradient.represent(phi, windows), xs[:, order - 1 :]
    eta = safe_rate(features[:, :-1])
    fitted = descend(features[:, :-1], tokens[:, 1:], eta=eta, steps=steps)
    program = sequence.theorem_32(phi, d=d, order=order, num_examples=n, eta=eta)
    return Case(program, tokens, features[:, -1:] @ fitted.swapaxes(2, 3))


def chains(d: int, length: int, n: int, draws: np.random.Generator) -> Float[Array, "batch chain step d"]:
    """n + 1 chains x, s^1, .., s^L of a leaky-ReLU network, a different one for each prompt."""
    states = [draws.normal(size=(BATCH, n + 1, d))]
    for _ in range(length):
        v = states[-1] @ (draws.normal(size=(BATCH, d, d)) * (2 / d) ** 0.5)
        states.append(np.where(v > 0, v, SLOPE * v))
    return np.stack(states, axis=2)


def theorem_33(d: int, length: int, n: int, *, place: int, seed: int = 0, steps: int = 20) -> Case:
    """Chains of thought, asked for the state after `place`; the same weights answer at every place in the chain."""
    states = chains(d, length, n, np.random.default_rng(seed))
    eta = min(safe_rate(states[:, :-1, step]) for step in range(length))
    program = sequence.theorem_33(d=d, steps=length, num_examples=n, eta=eta, slope=SLOPE)
    now, after = states[:, :, place], states[:, :-1, place + 1]
    w = descend(now[:, :-1], np.where(after > 0, after, after / SLOPE), eta=eta, steps=steps)
    v = now[:, -1:] @ w.swapaxes(2, 3)
    tokens = states.reshape(BATCH, -1, d)[:, : n * (length + 1) + place + 1]
    return Case(program, tokens, np.where(v > 0, v, SLOPE * v))


def theorem_41(d: int, n: int, *, kappa: float, seed: int = 0, steps: int = 15) -> Case:
    """Linear regression with noise by Newton's method, for inputs of condition number `kappa`."""
    draws = np.random.default_rng(seed)
    xs, query = inputs(kappa, (n, d), draws), draws.normal(size=(BATCH, 1, d))
    ys = xs @ draws.normal(size=(BATCH, d, 1)) + 0.1 * draws.normal(size=(BATCH, n, 1))
    s = xs.swapaxes(1, 2) @ xs
    expected = query @ newton(s, s, steps=steps) @ xs.swapaxes(1, 2) @ ys
    hidden = np.full((BATCH, 1, 1), 7.0)  # a label that must not be read
    tokens = _tokens(np.concatenate([xs, query], 1), np.concatenate([ys, hidden], 1))
    return Case(newton_regression.theorem_41(d=d, num_examples=n, alpha=1.0), tokens, expected)


def theorem_42(d: int, n: int, *, seed: int = 0, steps: int = 20) -> Case:
    """Linear regression with noise, a prediction at every x."""
    draws = np.random.default_rng(seed)
    xs = draws.normal(size=(BATCH, n, d))
    ys = (xs @ draws.normal(size=(BATCH, d, 1)))[..., 0] + 0.1 * draws.normal(size=(BATCH, n))
    eta = prefix_rate(xs)
    w = decoder_weights(xs, ys, np.zeros_like(xs), eta=eta, steps=steps)
    program = prefix_descent.theorem_42(d=d, num_pairs=n, eta=eta)
    return Case(program, _tokens(xs, ys[..., None]), (w * xs).sum(-1, keepdims=True))


def _tokens(xs: Float[Array, "batch n d"], ys: Float[Array, "batch n m"]) -> Float[Array, "batch seq token"]:
    """x and y tokens in turn."""
    return pairs(torch.from_numpy(xs), torch.from_numpy(ys)).numpy()


def _relative(answers: Array, expected: Array) -> float:
    """max |answers - expected| / max |expected|."""
    return float(np.abs(answers - expected).max() / np.abs(expected).max())
