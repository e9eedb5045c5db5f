"""The picture of a sweep: the error of every point, and their curves by loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from looped.evaluation.lines import DASHES, finish, log_y
from looped.report.drawing import INK, PALETTE, blank
from looped.report.plots import ERROR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from looped.sweep_results import Point, SweepResults

MOST = 12
"""Curves and names that can be told apart."""


def sweep_figure(results: SweepResults) -> Figure:
    """Error against the field that varies, or point by point, and by loop; bars and bands are the intervals."""
    points, varied = results.points, results.varied
    names = [", ".join(f"{name.rpartition('.')[2]}={point.fields.get(name)}" for name in varied) for point in points]
    with blank((9.2, 3.8)) as figure:
        left, right = figure.subplots(1, 2)
        values = [point.fields.get(varied[0]) for point in points] if len(varied) == 1 else []
        numeric = bool(values) and all(type(value) in (int, float) for value in values)
        places = values if numeric else list(range(len(points)))
        for kind, label, style in (
            ("error", "after the trained loops", {"linestyle": "-"}),
            ("late", "after four times as many", {"linestyle": "--", "alpha": 0.6, "markerfacecolor": "none"}),
        ):
            estimates = [getattr(point, kind) for point in points]
            sides = [[entry.mean - entry.low for entry in estimates], [entry.high - entry.mean for entry in estimates]]
            bars = [[max(bar, 0.0) if math.isfinite(bar) else 0.0 for bar in side] for side in sides]
            style = {**style, "linestyle": style["linestyle"] if numeric else "none"}
            means = [entry.mean for entry in estimates]
            left.errorbar(places, means, yerr=bars, label=label, color=INK, marker="o", capsize=3, **style)
        left.set(xlabel=varied[0] if len(varied) == 1 else "point", ylabel=ERROR)
        if numeric and len(points) <= MOST:
            left.set_xticks(places)
        elif len(points) <= MOST:
            left.set_xticks(places, names, rotation=30, ha="right", fontsize=7.5)
        for index, (point, name) in enumerate(zip(points[:MOST], names, strict=False)):
            curve, colour = point.by_loops, PALETTE[index % len(PALETTE)]
            right.plot(curve.x, curve.mean, color=colour, linestyle=DASHES[index % len(DASHES)], label=name or None)
            right.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.17, linewidth=0)
            right.axvline(point.loops, color=INK, alpha=0.25, linewidth=0.8)
        right.set(xlabel="loops applied", ylabel=ERROR)
        for ax in (left, right):
            if any(_shown(point) for point in points):
                log_y(ax, floor=1e-12)
        finish(figure, columns=4)
    return figure


def _shown(point: Point) -> bool:
    """Whether a logarithmic axis has something to show of it."""
    return any(math.isfinite(value) and value > 0 for value in (point.error.mean, point.late.mean))
