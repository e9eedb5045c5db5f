"""`looped queue`."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from looped.cli.options import Device, Json, Quiet, pick_device
from looped.cli.output import say, show
from looped.files import check_folder
from looped.queue.missing import Entry, Places, missing
from looped.queue.parcels import pack as write_archives
from looped.queue.parcels import unpack as read_archives
from looped.queue.predictions import Predictions, gain
from looped.queue.work import work
from looped.reproduce import select, studies
from looped.studies.study import SCALES

COLOURS = {"stopped": "yellow", "failed": "red", "ready": "green"}


def queue(
    names: Annotated[list[str] | None, typer.Argument(help="Figures or papers; default all.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "paper",
    minutes: Annotated[float | None, typer.Option(help="Work on it for this long; without it, only list it.")] = None,
    beside: Annotated[int | None, typer.Option(help="With --minutes: trainings at once on one device.")] = None,
    pack: Annotated[str | None, typer.Option(metavar="DIR", help="Write what is finished there, to travel.")] = None,
    unpack: Annotated[str | None, typer.Option(metavar="DIR", help="First put back what --pack wrote there.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where results are kept and looked for.")] = "results",
    runs: Annotated[str, typer.Option(metavar="DIR", help="Where training runs are kept and looked for.")] = "runs",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what figures still lack at a scale, with its predicted time; train and measure it for some minutes.

    A training that several figures ask for is listed once. What is finished is never run again, and a training that
    the minutes stop is saved and goes on next time. One that fails is left alone until the file `failed` in its run
    folder is removed. On a borrowed GPU machine: `looped queue --minutes 9 --beside 4 --pack OUT`; then, at home,
    `looped queue --unpack OUT`.

    Example: `looped queue gao24.fig2 --scale smoke --minutes 1`
    """
    chosen = select(names) if names else list(studies().values())
    if scale not in SCALES:
        raise ValueError(f"`--scale` must be smoke, cpu or paper; got `{scale}`.")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise ValueError(f"`--minutes` must be above 0; got {minutes}.")
    if beside is not None and (beside < 1 or minutes is None):
        raise ValueError(f"`--beside` must be at least 1, and comes with `--minutes`; got {beside}.")
    places = Places(runs=Path(runs), results=Path(out))
    place = pick_device(device)
    if unpack is not None:
        brought = read_archives(Path(unpack), places)
        _say(f"{len(brought)} trainings and results are put into {runs} and {out}.", quiet or json)
    # a machine without a GPU lists what a GPU will do, unless it is asked for itself
    for_device = torch.device("cuda") if device == "auto" and scale == "paper" else place
    predictions = Predictions(chosen, scale, places, for_device)
    if minutes is not None:
        if pack is not None:
            check_folder(Path(pack), "the archive")
        options = {"minutes": minutes, "beside": beside or 1, "device": place}

        def tell(name: str, what: str) -> None:
            _say(f"{name} {what}", quiet or json)

        work(chosen, scale, places, predictions, tell=tell, **options)
    packed = [] if pack is None else write_archives(chosen, scale, places, Path(pack))
    entries = missing(chosen, scale, places)
    data = _data(entries, predictions) | ({} if pack is None else {"packed": packed})
    notes = [] if pack is None else [f"{len(packed)} trainings and results are packed in {pack}."]
    if entries and minutes is None:
        notes.append("Work on it with --minutes; `?`: nothing like it was trained on that device.")
    show(data, _sum(data, beside or 1), *([_table(data)] if entries else []), notes=notes, json=json, quiet=quiet)


def _say(text: str, silent: bool) -> None:
    if not silent:
        say(text)


def _data(entries: list[Entry], predictions: Predictions) -> dict[str, Any]:
    """The queue as JSON data."""
    rows = [
        {
            "name": entry.name if entry.experiment is not None else f"looped reproduce {entry.name}",
            "kind": "training" if entry.experiment is not None else "measurement",
            "figures": list(entry.figures),
            "steps": None if entry.experiment is None else entry.experiment.train.steps,
            "step": entry.step,
            "seconds": predictions.of(entry),
            "status": entry.status,
            "message": entry.message,
        }
        for entry in entries
    ]
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    return {"device": predictions.device, "seconds": sum(known), "predicted": len(known), "entries": rows}


def _sum(data: dict[str, Any], beside: int) -> str:
    """The whole queue in one line."""
    kinds = [row["kind"] for row in data["entries"]]
    if not kinds:
        return "Nothing is missing."
    counts = f"{kinds.count('training')} trainings and {kinds.count('measurement')} measurements are missing"
    shared = f", about {_time(data['seconds'] / gain(beside))} with {beside} at once" if beside > 1 else ""
    known = f"{data['predicted']} of them take {_time(data['seconds'])} one after another on {data['device']}{shared}"
    return (
        f"{counts}; {known}; the others' time is not known."
        if data["predicted"] < len(kinds)
        else (f"{counts}; they take {_time(data['seconds'])} one after another on {data['device']}{shared}.")
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else f"{seconds:.0f} s"
    )


def _table(data: dict[str, Any]) -> Table:
    rows = Table()
    for column in ("training, or measurement", "figures", "steps", "time left", "status"):
        rows.add_column(column, justify="right" if column in ("steps", "time left") else "left", overflow="fold")
    for row in data["entries"]:
        training = row["kind"] == "training"
        figures = ", ".join(row["figures"]) if training else ""
        steps = f"{row['step']:,} of {row['steps']:,}" if row["step"] else f"{row['steps']:,}" if training else ""
        status = f"[{COLOURS.get(row['status'], 'default')}]{row['status']}[/] {escape(row['message'])}"
        rows.add_row(row["name"], figures, steps, _time(row["seconds"]), status)
    return rows
