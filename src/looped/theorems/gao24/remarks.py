"""gao24's sentences without a theorem: one looped layer (2.2), ridge (3.1), how fast the algorithms are (4.1, 5.4)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from looped.constructions.compiler import Limits
from looped.constructions.gao24 import cases, remarks
from looped.constructions.gao24.cases import Array
from looped.models.algoformer import given
from looped.theorems.check import EXACT, Finding, relative_difference, theorem
from looped.theorems.gao24.limit import in_the_limit, no_larger

FUSED_SIZES = [(3, 6, 10, 7, 1), (4, 8, 16, 12, 5), (5, 12, 24, 20, 8)]
"""d, width, hidden units, tokens and loops of the random AlgoFormers."""
RIDGE_SIZES = [((3, 4), 1, 10), ((5, 9, 6), 3, 20), ((8, 12, 10, 6), 1, 40)]
NEAR = 1e-3
"""Iterations are counted until the weights are so near their limit, relative to it."""


@theorem("gao24.sec2.2", "An AlgoFormer of one-layer, one-head parts is a looped transformer of one layer, four heads.")
def section_22() -> Iterator[Finding]:
    """Random weights, full softmax attention, ReLU; compared at every token."""
    errors, shapes, heads = [], [], []
    for seed, (d, width, hidden, seq, loops) in enumerate(FUSED_SIZES):
        model = remarks.random_algoformer(d=d, width=width, hidden=hidden, seq=seq, loops=loops, seed=seed)
        fused = remarks.fuse(model)
        source = torch.Generator().manual_seed(seed)
        prompt = given(torch.randn(4, seq, d, generator=source, dtype=torch.float64))
        errors.append(relative_difference(fused.predict(prompt).numpy(), model.predict(prompt).numpy()))
        shapes.append(f"T = {loops}: {fused.num_parameters} parameters for {model.num_parameters}")
        heads.append(fused.config.loop.heads * fused.config.loop.layers)
    instance = f"3 random AlgoFormers, 4 prompts each, T + 2 loops; {'; '.join(shapes)}"
    remark = (
        "The MLP counts the loops and selects the part, so that three heads are enough. All four run in every loop."
    )
    yield Finding(max(errors), EXACT, instance, tolerance=True).stated("as stated", remark=remark)
    finding = Finding(float(max(heads)), 4.0, "heads times layers of the looped transformer")
    yield finding.stated("as stated", "It has one layer and four heads.")


@theorem(
    "gao24.sec3.1", "The loop of Theorem 3.1 can also run ridge regression: A <- (1 - eta lambda) A - eta gradient."
)
def section_31() -> Iterator[Finding]:
    """The same sizes as Theorem 3.1's; then many loops against ridge's solution."""
    tasks = [remarks.ridge_case(*size, penalty=0.1, seed=seed)[0] for seed, size in enumerate(RIDGE_SIZES)]
    yield from in_the_limit(tasks, 1e-5, "lambda = 0.1", slopes=False)
    case, solution = remarks.ridge_case(*RIDGE_SIZES[1], penalty=0.1, seed=5, steps=200)
    error = replace(case, expected=np.stack([solution] * case.loops)).error(Limits(temperature=1e-3))
    finding = Finding(error, 1e-5, "d = 5, 6 features, N = 20, lambda = 0.1, 200 loops, c = 1e-3", tolerance=True)
    yield finding.stated("as stated", "After many loops it is ridge's solution (F'F/N + lambda)^-1 F'y/N.")
    yield no_larger(tasks, [(len(phi), 2) for phi, _, _ in RIDGE_SIZES], (1, 2), (1, 1))


@theorem("gao24.sec5.4", "Newton's method converges superlinearly, gradient descent linearly.")
def section_54() -> Iterator[Finding]:
    """N = 40, d = 20, as in Figure 5; then what noise in the labels does to the speed."""
    draws = np.random.default_rng(0)
    xs, truth, noise = (draws.normal(size=(cases.BATCH, *shape)) for shape in ((40, 20), (20, 1), (40, 1)))
    s, rate = xs.swapaxes(1, 2) @ xs, cases.safe_rate(xs) / 40
    eigenvalues, vectors = np.linalg.eigh(s)
    inverses = cases.newton(s, rate**2 * s, steps=20)
    yield _speeds(xs, inverses, 1 - rate * eigenvalues)
    steps = {"gradient descent": np.arange(1.0, 1001.0), "Newton's method": 2.0 ** np.arange(1, 21)}
    shares = {"gradient descent": rate * eigenvalues, "Newton's method": (rate * eigenvalues) ** 2}
    iterations, differences = {}, []
    for sigma in (0.0, 0.1, 1.0):
        ys = xs @ truth + sigma * noise
        limit = np.linalg.solve(s, xs.swapaxes(1, 2) @ ys)
        descent = cases.descend(xs, ys, eta=40 * rate, steps=1000).swapaxes(2, 3)
        for name, weights in (("gradient descent", descent), ("Newton's method", inverses @ (xs.swapaxes(1, 2) @ ys))):
            distance = np.linalg.norm(weights - limit, axis=(2, 3)) / np.linalg.norm(limit, axis=(1, 2))
            iterations[name, sigma] = (distance > NEAR).sum(0) + 1.0
            left = (1 - shares[name]) ** steps[name][:, None, None]
            expected = limit - vectors @ (left[..., None] * (vectors.swapaxes(1, 2) @ limit))
            differences.append(relative_difference(weights, expected))
    slower = min(float((iterations[name, 1.0] / iterations[name, 0.0]).mean()) for name in steps)
    counts = "; ".join(
        f"{name} {iterations[name, 0.0].mean():g} and {iterations[name, 1.0].mean():g}" for name in steps
    )
    instance = f"N = 40, d = 20; iterations to within {NEAR:g} of the limit without noise and at sigma = 1: {counts}"
    statement = "With noise 1 both algorithms converge slowly: 1.1 times the iterations or more."
    yield Finding(slower, 1.1, instance, at_least=True).stated("as printed", statement)
    finding = Finding(max(differences), EXACT, "N = 40, d = 20, sigma = 0, 0.1, 1, by eigenvalues of S", tolerance=True)
    statement = "w - w_k = (I - S/|S|)^k w, or (I - (S/|S|)^2)^(2^k) w: noise moves the limit w, not the speed."
    yield finding.stated("as corrected", statement)


def _speeds(xs: Array, inverses: Array, left: Array) -> Finding:
    """How far Newton's method is from squaring |I - M S|, and gradient descent from multiplying it by its factor."""
    identity = np.eye(xs.shape[-1])
    errors = np.linalg.norm(identity - inverses @ (xs.swapaxes(1, 2) @ xs), 2, axis=(2, 3))
    seen = errors[1:] > 1e-4  # smaller ones have the rounding of M S in their fifth digit
    squared = np.abs(errors[1:] / errors[:-1] ** 2 - 1)[seen].max()
    descent = cases.descend(xs, xs, eta=cases.safe_rate(xs), steps=50)
    errors = np.linalg.norm(identity - descent, 2, axis=(2, 3))
    linear = np.abs(errors[1:] / errors[:-1] / left.max(-1) - 1).max()
    instance = f"deviation of e_(k+1) from e_k^2, and from (1 - 1/kappa) e_k; {seen.sum()} and {errors.size} steps"
    return Finding(float(max(squared, linear)), 1e-6, instance, tolerance=True)
