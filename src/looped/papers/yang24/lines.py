"""How yang24's curves are drawn: by loops on a logarithmic axis, by examples on a plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from looped.evaluation.claims import Data
from looped.evaluation.lines import log_y, reference_line, seeds_line
from looped.papers.yang24.judges import center

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def line(ax: Axes, index: int, curve: Data, label: str, **style: Any) -> None:
    """A curve; its band is the spread over seeds, or the interval over prompts where there is one seed."""
    seeds_line(ax, index, curve["x"], curve["mean"], label, **style)
    if len(curve["mean"]) == 1 and None not in curve["low"][0] + curve["high"][0]:
        color = style.get("color", f"C{index % 6}")
        ax.fill_between(curve["x"], curve["low"][0], curve["high"][0], color=color, alpha=0.17, linewidth=0)


def baseline(ax: Axes, curve: Data, label: str, **style: Any) -> None:
    """What a person would use instead, in the ink of the text."""
    reference_line(ax, curve["x"], center(curve), label, **style)


def trained_mark(ax: Axes, index: int, loops: int) -> None:
    """A dashed line where training ended."""
    ax.axvline(loops, color=f"C{index % 6}", linestyle=(0, (2, 2)), linewidth=0.8, alpha=0.7)


def loops_axis(ax: Axes, *, most: int | None = None, floor: float = 1e-5) -> None:
    """Squared error by loops, logarithmic."""
    ax.set(xlabel="loop iterations", ylabel="squared error")
    ax.set_xlim(0, most)
    log_y(ax, floor=floor)


def examples_axis(ax: Axes, *, top: float | None = None) -> None:
    """Squared error by examples, from 0; what lies far above 1 is cut."""
    ax.set(xlabel="in-context examples", ylabel="squared error")
    ax.set_ylim(0, top)
