"""gao24, Lemmas A.1 to A.5: positions, and what a single layer can do."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import softmax

from looped.constructions.compiler import Limits
from looped.constructions.gao24 import cases
from looped.constructions.gao24.cases import Array
from looped.constructions.position_vectors import quasi_orthogonal, rotations, smallest_gap
from looped.theorems.check import EXACT, Finding, Form, bound_plot, bounded, relative_difference, theorem
from looped.theorems.gao24.limit import (
    NEWTON_SIZES,
    PREFIX_SIZES,
    TEMPERATURES,
    describe,
    in_the_limit,
    temperature_plot,
)


@theorem("gao24.lemA.1", "N vectors with <p_i, p_i> > <p_i, p_j> + eps for all i, j exist in O(log N) dimensions.")
def lemma_a1() -> Iterator[Finding]:
    """Random signs and rotations; rotations also have a linear shift."""
    counts = [16, 64, 256, 1024]
    signs, turns = [quasi_orthogonal(n) for n in counts], [rotations(n) for n in counts]
    gaps = [min(smallest_gap(p), smallest_gap(r.table(range(n)))) for n, p, r in zip(counts, signs, turns, strict=True)]
    sizes = f"random signs and rotations of unit length, N = {', '.join(map(str, counts))}"
    plot = bound_plot("N", counts, "least gap", gaps, 0.5, log_x=True, log_y=False)
    remark = "Vectors are drawn until they have this gap, so the next row decides: how many dimensions that took."
    finding = Finding(min(gaps), 0.5 - 1e-12, f"least gap; {sizes}", plot, at_least=True)
    yield finding.stated("as stated", remark=remark)
    dims = {"random signs": [p.shape[1] for p in signs], "rotations": [r.dim for r in turns]}
    most, bound = [max(both) for both in zip(*dims.values(), strict=True)], [16 * math.log(n) for n in counts]
    plot = bound_plot("N", counts, "dimensions", most, bound, dims, log_x=True, log_y=False)
    ratio = max(d / b for d, b in zip(most, bound, strict=True))
    yield Finding(16 * ratio, 16.0, f"dimensions / ln N at eps = 1/2; {sizes}", plot)
    error = np.abs(turns[-1].shift(-3) @ turns[-1].table(range(3, 1024)).T - turns[-1].table(range(1021)).T).max()
    finding = Finding(float(error), 1e-12, "i = 3, N = 1024", tolerance=True)
    yield finding.stated("as stated", "Rotations have a shift p_t -> p_{t-i} that is a matrix.")


@theorem("gao24.lemA.2", "A layer of two heads takes one gradient step: A <- A - eta/N sum_j (A x_j - y_j) x_j'.")
def lemma_a2() -> Iterator[Finding]:
    """Twenty steps, compared at all examples and at the query."""
    sizes = [(3, 1, 8), (5, 3, 20), (20, 2, 40)]
    yield from in_the_limit([cases.lemma_a2(*size, seed=seed) for seed, size in enumerate(sizes)], 1e-7)


@theorem("gao24.lemA.3", "A layer of q heads copies the previous q tokens to the present one.")
def lemma_a3() -> Iterator[Finding]:
    """The error falls exponentially with the sharpness of the scores."""
    sizes, sharpness = [(3, 2, 9), (5, 5, 41), (20, 3, 120)], [5.0 * 2**step for step in range(6)]
    tasks = [cases.lemma_a3(*size, seed=seed) for seed, size in enumerate(sizes)]
    errors = [max(case.error(Limits(sharpness=value)) for case in tasks) for value in sharpness]
    plot = bound_plot("sharpness", sharpness, "relative error", errors, 1e-10, log_x=True)
    yield Finding(min(errors), 1e-10, describe(tasks), plot, tolerance=True)
    sharpness, errors = sharpness[2:], errors[2:]  # below 20 the bound is above 1
    bounds = [2 * 120 * math.exp(-value / 2) + EXACT for value in sharpness]
    plot = bound_plot("sharpness", sharpness, "relative error", errors, bounds, log_x=True)
    statement = "With positions of gap 1/2 the error is at most 2 seq exp(-sharpness / 2)."
    instance = f"sharpness {sharpness[0]:.0f} to {sharpness[-1]:.0f}, seq = 120; plus rounding, {EXACT:g}"
    yield bounded(torch.tensor(errors), torch.tensor(bounds), instance, plot).stated("as stated", statement)


@theorem("gao24.lemA.4", "A layer of two heads takes one Newton step: M <- 2 M - M S M, at every M x_i.")
def lemma_a4() -> Iterator[Finding]:
    """Fifteen steps from M_0 = alpha S."""
    for kappa, bound in ((10, 1e-6), (1000, 1e-4)):
        tasks = [cases.lemma_a4(*size, kappa=kappa, seed=seed) for seed, size in enumerate(NEWTON_SIZES)]
        yield from in_the_limit(tasks, bound, f"condition number {kappa:,}", slopes=kappa == 10)


@theorem("gao24.lemA.5", "A causal layer of two heads takes a gradient step at every x_i, on the pairs before it.")
def lemma_a5() -> Iterator[Finding]:
    """Twenty steps from random weights; then the two misprints."""
    tasks = [cases.lemma_a5(*size, seed=seed) for seed, size in enumerate(PREFIX_SIZES)]
    yield from in_the_limit(tasks, 1e-7)
    case = tasks[1]
    answers = case.answers(Limits(temperature=1e-5), loops=1)
    d, eta = 5, cases.prefix_rate(case.tokens[:, ::2, :5])
    xs, ys, w = case.tokens[:, ::2, :d], case.tokens[:, 1::2, d], case.tokens[:, ::2, 2 * d + 1 :]
    before = np.tril(np.ones((xs.shape[1], xs.shape[1])), -1)
    residual = ((w * xs).sum(-1) - ys)[:, None, :] * before
    printed = w - eta / np.maximum(before.sum(-1), 1)[:, None] * (residual @ xs)
    corrected = cases.decoder_weights(xs, ys, w, eta=eta, steps=1)[-1]
    forms: list[tuple[Form, Array, str]] = [("as printed", printed, "h"), ("as corrected", corrected, "j")]
    for form, expected, index in forms:
        difference = relative_difference(answers, expected)
        finding = Finding(difference, 1e-7, "d = 5, n = 20, c = 1e-5, one step from random w^i", tolerance=True)
        yield finding.stated(form, f"w^j <- w^j - eta/(j-1) sum_{{h<j}} (<w^{index}, x_h> - y_h) x_h")
    gradient = (np.einsum("bid,bjd->bij", w, xs) - ys[:, None]) * before @ xs
    errors = [relative_difference(printed_heads(xs, ys, w, c)[:, 1:], gradient[:, 1:]) for c in TEMPERATURES]
    plot = temperature_plot(errors, 1e-7)
    statement = "The printed heads give sum_{j<i} (<w, x_j> - y_j) x_j. (They also read x_i, which adds x_i / c.)"
    yield Finding(min(errors), 1e-7, "d = 5, n = 20, best c", plot, tolerance=True).stated("as printed", statement)


def printed_heads(xs: Array, ys: Array, w: Array, c: float) -> Array:
    """The output of the two heads of Lemma A.5 at the x tokens, exactly as printed."""
    anchor, ones, first = Limits().anchor, np.ones((*ys.shape, 1)), np.zeros((*ys.shape, 1))
    first[:, 0] = 1.0
    zero, none = 0.0 * xs, 0.0 * ones
    heads = (  # (at x tokens, at y tokens) of query, key and value; the anchors are y_1 and x_1
        (((w, ones), (zero, ones)), ((c * xs, none), (zero, anchor * first)), ((xs,), (zero,))),
        (((ones, ones), (none, none)), ((none, anchor * first), (c * ys[..., None], none)), ((zero,), (-xs,))),
    )
    out = 0.0
    for head in heads:
        query, key, value = (
            np.stack([np.concatenate(part, -1) for part in parts], 2).reshape(len(xs), 2 * xs.shape[1], -1)
            for parts in head
        )
        scores = query @ key.swapaxes(1, 2)
        weights = softmax(np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf), axis=-1)
        out = out + math.exp(anchor) / c * weights @ value
    return np.asarray(out)[:, ::2]
