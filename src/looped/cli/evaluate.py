"""`looped evaluate`."""

import contextlib
import os
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from looped.baselines.positions import spread
from looped.cli import options
from looped.cli.chosen_run import NOT_SAVED, ChosenRun, open_run
from looped.cli.output import interval_at, number, progress_lines, show
from looped.config import nearest, override
from looped.evaluation.cache import cached
from looped.evaluation.curves import Evaluation, baselines_for, slow_baselines_for
from looped.evaluation.curves import evaluate as evaluate_model
from looped.evaluation.saved import save_evaluation
from looped.files import quoted
from looped.recipes import setup as find_setup
from looped.tasks.shifts import Shift, Shifted, shifts_by_name
from looped.tasks.task import Task

PROMPTS = 1280


def evaluate(
    run: options.RunName,
    task: options.JudgedTask = None,
    set_: options.Set = None,
    scale: options.JudgedScale = None,
    shift: options.Shifts = None,
    baseline: options.OwnBaselines = None,
    points: options.Points = None,
    loops: Annotated[int | None, typer.Option(help="Loops of the curve by examples; default as trained.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Last loop of the curve by loops; default 4x trained.")] = None,
    prompts: options.Prompts = PROMPTS,
    seed: options.PromptSeed = 0,
    all_baselines: Annotated[
        bool,
        typer.Option("--all-baselines", help="Also the baselines that take minutes, at about ten positions; cached."),
    ] = False,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Only the model; baselines are slow on many prompts.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Title in the report; default what differs from the usual.")] = None,
    best: options.Best = False,
    code: options.Code = None,
    device: options.Device = "auto",
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Error by examples and by loops, with 90% intervals, against the baselines on the same prompts.

    Predicting zero scores 1. The task's fields can be changed: a run can be judged on any task it can read.

    Example: `looped evaluate runs/yang24.linear-1a2b3c4d5e --set task.noise=1 --max-loops 200`
    """
    if no_baselines and (all_baselines or baseline):
        other = "--all-baselines" if all_baselines else "--baseline"
        raise ValueError(f"got `{other}` and `--no-baselines`. Leave one of the two out.")
    chosen = open_run(run, points=points, best=best, code=code)
    if scale is not None and task is None:
        raise ValueError(
            f"`--scale` is that of the recipe in `--task`; got `{scale}` without one. Add `--task`, or leave it out."
        )
    judged = find_setup(task, scale).task if task else chosen.run.setup.task
    judged = changed_task(judged, set_ or [], shift or [], options.load_user_code(code))
    model = chosen.model(device)
    slow = slow_baselines_for(judged, at=spread(chosen.points), workers=os.cpu_count() or 1) if all_baselines else {}
    if slow and isinstance(judged, Shifted) and any(shift.stage == 1 for shift in judged.shifts):
        raise ValueError(
            "`--all-baselines` cannot go with a shift of the query: every position then has its own query, and "
            f"{', '.join(slow)} would be fitted again for each, which takes hours. Leave one of the two out."
        )
    with progress_lines(quiet=quiet, transient=not slow, yes=yes) as report:
        baselines = {} if no_baselines else None
        if slow:
            answers = {title: cached(title, baseline, progress=report) for title, baseline in slow.items()}
            baselines = {**baselines_for(judged), **answers}
        if baseline:
            baselines = {**(baselines or baselines_for(judged)), **options.own_baselines(baseline)}
        sizes: dict[str, Any] = {"points": chosen.points, "loops": loops, "max_loops": max_loops, "prompts": prompts}
        result = evaluate_model(model, judged, seed=seed, baselines=baselines, progress=report, **sizes)
    recipe = [f"{task} {scale}" if scale else task] if task else []
    edited = ["edited config"] * chosen.run.edited  # reading it is allowed, but nobody may take it for the run's own
    changes = [*recipe, *(set_ or []), *(shift or []), *edited] or ["as trained"]
    changes += _unusual(result, chosen, max_loops=max_loops, seed=seed)
    changes += ["all baselines"] * all_baselines + ["no baselines"] * no_baselines
    changes += [f"baseline {name}" for name in options.own_baselines(baseline)]
    title = ", ".join(changes) if name is None else name
    saved, reason = None, NOT_SAVED
    if not chosen.run.kept:
        try:
            saved = save_evaluation(chosen.run, title, result)
        except OSError as error:
            reason = f"Not saved: {chosen.run.path} cannot be written ({error.strerror})."
    data = {"run": run, "name": title, "saved": saved and str(saved), **asdict(result)}
    next_step = f"Saved in {saved}. Next: looped report {quoted(chosen.run.path)}{options.code_options(code)}"
    show(data, table(result, title), notes=[next_step if saved else reason], json=json, quiet=quiet)


def changed_task(task: Task, settings: list[str], shifts: list[str], code: dict[str, Any]) -> Task:
    """The task with the fields and shifts that were asked for."""
    stray = [setting for setting in settings if not setting.startswith("task.")]
    if stray:
        raise ValueError(f"evaluation can change the task only, such as task.noise=1; got `{stray[0]}`.")
    task = override(task, [setting.removeprefix("task.") for setting in settings], code)
    if not shifts:
        return task
    inner, earlier = (task.task, task.shifts) if isinstance(task, Shifted) else (task, ())
    return Shifted(task=inner, shifts=(*earlier, *map(read_shift, shifts)))


def read_shift(text: str) -> Shift:
    """A shift as typed: its name or an unambiguous beginning of it, and fields, as in `scaled-x:factor=2`.

    One of the user's own is `my_file.py:MyShift`, with fields behind another colon.
    """
    if own := re.match(r"\s*(.+?\.py:\w+):?(.*)", text):
        kind = options.own_thing(own[1], type, "a shift")
        if not issubclass(kind, Shift):
            raise ValueError(f"a shift of your own is a subclass of `Shift`; got `{own[1]}`.")
        return override(kind(), [field for field in own[2].split(",") if field.strip()])
    known = shifts_by_name()
    name, _, fields = text.strip().partition(":")
    matches = [name] if name in known else [full for full in known if name and full.startswith(name)]
    if len(matches) != 1:
        remedy = f"It may be {' or '.join(matches)}." if matches else nearest(name, known)
        raise ValueError(f"no shift is called `{name}`. {remedy}")
    return override(known[matches[0]](), [field for field in fields.split(",") if field.strip()])


def _unusual(result: Evaluation, chosen: ChosenRun, *, max_loops: int | None, seed: int) -> list[str]:
    """What sets an evaluation apart from the usual one, so that it does not replace it."""
    trained, loops = result.trained_loops, result.loops
    usual = None
    with contextlib.suppress(ValueError):  # a damaged record matters only if `--points` is not given
        usual = chosen.run.points
    differences = {
        "best weights": chosen.best,
        f"{chosen.points} points": chosen.points != usual,
        f"{loops} loops": loops != trained,
        f"up to {max_loops} loops": max_loops not in (None, max(loops, 4 * trained)),
        f"{result.prompts} prompts": result.prompts != PROMPTS,
        f"seed {seed}": seed != 0,
    }
    return [text for text, differs in differences.items() if differs]


def table(result: Evaluation, title: str) -> Table:
    """Errors at a few numbers of examples and of loops, with intervals."""
    last, by_loops = result.by_examples[0].x[-1], result.by_loops
    shown = sorted({round(last * share) for share in (0.25, 0.5, 0.75, 1)})
    rows = Table(title=f"{title}: error (predicting zero = 1), {result.level:.0%} intervals, {result.prompts} prompts")
    rows.add_column("")
    for k in shown:
        rows.add_column(f"k={k}", justify="right")
    for curve in result.by_examples:
        rows.add_row(curve.label, *(interval_at(curve, k) for k in shown))
    loops = dict.fromkeys((result.trained_loops, 2 * result.trained_loops, by_loops.x[-1]))
    errors = ", ".join(f"{loop}: {number(by_loops.at(loop))}" for loop in loops if loop in by_loops.x)
    rows.caption = f"by loops at k={last}: {errors}"
    return rows
