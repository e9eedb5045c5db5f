"""`looped sweep`."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from looped.cli.common import Code, Device, Json, Out, Quiet, messages, pick_device, print_json, say
from looped.cli.train import handed_over
from looped.recipes import experiment as find_experiment
from looped.training.executors import Executor, Tell
from looped.training.stopping import Interrupted
from looped.training.sweep import Row, has_parquet, save_sweep, save_tables, sweep_folder, table, write_table
from looped.training.sweep import sweep as run_sweep
from looped.training.trials import Standing, Trial, read_axes, read_file, standing, trials

SHOWN = 20
"""Points in the live table; the counts are of all."""
COLOURS = {"finished": "green", "running": "cyan", "waiting": "dim", "diverged": "red", "failed": "red"}
INTEREST = ("running", "diverged", "failed", "busy", "stopped", "waiting", "finished")
"""Which points are shown where not all can be."""


def sweep(
    recipe: Annotated[str | None, typer.Argument(help="`yang24.linear`, or `my_file.py:my_recipe`.")] = None,
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="FIELD=A,B,...", help="Fields and their values: every combination.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON or TOML with recipe, scale, grid, points, seeds.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="smoke (seconds), cpu (minutes) or paper (a GPU).")] = None,
    seeds: Annotated[int | None, typer.Option(help="So many seeds of every point.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first of them; the recipe's own unless given.")] = None,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave out points that are refused.")] = False,
    executor: Annotated[
        Literal["stack", "processes", "ray"],
        typer.Option(help="stack: here, seeds as one batch of models; processes: several here; ray: a cluster."),
    ] = "stack",
    workers: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each run; 1 with workers.")] = None,
    cpus: Annotated[float, typer.Option(help="With ray: CPUs to reserve for a run.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="With ray: GPUs to reserve for a run.")] = 0.0,
    address: Annotated[str | None, typer.Option(help="With ray: auto, or HOST:PORT; else one of its own here.")] = None,
    retries: Annotated[int, typer.Option(help="How often a point whose worker was lost is tried again.")] = 3,
    list_: Annotated[bool, typer.Option("--list", help="Only say where every point stands.")] = False,
    table_: Annotated[
        str | None, typer.Option("--table", metavar="FILE", help="Write the table there too: .parquet, .csv, .json.")
    ] = None,
    code: Code = None,
    out: Out = "runs",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a grid or a list of points, each a run of its own; finished ones are never repeated.

    The same command goes on with a sweep that was stopped or killed. Fields that go together are one axis:
    `model.loops,train.window=[4,2],[8,4]`. The table is written to OUT/sweeps; `looped report OUT` shows it.

    Example: `looped sweep yang24.linear model.loops=4,8 train.window=2,4 --seeds 3 --scale smoke`
    """
    asked = _points(recipe, fields or [], file, scale, seeds, seed, skip_invalid, code, out)
    _check_table(table_)
    if list_:
        stands = [standing(point.path) for point in asked]
        if json:
            print_json(table(asked, stands))
        else:
            Console().print(_picture(asked, stands, len(asked)))
        return
    if executor == "ray":
        place = "cuda" if gpus or device == "cuda" else "cpu"
        gpus = gpus or float(place == "cuda")
    else:
        place = pick_device(device).type
    who = Executor(
        kind=executor, device=place, workers=workers, threads=threads, cpus=cpus, gpus=gpus, address=address,
        retries=retries,
    )  # fmt: skip
    folder = sweep_folder(asked)
    try:
        with live_table(asked, quiet=quiet or json) as tell:
            stands = run_sweep(asked, who, tell=tell, begin=lambda: save_sweep(asked))
    except Interrupted:
        with contextlib.suppress(OSError):  # a full disk may be what stopped it
            _write(folder, table(asked), table_)
        raise
    rows = table(asked, stands)
    files = _write(folder, rows, table_)
    if json:
        print_json(rows)
    elif not quiet:
        messages.print(_picture(asked, stands, len(asked)))
        say(f"The table: {', '.join(map(str, files))}. Next: looped report {folder}")
    if troubles := [row for row in rows if row["status"] != "finished"]:
        first = troubles[0]
        raise Interrupted(
            f"{len(troubles)} of {len(rows)} points did not finish; the first is {first['path']}, {first['status']}: "
            f"{first['message']}"
        )


def _points(
    recipe: str | None,
    fields: list[str],
    file: str | None,
    scale: str | None,
    seeds: int | None,
    seed: int | None,
    skip_invalid: bool,
    code: list[str] | None,
    out: str,
) -> list[Trial]:
    """The points asked, on the command line or in a file; the command line adds to the file and wins over it."""
    if recipe is not None and "=" in recipe:  # the recipe is in the file, so the first word is a field
        recipe, fields = None, [recipe, *fields]
    data = read_file(Path(file)) if file is not None else {}
    name = recipe or data.get("recipe")
    if name is None:
        raise ValueError("say what to sweep: a recipe (`looped list` shows them), or `--file FILE` that names one.")
    if seeds is not None and seeds < 1:
        raise ValueError(f"`--seeds` must be at least 1; got {seeds}.")
    base = find_experiment(name, scale or data.get("scale"))
    grid = {**data.get("grid", {}), **read_axes(fields)}
    count = seeds if seeds is not None else data.get("seeds")
    first = base.train.seed if seed is None else seed
    if isinstance(count, int) and count < 1:
        raise ValueError(f"`seeds` must be at least 1; got {count}.")
    if count is None:
        which = None if seed is None else [seed]
    else:
        which = count if isinstance(count, list) else range(first, first + count)
    if which is not None and any("train.seed" in axis.split(",") for axis in grid):
        raise ValueError("`train.seed` is given twice: leave out --seeds and --seed, or the field.")
    each = data.get("points", [{}])
    return trials(base, grid, field_sets=each, seeds=which, out=out, code=handed_over(code), skip_invalid=skip_invalid)


def _check_table(name: str | None) -> None:
    """Before hours of training: can the table be written as it is asked for?"""
    if name is None:
        return
    if Path(name).suffix not in (".parquet", ".csv", ".json"):
        raise ValueError(f"`--table` must end in .parquet, .csv or .json; got {name}.")
    if Path(name).suffix == ".parquet" and not has_parquet():
        raise ValueError("a Parquet table needs pyarrow: pip install 'looped[cluster]'. Or write .csv.")
    if not Path(name).absolute().parent.is_dir():
        raise ValueError(f"`--table` names a file in a folder that is there; got {name}. Make the folder.")


def _write(folder: Path, rows: Sequence[Row], wanted: str | None) -> list[Path]:
    files = save_tables(folder, rows)
    if wanted is not None:
        write_table(Path(wanted), rows)
        files.append(Path(wanted))
    return files


@contextlib.contextmanager
def live_table(asked: Sequence[Trial], *, quiet: bool) -> Iterator[Tell]:
    """The counts, and the points at work or in trouble, drawn anew a few times a second."""
    stands = [Standing() for _ in asked]
    if quiet:
        yield lambda index, one: None
        return
    draw = functools.partial(_picture, asked, stands, SHOWN)
    with Live(console=messages, refresh_per_second=4, transient=True, get_renderable=draw):
        yield stands.__setitem__


def _picture(asked: Sequence[Trial], stands: Sequence[Standing], most: int) -> Table:
    """The points, or those of most interest, with the fields in which they differ; steps until all are done."""
    counts = Counter(one.status for one in stands)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    first = sorted(range(len(asked)), key=lambda index: INTEREST.index(stands[index].status))[:most]
    names = dict.fromkeys(name for point in asked for name in point.fields)
    varied = [name for name in names if len({str(point.fields.get(name)) for point in asked}) > 1]
    title = f"{asked[0].experiment.name}, {len(asked)} points: {said}"
    rows = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    done = all(one.status == "finished" for one in stands)
    rows.add_column("run", no_wrap=True)
    for name in _headers(varied):
        rows.add_column(escape(name), overflow="fold")
    rows.add_column("status", overflow="fold")
    for name in (*["step"] * (not done), "loss", "error"):
        rows.add_column(name, no_wrap=True)
    for index in sorted(first):
        point, one = asked[index], stands[index]
        step = max(one.step, int(one.metrics.get("step", 0))) if one.status == "running" else one.step
        numbers = [f"{one.metrics[key]:.4f}" if key in one.metrics else "" for key in ("loss", "error")]
        status = f"[{COLOURS.get(one.status, 'yellow')}]{one.status}[/]" + (f", {one.lost} lost" if one.lost else "")
        values = [escape(str(point.fields.get(name, ""))) for name in varied]
        steps = [] if done else [f"{step}/{point.steps}"]
        rows.add_row(point.path.name.rpartition("-")[2], *values, status, *steps, *numbers)
    return rows


def _headers(names: Sequence[str]) -> list[str]:
    """The last word of every field, or all of it where two end alike, in lines short enough for a narrow terminal."""
    ends = Counter(name.rpartition(".")[2] for name in names)
    short = [end if ends[end := name.rpartition(".")[2]] == 1 else name for name in names]
    return [re.sub(r"([._])", r"\1\n", name) for name in short]
