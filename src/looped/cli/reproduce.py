"""`looped reproduce`."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from looped.cli.options import Device, Json, Quiet, pick_device
from looped.cli.output import coloured, number, progress_lines, say, show
from looped.files import tidied
from looped.queue.missing import figures
from looped.report.drawing import save_figure
from looped.report.sections import result_figure
from looped.reproduce import Result, select
from looped.reproduce import reproduce as run
from looped.studies.study import Study
from looped.training import kept
from looped.training.trainer import Diverged

COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "not judged": "dim"}
KEYS = ("id", "statement", "value", "low", "high", "seeds", "asked", "bound", "verdict", "scale", "note")


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Figures such as chen24.fig1, papers, or your own: my.py:fig1.")],
    scale: Annotated[str | None, typer.Option(help="smoke (seconds), cpu (minutes; default) or paper (a GPU).")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where results are kept and looked for.")] = "results",
    runs: Annotated[str, typer.Option(metavar="DIR", help="Where training runs are kept and looked for.")] = "runs",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is there already.")] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures: measure what is missing, draw, and check what the paper says about each.

    Claims about the papers' figures get a verdict at `paper` scale; smaller scales show the numbers without one. A
    claim that fails is a result, so the exit code is 0; a figure that cannot be made does not stop those after it,
    but the exit code is not 0 then. What DIR lacks is taken from the results that come with looped's sources, and kept
    models stand for their training, as far as the settings are the same. Numbers and provenance go to
    DIR/NAME.SCALE.json, the figure to DIR/figures as .png and .svg. Without a GPU, of a whole paper at `paper` scale
    only what is measured is drawn; a figure that you name is trained.

    Example: `looped reproduce chen24 gatmiry24.fig2 --scale cpu`
    """
    where, results = pick_device(device), []
    places: dict[str, Any] = {"out": Path(out), "runs": Path(runs), "shipped": kept.own_results()}
    chosen = select(names)
    left_out = [
        study.name
        for study in chosen
        if scale == "paper" and where.type == "cpu" and study.name not in names and _needs_gpu(study, out, runs)
    ]
    chosen = [study for study in chosen if study.name not in left_out]
    if not chosen:
        raise ValueError(_about_left_out(left_out))
    troubles: dict[str, Exception] = {}
    with tidied(Path(out), Path(runs)), progress_lines(quiet=quiet or json, transient=False) as report:
        for study in chosen:
            at = scale or ("cpu" if "cpu" in study.scales else study.judged)

            def progress(what: str, share: float, name: str = study.name) -> None:
                report(name, share, what)

            try:
                result = run(study, at, device=where, progress=progress, again=again, **places)
                progress(f"{result.provenance['seconds']:.1f} s", 1.0)
                figure = result_figure(result)
                for kind in ("png", "svg"):
                    save_figure(figure, Path(out) / "figures" / f"{study.name}.{at}.{kind}")
            except (ValueError, Diverged) as error:  # those after it may have what this one lacks
                troubles[study.name] = error
            else:
                results.append(result)
                if result.shipped and not quiet:
                    say(f"{study.name} at scale {at}: taken from the results that come with looped.")
    if len(troubles) == len(chosen):
        raise _together(troubles, len(chosen))
    data = []
    for result in results:
        source = "measured" if result.measured else "taken from looped's own results" if result.shipped else "kept"
        claims = [claim.to_data() for claim in result.claims]
        data += [{**{key: claim[key] for key in KEYS}, "source": source} for claim in claims]
    where_kept = f"Numbers in {out}, figures in {Path(out) / 'figures'}."
    notes = [where_kept, *([_about_left_out(left_out)] if left_out else [])]
    show(data, table(results), notes=notes, json=json, quiet=quiet)
    if troubles:
        raise _together(troubles, len(chosen))


def _needs_gpu(study: Study, out: str, runs: str) -> bool:
    """Whether a figure at `paper` scale is not measured, and rests on trainings: hours on a CPU."""
    asked = figures([study], "paper", runs=Path(runs), results=Path(out))
    return bool(asked.studies) and not asked.result(study) and bool(asked.trainings(study))


def _about_left_out(names: list[str]) -> str:
    """What is said of figures that were not asked for by name and would be trained for hours."""
    return (
        f"Not measured at scale paper, and not trained without a GPU: {', '.join(names)}. `looped queue` says what "
        "they need; name one to train it here."
    )


def _together(troubles: dict[str, Exception], asked: int) -> Exception:
    """One error for all figures that were not made, each reason once."""
    reasons: dict[str, list[str]] = {}
    for name, error in troubles.items():
        reasons.setdefault(str(error), []).append(name)
    kind = Diverged if all(isinstance(error, Diverged) for error in troubles.values()) else ValueError
    if asked == 1:
        return kind(next(iter(reasons)))
    details = " ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return kind(f"{len(troubles)} of {asked} figures could not be made. {details}")


def table(results: list[Result]) -> Table:
    """One line a claim: the number, its spread, when it counts as holding, and whether it does."""
    claims = [claim for result in results for claim in result.claims]
    counts = Counter(claim.verdict for claim in claims)
    title = ", ".join(f"{counts[verdict]} {verdict}" for verdict in COLOURS if counts[verdict])
    rows = Table(title=f"{len(claims)} claims: {title}", caption="spread: over seeds; of one seed, 90% over prompts")
    rows.add_column("claim, and when it holds", max_width=90)
    for column in ("value", "spread", "verdict"):
        rows.add_column(column, justify="right" if column == "value" else "left", no_wrap=True)
    for claim in claims:
        value = "-" if claim.value is None else number(claim.value)
        spread = "" if claim.low == claim.high else f"{number(claim.low)} .. {number(claim.high)}"
        about = coloured((claim.id, "bold"), (f"\n{claim.asked}", "dim"))
        rows.add_row(about, value, spread, coloured((claim.verdict, COLOURS[claim.verdict])))
    return rows
