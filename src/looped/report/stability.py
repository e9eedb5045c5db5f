"""The picture of a diagnosis: error and state change, loop by loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from looped.evaluation.diagnosis import SETTLED, Diagnosis
from looped.evaluation.lines import DASHES, finish, log_y, reference_line
from looped.report.drawing import INK, PALETTE, blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from looped.evaluation.curves import Curve


def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Error and relative state change by loop, with the trained loops and the loop where it begins to diverge."""
    with blank((9.2, 3.4)) as figure:
        left, right = figure.subplots(1, 2)
        _draw(left, diagnosis.error, 0, diagnosis)
        left.set(xlabel="loops applied", ylabel="error (predicting zero = 1)")
        _draw(right, diagnosis.change, 1, diagnosis)
        reference_line(right, [1, diagnosis.loops], [SETTLED] * 2, "settled below")
        right.set(xlabel="loops applied", ylabel="state change of a loop, relative")
        for ax, curve in ((left, diagnosis.error), (right, diagnosis.change)):
            # a logarithmic axis needs something to show on it
            if any(math.isfinite(value) and value > 0 for value in curve.mean):
                log_y(ax, floor=1e-12)
        finish(figure)
    return figure


def _draw(ax: Axes, curve: Curve, index: int, diagnosis: Diagnosis) -> None:
    style = {"color": PALETTE[index], "linestyle": DASHES[index]}
    ax.plot(curve.x, [value if value > 0 else math.nan for value in curve.mean], label=curve.label, **style)
    ax.fill_between(curve.x, curve.low, curve.high, color=PALETTE[index], alpha=0.17, linewidth=0)
    ax.axvline(diagnosis.trained_loops, color=INK, alpha=0.7, linewidth=1.0, label="trained loops")
    if diagnosis.diverges_at is not None:
        ax.axvline(
            diagnosis.diverges_at, color=PALETTE[3], linestyle=DASHES[3], linewidth=1.2, label="begins to diverge"
        )
