"""`looped keep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from looped.cli.common import (
    RUN,
    Best,
    Code,
    Device,
    Json,
    Quiet,
    late,
    messages,
    pick_device,
    print_json,
    say,
    usual_points,
)
from looped.cli.listing import model_line
from looped.cli.train import handed_over
from looped.files import tidied
from looped.keeping import CHECK_PROMPTS, recorded, summary
from looped.keeping import keep as make
from looped.training.run import Run


def keep(
    run: Annotated[str, typer.Argument(help=RUN)],
    name: Annotated[str | None, typer.Option(help="What it is kept as; default the name in its config.")] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder of the kept models.")] = "results/models",
    again: Annotated[bool, typer.Option("--again", help="Replace the one that is there.")] = False,
    points: Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")] = None,
    loops: Annotated[int | None, typer.Option(help="Last loop of the curve by loops; default 2x trained.")] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts.")] = 1280,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    check_prompts: Annotated[int, typer.Option(help="Fixed prompts for tests to repeat on a CPU.")] = CHECK_PROMPTS,
    best: Best = False,
    code: Code = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep a finished run as a small folder under a name, with its errors recorded: DIR/NAME.

    Config, the weights an evaluation reads, up to 500 lines of metrics, provenance, and kept.json: the error by
    examples after the trained loops and after twice as many, by loops, and on a few fixed prompts for tests to repeat.

    Example: `looped keep runs/yang24.linear-1a2b3c4d5e --name yang24.linear`
    """
    opened = Run.open(run, handed_over(code))
    points = usual_points(opened, opened.setup.task.d) if points is None else points
    if points < 1:
        raise ValueError(f"`--points` must be at least 1; got {points}.")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    bar = Progress(*columns, console=messages, disable=quiet or json, transient=True)
    with tidied(Path(out)), late(bar):
        task = bar.add_task(name or opened.setup.name, total=1.0, what="")

        def report(what: str, share: float) -> None:
            bar.start()
            bar.update(task, completed=share, what=what)

        made = make(
            opened,
            points=points,
            name=name,
            best=best,
            out=out,
            again=again,
            loops=loops,
            prompts=prompts,
            seed=seed,
            check_prompts=check_prompts,
            device=pick_device(device),
            progress=report,
        )
        bar.update(task, completed=1.0, what="")
    if json:
        print_json({"run": run, "kept": str(made), "name": made.name, **recorded(made)})
    elif not quiet:
        say(f"{made}: {model_line(summary(made))}.")
