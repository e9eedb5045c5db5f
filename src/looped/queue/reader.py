"""Readings of finished trainings, made one after another when nothing trains any more."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from looped.functional.precision import tf32_products
from looped.queue.missing import Figures
from looped.studies.readings import Wanted
from looped.training.grid import kept_by_hash
from looped.training.run import Run
from looped.training.trials import standing

SECONDS = 1.5
"""Guess for one evaluation: 500 loops of 1,280 prompts take 1.2 s on an H200, in TF32."""


class Reader:
    """What figures read from finished trainings."""

    def __init__(self, asked: Figures, device: torch.device, tell: Callable[[str], None]):
        self.asked, self.device, self.tell = asked, device, tell
        self.wanted: dict[str, list[Wanted]] = {}
        for study in (study for study in asked.studies if not asked.result(study)):
            for run, entries in asked.readings(study).items():
                self.wanted.setdefault(run, []).extend(entries)
        self.waiting: dict[Path, tuple[Wanted, Path]] = {}
        self.seconds: dict[str, float] = {}

    def add_finished(self) -> None:
        """Ask for what is not there yet of all runs that are finished here, and of kept models."""
        shipped = kept_by_hash({entries[0].experiment.hash for entries in self.wanted.values()})
        for run, entries in self.wanted.items():
            if standing(self.asked.runs / run).status == "finished":
                self.add(self.asked.runs / run)
            elif (path := shipped.get(entries[0].experiment.hash)) is not None:
                self.add(path, run)

    def add(self, path: Path, run: str = "") -> None:
        """Ask for what is not there yet of the weights in a folder, which are those of `run`, by default its name."""
        for entry in self.wanted.get(run or path.name, ()):
            if not entry.file.exists():
                self.waiting[entry.file] = entry, path

    def backlog(self) -> float:
        """About how many seconds all that was asked for will take."""
        waiting = list(self.waiting.values())  # a copy, since a thread asks while trainings end
        return sum(self._predicted(entry) for entry, _ in waiting)

    def read(self, left: Callable[[], float]) -> None:
        """Make what was asked for, the shortest first, as long as the time suffices; the next call goes on."""
        for entry, path in sorted(self.waiting.values(), key=lambda asked: self._predicted(asked[0])):
            if left() > self._predicted(entry):
                self._make(entry, path)
        self.waiting = {file: asked for file, asked in self.waiting.items() if not file.exists()}

    def _predicted(self, entry: Wanted) -> float:
        """The seconds of the slowest of its kind, or a guess where none was made."""
        guess: float = SECONDS * entry.measure.evaluations
        return self.seconds.get(_kind(entry), guess)

    def _make(self, entry: Wanted, path: Path) -> None:
        started = time.monotonic()
        try:
            with tf32_products():  # a third of the time, and errors that differ by .1% (docs/log.md)
                entry.make(Run(path, entry.experiment), self.device)
        except (ValueError, OSError, RuntimeError) as error:  # torch raises the last one where memory is short
            self.tell(f"{entry.experiment.folder} could not be read: {error}")
            return
        seconds = time.monotonic() - started
        self.seconds[_kind(entry)] = max(self.seconds.get(_kind(entry), 0.0), seconds)
        self.tell(f"{entry.experiment.folder} read: {seconds:.1f} s")


def _kind(entry: Wanted) -> str:
    """Readings of one kind take about the same time."""
    return f"{type(entry.measure).__name__} {entry.measure.evaluations}"
