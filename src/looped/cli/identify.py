"""`looped identify`."""

from types import FunctionType
from typing import Annotated, Any

import typer
from rich.table import Table

from looped.cli.chosen_run import open_run
from looped.cli.options import Best, Code, Device, Json, Points, PromptSeed, Quiet, RunName, Yes, own_thing
from looped.cli.output import number, progress_lines, show
from looped.evaluation.algorithms import ALGORITHMS, Algorithm
from looped.evaluation.identify import NAMED, NEAR, NONE, Identification
from looped.evaluation.identify import identify as identify_model


def identify(
    run: RunName,
    points: Points = None,
    loops: Annotated[int | None, typer.Option(help="Last loop to identify; default as trained.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Try 1 to N steps; default up to 8, and near the loop.")] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts: half to fit, half to judge.")] = 256,
    seed: PromptSeed = 0,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="Try your own too: an `Algorithm`, or (prompt, steps) -> answers."),
    ] = None,
    best: Best = False,
    code: Code = None,
    device: Device = "cpu",
    yes: Yes = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which algorithm does the model run, loop by loop? The nearest of gradient descent, Newton, Chebyshev and others.

    Predictions and their gradients along the query are compared; every algorithm gets its best step size. Saved as
    identify.json in the run folder.

    Example: `looped identify runs/cheng24.exp-1a2b3c4d5e --max-steps 6`
    """
    chosen = open_run(run, points=points, best=best, code=code)
    sizes: dict[str, Any] = {"points": chosen.points, "loops": loops, "max_steps": max_steps, "prompts": prompts}
    mine = [own_thing(name, (Algorithm, FunctionType), "an algorithm") for name in algorithm or []]
    known = (*ALGORITHMS, *(thing if isinstance(thing, Algorithm) else Algorithm.of(thing) for thing in mine))
    with progress_lines(quiet=quiet or json, yes=yes) as report:
        identification = identify_model(
            chosen.model(device), chosen.run.setup.task, seed=seed, algorithms=known, **sizes, progress=report
        )
    data, saved = chosen.save_findings("identify", identification)
    show(data, table(identification), notes=[saved], json=json, quiet=quiet)


def table(identification: Identification) -> Table:
    """One line a loop: the nearest algorithm with its parameters, its distance, and the next nearest."""
    loops = identification.loops
    title = (
        f"{identification.prompts} prompts of {identification.examples} examples, {identification.level:.0%} intervals"
    )
    rows = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("loop", "algorithm", "steps", "parameters", "distance", "interval", "next nearest"):
        right = column in ("loop", "steps", "distance")
        rows.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "algorithm")
    for loop in loops:
        best = loop.best
        if best is None:
            rows.add_row(str(loop.loop), "answers 0, or nothing finite", "", "", "", "", "")
            continue
        nearest = loop.others if loop.name == NONE else [match for match in loop.others if match.algorithm != loop.name]
        named = loop.name != NONE
        rows.add_row(
            str(loop.loop),
            loop.name,
            str(best.steps or "") if named else "",
            ", ".join(f"{name} {number(value)}" for name, value in best.parameters.items()) if named else "",
            number(best.distance),
            f"{number(best.low)} .. {number(best.high)}",
            f"{nearest[0].algorithm} {number(nearest[0].distance)}" if nearest else "",
        )
    first, last = loops[0].searched, loops[-1].searched
    near = "" if first == last else f", and from {NEAR} below the loop's number up to it"
    steps = f"steps searched: {first[0]} to {first[-1]}{near}"
    scale = f"distance: 0 is the same function, 1 as far as answering 0; above {NAMED:g} no algorithm is named"
    rows.caption = f"{scale}\n{steps}"
    return rows
