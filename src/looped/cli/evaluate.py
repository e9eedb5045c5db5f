"""`looped evaluate`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from looped.baselines.positions import spread
from looped.cli.common import (
    NOT_SAVED,
    RUN,
    Best,
    Code,
    Device,
    Json,
    Quiet,
    Set,
    chosen_model,
    late,
    messages,
    print_json,
    say,
    usual_points,
)
from looped.cli.train import handed_over, handing_over
from looped.config import override
from looped.evaluation.cache import Told, cached
from looped.evaluation.curves import Evaluation, baselines_for, slow_baselines_for
from looped.evaluation.curves import evaluate as judge
from looped.evaluation.saved import save_evaluation
from looped.evaluation.shifted import evaluate_shifted, read_shift
from looped.recipes import setup as find_setup
from looped.tasks.shifts import Shifted
from looped.training.run import Run

PROMPTS = 1280


def evaluate(
    run: Annotated[str, typer.Argument(help=RUN)],
    task: Annotated[str | None, typer.Option(metavar="RECIPE", help="Judge on the task of this recipe.")] = None,
    set_: Set = None,
    scale: Annotated[str | None, typer.Option(help="Scale of that recipe.")] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(metavar="SHIFT", help="Shift the task: skewed, noisy, scaled-x:factor=2; `looped list shifts`."),
    ] = None,
    points: Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")] = None,
    loops: Annotated[int | None, typer.Option(help="Loops behind the curve by examples; default as trained.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Last loop of the curve by loops; default 4x trained.")] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts.")] = PROMPTS,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    all_baselines: Annotated[
        bool,
        typer.Option("--all-baselines", help="Also those that take minutes, at about ten positions; kept for later."),
    ] = False,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="The model alone, where many prompts would keep baselines long.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Its title in the run folder and the report; default what is not usual.")
    ] = None,
    best: Best = False,
    code: Code = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Error by examples and by loops, with 90% intervals, against the baselines on the same prompts.

    Predicting zero scores 1. The task's fields can be changed: a run can be judged on any task it can read.

    Example: `looped evaluate runs/yang24.linear-1a2b3c4d5e --set task.noise=1 --max-loops 200`
    """
    opened = Run.open(run, handed_over(code))
    experiment = opened.setup
    if scale is not None and task is None:
        raise ValueError(
            f"`--scale` is that of the recipe in `--task`; got `{scale}` without one. Add `--task`, or leave it out."
        )
    shifts = [read_shift(one) for one in shift or []]
    judged = find_setup(task, scale).task if task else experiment.task
    stray = [setting for setting in set_ or [] if not setting.startswith("task.")]
    if stray:
        raise ValueError(f"evaluation can change the task only, such as task.noise=1; got `{stray[0]}`.")
    judged = override(judged, [setting.removeprefix("task.") for setting in set_ or []], handed_over(code))
    if isinstance(judged, Shifted):
        judged, shifts = judged.task, [*judged.shifts, *shifts]
    points = usual_points(opened, judged.d) if points is None else points
    if points < 1:
        raise ValueError(f"`--points` must be at least 1; got {points}.")
    if all_baselines and no_baselines:
        raise ValueError("got `--all-baselines` and `--no-baselines`. Leave one of the two out.")
    model = chosen_model(opened, device, best=best)
    slow = slow_baselines_for(judged, at=spread(points), workers=os.cpu_count() or 1) if all_baselines else {}
    if slow and any(one.stage == 1 for one in shifts):
        raise ValueError(
            "`--all-baselines` cannot go with a shift of the query: every position then has a query of its own, and "
            f"{', '.join(slow)} would be fitted anew for each, for hours. Leave one of the two out."
        )
    with baseline_bar(list(slow), quiet=quiet) as told:
        kept = {title: cached(title, baseline, progress=told) for title, baseline in slow.items()}
        usual_ones = {} if no_baselines else None
        baselines = {**baselines_for(judged), **kept} if slow else usual_ones
        result = (partial(evaluate_shifted, shifts=shifts) if shifts else judge)(
            model,
            judged,
            points=points,
            loops=loops,
            max_loops=max_loops,
            prompts=prompts,
            seed=seed,
            baselines=baselines,
        )
    asked = [f"{task} {scale}" if scale else task] if task else []
    changed = [*asked, *(set_ or []), *(shift or [])] or ["as trained"]
    usual = None
    with contextlib.suppress(ValueError):  # a damaged record matters only to those who do not say `--points`
        usual = usual_points(opened, judged.d)
    sizes = _sizes(result, points=points, usual=usual, max_loops=max_loops, seed=seed)
    which = ["best weights"] * best + sizes + ["all baselines"] * all_baselines + ["no baselines"] * no_baselines
    title = ", ".join([*changed, *which]) if name is None else name
    saved = None if opened.kept else save_evaluation(opened, title, result)
    if json:
        print_json({"run": run, "name": title, "saved": saved and str(saved), **result.to_data()})
    elif not quiet:
        messages.print(table(result, title))
        say(NOT_SAVED if saved is None else f"Saved in {saved}. Next: looped report {opened.path}{handing_over(code)}")


def _sizes(result: Evaluation, *, points: int, usual: int | None, max_loops: int | None, seed: int) -> list[str]:
    """What sets an evaluation apart from the usual one, so that it does not replace it."""
    trained, loops = result.trained_loops, result.loops
    told = {
        f"{points} points": points != usual,
        f"{loops} loops": loops != trained,
        f"up to {max_loops} loops": max_loops not in (None, max(loops, 4 * trained)),
        f"{result.prompts} prompts": result.prompts != PROMPTS,
        f"seed {seed}": seed != 0,
    }
    return [text for text, differs in told.items() if differs]


@contextlib.contextmanager
def baseline_bar(names: list[str], *, quiet: bool) -> Iterator[Told]:
    """A line for each slow baseline, shown from its first report on."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with late(Progress(*columns, console=messages, disable=quiet)) as bar:
        lines = {name: bar.add_task(name, total=1.0, start=False) for name in names}

        def told(name: str, share: float) -> None:
            bar.start()
            bar.start_task(lines[name])
            bar.update(lines[name], completed=share)

        yield told


def table(result: Evaluation, title: str) -> Table:
    """Errors at a few numbers of examples and of loops, with intervals."""
    last, by_loops = result.by_examples[0].x[-1], result.by_loops
    shown = sorted({round(last * share) for share in (0.25, 0.5, 0.75, 1)})
    rows = Table(title=f"{title}: error (predicting zero = 1), {result.level:.0%} intervals, {result.prompts} prompts")
    rows.add_column("")
    for k in shown:
        rows.add_column(f"k={k}", justify="right")
    for curve in result.by_examples:
        rows.add_row(curve.label, *(curve.text(k) for k in shown))
    loops = dict.fromkeys((result.trained_loops, 2 * result.trained_loops, by_loops.x[-1]))
    said = ", ".join(f"{n}: {by_loops.text(n).partition(' [')[0]}" for n in loops if n in by_loops.x)
    rows.caption = f"by loops at k={last}: {said}"
    return rows
