"""What the papers' figures draw with: a line with its spread, a logarithmic axis, one legend for all panels.

Colours are C0 .. C5 and the ink of the text, which the page's or the file's look decides (`looped.report.drawing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.8)), (0, (6, 1.6, 1.4, 1.6)), (0, (1.4, 1.6)), (0, (8, 2)), (0, (3, 1.2)))


def seeds_line(
    ax: Axes, index: int, x: Sequence[float], runs: Sequence[Sequence[float | None]], label: str, **style: Any
) -> None:
    """The mean over runs, one list of values each, with a band from the least to the greatest; None leaves a gap."""
    columns = [[math.nan if value is None else value for value in column] for column in zip(*runs, strict=True)]
    means = [sum(column) / len(column) for column in columns]
    options = {"color": f"C{index % 6}", "linestyle": DASHES[index % len(DASHES)], "label": label, **style}
    ax.plot(x, means, **options)
    if len(runs) > 1:
        low, high = [min(column) for column in columns], [max(column) for column in columns]
        ax.fill_between(x, low, high, color=options["color"], alpha=0.17, linewidth=0)


def reference_line(ax: Axes, x: Sequence[float], values: Sequence[float], label: str, **style: Any) -> None:
    """A bound or an optimum, thin and dashed in the ink of the text."""
    import matplotlib

    options = {"color": matplotlib.rcParams["text.color"], "linestyle": (0, (2, 1.6)), "linewidth": 1.0, **style}
    ax.plot(x, values, label=label, **options)


def log_y(ax: Axes, *, floor: float | None = None) -> None:
    """A logarithmic axis whose ticks say 0.05 and not 5 x 10^-2; nothing below `floor` is shown."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    if floor is not None and ax.get_ylim()[0] < floor:
        ax.set_ylim(bottom=floor)
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if math.log10(high / low) < 2.2 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="y", which="minor", length=0)


def finish(figure: Figure, *, columns: int = 4) -> None:
    """A hairline at every tick, and one legend above all panels with each label once."""
    import matplotlib

    entries: dict[str, Any] = {}
    for ax in figure.axes:
        ax.grid(axis="y", color=matplotlib.rcParams["text.color"], alpha=0.12, linewidth=0.6)
        ax.set_axisbelow(True)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    options: dict[str, Any] = {"handlelength": 2.6, "columnspacing": 1.4, "borderpad": 0}
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns, **options)
