"""The measurements as one table and one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from looped.bench.measure import Measured
from looped.bench.rivals import RIVALS
from looped.evaluation.lines import DASHES, finish, log_y, reference_line
from looped.report.drawing import PALETTE, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"gpt2": "GPT2Model, eager", "gpt2-compile": "GPT2Model, torch.compile"}
"""How rivals are called in a figure."""


def table(found: Sequence[Measured], title: str) -> Table:
    """A row for each case that could run; `speed` is how many times faster it is than GPT2Model in eager PyTorch."""
    found = [one for one in found if one.ms is not None]
    rows = Table(title=title)
    names = ("engine", "precision", "batch", "b", "T", "points", "models", "ms a step", "TFLOP/s", "share", "memory")
    for name in (*names, "set-up", "speed"):
        rows.add_column(name, justify="left" if name in ("engine", "precision") else "right")
    for index, one in enumerate(found):
        case = one.case
        last = index + 1 == len(found) or _place(found[index + 1]) != _place(one)
        sizes = (case.batch, case.loops, case.window, case.points, case.packed)
        rows.add_row(case.engine, case.dtype, *map(str, sizes), *_numbers(one, _eager(one, found)), end_section=last)
    return rows


def _numbers(one: Measured, eager: Measured | None) -> list[str]:
    assert one.ms is not None
    assert one.tflops is not None
    assert one.share is not None
    memory = "" if one.memory is None else f"{one.memory / 2**20:,.0f} MiB"
    speed = "" if eager is None or eager.ms is None else f"{eager.ms / one.ms:.3g}x"
    return [f"{one.ms:.4g}", f"{one.tflops:.3g}", f"{one.share:.1%}", memory, f"{one.setup_seconds:.1f} s", speed]


def notes(found: Sequence[Measured]) -> list[str]:
    """Why cases have no numbers: each engine's reason once, with the cases where it is not all of them."""
    missing: dict[tuple[str, str], list[Measured]] = {}
    for one in found:
        if one.ms is None:
            missing.setdefault((one.case.engine, one.note), []).append(one)
    lines = []
    for (engine, note), own in missing.items():
        every = len(own) == sum(one.case.engine == engine for one in found)
        cases = "; ".join(
            f"batch {c.batch}, b={c.loops}, T={c.window}, {c.points} points" for c in (o.case for o in own)
        )
        lines.append(f"{engine}: {note}" if every else f"{engine}: {note} ({cases})")
    return lines


def bench_figure(found: Sequence[Measured], *, size=(9.2, 3.6)) -> Figure:
    """Milliseconds a step and TFLOP/s against the batch, at the loops, window and length with the most batches."""
    done = [one for one in found if one.ms is not None]
    if not done:
        raise ValueError("nothing could be measured, so there is nothing to draw.")
    series = Counter(_series(one) for one in done).most_common(1)[0][0]
    shown = [one for one in done if _series(one) == series]
    loops, window, points, packed, dtype = series
    with blank(size) as figure:
        left, right = figure.subplots(1, 2)
        for index, engine in enumerate(dict.fromkeys(one.case.engine for one in shown)):
            own = sorted((one for one in shown if one.case.engine == engine), key=lambda one: one.case.batch)
            look = {"color": PALETTE[index % 6], "linestyle": DASHES[index % 6], "marker": "o", "markersize": 3.5}
            batches, label = [one.case.batch for one in own], LABELS.get(engine, engine)
            left.plot(batches, [one.ms for one in own], label=label, **look)
            right.plot(batches, [one.tflops for one in own], label=label, **look)
        batches = sorted({one.case.batch for one in shown})
        reference_line(right, batches, [shown[0].rate] * len(batches), "a large matrix product", marker="")
        models = f", {packed} models" if packed > 1 else ""
        for ax in (left, right):
            ax.set_xscale("log", base=2)
            ax.set_xticks(batches, [str(batch) for batch in batches])
            ax.minorticks_off()
            ax.set(xlabel=f"batch (b={loops}, T={window}, {points} points, {dtype}{models})")
            log_y(ax)
        left.set(ylabel="milliseconds a step")
        right.set(ylabel="TFLOP/s")
        finish(figure, columns=3)
    return figure


def _place(one: Measured) -> tuple[object, ...]:
    case = one.case
    return (case.batch, *_series(one))


def _series(one: Measured) -> tuple[int, int, int, int, str]:
    case = one.case
    return case.loops, case.window, case.points, case.packed, case.dtype


def _eager(one: Measured, found: Sequence[Measured]) -> Measured | None:
    return next((other for other in found if other.case.engine == RIVALS[0] and _place(other) == _place(one)), None)
