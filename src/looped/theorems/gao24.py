"""gao24's lemmas and theorems, checked: softmax heads that run gradient descent and Newton's method in a limit.

Every construction errs by its temperature c (as c with the paper's heads at +c and 0, as c^2 with heads at +c and -c)
and by rounding (as 1/c); the rows show the best c of a sweep over six decades, and the slopes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import softmax

from looped.constructions import gao24
from looped.constructions.compiler import Limits
from looped.constructions.interpreter import interpret
from looped.constructions.positions import quasi_orthogonal, rotations, smallest_gap
from looped.theorems import gao24_cases as cases
from looped.theorems.check import Finding, Plot, theorem
from looped.theorems.gao24_cases import SLOPE, Array, Case, relative

TEMPERATURES = [10 ** (-1 - step / 2) for step in range(14)]
"""c from 1e-1 to 3e-8."""
STEEP = 0.05
"""How far a fitted slope may be from 1 or 2: the next order still shows at the largest c."""


@theorem("gao24.lemA.1", "N vectors with <p_i, p_i> > <p_i, p_j> + eps for all i, j exist in O(log N) dimensions.")
def lemma_a1() -> Iterator[Finding]:
    """Random signs, and rotations, which also have a linear shift."""
    counts = [16, 64, 256, 1024]
    signs, turns = [quasi_orthogonal(n) for n in counts], [rotations(n) for n in counts]
    gaps = [min(smallest_gap(p), smallest_gap(r.table(range(n)))) for n, p, r in zip(counts, signs, turns, strict=True)]
    dims = {"random signs": [p.shape[1] for p in signs], "rotations": [r.dim for r in turns]}
    bound = [16 * math.log(n) for n in counts]
    plot = Plot(x_label="N", y_label="dimensions", x=counts, lines={**dims, "16 ln N": bound}, log_x=True, log_y=False)
    sizes = f"random signs and rotations of unit length, N = {', '.join(map(str, counts))}"
    yield Finding(measured=min(gaps), bound=0.5 - 1e-12, at_least=True, instance=f"least gap; {sizes}", plot=plot)
    share = max(d / b for line in dims.values() for d, b in zip(line, bound, strict=True))
    yield Finding(measured=16 * share, bound=16.0, instance=f"dimensions / ln N at eps = 1/2; {sizes}")
    steps = np.abs(turns[-1].shift(-3) @ turns[-1].table(range(3, 1024)).T - turns[-1].table(range(1021)).T).max()
    statement = "Rotations have a shift p_t -> p_{t-i} that is a matrix."
    yield Finding(measured=float(steps), bound=1e-12, tolerance=True, instance="i = 3, N = 1024", statement=statement)


@theorem("gao24.lemA.2", "A layer of two heads takes one gradient step: A <- A - eta/N sum_j (A x_j - y_j) x_j'.")
def lemma_a2() -> Iterator[Finding]:
    """Twenty steps, at all examples and at the query."""
    yield from in_the_limit(list(cases.lemma_a2()), 1e-7)


@theorem("gao24.lemA.3", "A layer of q heads copies the previous q tokens to the present one.")
def lemma_a3() -> Iterator[Finding]:
    """Sharper scores err exponentially less."""
    found, scales = list(cases.lemma_a3()), [5.0 * 2**step for step in range(6)]
    errors = [max(case.error(Limits(sharpness=scale)) for case in found) for scale in scales]
    lines = {"measured": errors, "seq exp(-sharpness / 2)": [120 * math.exp(-scale / 2) for scale in scales]}
    plot = Plot(x_label="sharpness", y_label="relative error", x=scales, lines=lines, log_x=True)
    yield Finding(measured=min(errors), bound=1e-10, tolerance=True, instance=about(found), plot=plot)


@theorem("gao24.lemA.4", "A layer of two heads takes one Newton step: M <- 2 M - M S M, at every M x_i.")
def lemma_a4() -> Iterator[Finding]:
    """Fifteen steps from M_0 = alpha S."""
    yield from in_the_limit(list(cases.lemma_a4(10)), 1e-6, "condition number 10")
    yield from in_the_limit(list(cases.lemma_a4(1000)), 1e-4, "condition number 1,000", slopes=False)


@theorem("gao24.lemA.5", "A causal layer of two heads takes a gradient step at every x_i, on the pairs before it.")
def lemma_a5() -> Iterator[Finding]:
    """Twenty steps from random weights, then the two misprints."""
    found = list(cases.lemma_a5())
    yield from in_the_limit(found, 1e-7)
    case = found[1]
    answers = case.answers(Limits(temperature=1e-5), loops=1)
    d, eta = 5, cases.prefix_rate(case.tokens[:, ::2, :5])
    xs, ys, w = case.tokens[:, ::2, :d], case.tokens[:, 1::2, d], case.tokens[:, ::2, 2 * d + 1 :]
    before = np.tril(np.ones((xs.shape[1], xs.shape[1])), -1)
    own = ((w * xs).sum(-1) - ys)[:, None, :] * before
    printed = w - eta / np.maximum(before.sum(-1), 1)[:, None] * (own @ xs)
    instance, step = "d = 5, n = 20, c = 1e-5, one step from random w^i", "w^j <- w^j - eta/(j-1) sum_{h<j} "
    fields = {"bound": 1e-7, "tolerance": True, "instance": instance}
    yield Finding(
        measured=relative(answers, printed), form="as printed", statement=step + "(<w^h, x_h> - y_h) x_h", **fields
    )
    right = cases.decoder_weights(xs, ys, w, eta=eta, steps=1)
    yield Finding(
        measured=relative(answers, right), form="as corrected", statement=step + "(<w^j, x_h> - y_h) x_h", **fields
    )
    gradient = (np.einsum("bid,bjd->bij", w, xs) - ys[:, None]) * before @ xs
    errors = [relative(printed_heads(xs, ys, w, c)[:, 1:], gradient[:, 1:]) for c in TEMPERATURES]
    yield Finding(
        measured=min(errors),
        bound=1e-7,
        tolerance=True,
        form="as printed",
        statement="The printed heads give sum_{j<i} (<w, x_j> - y_j) x_j; but they read x_i too: + x_i / c.",
        instance="d = 5, n = 20, best c",
        plot=curve({"measured": errors}),
    )


@theorem("gao24.thm3.1", "Pre of L+1 layers, loop and post of 1 give A_T Phi(x_test), A_T by gradient descent.")
def theorem_31() -> Iterator[Finding]:
    """A leaky-ReLU Phi of one to three layers."""
    yield from in_the_limit(list(cases.theorem_31()), 1e-5)


@theorem("gao24.thm3.2", "Pre of L+2 layers, loop and post of 1 predict x_{N+1} of AR(q) with representation.")
def theorem_32() -> Iterator[Finding]:
    """Orders one to three."""
    yield from in_the_limit(list(cases.theorem_32()), 1e-5)


@theorem("gao24.thm3.3", "Pre of 7 layers (1 is enough), loop and post of 1 find the next state of a chain of thought.")
def theorem_33() -> Iterator[Finding]:
    """Every place in the chain; then the labels as printed against the labels through the inverse activation."""
    yield from in_the_limit(list(cases.theorem_33()), 1e-5, "every place in the chain")
    d, length, n, loops = 3, 2, 40, 400
    states = cases.chains(d, length, n, np.random.default_rng(5))
    eta, truth = cases.rate(states[:, :-1, 0]), states[:, -1:, 1]
    tokens = states.reshape(len(states), -1, d)[:, : n * (length + 1) + 1]
    labels = {"as printed": "s^{l+1} itself", "as corrected": "the inverse activation of s^{l+1}"}
    for form, label in labels.items():
        program = gao24.theorem_33(
            d=d, steps=length, num_examples=n, eta=eta, slope=SLOPE, invert=form == "as corrected"
        )
        found = Case(program, tokens, loops, truth).error(Limits(temperature=1e-3))
        yield Finding(
            measured=found,
            bound=1e-5,
            tolerance=True,
            form=form,  # pyright: ignore[reportArgumentType]
            statement=f"Gradient descent with {label} for labels finds the true next state.",
            instance=f"d = {d}, N = {n}, {loops} loops, c = 1e-3",
        )


@theorem("gao24.thm4.1", "Pre and loop of 1 layer, post of 2 give x_test' M_T X'y, M_T by Newton's method.")
def theorem_41() -> Iterator[Finding]:
    """Fifteen steps at two condition numbers, then alpha at the end of its printed range."""
    yield from in_the_limit(list(cases.theorem_41(10)), 1e-6, "condition number 10")
    yield from in_the_limit(list(cases.theorem_41(1000)), 1e-4, "condition number 1,000", slopes=False)
    xs = cases.inputs(10, (20, 5), np.random.default_rng(3))
    s = xs.swapaxes(1, 2) @ xs
    inverse = xs @ np.linalg.inv(s)
    for form, alpha in (("as printed", 2.0), ("as corrected", 1.99)):
        tokens = gao24.lemma_a4_tokens(xs, alpha * s)
        case = Case(gao24.lemma_a4(d=5, num_examples=20), tokens, 15, inverse, slice(0, -2, 2))
        yield Finding(
            measured=case.error(Limits(temperature=1e-4)),
            bound=1e-6,
            tolerance=True,
            form=form,  # pyright: ignore[reportArgumentType]
            statement=f"Newton's method from M_0 = alpha S reaches the inverse of S, alpha = {alpha}/|S|^2.",
            instance="d = 5, N = 20, condition number 10, 15 steps, c = 1e-4",
        )


@theorem("gao24.thm4.2", "A decoder gives <w_T^i, x_i> at every x_i, w^i by gradient descent on the pairs before it.")
def theorem_42() -> Iterator[Finding]:
    """Post of one layer, where the paper has two."""
    yield from in_the_limit(list(cases.theorem_42()), 1e-5)


def in_the_limit(found: Sequence[Case], bound: float, note: str = "", *, slopes: bool = True) -> Iterator[Finding]:
    """The best error over c of the symmetric heads; then the slopes of both kinds of heads.

    One task is swept over all c; the others are run at the c that was best for it and at its two neighbours.
    """
    swept = found[1]
    symmetric, paper = (
        [swept.error(Limits(temperature=c, symmetric=kind)) for c in TEMPERATURES] for kind in (True, False)
    )
    at = int(np.argmin(symmetric))
    near = TEMPERATURES[max(0, at - 1) : at + 2]
    measured, best = min((max(case.error(Limits(temperature=c)) for case in found), c) for c in near)
    exact = max(relative(_interpreted(case), case.expected) for case in found)
    instance = f"{about(found)}{', ' + note if note else ''}; best c = {best:.0e}; without softmax {exact:.0e}"
    lines = {"heads at +c, -c": symmetric, "heads at +c, 0 (the paper's)": paper, "bound": [bound] * len(TEMPERATURES)}
    yield Finding(measured=measured, bound=bound, tolerance=True, instance=instance, plot=curve(lines))
    if slopes:
        one, two = slope(paper), slope(symmetric)
        yield Finding(
            measured=max(abs(one - 1), abs(two - 2)),
            bound=STEEP,
            tolerance=True,
            statement="The error falls as c with heads at +c and 0, and as c^2 with heads at +c and -c.",
            instance=f"fitted slopes {one:.3f} and {two:.3f}, how far from 1 and 2; the paper's reach {min(paper):.0e}",
        )


def _interpreted(case: Case) -> Array:
    return interpret(case.program, case.tokens, loops=case.loops)[:, case.asked]


def slope(errors: Sequence[float]) -> float:
    """Fitted on log scales where c is small enough for its first order, and large enough that rounding is not seen."""
    falling = errors[: int(np.argmin(errors))]
    kept = [at for at, error in enumerate(falling) if 10 * min(errors) < error < 0.05]
    if len(kept) < 3:
        return math.nan
    return float(np.polyfit(np.log([TEMPERATURES[at] for at in kept]), np.log([errors[at] for at in kept]), 1)[0])


def curve(lines: dict[str, list[float]]) -> Plot:
    """Error against c, with what rounding alone would leave."""
    rounding = [Limits().anchor * 2.0**-53 / c for c in TEMPERATURES]
    lines = lines | {"rounding, C 2^-53 / c": rounding}
    return Plot(x_label="c", y_label="relative error", x=TEMPERATURES, lines=lines, log_x=True)


def about(found: Sequence[Case]) -> str:
    """Sizes, loops, and the layers and heads that were used."""
    last = found[-1].program
    counts = ", ".join(f"{name} {layers}x{heads}" for name, (layers, heads) in last.counts().items() if layers)
    tokens = f"{min(case.tokens.shape[1] for case in found)} to {max(case.tokens.shape[1] for case in found)} tokens"
    return f"{len(found)} tasks, {cases.BATCH} prompts each, {tokens}, {found[0].loops} loops; layers x heads: {counts}"


def printed_heads(xs: Array, ys: Array, w: Array, c: float, anchor: float = 30.0) -> Array:
    """Both heads of Lemma A.5 exactly as printed, at the x tokens."""
    one, first = np.ones((*ys.shape, 1)), np.zeros((*ys.shape, 1))
    first[:, 0] = 1.0
    zero, none = 0.0 * xs, 0.0 * one
    heads = (  # (at x tokens, at y tokens) of query, key and value; the anchors are y_1 and x_1
        (((w, one), (zero, one)), ((c * xs, none), (zero, anchor * first)), ((xs,), (zero,))),
        (((one, one), (none, none)), ((none, anchor * first), (c * ys[..., None], none)), ((zero,), (-xs,))),
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
