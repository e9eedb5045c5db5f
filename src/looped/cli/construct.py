"""`looped construct`."""

from typing import Annotated

import typer

from looped.cli.options import Json, Quiet, RunFolder
from looped.cli.output import show
from looped.config import nearest
from looped.constructions.ready import READY
from looped.models.loop import check_loops
from looped.tasks.regression import LinearRegression
from looped.training.run import save_model


def construct(
    name: Annotated[str, typer.Argument(help="The theorem whose weights to build; `looped list constructions`.")],
    out: RunFolder,
    d: Annotated[int, typer.Option(help="Dimension of x.")] = 5,
    examples: Annotated[int, typer.Option(help="Examples before the query.")] = 20,
    loops: Annotated[int, typer.Option(help="Loops, or layers if every layer has its own weights.")] = 20,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build a theorem's weights for linear regression as an ordinary run: load, evaluate, report, train from it.

    Example: `looped construct gao24.thm4.1 --out runs/newton --loops 15`
    """
    if name not in READY:
        raise ValueError(f"no construction is called `{name}`. {nearest(name, READY)}")
    check_loops(loops)
    if examples <= d:
        raise ValueError(f"`--examples` must be above d={d}, or X'X is singular; got {examples}.")
    task = LinearRegression(d=d)
    run = save_model(out, READY[name](d, examples, loops), task, name=name, constructed=name, points=examples + 1)
    data = {"run": str(run.path), "name": name, "parameters": run.model().num_parameters}
    next_step = f"Next: looped evaluate {run.path} --points {examples + 1}"
    show(data, f"{run.path}: {name}.", notes=[next_step], json=json, quiet=quiet)
