"""`looped reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from looped.cli.options import Device, Json, Quiet, pick_device
from looped.cli.output import late, messages, print_json, say
from looped.evaluation.claims import Judged
from looped.files import tidied
from looped.report.drawing import blank, save_figure
from looped.reproduce import DAMAGE, Result, damaged, select
from looped.reproduce import reproduce as run
from looped.training import kept
from looped.training.trainer import Diverged

COLOURS = {"holds": "green", "fails": "red", "not judged": "dim"}
KEYS = ("id", "statement", "value", "low", "high", "tolerance", "verdict", "scale")


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Figures such as chen24.fig1, or papers: all of their figures.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), cpu (minutes) or paper (its sizes; on a GPU).")] = "cpu",
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Where results are kept and looked for.")
    ] = "results",
    runs: Annotated[
        str, typer.Option("--runs", metavar="DIR", help="Where training runs are kept; finished ones are used again.")
    ] = "runs",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is there already.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures: measure what is missing, draw, and check what the paper says about each.

    A claim that fails is a result, so the exit code is 0; a figure that cannot be made does not stop those after it,
    but the exit code is not 0 then. What DIR lacks is taken from the results that come with looped's sources, and kept
    models stand for their training, as far as the settings are the same. Numbers and provenance go to
    DIR/NAME.SCALE.json, the figure to DIR/figures as .png and .svg.

    Example: `looped reproduce chen24 gatmiry24.fig2 --scale cpu`
    """
    figures = select(names)
    where, results = pick_device(device), []
    troubles: dict[str, Exception] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    bar = Progress(*columns, console=messages, disable=quiet or json)
    with tidied(Path(out), Path(runs)), late(bar):
        for figure in figures:
            task = bar.add_task(figure.name, total=1.0, what="")

            def report(what: str, share: float, task=task) -> None:
                bar.start()
                bar.update(task, completed=share, what=what)

            try:
                places = {"out": Path(out), "runs": Path(runs), "own": kept.own_results()}
                result = run(figure, scale, device=where, progress=report, again=again, **places)
                bar.update(task, completed=1.0, what=f"{result.provenance['seconds']:.1f} s")
                draw(result, Path(out))
            except (ValueError, Diverged) as error:  # those after it may have what this one lacks
                bar.update(task, what="not made")
                troubles[figure.name] = error
            else:
                results.append(result)
                if result.taken and not quiet:
                    say(f"{figure.name} at scale {scale}: taken from the results kept with looped.")
    if len(troubles) == len(figures):
        raise _together(troubles, len(figures))
    if json:
        print_json([_told(result, claim) for result in results for claim in result.claims])
    elif not quiet:
        messages.print(table(results))
        say(f"Numbers in {out}, figures in {Path(out) / 'figures'}.")
    if troubles:
        raise _together(troubles, len(figures))


def _told(result: Result, claim: Judged) -> dict[str, Any]:
    """A claim for machines; `source` says whether its numbers were measured just now."""
    source = "measured" if result.measured else "taken from looped's own results" if result.taken else "kept"
    return {**{key: claim.to_data()[key] for key in KEYS}, "source": source}


def _together(troubles: dict[str, Exception], asked: int) -> Exception:
    """One error for all figures that were not made, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name, error in troubles.items():
        reasons.setdefault(str(error), []).append(name)
    kind = Diverged if all(isinstance(one, Diverged) for one in troubles.values()) else ValueError
    if asked == 1:
        return kind(next(iter(reasons)))
    told = " ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return kind(f"{len(troubles)} of {asked} figures could not be made. {told}")


def draw(result: Result, out: Path) -> list[Path]:
    """The figure as DIR/figures/NAME.SCALE.png and .svg."""
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with blank((6.4, 3.6)) as canvas:
            result.figure.draw(canvas, result.data)
    except DAMAGE as error:
        if result.measured:
            raise
        raise damaged(result.path, error) from None
    stem = f"{result.figure.name}.{result.scale}"
    return [save_figure(canvas, folder / f"{stem}.{kind}") for kind in ("png", "svg")]


def table(results: list[Result]) -> Table:
    """One line a claim: the number, its spread, when it counts as holding, and whether it does."""
    claims = [claim for result in results for claim in result.claims]
    held = sum(claim.verdict == "holds" for claim in claims)
    rows = Table(title=f"{len(claims)} claims, {held} hold", caption="spread: over seeds, or as the note says")
    rows.add_column("claim, and when it holds", max_width=90)
    for column in ("value", "spread", "verdict"):
        rows.add_column(column, justify="right" if column == "value" else "left", no_wrap=True)
    for claim in claims:
        value, low, high = ("-" if one is None else f"{one:.3g}" for one in (claim.value, claim.low, claim.high))
        spread = "" if low == high == "-" else f"{low} .. {high}"
        about = f"[bold]{claim.id}[/]\n[dim]{escape(claim.tolerance)}[/]"
        rows.add_row(about, value, spread, f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]")
    return rows
