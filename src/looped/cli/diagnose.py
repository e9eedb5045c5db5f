"""`looped diagnose`."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.table import Table

from looped.cli.common import (
    NOT_SAVED,
    RUN,
    Best,
    Code,
    Device,
    Json,
    Quiet,
    chosen_model,
    messages,
    print_json,
    say,
    usual_points,
)
from looped.cli.train import handed_over
from looped.evaluation.diagnose import Diagnosis
from looped.evaluation.diagnose import diagnose as examine
from looped.files import finite, write_json
from looped.report.drawing import save_figure
from looped.report.stability import diagnosis_figure
from looped.training.run import Run


def diagnose(
    run: Annotated[str, typer.Argument(help=RUN)],
    points: Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")] = None,
    loops: Annotated[int | None, typer.Option(help="How far to loop on; default 4x trained.")] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts.")] = 128,
    starts: Annotated[int, typer.Option(help="How many random starts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and starts.")] = 0,
    best: Best = False,
    code: Code = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Is it stable past its trained loops, and if not, why: a verdict in plain language.

    Watches error and state change loop by loop, measures whether the last state attracts or repels (the spectral radius
    of the step's Jacobian), and whether random starts end at the same predictions. Saved as diagnose.json and
    diagnose.png in the run folder.

    Example: `looped diagnose runs/yang24.linear-1a2b3c4d5e --loops 200`
    """
    opened = Run.open(run, handed_over(code))
    experiment = opened.setup
    points = usual_points(opened, experiment.task.d) if points is None else points
    if points < 1:
        raise ValueError(f"`--points` must be at least 1; got {points}.")
    model = chosen_model(opened, device, best=best)
    found = examine(model, experiment.task, points=points, loops=loops, prompts=prompts, starts=starts, seed=seed)
    data = finite({"run": run, "weights": "best" if best else "last", **found.to_data()})
    saved = NOT_SAVED
    if not opened.kept:
        file, drawn = (opened.path / f"diagnose{'.best' * best}.{kind}" for kind in ("json", "png"))
        write_json(file, data)
        saved = f"Saved in {file} and {save_figure(diagnosis_figure(found), drawn)}."
    if json:
        print_json(data)
    elif not quiet:
        messages.print(table(found))
        say(found.verdict)
        say(saved)


def table(found: Diagnosis) -> Table:
    """Error and state change at a few loops."""
    last = found.loops
    shown = sorted({1, found.best_loop, found.trained_loops, 2 * found.trained_loops, last, *_marks(found)})
    rows = Table(title=f"{found.prompts} prompts, {found.level:.0%} intervals")
    for column in ("loop", "error", "state change", ""):
        rows.add_column(column, justify="left" if column == "" else "right")
    notes = {found.best_loop: "best", found.trained_loops: "trained", found.diverges_at: "begins to diverge"}
    for loop in shown:
        if loop <= last:
            change = found.change.at(loop)
            moved = f"{change:.2g}" if math.isfinite(change) else "not finite"
            rows.add_row(str(loop), found.error.text(loop), moved, notes.get(loop, ""))
    return rows


def _marks(found: Diagnosis) -> list[int]:
    return [] if found.diverges_at is None else [found.diverges_at]
