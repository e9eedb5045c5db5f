"""`looped report`."""

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

    A folder that `looped sweep` wrote (OUT/sweeps/...) adds the table of its points.

    Example: `looped report runs --out report.html`
    """
    user_code = load_user_code(code)
    # without paths, all of runs/, which may be missing if there is something else to show
    optional = (results is not None or theorems) and not Path("runs").is_dir()
    places = [locate(place) for place in paths or ([] if optional else ["runs"])]
    sweeps = [folder for place in places for folder in sweep_folders(place)]
    runs, bad = [], []
    for path in (path for place in places for path in run_folders(place)):
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
    page = write_report(Path(out), runs=runs, results=figures, theorems=rows, sweeps=sweeps)
    data = {"report": str(page), "runs": [str(run.path) for run in runs], "sweeps": [str(path) for path in sweeps]}
    counts = {"run": len(runs), "figure": len(figures), "theorem": len(rows or ()), "sweep": len(sweeps)}
    contents = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count)
    show(data, f"{page}: {contents or 'nothing yet'}.", json=json, quiet=quiet)


def _readable(path: Path, code: dict[str, Any]) -> Run:
    """The run, once all that the page shows of it has been read."""
    run = Run.open(path, code)
    for read in (run.provenance, run.metrics, lambda: evaluations(run)):
        read()
    return run


def run_folders(path: Path) -> list[Path]:
    """`path` itself if it is a run folder, else the run folders in it by name; none for a sweep's folder."""
    if (path / "config.json").is_file():
        return [path]
    if (path / "sweep.json").is_file():
        return []  # the page shows its table; runs are shown if they or their folder are named
    if not path.is_dir():
        raise ValueError(
            f"{path} is not a run folder or a folder that holds some. Train one first: looped demo{hint(path)}"
        )
    return sorted(folder for folder in path.iterdir() if (folder / "config.json").is_file() and not is_family(folder))
