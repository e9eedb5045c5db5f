"""`looped diagnose`."""

from typing import Annotated, Any

import typer
from rich.table import Table

from looped.cli.chosen_run import open_run
from looped.cli.options import Best, Code, Device, Json, Points, Prompts, Quiet, RunName, Yes
from looped.cli.output import interval_at, number, progress_lines, show
from looped.evaluation.diagnose import diagnose as diagnose_model
from looped.evaluation.diagnosis import Diagnosis
from looped.report.stability import diagnosis_figure


def diagnose(
    run: RunName,
    points: Points = None,
    loops: Annotated[int | None, typer.Option(help="How many loops to run; default 4x trained.")] = None,
    prompts: Prompts = 128,
    starts: Annotated[int, typer.Option(help="How many random starts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and starts.")] = 0,
    best: Best = False,
    code: Code = None,
    device: Device = "auto",
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What do the loops do: has the model learned, do they help, does it settle, cycle, drift or diverge?

    A verdict in plain language from paired differences over prompts, with the share of the prompts that each word holds
    for. Says too whether settled states attract (the spectral radius of the step's Jacobian), and whether random starts
    end there. Saved as diagnose.json and diagnose.png in the run folder.

    Example: `looped diagnose runs/yang24.linear-1a2b3c4d5e --loops 200`
    """
    chosen = open_run(run, points=points, best=best, code=code)
    sizes: dict[str, Any] = {"points": chosen.points, "loops": loops, "prompts": prompts, "starts": starts}
    with progress_lines(quiet=quiet or json, yes=yes) as report:
        diagnosis = diagnose_model(chosen.model(device), chosen.run.setup.task, seed=seed, **sizes, progress=report)
    data, saved = chosen.save_findings("diagnose", diagnosis, lambda: diagnosis_figure(diagnosis))
    show(data, table(diagnosis), diagnosis.verdict, notes=[saved], json=json, quiet=quiet)


def table(diagnosis: Diagnosis) -> Table:
    """Error and state change at a few loops."""
    trained, last = diagnosis.trained_loops, diagnosis.loops
    notes = {diagnosis.best_loop: "best", trained: "trained"}
    if diagnosis.diverges_at is not None:
        notes[diagnosis.diverges_at] = "begins to diverge"
    rows = Table(title=f"{diagnosis.prompts} prompts, {diagnosis.level:.0%} intervals")
    for column in ("loop", "error", "state change", ""):
        rows.add_column(column, justify="left" if column == "" else "right")
    for loop in sorted({1, 2 * trained, last, *notes}):
        if loop <= last:
            change = number(diagnosis.change.at(loop))
            rows.add_row(str(loop), interval_at(diagnosis.error, loop), change, notes.get(loop, ""))
    return rows
