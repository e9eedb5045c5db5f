"""The figures of the reports: error by examples, by loops, by training step; measured against bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from looped.evaluation.curves import Curve, Evaluation
from looped.evaluation.lines import DASHES
from looped.report.drawing import INK, PALETTE, blank
from looped.report.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KNOWN = {"least squares": 1, "ridge (optimal)": 2, "ridge": 2, "averaging": 3}
"""Baselines that have the same colour in every figure of a page."""
ERROR = "error (predicting zero = 1)"


def colours(labels: Sequence[str]) -> list[int]:
    """The palette index of every curve: 0 for the model, a fixed one for a known baseline, free ones for others."""
    free = (index for index in range(1, len(labels) + len(PALETTE)) if index not in KNOWN.values())
    return [0, *(KNOWN[label] if label in KNOWN else next(free) for label in labels[1:])]


def examples_figure(curves: Sequence[Curve], *, d: int | None = None) -> Figure:
    """Error by number of examples, model first, then baselines, with intervals; `d` marks k = d."""
    with blank((5.2, 3.3)) as figure:
        ax = figure.subplots()
        _draw_examples(ax, curves, d)
        _legend(figure, ax)
    return figure


def loops_figure(evaluation: Evaluation) -> Figure:
    """Error by loops with the trained b marked, and the best baseline's error on the same pairs as a flat line."""
    with blank((5.2, 3.3)) as figure:
        ax = figure.subplots()
        _draw_loops(ax, evaluation)
        _legend(figure, ax)
    return figure


def evaluation_figure(evaluation: Evaluation, *, d: int | None = None) -> Figure:
    """Both curves of an evaluation side by side: the picture for a README or a paper."""
    with blank((9.2, 3.5)) as figure:
        left, right = figure.subplots(1, 2)
        _draw_examples(left, evaluation.by_examples, d)
        _draw_loops(right, evaluation)
        _legend(figure, left)
    return figure


def training_figure(metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Loss and error by training step."""
    with blank((5.2, 2.9)) as figure:
        ax = figure.subplots()
        steps = [line["step"] for line in metrics]
        drawn = {key: [line.get(key, math.nan) for line in metrics] for key in ("loss", "error")}
        marker = "o" if len(steps) < 3 else None
        _line(ax, 0, steps, drawn["loss"], "loss, all scored pairs", marker=marker)
        _line(ax, 1, steps, drawn["error"], "error at the last pair", marker=marker)
        _log_axis(ax, *_range(drawn["loss"] + drawn["error"]))
        ax.set(xlabel="training step", ylabel=ERROR)
        _legend(figure, ax)
    return figure


def bound_figure(plot: Mapping[str, Any]) -> Figure:
    """The small plot of a theorem: measured against bound, and any other lines."""
    with blank((3.1, 2.15)) as figure:
        ax = figure.subplots()
        lines = {name: np.array(values, float) for name, values in plot["lines"].items()}  # None becomes NaN
        xs = np.array(plot["x"], float)
        others = iter(range(1, len(PALETTE) * len(lines)))
        for name, values in lines.items():
            if name == "bound":
                ax.plot(xs, values, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, label=_label(name))
            else:
                index = 0 if name == "measured" else next(others)
                _line(ax, index, xs, values, name, marker="o" if len(xs) <= 24 else None, markersize=2.6)
        if plot.get("log_x") and any(x > 0 for x in xs):
            positive = [x for x in xs if x > 0]
            _log_axis(ax, min(positive) / 1.15, max(positive) * 1.15, axis="x")
        values = [value for line in lines.values() for value in line if math.isfinite(value)]
        if plot.get("log_y", True) and any(value > 0 for value in values):
            _log_axis(ax, *_range(values))
        ax.set_xlabel(plot["x_label"], fontsize=8)
        ax.set_ylabel(plot["y_label"], fontsize=8)
        ax.tick_params(labelsize=7.5)
        _legend(figure, ax, 7.5)
    return figure


def _draw_examples(ax: Axes, curves: Sequence[Curve], d: int | None) -> None:
    for index, curve in zip(colours([curve.label for curve in curves]), curves, strict=True):
        marker = "o" if len(curve.x) == 1 else None
        _line(ax, index, curve.x, curve.mean, curve.label, curve, linewidth=2.0 if index == 0 else 1.5, marker=marker)
    model = curves[0]
    first, last = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    low, high = _range(model.low + model.mean)
    others = [value for curve in curves for value in curve.mean if math.isfinite(value)]
    # a baseline that is exact, or that explodes, may leave the picture: the model's range must stay readable
    low = min(low, max(0.6 * min(others, default=low), low / 8))
    high = max(high, min(1.6 * max(others, default=high), 20 * max(high, 1.0)))
    _log_axis(ax, low, high)
    if d is not None and first < d < last:
        ax.axvline(d, color=INK, alpha=0.45, linewidth=0.9, linestyle=(0, (1, 2)))
        _note(ax, d, f"k = d = {d}")
    room = 0.5 if first == last else 0.0  # a single position has no range
    ax.set(xlabel="examples in the prompt, k", ylabel=ERROR, xlim=(first - room, last + room))


def _draw_loops(ax: Axes, evaluation: Evaluation) -> None:
    curve, trained = evaluation.by_loops, evaluation.trained_loops
    _line(ax, 0, curve.x, curve.mean, curve.label, curve, linewidth=2.0, marker="o" if len(curve.x) == 1 else None)
    low, high = _range(curve.mean + curve.low)
    high = min(high, 1e4 * max(low, 1e-2))
    last = {index: other.mean[-1] for index, other in enumerate(evaluation.by_examples) if index}
    best = min(last, key=last.__getitem__, default=0)
    if best and low / 8 < last[best] < high:  # an exact baseline would flatten the curve
        low = min(low, 0.75 * last[best])
        ends = [curve.x[0], curve.x[-1]]
        labels = [other.label for other in evaluation.by_examples]
        _line(ax, colours(labels)[best], ends, [last[best]] * 2, labels[best], linewidth=1.3)
    _log_axis(ax, low, high)
    left, right = min(curve.x[0], trained), max(curve.x[-1], trained + 1)
    ax.axvspan(left, trained, color=INK, alpha=0.06, linewidth=0)
    ax.axvline(trained, color=INK, alpha=0.7, linewidth=1.0)
    _note(ax, trained, f"trained b = {trained}")
    ax.set(xlabel="loops applied", ylabel=ERROR, xlim=(left, right))
    if 2 <= right / trained <= 8:
        ax.set_xticks([left, *range(trained, right + 1, trained)] if trained > 2 else range(left, right + 1))


def _line(ax: Axes, index: int, x, mean, label: str, band: Curve | None = None, **style: Any) -> None:
    colour, dash = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
    mean = [value if value > 0 else math.nan for value in mean] if band is not None else mean
    ax.plot(x, mean, color=colour, linestyle=dash, label=_label(label), zorder=3 if index == 0 else 2, **style)
    if band is not None:
        ax.fill_between(x, band.low, band.high, color=colour, alpha=0.17, linewidth=0)


def _note(ax: Axes, x: float, text: str) -> None:
    """A few words above the axes, on the vertical line at x."""
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    ax.annotate(text, (x, 1), (0, 3), ha="center", va="bottom", fontsize=8, **place)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a logarithmic axis around the positive values: at least a factor of 4, so that flat looks flat."""
    positive = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = 0.75 * min(positive), 1.35 * max(positive)
    stretch = math.sqrt(max(1.0, 4 * low / high))
    return low / stretch, high * stretch


def _log_axis(ax: Axes, low: float, high: float, axis: str = "y") -> None:
    """A logarithmic axis whose ticks read 0.05, not 5 x 10^-2."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
    scaled = ax.yaxis if axis == "y" else ax.xaxis
    (ax.set_ylim if axis == "y" else ax.set_xlim)(low, high)
    (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
    scaled.set_major_locator(LogLocator(subs=subs, numticks=7))
    scaled.set_major_formatter(FuncFormatter(lambda value, _: number(value, 1)))
    scaled.set_minor_locator(NullLocator())


def _label(text: str) -> str:
    """matplotlib hides a label that starts with an underscore."""
    return f" {text}" if text.startswith("_") else text


def _legend(figure: Figure, ax: Axes, fontsize: float = 8.5) -> None:
    """Draw one legend above the axes, in as many columns as fit, and the grid of every axes."""
    from matplotlib.ticker import MaxNLocator

    for axes in figure.axes:
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        axes.set_axisbelow(True)
        if axes.get_xscale() == "linear" and "loops" not in axes.get_xlabel():
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    handles, labels = ax.get_legend_handles_labels()
    handle = 2.6 if fontsize > 8 else 2.0
    widest = fontsize * (handle + 2.2 + 0.56 * max(map(len, labels), default=1))
    columns = max(1, min(len(labels), int(72 * figure.get_size_inches()[0] / widest)))
    columns = 2 if (columns, len(labels)) == (3, 4) else columns
    options: dict[str, Any] = {"handlelength": handle, "columnspacing": 1.4, "borderpad": 0, "fontsize": fontsize}
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, **options)
