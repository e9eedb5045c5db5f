"""`looped sweep`."""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.live import Live
from rich.table import Table

from looped.cli.options import Code, Device, Json, Out, Quiet, Recipe, RecipeScale, Set, load_user_code, pick_device
from looped.cli.output import coloured, interval, messages, number, show
from looped.config import override
from looped.files import quoted
from looped.recipes import experiment as find_experiment
from looped.report.drawing import save_figure
from looped.report.sweep_figure import sweep_figure
from looped.sweep_results import RESULTS, SweepResults, best_points, evaluate_sweep, save_results
from looped.training.executors import Executor, Tell
from looped.training.stopping import Interrupted
from looped.training.sweep import Row, has_parquet, save_sweep, save_tables, sweep_folder, table, write_table
from looped.training.sweep import sweep as run_sweep
from looped.training.trials import Standing, Trial, read_axes, read_file, standing, trials

SHOWN, LISTED = 20, 200
"""Points in the live table, and at most in one that stays; the counts are over all points."""
COLOURS = {"finished": "green", "running": "cyan", "waiting": "dim", "diverged": "red", "failed": "red"}
INTEREST = ("running", "diverged", "failed", "busy", "stopped", "waiting", "finished")
"""Which points are shown first if there is no room for all."""


def sweep(
    recipe: Recipe = None,
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="FIELD=A,B,...", help="Fields and their values: every combination.")
    ] = None,
    file: Annotated[str | None, typer.Option(help="JSON or TOML with recipe, scale, grid, points, seeds.")] = None,
    scale: RecipeScale = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds of every point.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed; default that of the recipe.")] = None,
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Leave out points that are refused.")] = False,
    executor: Annotated[
        Literal["stack", "processes", "ray"],
        typer.Option(help="stack: here, seeds as one batch of models; processes: several here; ray: a cluster."),
    ] = "stack",
    workers: Annotated[int | None, typer.Option(help="Runs at a time.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each run; 1 with workers.")] = None,
    cpus: Annotated[float, typer.Option(help="With ray: CPUs to reserve for a run.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="With ray: GPUs to reserve for a run.")] = 0.0,
    address: Annotated[str | None, typer.Option(help="With ray: auto, or HOST:PORT; default a new one here.")] = None,
    retries: Annotated[int, typer.Option(help="How often a point whose worker was lost is tried again.")] = 3,
    set_: Set = None,
    prompts: Annotated[int, typer.Option(help="Judge finished points on this many held-out prompts; 0: do not.")] = 256,
    list_: Annotated[bool, typer.Option("--list", help="Only show the status of every point.")] = False,
    table_: Annotated[
        str | None, typer.Option("--table", metavar="FILE", help="Write the table there too: .parquet, .csv, .json.")
    ] = None,
    code: Code = None,
    out: Out = "runs",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a grid or a list of points, one run each; finished ones are never repeated.

    The same command resumes a sweep that was stopped or killed. Fields that vary together are one axis:
    `model.loops,train.window=[4,2],[8,4]`. At the end finished points are judged on the same held-out prompts: errors
    with their range over seeds, paired differences to the best point, and a plot. All is written to OUT/sweeps;
    `looped report OUT` shows it.

    Example: `looped sweep yang24.linear model.loops=4,8 train.window=2,4 --seeds 3 --scale smoke`
    """
    if recipe is not None and "=" in recipe:  # the recipe is in the file, so the first word is a field
        recipe, fields = None, [recipe, *(fields or [])]
    data = read_file(Path(file)) if file is not None else {}
    name = recipe or data.get("recipe")
    if name is None:
        raise ValueError("say what to sweep: a recipe (`looped list` shows them), or `--file FILE` that names one.")
    if prompts < 0 or prompts == 1:
        raise ValueError(f"`--prompts` must be at least 2, for an interval, or 0; got {prompts}.")
    base = find_experiment(name, scale or data.get("scale"))
    grid = {**data.get("grid", {}), **read_axes(fields or [])}  # where both set a field, the command line wins
    swept = {
        part.strip()
        for axis in [*grid, *(key for point in data.get("points", []) for key in point)]
        for part in axis.split(",")
    }
    if twice := [setting for setting in set_ or [] if setting.partition("=")[0].strip() in swept]:
        raise ValueError(f"`--set {twice[0]}` is swept as well. Leave one of the two out.")
    base = override(base, set_ or [], load_user_code(code))
    numbers = _seeds(data.get("seeds") if seeds is None else seeds, seed, base.train.seed)
    choice = {"field_sets": data.get("points", [{}]), "seeds": numbers, "skip_invalid": skip_invalid}
    asked = trials(base, grid, out=out, code=load_user_code(code), **choice)
    if table_ is not None:
        _check_table(Path(table_))
    if list_:
        stands = [standing(point.path) for point in asked]
        rows = table(asked, stands) if json or table_ else []
        if table_ is not None:
            write_table(Path(table_), rows)
        show(rows, _picture(asked, stands, varied(asked), LISTED), notes=_left_out(asked), json=json, quiet=False)
        return
    if executor == "ray":
        place = "cuda" if gpus or device == "cuda" else "cpu"
        gpus = gpus or float(place == "cuda")
    else:
        place = pick_device(device).type
    trainer = Executor(
        kind=executor, device=place, workers=workers, threads=threads, cpus=cpus, gpus=gpus, address=address,
        retries=retries,
    )  # fmt: skip
    folder = sweep_folder(asked)
    try:
        with live_table(asked, quiet=quiet or json) as tell:
            stands = run_sweep(asked, trainer, tell=tell, begin=lambda: save_sweep(asked))
    except Interrupted:
        with contextlib.suppress(OSError):  # a full disk may be what stopped it
            _write(folder, table(asked), table_)
        raise
    rows = table(asked, stands)
    results = evaluate_sweep(asked, stands, prompts=prompts, device=place) if prompts else None
    files = _write(folder, rows, table_)
    if results is not None:
        files += [save_results(folder, results), save_figure(sweep_figure(results), folder / "errors.png")]
    next_step = f"The table: {', '.join(map(str, files))}. Next: looped report {quoted(folder)}"
    pictures = [_picture(asked, stands, varied(asked), LISTED), *([] if results is None else [points_table(results)])]
    show(rows, *pictures, notes=[*_left_out(asked), next_step], json=json, quiet=quiet)
    if troubles := [row for row in rows if row["status"] != "finished"]:
        first = "{path}, {status}: {message}".format(**troubles[0])
        raise Interrupted(f"{len(troubles)} of {len(rows)} points did not finish; the first is {first}")


def _seeds(count: int | list[int] | None, seed: int | None, usual: int) -> Sequence[int] | None:
    """`count` seeds from `seed` up, or those that the file lists; None: only the recipe's own."""
    if isinstance(count, list) or (count is None and seed is None):
        return count
    if count is not None and count < 1:
        raise ValueError(f"`--seeds` must be at least 1; got {count}.")
    first = usual if seed is None else seed
    return range(first, first + (count or 1))


def _check_table(path: Path) -> None:
    """Refuse a table that cannot be written, before hours of training."""
    if path.suffix not in (".parquet", ".csv", ".json"):
        raise ValueError(f"`--table` must end in .parquet, .csv or .json; got {path}.")
    if path.suffix == ".parquet" and not has_parquet():
        raise ValueError("a Parquet table needs pyarrow: pip install 'looped[cluster]'. Or write .csv.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"`--table` must name a file in an existing folder; got {path}. Make the folder.")


def _write(folder: Path, rows: Sequence[Row], wanted: str | None) -> list[Path]:
    files = save_tables(folder, rows)
    if wanted is not None:
        write_table(Path(wanted), rows)
        files.append(Path(wanted))
    return files


@contextlib.contextmanager
def live_table(asked: Sequence[Trial], *, quiet: bool) -> Iterator[Tell]:
    """The counts, and the points that run or failed, redrawn a few times a second."""
    stands = [Standing() for _ in asked]
    if quiet:
        yield lambda index, standing: None
        return
    draw = functools.partial(_picture, asked, stands, varied(asked), SHOWN)
    with Live(console=messages, refresh_per_second=4, transient=True, get_renderable=draw):
        yield stands.__setitem__


def varied(asked: Sequence[Trial]) -> list[str]:
    """The fields in which the points differ."""
    names = dict.fromkeys(name for point in asked for name in point.fields)
    return [name for name in names if len({str(point.fields.get(name)) for point in asked}) > 1]


def _left_out(asked: Sequence[Trial]) -> list[str]:
    """What is said where there are more points than are shown."""
    more = len(asked) - LISTED
    return [f"{more:,} more points are not shown: `--table FILE.csv` and `--json` have all."] if more > 0 else []


def _picture(asked: Sequence[Trial], stands: Sequence[Standing], names: Sequence[str], most: int) -> Table:
    """At most `most` points, running and failed ones first, with the fields `names`, in which they differ."""
    counts = Counter(standing.status for standing in stands)
    totals = ", ".join(f"{count} {status}" for status, count in counts.items())
    first = sorted(range(len(asked)), key=lambda index: INTEREST.index(stands[index].status))[:most]
    title = f"{asked[0].experiment.name}, {len(asked)} points: {totals}"
    rows = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    done = all(standing.status == "finished" for standing in stands)
    rows.add_column("run", no_wrap=True)
    for name in _headers(names):
        rows.add_column(name, overflow="fold")
    rows.add_column("status", overflow="fold")
    for name in (*["step"] * (not done), "loss", "error"):
        rows.add_column(name, no_wrap=True)
    for index in sorted(first):
        point, stand = asked[index], stands[index]
        running = stand.status == "running"
        step = max(stand.step, int(stand.metrics.get("step", 0))) if running else stand.step
        numbers = [number(stand.metrics[key]) if key in stand.metrics else "" for key in ("loss", "error")]
        lost = f", {stand.lost} lost" if stand.lost else ""
        status = coloured((stand.status, COLOURS.get(stand.status, "yellow")), (lost, ""))
        values = [str(point.fields.get(name, "")) for name in names]
        steps = [] if done else [f"{step}/{point.steps}"]
        rows.add_row(point.path.name.rpartition("-")[2], *values, status, *steps, *numbers)
    return rows


def points_table(results: SweepResults) -> Table:
    """Every point's error on held-out prompts, with all its seeds, and how it compares with the best."""
    title = f"{results.prompts} held-out prompts; intervals: range over seeds, or of one seed 90% over prompts"
    rows = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in _headers(results.varied):
        rows.add_column(name, overflow="fold")
    for name in ("seeds", "error", "4x the loops", "above the best", "verdict"):
        rows.add_column(name, overflow="fold")
    shown, more = results.points, len(results.points) - LISTED
    if more > 0:
        shown = [results.points[place] for place in best_points(results.points, LISTED)]
        rows.caption = f"the {LISTED} of least error; {more:,} more are in {RESULTS}"
    for point in shown:
        values = [str(point.fields.get(name, "")) for name in results.varied]
        numbers = [
            "" if part is None else interval(part.mean, part.low, part.high)
            for part in (point.error, point.late, point.difference)
        ]
        rows.add_row(*values, str(len(point.seeds)), *numbers, point.verdict)
    return rows


def _headers(names: Sequence[str]) -> list[str]:
    """The last word of every field, or all of it where two end alike, broken into lines for a narrow terminal."""
    ends = Counter(name.rpartition(".")[2] for name in names)
    short = [end if ends[end := name.rpartition(".")[2]] == 1 else name for name in names]
    return [re.sub(r"([._])", r"\1\n", name) for name in short]
