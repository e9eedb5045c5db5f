"""Options and displays that several commands share."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from looped.experiment import Experiment
from looped.files import finite
from looped.models.base import LoopedModel
from looped.training.run import Run
from looped.training.trainer import Progress as Report

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no messages.")]
Out = Annotated[str, typer.Option("--out", help="Folder that holds the run folders.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change any field, such as train.steps=100.")
]
Code = Annotated[
    list[str] | None, typer.Option("--code", metavar="FILE.py", help="Your own file that a run's config names.")
]
Best = Annotated[bool, typer.Option("--best", help="The weights of the lowest logged loss, not the last ones.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU where there is one.")]

RUN = "A run folder, or a kept model such as yang24.linear; `looped list models`."
"""Help of every argument that takes a run."""
NOT_SAVED = "Not saved: nothing is written into a kept model's folder. `--json` prints the numbers."
"""What commands say that would otherwise write beside the run."""

messages = Console(stderr=True, soft_wrap=True)
"""Everything for people goes to standard error; standard output is for results."""


def say(text: str) -> None:
    """A line for people; brackets in a path are a path's, not markup."""
    messages.print(text, markup=False)


def pick_device(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"`--device` must be cpu, cuda or auto; got `{name}`.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("`--device cuda` needs a GPU that torch can see; this machine has none. Use cpu.")
    return torch.device(name)


def chosen_model(run: Run, device: str, *, best: bool) -> LoopedModel:
    """The model with its last weights, or with those of the lowest logged loss, if there is such a thing."""
    if best and not run.comparable:
        raise ValueError(f"`--best` needs checkpoints with a logged loss; {run.path} has none. Leave it out.")
    return run.model(pick_device(device), best=best)


def usual_points(run: Run, d: int) -> int:
    """Pairs in a prompt where nobody says: as trained, as the model was made for, else 2d examples and the query."""
    if isinstance(run.setup, Experiment):
        return run.setup.train.points
    points = run.provenance().get("points", 2 * d + 1)
    if not isinstance(points, int) or points < 1:
        file = run.path / "provenance.json"
        raise ValueError(f"`points` in {file} must be a whole number from 1; got {points!r}. Say `--points`.")
    return points


def results_folder(name: str) -> Path:
    """The folder that the user named for results; one that is not there is a slip, not an empty one."""
    if not os.path.isdir(name):  # false also for names that no file can have
        raise ValueError(f"`--results` must name a folder that `looped reproduce` wrote to; there is no folder {name}.")
    return Path(name)


@contextlib.contextmanager
def late(bar: Progress) -> Iterator[Progress]:
    """A bar that is shown from its first `start` on: input that is refused before that gets one line and no bar."""
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def training_bar(title: str, steps: int, *, quiet: bool) -> Iterator[Report]:
    """A progress bar with loss, error, speed and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    with late(Progress(*columns, console=messages, disable=quiet, transient=False)) as bar:
        task = bar.add_task(title, total=steps, numbers="")

        def report(done: int, line: dict[str, float]) -> None:
            bar.start()
            speed = bar.tasks[0].speed
            numbers = f"loss {line['loss']:.4f}  error {line['error']:.4f}" if line else ""
            bar.update(task, completed=done, numbers=f"{numbers}  {speed:.1f} steps/s" if speed else numbers)

        yield report


def print_json(data: Any) -> None:
    """One JSON document on standard output; a number that is not finite is null."""
    print(json.dumps(finite(data), indent=2, allow_nan=False))
