"""Work on the queue until the minutes are over: measure what is ready, train, measure again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import torch

from looped.experiment import Experiment
from looped.files import log, read_json, write_bytes, write_json
from looped.queue.missing import Entry, Figures, can_start, missing
from looped.queue.predictions import Predictions
from looped.queue.reader import Reader
from looped.reproduce import reproduce
from looped.studies.study import Study
from looped.training.executors import Executor
from looped.training.folder import Folder
from looped.training.kept import own_results
from looped.training.stopping import Interrupted, NotSaved
from looped.training.sweep import sweep
from looped.training.trainer import Diverged
from looped.training.trials import Standing, Trial, trial

GPU_THREADS = 4
"""CPU threads of a training on a GPU; one on a CPU, where several trainings share the cores."""
RESERVE_SHARE = 0.03
"""Share of the minutes in which nothing is trained any more: 16 s of 9 minutes, and more for readings."""
POLL_S = 0.2
"""Seconds between two looks at the time."""
Tell = Callable[[str], None]
"""Gets a line about what became of a training or a figure."""


@contextlib.contextmanager
def time_limit(minutes: float, reserve: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """End what is inside after some minutes, less `reserve` seconds; a training is saved, a measurement is lost."""
    over, done = threading.Event(), threading.Event()
    deadline = time.monotonic() + 60 * minutes

    def stop(*_: object) -> None:
        if not done.is_set():
            raise Interrupted("stopped; everything that was trained is saved. Go on with the same command.")

    def watch() -> None:
        left = POLL_S  # so long at least, since a signal before the body begins would not end the body
        while left > 0:
            if done.wait(min(left, POLL_S)):
                return
            left = deadline - reserve() - time.monotonic()
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)  # trainings listen to it already

    before, watcher = signal.signal(signal.SIGTERM, stop), threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Interrupted as error:
        if not over.is_set():
            raise
        if isinstance(error, NotSaved):
            log.warning(f"looped: {error}")
    finally:
        done.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)


def work(
    asked: Figures, predictions: Predictions, *, minutes: float, beside: int = 1, device: torch.device, tell: Tell
) -> None:
    """Train and measure what the figures lack, as much as the minutes allow; the next call goes on.

    First come figures that need the weights of their trainings and have them. Then it trains. The last minutes are for
    what figures read from the trainings that are finished, and for figures that have all of it; families, which train
    while they are measured, are last.
    """
    threads = GPU_THREADS if device.type == "cuda" else 1
    executor = Executor(kind="processes", device=device.type, workers=beside, threads=threads)
    sharing = _shared_gpu if beside > 1 and device.type == "cuda" else contextlib.nullcontext
    tried: set[str] = set()
    deadline = time.monotonic() + 60 * minutes
    for study in asked.studies:  # an earlier call may have ended between a measurement and its copy
        _copy_result(study, asked)

    def measure(studies: Sequence[Study]) -> None:
        ready = {entry.name for entry in missing(asked) if entry.status == "ready"} - tried
        for study in studies:
            if study.name in ready:
                tried.add(study.name)
                _measure(study, asked, device, tell)

    def left() -> float:
        return deadline - time.monotonic()

    def reserve() -> float:
        return min(RESERVE_SHARE * 60 * minutes + reader.backlog(), 20 * minutes)

    families = [study for study in asked.studies if not asked.trainings(study)]
    trained = [study for study in asked.studies if study not in families]
    reader = Reader(asked, device, tell)
    with time_limit(left() / 60):
        measure([study for study in trained if not asked.readings(study)])
        reader.add_finished()
    with sharing(), time_limit(left() / 60, reserve):
        while entries := [entry for entry in missing(asked) if _can_begin(entry, asked, tried)]:
            tried |= {entry.name for entry in entries}
            chosen = fitting_first(entries, predictions, left() - reserve(), beside)
            experiments = [entry.what for entry in chosen if isinstance(entry.what, Experiment)]
            _train([trial(experiment, asked.runs) for experiment in experiments], executor, tell, reader.add)
    with time_limit(left() / 60):
        reader.read(left)
        measure([*trained, *families])


def fitting_first(entries: Sequence[Entry], predictions: Predictions, seconds: float, beside: int = 1) -> list[Entry]:
    """The trainings that fit into the seconds, in their order; then the others, of which a part will be done.

    Of several at once each takes its part of the device, so much longer.
    """
    fit, others, whole = [], [], seconds
    for entry in entries:
        needed = predictions.of(entry, beside)
        if needed is not None and needed <= seconds and needed * beside <= whole:
            seconds -= needed
            fit.append(entry)
        else:
            others.append(entry)
    return [*fit, *others]


def _can_begin(entry: Entry, asked: Figures, tried: Collection[str]) -> bool:
    """Whether it is a training, not tried yet, that has not diverged, and the weights that it starts from are there."""
    if not isinstance(entry.what, Experiment) or entry.status == "diverged" or entry.name in tried:
        return False
    return can_start(entry.what, asked.runs)


def _train(trials: Sequence[Trial], executor: Executor, tell: Tell, finished: Callable[[Path], None]) -> None:
    """Train in worker processes; one that diverges leaves a note in its folder; the others go on."""
    before = [""] * len(trials)

    def note(index: int, stand: Standing) -> None:
        running = before.count("running")
        path, old, before[index] = trials[index].path, before[index], stand.status
        if old in ("", stand.status):
            return
        about = stand.message
        if stand.status == "finished":
            origin = Folder(path, "").provenance()
            write_json(path / "provenance.json", {**origin, "side_by_side": max(running, 1)})
            finished(path)
            about = f"{origin['train_seconds']:.0f} s, error {stand.metrics.get('error', float('nan')):.3g}"
        elif stand.status == "diverged":
            path.mkdir(parents=True, exist_ok=True)
            (path / "diverged").write_text(f"{stand.message}\n")
        tell(f"{path.name} {stand.status}{f': {about}' if about else ''}")

    sweep(trials, executor, tell=note)


def _measure(study: Study, asked: Figures, device: torch.device, tell: Tell) -> None:
    """Measure a figure; one that cannot be measured does not stop the others."""
    options = {"out": asked.runs / "results", "runs": asked.runs, "device": device, "shipped": own_results()}
    try:
        result = reproduce(study, asked.scale, **options)
    except (ValueError, OSError, RuntimeError, Diverged) as error:  # torch's, where memory is short
        tell(f"{study.name} could not be measured: {error}")
    else:
        _copy_result(study, asked)
        tell(f"{study.name} measured: {result.provenance['seconds']:.0f} s")


def _copy_result(study: Study, asked: Figures) -> None:
    """Put a result of today's settings that was measured here among the results, unless they have it."""
    name, key = f"{study.name}.{asked.scale}.json", study.settings_hash(asked.scale)
    here, there = asked.runs / "results" / name, asked.results / name
    measured = {path for path in (here, there) if path.exists() and read_json(path).get("settings_hash") == key}
    if measured == {here}:
        asked.results.mkdir(parents=True, exist_ok=True)
        write_bytes(there, here.read_bytes())


@contextlib.contextmanager
def _shared_gpu() -> Iterator[None]:
    """CUDA's MPS, without which processes take turns on the card; off again afterwards, if it was off before."""
    if (control := shutil.which("nvidia-cuda-mps-control")) is None:
        log.warning("looped: nvidia-cuda-mps-control is not here, so trainings take turns on the GPU.")
        yield
        return
    began = subprocess.run([control, "-d"], check=False, capture_output=True)  # fails where it is on already
    try:
        yield
    finally:
        if began.returncode == 0:
            subprocess.run([control], input=b"quit\n", check=False, capture_output=True)
