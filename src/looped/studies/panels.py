"""How a study is drawn: which label is the column, which the colour, which quantity the axis.

    Panels(y="by_loops", column="T", colour="b", mark_trained=True)

Cells without a seed (baselines, bounds) are drawn as thin reference lines; a cell that lacks a panel's label is
drawn in every panel.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looped.evaluation.lines import DASHES, finish, log_y, reference_line, seeds_line
from looped.studies.table import Cell, Label, Series, Table, text


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The axes of one quantity."""

    x: str
    """What the quantity is drawn against."""
    y: str = "squared error"
    """What it is."""
    log: bool = False
    """Whether its axis is logarithmic."""
    log_x: bool = False
    """Whether the other axis is logarithmic."""
    floor: float | None = None
    """Nothing below it is shown on a logarithmic axis."""
    places: bool = False
    """Whether the ticks are the measured places, with a marker at each."""


AXES = {
    "by_examples": Axis(x="in-context examples"),
    "by_loops": Axis(x="loop iterations", log=True, floor=1e-5),
}
"""Axes of the quantities that every trained model has."""


@dataclass(frozen=True, kw_only=True)
class Panels:
    """A row or grid of panels, all of one quantity."""

    y: str
    """The quantity."""
    axis: Axis | None = None
    """Its axes; None where `AXES` has them."""
    column: str | None = None
    """A panel for each value of this label."""
    row: str | None = None
    """A row of panels for each value of this label."""
    colour: str | None = None
    """A colour for each value of this label."""
    dash: str | None = None
    """A dash pattern for each value of this label."""
    reference_quantity: str | None = None
    """A quantity that is drawn as a thin line, the mean over seeds, in the panels whose labels it shares."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Only cells with these labels, or with one of a tuple of values."""
    title: str = ""
    """Title of a panel, with labels in braces: "T = {T}"; empty: the values of row and column."""
    line: str = ""
    """Legend text of a line, with labels in braces: "b = {b}"; empty: all labels but row, column and `only`."""
    reference: str = ""
    """Legend text of a reference line; empty: like `line`."""
    wrap: int | None = None
    """Most panels in a row."""
    top: float | None = None
    """Upper end of the y axis."""
    bottom: float | None = None
    """Lower end of the y axis; a plain axis starts at 0 unless this says otherwise."""
    cut_references: bool = False
    """Whether the y axis ends just above the trained models, so that a baseline which peaks is cut."""
    most: float | None = None
    """Upper end of the x axis."""
    mark_trained: bool = False
    """A dashed vertical line at each looped model's trained loops."""
    share_y: bool = True
    """Whether panels of a row share their y axis."""
    width: float = 2.6
    """Width of a panel, inches."""
    height: float = 2.9
    """Height of a panel, inches."""
    legend_columns: int = 4
    """Columns of the legend."""


def draw(figure: Any, table: Table, groups: Sequence[Panels]) -> None:
    """Draw groups of panels: side by side where each is a single panel, else below each other."""
    rows = [[(panels, *panel) for panel in row] for panels in groups for row in _grid(table, panels)]
    if len(rows) == len(groups) and all(len(row) == 1 for row in rows):
        rows = [[panel for row in rows for panel in row]]
    columns = max(map(len, rows))
    height = sum(max(panels.height for panels, _, _ in row) for row in rows)
    figure.set_size_inches(max(4.4, columns * groups[0].width + 0.5), height + 0.6)
    for axes, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for index, (panels, title, part) in enumerate(row):
            ax = axes[index]
            _panel(ax, part, panels, table)
            ax.set_title(title)
            if index and row[index - 1][0] is panels:
                ax.set_ylabel("")
        for panels in groups:
            _share_y([ax for ax, panel in zip(axes, row, strict=False) if panel[0] is panels and panels.share_y])
        for ax in axes[len(row) :]:
            ax.set_axis_off()
    finish(figure, columns=groups[0].legend_columns)


def _share_y(axes: Sequence[Any]) -> None:
    """Give panels the limits that show all of each."""
    limits = [ax.get_ylim() for ax in axes]
    for ax in axes:
        ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _shown(table: Table, panels: Panels) -> Table:
    only = {name: value if isinstance(value, tuple) else (value,) for name, value in panels.only.items()}
    chosen = table.where(panels.y)
    return Table(series for series in chosen if all(series.cell.get(name) in values for name, values in only.items()))


def _grid(table: Table, panels: Panels) -> list[list[tuple[str, Table]]]:
    """Rows of (title, what the panel shows)."""
    shown, rows = _shown(table, panels), []
    for row in _values(shown, panels.row):
        line = [
            (_title(panels, row, column), _part(_part(shown, panels.row, row), panels.column, column))
            for column in _values(shown, panels.column)
        ]
        width = panels.wrap or len(line)
        rows += [line[start : start + width] for start in range(0, len(line), width)]
    return rows


def _values(table: Table, label: str | None) -> list[Label | None]:
    return [None] if label is None else list(table.labels(label))


def _part(table: Table, label: str | None, value: Label | None) -> Table:
    return table if label is None else Table(series for series in table if series.cell.get(label, value) == value)


def _title(panels: Panels, row: Label | None, column: Label | None) -> str:
    labels = {name: value for name, value in ((panels.row, row), (panels.column, column)) if name is not None}
    if panels.title:
        return panels.title.format(**{name: text(value) for name, value in labels.items()})
    return ", ".join(
        value.replace("_", " ") if isinstance(value, str) else f"{name} = {text(value)}"
        for name, value in labels.items()
    )


def _panel(ax: Any, table: Table, panels: Panels, everything: Table) -> None:
    axis = panels.axis or AXES[panels.y]
    runs: dict[Cell, list[Series]] = {}
    for series in table:
        runs.setdefault(series.cell, []).append(series)
    trained = Table(series for series in _shown(everything, panels) if series.seed is not None)
    colours, dashes = (_values(trained, label) for label in (panels.colour, panels.dash))
    references = 0
    for index, (cell, members) in enumerate(runs.items()):
        if members[0].seed is None:
            label = _line_text(panels, panels.reference or panels.line, cell)
            style = {"linestyle": DASHES[1 + references % (len(DASHES) - 1)]}
            if panels.colour is not None and cell.get(panels.colour) in colours:
                style = {"color": f"C{colours.index(cell[panels.colour]) % 6}"}
            reference_line(ax, list(members[0].x), _finite(members[0].value), label, **style)
            references += 1
            continue
        label = _line_text(panels, panels.line, cell)
        colour = colours.index(cell[panels.colour]) if panels.colour and panels.colour in cell else index
        dash = DASHES[dashes.index(cell[panels.dash]) % len(DASHES)] if panels.dash and panels.dash in cell else None
        style = {"linestyle": dash} if dash is not None else {}
        style |= {"marker": "o", "markersize": 3} if axis.places else {}
        x: Sequence[Any] = members[0].x
        if panels.y == "by_loops" and len(x) == 1:  # a model without loops: a marker at the number of its layers
            x = everything.where("layers_applied", **cell).series[0].value
            style |= {"marker": "s", "markersize": 4, "linestyle": ""}
        seeds_line(ax, colour, x, [_finite(series.value) for series in members], label, **style)
        low, high = members[0].low, members[0].high
        if len(members) == 1 and low is not None and high is not None:  # of a lone seed the interval over prompts
            band = {"color": f"C{colour % 6}", "alpha": 0.17, "linewidth": 0}
            ax.fill_between(members[0].x, _finite(low), _finite(high), **band)
        if panels.mark_trained:
            loops = everything.where("trained_loops", **cell).series[0].value[0]
            if loops > 1:  # a model that is not looped has one
                ax.axvline(loops, color=f"C{colour % 6}", linestyle=(0, (2, 2)), linewidth=0.8, alpha=0.7)
    if panels.reference_quantity is not None:
        _draw_reference(ax, everything.where(panels.reference_quantity), next(iter(runs)), panels.reference_quantity)
    _finish_axes(ax, axis, panels, runs)


def _draw_reference(ax: Any, table: Table, panel_cell: Cell, quantity: str) -> None:
    """The reference of this panel: the one whose labels agree with those of the panel."""
    shared = [series for series in table if all(panel_cell.get(k, v) == v for k, v in series.cell.items())]
    if shared:
        means = [sum(column) / len(column) for column in zip(*(series.value for series in shared), strict=True)]
        reference_line(ax, shared[0].x, means, quantity.replace("_", " "), linestyle="-", linewidth=1.4)


def _line_text(panels: Panels, template: str, cell: Cell) -> str:
    with contextlib.suppress(KeyError):  # the cell lacks a label of the template
        if template:
            return template.format(**{name: text(value) for name, value in cell.items()})
    hidden = {panels.column, panels.row, *panels.only}
    shown = {name: value for name, value in cell.items() if name not in hidden}
    return ", ".join(value if isinstance(value, str) else f"{name} = {text(value)}" for name, value in shown.items())


def _finish_axes(ax: Any, axis: Axis, panels: Panels, runs: Mapping[Cell, Sequence[Series]]) -> None:
    ax.set(xlabel=axis.x, ylabel=axis.y)
    if axis.log_x:
        ax.set_xscale("log")
    if axis.places:
        places = sorted({place for members in runs.values() for place in members[0].x})
        ax.set_xticks(places, [text(place) for place in places])
        ax.minorticks_off()
    if panels.most is not None:
        ax.set_xlim(0, min(panels.most, max(members[0].x[-1] for members in runs.values())))
    if axis.log:
        log_y(ax, floor=axis.floor)
    top = _models_top(runs) if panels.cut_references else panels.top
    ends = {"bottom": panels.bottom if axis.log else panels.bottom or 0, "top": top}
    ax.set_ylim(**{side: end for side, end in ends.items() if end is not None})


def _models_top(runs: Mapping[Cell, Sequence[Series]]) -> float | None:
    members = [series for group in runs.values() for series in group if series.seed is not None]
    values = [value for series in members for value in series.value if math.isfinite(value)]
    return 1.1 * max(values) if values else None


def _finite(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) else math.nan for value in values]
