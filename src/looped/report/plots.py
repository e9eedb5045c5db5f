"""Figures in the house look: drawn once, put into a page as SVG that follows its colours, or saved as files.

Ink and curve colours are drawn as literals. A file keeps them, on white; inside a page ink becomes `currentColor` and
a curve `var(--curve-N)`, so that one drawing is right on light and on dark paper.
"""

from __future__ import annotations

import contextlib
import html
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looped.evaluation.curves import Curve, Evaluation
from looped.files import write_bytes
from looped.report.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1c1e"
PALETTE = ("#0b5fa5", "#c44e00", "#00795a", "#9a4b8f", "#7a6a00", "#3a86ad")
"""Blue, vermilion, green, purple, olive, sky: told apart by every kind of eye, and by their dashes."""
DASHES = ("-", (0, (5, 1.8)), (0, (6, 1.6, 1.4, 1.6)), (0, (1.4, 1.6)), (0, (8, 2)), (0, (3, 1.2)))
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def examples_figure(curves: Sequence[Curve], *, d: int | None = None, size=(5.2, 3.3)) -> Figure:
    """Error by number of examples, model first, then baselines, with intervals; `d` marks k = d."""
    with _figure(size) as figure:
        ax = figure.subplots()
        _draw_examples(ax, curves, d)
        _legend(figure, ax)
    return figure


def loops_figure(curve: Curve, *, trained: int, reference: Curve | None = None, size=(5.2, 3.3)) -> Figure:
    """Error by loops with the trained b marked; `reference` is a baseline by examples, drawn at its last value."""
    with _figure(size) as figure:
        ax = figure.subplots()
        _draw_loops(ax, curve, trained, reference)
        _legend(figure, ax)
    return figure


def evaluation_figure(evaluation: Evaluation, *, d: int | None = None, size=(9.2, 3.5)) -> Figure:
    """Both curves of an evaluation side by side: the picture for a README or a paper."""
    with _figure(size) as figure:
        left, right = figure.subplots(1, 2)
        _draw_examples(left, evaluation.by_examples, d)
        _draw_loops(right, evaluation.by_loops, evaluation.trained_loops, None)
        _legend(figure, left)
    return figure


def training_figure(metrics: Sequence[Mapping[str, float]], *, size=(5.2, 2.9)) -> Figure:
    """Loss and error by training step."""
    with _figure(size) as figure:
        ax = figure.subplots()
        steps = [line["step"] for line in metrics]
        names = {"loss": "loss, all scored pairs", "error": "error at the last pair"}
        drawn = [[line.get(key, math.nan) for line in metrics] for key in names]
        for index, (values, label) in enumerate(zip(drawn, names.values(), strict=True)):
            _line(ax, index, steps, values, label, marker="o" if len(steps) < 3 else None)
        _log_axis(ax, *_range([value for values in drawn for value in values]))
        ax.set(xlabel="training step", ylabel="error (predicting zero = 1)")
        _legend(figure, ax)
    return figure


def bound_figure(plot: Mapping[str, Any], *, size=(3.1, 2.15)) -> Figure:
    """The small plot of a theorem: measured against bound, and whatever lines lie beside them."""
    with _figure(size) as figure:
        ax = figure.subplots()
        lines = {name: [_real(value) for value in values] for name, values in plot["lines"].items()}
        xs = [_real(x) for x in plot["x"]]
        others = iter(range(1, len(PALETTE) * len(lines)))
        for name, values in lines.items():
            if name == "bound":
                ax.plot(xs, values, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, label=_label(name))
            else:
                index = 0 if name == "measured" else next(others)
                _line(ax, index, xs, values, name, marker="o", markersize=2.6)
        if plot.get("log_x") and any(x > 0 for x in xs):
            positive = [x for x in xs if x > 0]
            _log_axis(ax, min(positive) / 1.15, max(positive) * 1.15, axis="x")
        values = [value for line in lines.values() for value in line if math.isfinite(value)]
        if plot.get("log_y", True) and any(value > 0 for value in values):
            _log_axis(ax, *_range(values))
        ax.set_xlabel(plot["x_label"], fontsize=8)
        ax.set_ylabel(plot["y_label"], fontsize=8)
        ax.tick_params(labelsize=7.5)
        _legend(figure, ax, fontsize=7.5)
    return figure


def inline_svg(figure: Figure, *, title: str, name: str) -> str:
    """The figure as an `<svg>` for an HTML page: its ids start with `name`, its colours are the page's."""
    text = re.sub(r"(?s)<!--.*?-->", "", _save(figure, "svg").decode())
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda hit: f' id="{name}-{hit[1]}"' if hit[1] in used else "", text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r'style="[^"]*"', lambda hit: _page_colours(hit[0]), text)
    inner = text[text.index(">", text.index("<svg")) + 1 :]
    width, height = (72 * inches for inches in figure.get_size_inches())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{html.escape(title)}</title>'
        + re.sub(r"\n\s*", "\n", inner).strip()
    )


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Save as the kind that the name ends in (.svg, .png, .pdf), on white; the file is whole or not there."""
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png", "pdf"):
        raise ValueError(f"a figure is saved as .svg, .png or .pdf; got `{path.name}`.")
    write_bytes(path, _save(figure, kind, facecolor="white", dpi=200))
    return path


def _draw_examples(ax: Axes, curves: Sequence[Curve], d: int | None) -> None:
    for index, curve in enumerate(curves):
        _line(ax, index, curve.x, curve.mean, curve.label, curve, linewidth=2.0 if index == 0 else 1.5)
    model = curves[0]
    low, high = _range(model.low + model.mean)
    others = [value for curve in curves for value in curve.mean if math.isfinite(value)]
    # a baseline that is exact, or that explodes, may leave the picture: the model's own range must stay readable
    low = min(low, max(0.6 * min(others, default=low), low / 8))
    high = max(high, min(1.6 * max(others, default=high), 20 * max(high, 1.0)))
    _log_axis(ax, low, high)
    if d is not None and model.x[0] < d < model.x[-1]:
        ax.axvline(d, color=INK, alpha=0.45, linewidth=0.9, linestyle=(0, (1, 2)))
        _note(ax, d, f"k = d = {d}", "left")
    ax.set(xlabel="examples in the prompt, k", ylabel="error (predicting zero = 1)", xlim=(model.x[0], model.x[-1]))


def _draw_loops(ax: Axes, curve: Curve, trained: int, reference: Curve | None) -> None:
    _line(ax, 0, curve.x, curve.mean, curve.label, curve, linewidth=2.0, marker="o" if len(curve.x) == 1 else None)
    low, high = _range(curve.mean + curve.low)
    high = min(high, 1e4 * max(low, 1e-2))
    if reference is not None and low / 8 < reference.mean[-1] < high:
        low = min(low, 0.7 * reference.mean[-1])
        ends, level = [curve.x[0], curve.x[-1]], [reference.mean[-1]] * 2
        ax.plot(ends, level, color=PALETTE[1], linestyle=DASHES[1], linewidth=1.3, label=_label(reference.label))
    _log_axis(ax, low, high)
    left, right = min(curve.x[0], trained), max(curve.x[-1], trained + 1)
    ax.axvspan(left, trained, color=INK, alpha=0.055, linewidth=0)
    ax.axvline(trained, color=INK, alpha=0.7, linewidth=1.0)
    _note(ax, trained, f"trained: b = {trained}", "left")
    ax.set(xlabel="loops applied", ylabel="error (predicting zero = 1)", xlim=(left, right))


def _line(ax: Axes, index: int, x, mean, label: str, band: Curve | None = None, **style: Any) -> None:
    colour, dash = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
    mean = [value if value > 0 else math.nan for value in mean] if band is not None else mean
    ax.plot(x, mean, color=colour, linestyle=dash, label=_label(label), zorder=3 if index == 0 else 2, **style)
    if band is not None:
        ax.fill_between(x, band.low, band.high, color=colour, alpha=0.17, linewidth=0)


def _note(ax: Axes, x: float, text: str, side: str) -> None:
    """A few words at the top of the axes, beside the vertical line at x."""
    offset = 4 if side == "left" else -4
    ax.annotate(text, (x, 1), (offset, -2), ha=side, va="top", fontsize=8, **_AT_TOP)


_AT_TOP: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a logarithmic axis around the positive values: at least a factor of 6, so that flat looks flat."""
    positive = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = 0.75 * min(positive), 1.35 * max(positive)
    stretch = math.sqrt(max(1.0, 6 * low / high))
    return low / stretch, high * stretch


def _log_axis(ax: Axes, low: float, high: float, axis: str = "y") -> None:
    """A logarithmic axis with ticks that say 0.05 and not 5 x 10^-2, and a hairline at each."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
    one = ax.yaxis if axis == "y" else ax.xaxis
    (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
    (ax.set_ylim if axis == "y" else ax.set_xlim)(low, high)
    one.set_major_locator(LogLocator(subs=subs, numticks=7))
    one.set_major_formatter(FuncFormatter(lambda value, _: number(value, 1)))
    one.set_minor_formatter(NullFormatter())
    one.set_tick_params(which="minor", size=0)


def _label(text: str) -> str:
    """matplotlib hides a label that starts with an underscore."""
    return f" {text}" if text.startswith("_") else text


def _legend(figure: Figure, ax: Axes, **style: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    ax.set_axisbelow(True)
    for other in figure.axes:
        if other.get_xscale() == "linear":
            other.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    handles, labels = ax.get_legend_handles_labels()
    columns = 2 if len(labels) in (2, 4) or max(map(len, labels), default=0) > 18 else 3
    columns = max(len(labels), 1) if figure.get_size_inches()[0] > 8 else columns
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, handlelength=2.6, columnspacing=1.6, **style
    )


def _real(value: float | None) -> float:
    return math.nan if value is None else float(value)


@contextlib.contextmanager
def _figure(size: tuple[float, float]) -> Iterator[Figure]:
    from matplotlib.figure import Figure

    with _look():
        yield Figure(figsize=size, layout="constrained")


@contextlib.contextmanager
def _look() -> Iterator[None]:
    """The house style, whatever the user's own matplotlibrc says; letters that the font lacks are the browser's."""
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    """The same figure gives the same bytes: no date, no random ids."""
    import matplotlib

    buffer = io.BytesIO()
    empty = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate", "Creator", "Producer")}
    with _look(), matplotlib.rc_context({"svg.hashsalt": "looped"}):
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(empty.get(kind, ()), None), **options)
    return buffer.getvalue()


def _page_colours(style: str) -> str:
    style = style.replace(INK, "currentColor")
    for index, colour in enumerate(PALETTE):
        style = style.replace(colour, f"var(--curve-{index}, {colour})")
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", style)
