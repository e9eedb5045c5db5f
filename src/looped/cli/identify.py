"""`looped identify`."""

from __future__ import annotations

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
from looped.evaluation.identify import NEAR, Identification
from looped.evaluation.identify import identify as find
from looped.files import finite, write_json
from looped.training.run import Run


def identify(
    run: Annotated[str, typer.Argument(help=RUN)],
    points: Annotated[int | None, typer.Option(help="Pairs in a prompt; default as trained.")] = None,
    loops: Annotated[int | None, typer.Option(help="Last loop to look at; default as trained.")] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Try 1 to N steps of an algorithm; default the loops, up to 8, and near the loop."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="How many fresh prompts: half to fit, half to judge.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    best: Best = False,
    code: Code = None,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Which algorithm does it run, loop by loop: the nearest of gradient descent, Newton, Chebyshev and others.

    Predictions and their gradients along the query are compared, each algorithm with its own best step size. Saved as
    identify.json in the run folder.

    Example: `looped identify runs/cheng24.exp-1a2b3c4d5e --max-steps 6`
    """
    opened = Run.open(run, handed_over(code))
    task = opened.setup.task
    points = usual_points(opened, task.d) if points is None else points
    model = chosen_model(opened, device, best=best)
    found = find(model, task, points=points, loops=loops, max_steps=max_steps, prompts=prompts, seed=seed)
    data = finite({"run": run, "weights": "best" if best else "last", **found.to_data()})
    saved = opened.path / f"identify{'.best' * best}.json"
    if not opened.kept:
        write_json(saved, data)
    if json:
        print_json(data)
    elif not quiet:
        messages.print(table(found))
        say(NOT_SAVED if opened.kept else f"Saved in {saved}.")


def table(found: Identification) -> Table:
    """One line a loop: the nearest algorithm with its parameters, its distance, and the next best."""
    title = f"{found.prompts} prompts of {found.examples} examples, {found.level:.0%} intervals"
    rows = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("loop", "algorithm", "steps", "parameters", "distance", "interval", "runner-up"):
        right = column in ("loop", "steps", "distance")
        rows.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "algorithm")
    for one in found.loops:
        if one.best is None:
            rows.add_row(str(one.loop), "answers 0, or nothing finite", "", "", "", "", "")
            continue
        best = one.best
        second = next((other for other in one.others if other.algorithm != best.algorithm), None)
        rows.add_row(
            str(one.loop),
            best.algorithm,
            str(best.steps or ""),
            ", ".join(f"{name} {value:.3g}" for name, value in best.parameters.items()),
            f"{best.distance:.2g}",
            f"{best.low:.2g} .. {best.high:.2g}",
            "" if second is None else f"{second.algorithm} {second.distance:.2g}",
        )
    first, last = found.loops[0].searched, found.loops[-1].searched
    near = "" if first == last else f", and from {NEAR} below the loop's number up to it"
    steps = f"steps searched: {first[0]} to {first[-1]}{near}"
    rows.caption = f"distance: 0 is the same function, 1 as far as answering 0\n{steps}"
    return rows
