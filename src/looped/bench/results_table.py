"""The measurements as one table and one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from looped.bench.cases import Case
from looped.bench.measure import Measured
from looped.bench.rivals import RIVALS
from looped.evaluation.lines import DASHES, finish, log_y, reference_line
from looped.report.drawing import PALETTE, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "gpt2": "GPT2Model, eager",
    "gpt2-compile": "GPT2Model, torch.compile",
    "published": "as the published program",
}
"""The rivals' names in a figure."""


def table(results: Sequence[Measured], title: str) -> Table:
    """A row for each case that could run; `speed` is how many times faster it is than GPT2Model in eager PyTorch."""
    results = [result for result in results if result.ms is not None]
    rows = Table(title=title)
    texts, counts = ("recipe", "engine", "precision"), ("batch", "b", "T", "points", "models")
    time = "ms a prediction" if results and results[0].case.predicts else "ms a step"
    for name in (*texts, *counts, time, "TFLOP/s", "share", "memory", "set-up", "speed"):
        rows.add_column(name, justify="left" if name in texts else "right")
    for result in results:
        case = result.case
        assert result.ms is not None
        same = [other for other in results if other.case.sizes == case.sizes]
        eager = next((other.ms for other in same if other.case.engine == RIVALS[0]), None)
        sizes = (case.batch, case.loops, case.window, case.points, case.packed)
        rows.add_row(
            case.recipe,
            case.engine,
            case.dtype,
            *map(str, sizes),
            f"{result.ms:.4g}",
            f"{result.tflops:.3g}",
            f"{result.share:.1%}",
            "" if result.memory is None else f"{result.memory / 2**20:,.0f} MiB",
            f"{result.setup_seconds:.1f} s",
            "" if eager is None else f"{eager / result.ms:.3g}x",
            end_section=result is same[-1],
        )
    return rows


def notes(results: Sequence[Measured]) -> list[str]:
    """Why cases have no numbers: each engine's reasons, and the cases unless it is all of them."""
    missing: dict[tuple[str, str], list[Case]] = {}
    for result in results:
        if result.ms is None:
            missing.setdefault((result.case.engine, result.note), []).append(result.case)
    lines = []
    for (engine, note), cases in missing.items():
        every = len(cases) == sum(result.case.engine == engine for result in results)
        lines.append(f"{engine}: {note}" if every else f"{engine}: {note} ({'; '.join(case.sizes for case in cases)})")
    return lines


def bench_figure(results: Sequence[Measured]) -> Figure:
    """Milliseconds a step and TFLOP/s against the batch, at the loops, window and length with the most batches."""
    done = [result for result in results if result.ms is not None]
    series = Counter(_series(result) for result in done).most_common(1)[0][0]
    shown = [result for result in done if _series(result) == series]
    recipe, loops, window, points, packed = series
    dtype = shown[0].case.dtype
    with blank((9.2, 3.6)) as figure:
        left, right = figure.subplots(1, 2)
        for index, engine in enumerate(dict.fromkeys(result.case.engine for result in shown)):
            curve = sorted((r for r in shown if r.case.engine == engine), key=lambda result: result.case.batch)
            look = {"color": PALETTE[index % 6], "linestyle": DASHES[index % 6], "marker": "o", "markersize": 3.5}
            batches, label = [result.case.batch for result in curve], LABELS.get(engine, engine)
            left.plot(batches, [result.ms for result in curve], label=label, **look)
            right.plot(batches, [result.tflops for result in curve], label=label, **look)
        batches = sorted({result.case.batch for result in shown})
        reference_line(right, batches, [shown[0].rate] * len(batches), "a large matrix product", marker="")
        models = f", {packed} models" if packed > 1 else ""
        for ax in (left, right):
            ax.set_xscale("log", base=2)
            ax.set_xticks(batches, [str(batch) for batch in batches])
            ax.minorticks_off()
            ax.set(xlabel=f"batch ({recipe}, b={loops}, T={window}, {points} points, {dtype}{models})")
            log_y(ax)
        left.set(ylabel="milliseconds a prediction" if shown[0].case.predicts else "milliseconds a step")
        right.set(ylabel="TFLOP/s")
        finish(figure, columns=3)
    return figure


def _series(result: Measured) -> tuple[str, int, int, int, int]:
    """What the points of a line share, but for the precision: the published program has its own."""
    case = result.case
    return case.recipe, case.loops, case.window, case.points, case.packed
