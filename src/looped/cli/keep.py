"""`looped keep`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from looped.cli.chosen_run import open_run
from looped.cli.listing import model_line
from looped.cli.options import Best, Code, Device, Json, Points, Prompts, PromptSeed, Quiet, RunName, pick_device
from looped.cli.output import progress_lines, show
from looped.files import tidied
from looped.keeping import CHECK_PROMPTS, Rounding, read_record, summary
from looped.keeping import keep as keep_run


def keep(
    run: RunName,
    name: Annotated[str | None, typer.Option(help="The kept model's name; default the name in its config.")] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder of the kept models.")] = "results/models",
    again: Annotated[bool, typer.Option("--again", help="Replace a kept model of that name.")] = False,
    points: Points = None,
    loops: Annotated[int | None, typer.Option(help="Last loop of the curve by loops; default 2x trained.")] = None,
    prompts: Prompts = 1280,
    seed: PromptSeed = 1,
    check_prompts: Annotated[int, typer.Option(help="Fixed prompts for tests to repeat on a CPU.")] = CHECK_PROMPTS,
    best: Best = False,
    rounding: Annotated[
        Rounding | None, typer.Option(help="Round the weights to half the size, if the errors allow it.")
    ] = None,
    code: Code = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Keep a finished run as a small folder under a name, with its errors recorded: DIR/NAME.

    The folder has the config, the weights, up to 500 lines of metrics, provenance, and kept.json: the error by examples
    after the trained loops and after twice as many, by loops, and on a few fixed prompts for tests to repeat.

    Example: `looped keep runs/yang24.linear-1a2b3c4d5e --name yang24.linear`
    """
    chosen = open_run(run, points=points, best=best, code=code)
    title = name or chosen.run.setup.name
    choices: dict[str, Any] = {"name": name, "best": best, "rounding": rounding, "out": out, "again": again}
    choices["device"] = pick_device(device)
    sizes: dict[str, Any] = {"points": chosen.points, "loops": loops, "prompts": prompts, "seed": seed}
    with tidied(Path(out)), progress_lines(quiet=quiet or json) as report:
        choices["progress"] = lambda what, share: report(title, share, what)
        folder = keep_run(chosen.run, check_prompts=check_prompts, **sizes, **choices)
    data = {"run": run, "kept": str(folder), "name": folder.name, **read_record(folder)}
    show(data, f"{folder}: {model_line(summary(folder))}.", json=json, quiet=quiet)
