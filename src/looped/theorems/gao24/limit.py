"""How close a construction comes to its algorithm, depending on the temperature c.

The error falls as c with the paper's heads at +c and 0, and as c^2 with heads at +c and -c. Rounding grows as 1/c, so
some c in between is best.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from looped.constructions.compiler import Limits
from looped.constructions.gao24.cases import BATCH, Case
from looped.theorems.check import Finding, Plot, bound_plot

TEMPERATURES = [10 ** (-1 - step / 2) for step in range(14)]
"""c from 1e-1 to 3e-8."""
Size = tuple[int, int]
"""Layers, and heads in the widest of them."""
NEWTON_SIZES = [(3, 10), (5, 20), (10, 40)]
"""d and the number of examples in the checks of Newton's method."""
PREFIX_SIZES = [(3, 8), (5, 20), (8, 40)]
"""d and the number of pairs in the checks of the decoder."""
SLOPE_TOLERANCE = 0.05
"""How far a fitted slope may be from 1 or 2: at the largest c the next order is still visible."""


def in_the_limit(cases: Sequence[Case], bound: float, note: str = "", *, slopes: bool = True) -> Iterator[Finding]:
    """The smallest error over c of the symmetric heads; then the slopes of both kinds of heads.

    The second case is run at every c; the others only at the c that is best for it and at its two neighbours.
    """
    symmetric, paper = (
        [cases[1].error(Limits(temperature=c, symmetric=kind)) for c in TEMPERATURES] for kind in (True, False)
    )
    at = int(np.argmin(symmetric))
    near = TEMPERATURES[max(0, at - 1) : at + 2]
    measured, best = min((max(case.error(Limits(temperature=c)) for case in cases), c) for c in near)
    exact = max(case.interpreter_error() for case in cases)
    instance = f"{describe(cases)}{', ' + note if note else ''}; best c = {best:.0e}; without softmax {exact:.0e}"
    plot = temperature_plot(symmetric, bound, {"the paper's heads, +c and 0": paper})
    yield Finding(measured, bound, instance, plot, tolerance=True)
    if slopes:
        first, second = slope(paper), slope(symmetric)
        deviation = float(np.max(np.abs([first - 1, second - 2])))  # NaN, where a slope could not be fitted, is largest
        reached = f"the paper's heads reach {min(paper):.0e}"
        instance = f"fitted slopes {first:.3f} and {second:.3f}, deviation from 1 and 2; {reached}"
        statement = "The error falls as c with heads at +c and 0, and as c^2 with heads at +c and -c."
        yield Finding(deviation, SLOPE_TOLERANCE, instance, tolerance=True).stated("as stated", statement)


def no_larger(cases: Sequence[Case], pre: Sequence[Size], loop: Size, post: Size) -> Finding:
    """Layers and heads of every part over those of the statement, whose pre-transformer depends on the case."""
    ratios, stated = [], {}
    for case, first in zip(cases, pre, strict=True):
        stated = {"pre": first, "loop": loop, "post": post}
        ratios += [np.divide(size, stated[part]).max() for part, size in case.program.counts().items()]
    last = ", ".join(f"{part} {layers}x{heads}" for part, (layers, heads) in stated.items())
    instance = (
        f"largest ratio to the paper's, {len(cases)} tasks; the paper's for the last: {last}; {describe(cases[-1:])}"
    )
    statement = "It has no more layers and heads than stated."
    return Finding(float(max(ratios)), 1.0, instance).stated("as stated", statement)


def slope(errors: Sequence[float]) -> float:
    """The slope on log scales, fitted where c is small enough for its first order and large enough to hide rounding."""
    falling = errors[: int(np.argmin(errors))]
    fitted = [at for at, error in enumerate(falling) if 10 * min(errors) < error < 0.05]
    if len(fitted) < 3:
        return math.nan
    return float(np.polyfit(np.log([TEMPERATURES[at] for at in fitted]), np.log([errors[at] for at in fitted]), 1)[0])


def temperature_plot(
    errors: Sequence[float], bound: float, others: Mapping[str, Sequence[float]] | None = None
) -> Plot:
    """Error against c, with the error that rounding alone would leave."""
    rounding = {"rounding, C 2^-53 / c": [Limits().anchor * 2.0**-53 / c for c in TEMPERATURES]}
    return bound_plot("c", TEMPERATURES, "relative error", errors, bound, {**(others or {}), **rounding}, log_x=True)


def describe(cases: Sequence[Case]) -> str:
    """Sizes, loops, and the number of layers and heads."""
    last = cases[-1].program
    counts = ", ".join(f"{name} {layers}x{heads}" for name, (layers, heads) in last.counts().items() if layers)
    tokens = f"{min(case.tokens.shape[1] for case in cases)} to {max(case.tokens.shape[1] for case in cases)} tokens"
    return f"{len(cases)} tasks, {BATCH} prompts each, {tokens}, {cases[0].loops} loops; layers x heads: {counts}"
