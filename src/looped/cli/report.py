"""`looped report`."""

import itertools
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from looped.cli.options import Code, Json, Quiet, load_user_code, results_folder
from looped.cli.output import show
from looped.evaluation.saved import evaluations
from looped.files import log, read_json
from looped.report.page import write_report
from looped.reproduce import kept_results
from looped.training.folder import is_family
from looped.training.kept import hint, locate
from looped.training.run import Run
from looped.training.sweep import sweep_folders

MOST = 50
"""Runs of a folder that a page shows: the newest, each with its curves. Nobody reads more, and a browser halts."""


def report(
    paths: Annotated[list[str] | None, typer.Argument(help="Runs, kept models, folders that hold some.")] = None,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The page to write.")] = "report.html",
    results: Annotated[str | None, typer.Option(metavar="DIR", help="Figures that `looped reproduce` kept.")] = None,
    theorems: Annotated[str | None, typer.Option(metavar="FILE", help="What `looped verify --json` printed.")] = None,
    code: Code = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One self-contained HTML page about everything that was run.

    A folder that `looped sweep` wrote (OUT/sweeps/...) adds the table of its points. Of a folder with more than 50 runs
    the newest are shown, and of a sweep with more than 200 points those of least error; runs that are named always are.

    Example: `looped report runs --out report.html`
    """
    user_code = load_user_code(code)
    # without paths, all of runs/, which may be missing if there is something else to show
    optional = (results is not None or theorems) and not Path("runs").is_dir()
    places = [locate(place) for place in paths or ([] if optional else ["runs"])]
    sweeps = [folder for place in places for folder in sweep_folders(place)]
    folders, num_left_out = [], 0
    for place in places:
        newest, more = run_folders(place)
        folders += newest
        num_left_out += more
    left_out = f"{num_left_out:,} older runs are left out; `looped report RUN...` shows those that are named."
    runs, bad = [], []
    for path in folders:
        try:
            runs.append(_readable(path, user_code))
        except ValueError as error:
            if path in places:  # it was named
                raise
            bad.append(error)
    if bad and not runs:
        raise bad[0]
    for error in bad:  # it does not stop the page of the others
        log.warning(f"looped: left out: {error}")
    rows = read_json(Path(theorems)) if theorems else None
    if rows is not None and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise ValueError(f"{theorems} does not hold the rows of `looped verify --json`. Print them again.")
    figures = kept_results(results_folder(results)) if results is not None else []
    lead = left_out if num_left_out else ""
    page = write_report(Path(out), runs=runs, results=figures, theorems=rows, sweeps=sweeps, lead=lead)
    data: dict[str, Any] = {"report": str(page), "runs": [str(run.path) for run in runs]}
    data |= {"runs_left_out": num_left_out, "sweeps": [str(path) for path in sweeps]}
    counts = {"run": len(runs), "figure": len(figures), "theorem": len(rows or ()), "sweep": len(sweeps)}
    contents = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count)
    show(data, f"{page}: {contents or 'nothing yet'}.", notes=[lead] if lead else [], json=json, quiet=quiet)


def _readable(path: Path, code: dict[str, Any]) -> Run:
    """The run, once all that the page shows of it has been read."""
    run = Run.open(path, code)
    for read in (run.provenance, run.metrics, lambda: evaluations(run)):
        read()
    return run


def run_folders(path: Path) -> tuple[list[Path], int]:
    """`path` itself if it is a run folder, else the newest ones in it by name; and how many older ones there are.

    A sweep's folder has none.
    """
    if (path / "config.json").is_file():
        return [path], 0
    if (path / "sweep.json").is_file():
        return [], 0  # the page shows its table; runs are shown if they or their folder are named
    if not path.is_dir():
        raise ValueError(
            f"{path} is not a run folder or a folder that holds some. Train one first: looped demo{hint(path)}"
        )
    times = {folder: os.stat(folder).st_mtime for folder in path.iterdir() if (folder / "config.json").is_file()}
    by_age = sorted(times, key=lambda folder: (times[folder], folder), reverse=True)
    newest = list(itertools.islice((folder for folder in by_age if not is_family(folder)), MOST))
    older = by_age[by_age.index(newest[-1]) + 1 :] if len(newest) == MOST else []
    return sorted(newest), len(older)
