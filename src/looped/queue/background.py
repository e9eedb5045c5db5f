"""Readings of finished trainings, made in one thread of this process while others train in theirs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from looped.queue.missing import Figures
from looped.studies.readings import Wanted
from looped.training.grid import kept_by_hash
from looped.training.run import Run
from looped.training.trials import standing

SECONDS = 5.0
"""Guess for a reading before the first is made: 500 loops of 1,280 prompts take 3 s on an H200."""


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """Products of float32 matrices in TF32 on a GPU: a reading takes a third of the time, which trainings share."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Background:
    """Makes readings, one after another; leave it with `close`."""

    def __init__(self, asked: Figures, device: torch.device, tell: Callable[[str], None], left: Callable[[], float]):
        self.asked, self.device, self.tell, self.left = asked, device, tell, left
        self.wanted: dict[str, list[Wanted]] = {}
        for study in (study for study in asked.studies if not asked.result(study)):
            for run, entries in asked.readings(study).items():
                self.wanted.setdefault(run, []).extend(entries)
        self.futures: dict[Path, Future[None]] = {}
        self.seconds: dict[str, float] = {}
        self.thread = ThreadPoolExecutor(max_workers=1)

    def add_finished(self) -> None:
        """Make what is not there yet of all runs that are finished here, and of kept models."""
        kept = kept_by_hash({entries[0].experiment.hash for entries in self.wanted.values()})
        for run, entries in self.wanted.items():
            if standing(self.asked.runs / run).status == "finished":
                self.add(self.asked.runs / run)
            elif (path := kept.get(entries[0].experiment.hash)) is not None:
                self.add(path, run)

    def add(self, path: Path, run: str = "") -> None:
        """Make what is not there yet of the weights in a folder, which are those of `run`, by default its name."""
        for entry in self.wanted.get(run or path.name, ()):
            if entry.file not in self.futures and not entry.file.exists():
                self.futures[entry.file] = self.thread.submit(self._make, entry, path)

    def _make(self, entry: Wanted, path: Path) -> None:
        """Make a reading, if the time that the slowest of its kind took is left; else the next call makes it."""
        kind, started = type(entry.measure).__name__, time.monotonic()
        if self.left() < self.seconds.get(kind, 0.0):
            return
        try:
            with tf32_products():
                entry.make(Run(path, entry.experiment), self.device)
        except (ValueError, OSError, RuntimeError) as error:  # torch raises the last one where memory is short
            self.tell(f"{entry.experiment.folder} could not be measured: {error}")
        self.seconds[kind] = max(self.seconds.get(kind, 0.0), time.monotonic() - started)

    def backlog(self) -> float:
        """About how many seconds the readings that are not made yet will take."""
        num_waiting = sum(not future.done() for future in [*self.futures.values()])
        return num_waiting * max(self.seconds.values(), default=SECONDS)

    def wait(self) -> None:
        """Until all are made."""
        wait(self.futures.values())

    def close(self) -> None:
        """Drop what is not begun; wait for the one being made."""
        self.thread.shutdown(cancel_futures=True)
