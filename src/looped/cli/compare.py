"""`looped compare`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from looped.cli import options
from looped.cli.chosen_run import ChosenRun, open_run
from looped.cli.evaluate import changed_task
from looped.cli.output import interval, progress_lines, show
from looped.evaluation.compare import Comparison
from looped.evaluation.compare import compare as compare_models
from looped.evaluation.diagnosis import Estimate
from looped.files import write_bytes
from looped.recipes import setup as find_setup
from looped.report.comparison import comparison_figure
from looped.report.drawing import save_figure
from looped.training.sweep import write_table

ENDINGS = {"csv": (".csv",), "latex": (".tex",), "plot": (".png", ".svg", ".pdf")}


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="Run folders or kept models; first: reference.")
    ],
    task: options.JudgedTask = None,
    set_: options.Set = None,
    scale: options.JudgedScale = None,
    shift: options.Shifts = None,
    baseline: options.OwnBaselines = None,
    points: options.Points = None,
    loops: Annotated[int | None, typer.Option(help="Loops of every model; default as each was trained.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Last loop of the curves; default 4x trained.")] = None,
    prompts: options.Prompts = 1280,
    seed: options.PromptSeed = 0,
    best: options.Best = False,
    csv: Annotated[str | None, typer.Option(metavar="FILE.csv", help="Write all curves there.")] = None,
    latex: Annotated[str | None, typer.Option(metavar="FILE.tex", help="Write the table there, for a paper.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the curves there: .png, .svg or .pdf.")] = None,
    code: options.Code = None,
    device: options.Device = "auto",
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Several runs on the same prompts: errors, and their paired differences to the first one, with 90% intervals.

    Each run is read after its own trained loops and after four times as many. The verdict rests on the paired
    difference: better or worse if its interval says so, else undecided.

    Example: `looped compare runs/wide-1a2b3c4d5e runs/narrow-5e4d3c2b1a --plot both.png --latex both.tex`
    """
    files = {"csv": csv, "latex": latex, "plot": plot}
    paths = {kind: _writable(name, kind) for kind, name in files.items() if name is not None}
    if scale is not None and task is None:
        raise ValueError(f"`--scale` is that of the recipe in `--task`; got `{scale}` without one. Add `--task`.")
    chosen = [open_run(run, points=points, best=best, code=code) for run in runs]
    tasks = {repr(run.run.setup.task): run.run.setup.task for run in chosen}
    if task is None and len(tasks) > 1:
        raise ValueError(f"these runs have {len(tasks)} tasks: {'; '.join(tasks)}. Choose one with `--task RECIPE`.")
    judged = find_setup(task, scale).task if task else chosen[0].run.setup.task
    judged = changed_task(judged, set_ or [], shift or [], options.load_user_code(code))
    models: dict[str, Any] = dict(zip(labels(chosen), [run.model(device) for run in chosen], strict=True))
    models |= options.own_baselines(baseline)
    sizes: dict[str, Any] = {"loops": loops, "max_loops": max_loops, "prompts": prompts, "seed": seed}
    with progress_lines(quiet=quiet or json, yes=yes) as report:
        comparison = compare_models(models, judged, points=min(run.points for run in chosen), **sizes, progress=report)
    if "csv" in paths:
        write_table(paths["csv"], comparison.rows())
    if "latex" in paths:
        write_bytes(paths["latex"], comparison.latex().encode())
    if "plot" in paths:
        save_figure(comparison_figure(comparison), paths["plot"])
    notes = [f"Written: {', '.join(map(str, paths.values()))}."] if paths else []
    show({"runs": runs, **asdict(comparison)}, table(comparison), notes=notes, json=json, quiet=quiet)


def labels(chosen: Sequence[ChosenRun]) -> list[str]:
    """The names of the experiments, with what tells them apart where two have one name."""
    names = [run.run.setup.name for run in chosen]
    twice = {name for name, count in Counter(names).items() if count > 1}
    full = [run.run.path.name if name in twice else name for run, name in zip(chosen, names, strict=True)]
    if len(set(full)) < len(full):
        full = [run.name for run in chosen]
    if again := [name for name, count in Counter(full).items() if count > 1]:
        raise ValueError(f"`{again[0]}` is given twice. Name each run once.")
    return full


def table(comparison: Comparison) -> Table:
    """One line a model: its errors, and the paired differences to the first."""
    reference = comparison.entries[0].label
    title = f"{comparison.prompts} prompts, {comparison.level:.0%} intervals; differences paired, to {reference}"
    rows = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("model", "loops", "error", "difference", "verdict", "loops", "error", "difference"):
        rows.add_column(column, justify="right" if column == "loops" else "left", overflow="fold")
    for entry in comparison.entries:
        rows.add_row(
            entry.label,
            str(entry.loops or ""),
            _interval(entry.error),
            _interval(entry.difference),
            entry.verdict,
            str(entry.max_loops or ""),
            _interval(entry.late),
            _interval(entry.late_difference),
        )
    return rows


def _interval(estimate: Estimate | None) -> str:
    return "" if estimate is None else interval(estimate.mean, estimate.low, estimate.high)


def _writable(name: str, kind: str) -> Path:
    """The file, if its ending fits and its folder is there: refused before minutes of work."""
    path = Path(name)
    if path.suffix not in ENDINGS[kind]:
        raise ValueError(f"`--{kind}` must end in {' or '.join(ENDINGS[kind])}; got {name}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"`--{kind}` must name a file in an existing folder; got {name}. Make the folder.")
    return path
