"""`looped report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from looped.cli.common import Code, Json, Quiet, print_json, results_folder, say
from looped.cli.train import handed_over
from looped.files import read_json
from looped.report.page import write_report
from looped.reproduce import kept
from looped.training.folder import is_family
from looped.training.kept import hint, locate
from looped.training.run import Run
from looped.training.sweep import sweep_folders


def report(
    paths: Annotated[list[str] | None, typer.Argument(help="Runs, kept models, folders that hold some.")] = None,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The page to write.")] = "report.html",
    results: Annotated[str | None, typer.Option(metavar="DIR", help="Figures that `looped reproduce` kept.")] = None,
    theorems: Annotated[str | None, typer.Option(metavar="FILE", help="What `looped verify --json` printed.")] = None,
    code: Code = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One self-contained HTML page over everything that was run.

    A folder that `looped sweep` wrote (OUT/sweeps/...) gives the table of its points.

    Example: `looped report runs --out report.html`
    """
    handed = handed_over(code)
    # without paths, whatever lies in runs/; nothing need lie there where something else is shown
    optional = (results is not None or theorems) and not Path("runs").is_dir()
    places = [locate(place) for place in paths or ([] if optional else ["runs"])]
    sweeps = [folder for place in places for folder in sweep_folders(place)]
    runs = [Run.open(path, handed) for place in places for path in run_folders(place)]
    rows = read_json(Path(theorems)) if theorems else None
    if rows is not None and not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise ValueError(f"{theorems} does not hold the rows of `looped verify --json`. Print them anew.")
    figures = kept(results_folder(results)) if results is not None else []
    page = write_report(Path(out), runs=runs, results=figures, theorems=rows, sweeps=sweeps)
    if json:
        print_json(
            {"report": str(page), "runs": [str(run.path) for run in runs], "sweeps": [str(one) for one in sweeps]}
        )
    elif not quiet:
        counts = {"run": len(runs), "figure": len(figures), "theorem": len(rows or ()), "sweep": len(sweeps)}
        told = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count)
        say(f"{page}: {told or 'nothing yet'}.")


def run_folders(path: Path) -> list[Path]:
    """`path` itself if it is a run folder, else the run folders in it, by name; of a sweep's folder none."""
    if (path / "config.json").is_file():
        return [path]
    if (path / "sweep.json").is_file():
        return []  # its table is shown; whoever wants its runs names them, or the folder that holds them
    if not path.is_dir():
        raise ValueError(
            f"{path} is not a run folder or a folder that holds some. Train one first: looped demo{hint(path)}"
        )
    return sorted(folder for folder in path.iterdir() if (folder / "config.json").is_file() and not is_family(folder))
