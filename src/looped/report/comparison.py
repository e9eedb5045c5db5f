"""The picture of a comparison: all models' curves by examples and by loops, overlaid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from looped.evaluation.lines import DASHES, finish, log_y
from looped.report.drawing import PALETTE, blank
from looped.report.plots import ERROR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from looped.evaluation.compare import Comparison
    from looped.evaluation.curves import Curve


def comparison_figure(comparison: Comparison) -> Figure:
    """Error by examples and by loops with intervals; a dot marks each model's loops."""
    entries = comparison.entries
    with blank((9.2, 3.6)) as figure:
        left, right = figure.subplots(1, 2)
        _draw(left, [entry.by_examples for entry in entries])
        left.set(xlabel="examples in the prompt, k", ylabel=ERROR)
        loops = max(entry.max_loops for entry in entries)
        for index, entry in enumerate(entries):
            if entry.loops:
                right.plot([entry.loops], [entry.by_loops.at(entry.loops)], "o", color=PALETTE[index % len(PALETTE)])
        # the one error of a baseline is a level line
        _draw(right, [entry.by_loops if entry.loops else _level(entry.by_loops, loops) for entry in entries])
        right.set(xlabel="loops applied", ylabel=ERROR, xlim=(1, loops) if loops > 1 else None)
        finish(figure, columns=3)
    return figure


def _level(curve: Curve, loops: int) -> Curve:
    return replace(curve, x=[1, loops], mean=curve.mean * 2, low=curve.low * 2, high=curve.high * 2)


def _draw(ax: Axes, curves: Sequence[Curve]) -> None:
    for index, curve in enumerate(curves):
        colour, dash = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
        mean = [value if value > 0 else math.nan for value in curve.mean]
        marker = "o" if len(curve.x) == 1 else None
        ax.plot(curve.x, mean, color=colour, linestyle=dash, label=curve.label, marker=marker)
        ax.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.17, linewidth=0)
    # a logarithmic axis needs something to show on it
    if any(math.isfinite(value) and value > 0 for curve in curves for value in curve.mean):
        log_y(ax, floor=1e-12)
