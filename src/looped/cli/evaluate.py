"""`looped evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from looped.cli.common import Code, Device, Json, Quiet, Set, messages, pick_device, print_json, say
from looped.cli.train import handed_over
from looped.config import override
from looped.evaluation.curves import Evaluation
from looped.evaluation.curves import evaluate as judge
from looped.evaluation.saved import save_evaluation
from looped.recipes import experiment as find_experiment
from looped.training.run import Run


def evaluate(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    task: Annotated[str | None, typer.Option(metavar="RECIPE", help="Judge on the task of this recipe.")] = None,
    set_: Set = None,
    scale: Annotated[str | None, typer.Option(help="Scale of that recipe.")] = None,
    points: Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")] = None,
    loops: Annotated[int | None, typer.Option(help="Loops behind the curve by examples; default as trained.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Last loop of the curve by loops; default 4x trained.")] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts.")] = 1280,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the evaluation in the run folder and the report.")] = None,
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
    experiment = opened.experiment
    changed = bool(task or set_)
    judged = find_experiment(task, scale).task if task else experiment.task
    stray = [setting for setting in set_ or [] if not setting.startswith("task.")]
    if stray:
        raise ValueError(f"evaluation can change the task only, such as task.noise=1; got `{stray[0]}`.")
    judged = override(judged, [setting.removeprefix("task.") for setting in set_ or []], handed_over(code))
    made_for = int(opened.provenance().get("points", 2 * judged.d + 1))
    trained_for = experiment.train.points if experiment.train else made_for
    points = trained_for if points is None else points
    if points < 1:
        raise ValueError(f"`--points` must be at least 1; got {points}.")
    model = opened.model(pick_device(device))
    result = judge(model, judged, points=points, loops=loops, max_loops=max_loops, prompts=prompts, seed=seed)
    title = name or (", ".join(filter(None, [task, *(set_ or [])])) if changed else "as trained")
    saved = save_evaluation(opened, title, result)
    if json:
        print_json({"run": run, "name": title, "saved": str(saved), **result.to_data()})
    elif not quiet:
        messages.print(table(result, title))
        say(f"Saved in {saved}. Next: looped report {opened.path}")


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
    said = ", ".join(f"{n}: {by_loops.at(n):.4f}" for n in loops if n in by_loops.x)
    rows.caption = f"by loops at k={last}: {said}"
    return rows
