"""How close a construction comes: every one errs by its temperature c and by rounding, which pull apart.

The error falls as c with the paper's heads at +c and 0, as c^2 with heads at +c and -c, and rounding grows as 1/c.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from looped.constructions.compiler import Limits
from looped.constructions.interpreter import interpret
from looped.theorems.check import Finding, Plot
from looped.theorems.gao24.instances import BATCH, Array, Case, relative

TEMPERATURES = [10 ** (-1 - step / 2) for step in range(14)]
"""c from 1e-1 to 3e-8."""
STEEP = 0.05
"""How far a fitted slope may be from 1 or 2: the next order still shows at the largest c."""


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
    lines = {"heads +c, -c": symmetric, "heads +c, 0": paper, "bound": [bound] * len(TEMPERATURES)}
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
    return f"{len(found)} tasks, {BATCH} prompts each, {tokens}, {found[0].loops} loops; layers x heads: {counts}"
