"""`looped construct`."""

import inspect
from typing import Annotated

import typer
from rich.table import Table

from looped.cli.options import Json, Quiet
from looped.cli.output import number, show
from looped.config import nearest
from looped.constructions.ready import READY
from looped.models.loop import check_loops
from looped.report.construction import write_picture
from looped.training.run import save_model


def construct(
    name: Annotated[str, typer.Argument(help="The theorem whose weights to build; `looped list constructions`.")],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="The run folder to write; default: only compare.")
    ] = None,
    d: Annotated[int, typer.Option(help="Dimension of x, or of a token.")] = 5,
    examples: Annotated[
        int, typer.Option(help="Examples before the query; in a sequence tokens, in chains of thought chains.")
    ] = 20,
    loops: Annotated[int, typer.Option(help="Loops, or layers if every layer has its own weights.")] = 20,
    picture: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also a page that shows it loop by loop, with 2 dimensions.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build a theorem's weights and compare them, loop by loop, with the algorithm that they run.

    The algorithm is computed without a transformer, on the same prompts (seed 0). With --out the weights become an
    ordinary run of their task, x ~ N(0, I) unless the theorem asks for another: load, evaluate, report, train from it.
    Some read what no task samples, such as the lemmas, which are single layers: these are compared only.

    Example: `looped construct gao24.thm4.1 --out runs/newton --loops 15`
    """
    if name not in READY:
        raise ValueError(f"no construction is called `{name}`. {nearest(name, READY)}")
    check_loops(loops)
    for option, value in (("d", d), ("examples", examples)):
        if value < 1:
            raise ValueError(f"`{option}` must be at least 1; got {value}.")
    construction = READY[name](d, examples, loops)
    statement = (inspect.getdoc(READY[name]) or "").splitlines()[0]
    run, notes = None, []
    if out is not None:
        if construction.task is None:
            raise ValueError(f"no task samples what `{name}` reads, so it cannot be a run. Leave out `--out`.")
        where = {"name": name, "constructed": name, "points": examples + 1}
        run = save_model(out, construction.model, construction.task, **where)
        notes = [f"Next: looped evaluate {run.path} --points {examples + 1}"]
    if picture is not None:
        notes.append(f"{write_picture(picture, name=name, examples=examples, loops=loops)}: open it in a browser.")
    answers = construction.answers()
    errors = construction.errors(answers).tolist()
    both = (answers, construction.expected)
    transformer, algorithm = ((values.flatten(1)[:, -1] + 0.0).tolist() for values in both)  # + 0.0: no -0 is shown
    data = {
        "run": None if run is None else str(run.path),
        "name": name,
        "statement": statement,
        "algorithm": construction.algorithm,
        "d": d,
        "examples": examples,
        "loops": loops,
        "prompts": answers.shape[1],
        "parameters": construction.model.num_parameters,
        "errors": errors,
        "last_number": {"transformer": transformer, "algorithm": algorithm},
    }
    size = f"{data['prompts']} prompts; {data['parameters']:,} parameters"
    lines = [f"Differences are the largest of all answers, relative to the largest answer, on {size}."]
    if run is not None:
        lines.append(f"{run.path}: {name}.")
    heading = [f"{name}: {statement}", f"algorithm: {construction.algorithm}"]
    show(data, *heading, _table(transformer, algorithm, errors), *lines, notes=notes, json=json, quiet=quiet)


def _table(transformer: list[float], algorithm: list[float], errors: list[float]) -> Table:
    """One line a loop: one number of both answers, and the largest difference of all."""
    rows = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("loop", "transformer", "algorithm", "largest difference"):
        rows.add_column(column, justify="right")
    for loop, values in enumerate(zip(transformer, algorithm, errors, strict=True), start=1):
        rows.add_row(str(loop), *map(number, values))
    return rows
