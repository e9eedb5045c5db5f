"""`looped queue`."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from looped.cli.options import Device, Json, Quiet, pick_device
from looped.cli.output import coloured, say, show
from looped.experiment import Experiment
from looped.files import check_folder
from looped.queue import parcels
from looped.queue.missing import Entry, Figures, figures, missing
from looped.queue.predictions import Predictions
from looped.queue.work import work
from looped.reproduce import select, studies
from looped.studies.study import SCALES

COLOURS = {"waiting": "dim", "stopped": "yellow", "diverged": "red", "ready": "green"}


def queue(
    names: Annotated[list[str] | None, typer.Argument(help="Figures or papers; default all.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "paper",
    minutes: Annotated[float | None, typer.Option(help="Work on it for this long; without it, only list it.")] = None,
    beside: Annotated[int | None, typer.Option(help="With --minutes: trainings at once on the device.")] = None,
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
    the minutes stop is saved and goes on next time. One that diverges is left alone until the file `diverged` in its
    run folder is removed. What figures read from finished trainings is kept in RUNS/readings, so that weights, which
    may be too large to travel, are not needed any more. On a borrowed GPU machine: `looped queue --minutes 9 --beside 4
    --pack DIR`; then, at home, `looped queue --unpack DIR`.

    Example: `looped queue gao24.fig2 --scale smoke --minutes 1`
    """
    if scale not in SCALES:
        raise ValueError(f"`--scale` must be smoke, cpu or paper; got `{scale}`.")
    if minutes is not None and not 0 < minutes <= 10_000:
        raise ValueError(f"`--minutes` must be above 0, and at most 10,000; got {minutes}.")
    if beside is not None and beside < 1:
        raise ValueError(f"`--beside` must be at least 1; got {beside}.")
    if beside is not None and minutes is None:
        raise ValueError("`--beside` says how many train at once, and without `--minutes` nothing is trained.")
    asked = figures(select(names) if names else [*studies().values()], scale, runs=Path(runs), results=Path(out))
    place = pick_device(device)
    notes = []
    if unpack is not None:
        count = len(parcels.unpack(Path(unpack), asked))
        notes.append(f"{count} trainings, readings and results are put into {runs} and {out}.")
    # a machine without a GPU lists what a GPU will take, unless it is asked for itself
    lists_for_gpu = device == "auto" and scale == "paper" and minutes is None
    predictions = Predictions(asked, torch.device("cuda") if lists_for_gpu else place)

    def tell(line: str) -> None:
        if not quiet and not json:
            say(line)

    folders = {"--runs": runs, "--out": out, "--pack": pack} if minutes is not None else {"--pack": pack}
    for option, folder in folders.items():
        if folder is not None:
            check_folder(Path(folder), "what is trained", option)
    try:
        if minutes is not None:
            tell(_sum(_data(asked, predictions, beside or 1)))
            work(asked, predictions, minutes=minutes, beside=beside or 1, device=place, tell=tell)
    finally:  # what is finished travels, whatever ended the work
        if pack is not None:
            count = len(parcels.pack(asked, Path(pack)))
            notes.append(f"{count} trainings, readings and results are packed in {pack}.")
    data = _data(asked, predictions, beside or 1)
    shown = [_table(data["entries"])] if data["entries"] and minutes is None else []
    show(data, _sum(data), *shown, notes=notes, json=json, quiet=quiet)


def _data(asked: Figures, predictions: Predictions, beside: int) -> dict[str, Any]:
    """The queue as JSON data: the sums of the seconds that are known, one by one and so many at once; every entry."""
    entries = missing(asked)
    known = [entry for entry in entries if predictions.of(entry) is not None]
    alone, at_once = (sum(predictions.of(entry, count) or 0.0 for entry in known) for count in (1, beside))
    sums = {"seconds": alone, "beside": beside, "seconds_at_once": at_once, "predicted": len(known)}
    return {"device": predictions.device, **sums, "entries": [_row(entry, predictions) for entry in entries]}


def _row(entry: Entry, predictions: Predictions) -> dict[str, Any]:
    """One line of the queue as JSON data."""
    train = entry.what.train if isinstance(entry.what, Experiment) else None
    return {
        "name": entry.name if train else f"looped reproduce {entry.name}",
        "figures": list(entry.figures),
        "seed": train and train.seed,
        "steps": train and train.steps,
        "step": entry.step,
        "seconds": predictions.of(entry),
        "status": entry.status,
        "message": entry.message,
    }


def _sum(data: dict[str, Any]) -> str:
    """The whole queue in one line."""
    rows = data["entries"]
    num_trainings = sum(row["steps"] is not None for row in rows)
    counts = f"{num_trainings} trainings and {len(rows) - num_trainings} measurements are left"
    known = (
        f"{_time(data['seconds'])} for {data['predicted']} of them" if data["predicted"] else "their time is not known"
    )
    shared = data["beside"] > 1 and data["predicted"]
    at_once = f", {_time(data['seconds_at_once'])} with {data['beside']} at once" if shared else ""
    return f"{counts}: {known} on {data['device']}{at_once}." if rows else "Nothing is left."


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _table(rows: list[dict[str, Any]]) -> Table:
    """One line for each training and measurement."""
    lines = Table(caption="time: alone on the device; ?: not known, since nothing was trained there")
    for column in ("training or measurement", "figures", "steps", "time", "status"):
        lines.add_column(column, justify="right" if column in ("steps", "time") else "left", overflow="fold")
    for row in rows:
        steps = f"{row['step']:,} of {row['steps']:,}" if row["step"] else f"{row['steps']:,}" if row["steps"] else ""
        status = coloured((row["status"], COLOURS[row["status"]]), (f" {row['message']}", ""))
        names = ", ".join(row["figures"]) if row["steps"] else ""
        lines.add_row(row["name"], names, steps, _time(row["seconds"]), status)
    return lines
