"""Work on the queue until the minutes are over: measure what is ready, train, measure again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from looped.files import log, write_json
from looped.queue.missing import Entry, Places, missing
from looped.queue.predictions import Predictions, gain
from looped.reproduce import reproduce
from looped.studies.study import Study
from looped.training.executors import Executor
from looped.training.folder import Folder
from looped.training.kept import locate, own_results
from looped.training.stopping import Interrupted
from looped.training.sweep import sweep
from looped.training.trainer import Diverged
from looped.training.trials import Standing, trial

GPU_THREADS = 4
"""CPU threads of a training on a GPU; one on a CPU, where several trainings share the cores."""
Tell = Callable[[str, str], None]
"""(training or figure, what became of it) -> None."""


@contextlib.contextmanager
def time_limit(minutes: float) -> Iterator[None]:
    """End what is inside after some minutes, by `Interrupted`; a training is saved before."""
    over = threading.Event()

    def stop(*_: object) -> None:
        raise Interrupted("stopped; everything that was trained is saved. Go on with the same command.")

    def end() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGTERM)  # as if somebody stopped it: trainings listen to that already

    before = signal.signal(signal.SIGTERM, stop)
    timer = threading.Timer(60 * minutes, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Interrupted:
        if not over.is_set():
            raise
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def work(
    studies: Sequence[Study],
    scale: str,
    places: Places,
    predictions: Predictions,
    *,
    minutes: float,
    beside: int = 1,
    device: torch.device,
    tell: Tell,
) -> None:
    """Train and measure what the figures lack, as much as the minutes allow; the next call goes on.

    Figures whose trainings are all there are measured first; families, which train while they are measured, last.
    """
    threads = GPU_THREADS if device.type == "cuda" else 1
    executor = Executor(kind="processes", device=device.type, workers=beside, threads=threads)
    if beside > 1 and device.type == "cuda":
        _share_gpu()
    tried: set[str] = set()
    with time_limit(minutes):
        while True:
            entries = [entry for entry in missing(studies, scale, places) if entry.name not in tried]
            ready = [entry for entry in entries if entry.status == "ready"]
            trained = [entry for entry in ready if entry.name not in predictions.families]
            open_ = [entry for entry in entries if entry.experiment is not None and _can_begin(entry, places)]
            if trained:
                tried |= {entry.name for entry in trained}
                _measure(trained, scale, places, device, tell)
            elif open_:
                tried |= {entry.name for entry in open_}
                _train(fitting_first(open_, predictions, 60 * minutes * gain(beside)), places, executor, tell)
            elif ready:
                tried |= {entry.name for entry in ready}
                _measure(ready, scale, places, device, tell)
            else:
                return


def fitting_first(entries: Sequence[Entry], predictions: Predictions, seconds: float) -> list[Entry]:
    """The entries that fit into the seconds, in their order; then the others, of which a part will be done."""
    fit, others = [], []
    for entry in entries:
        needed = predictions.of(entry)
        if needed is not None and needed <= seconds:
            seconds -= needed
            fit.append(entry)
        else:
            others.append(entry)
    return [*fit, *others]


def _can_begin(entry: Entry, places: Places) -> bool:
    """Whether a training has not failed before, and the weights that it starts from are there."""
    assert entry.experiment is not None
    start = entry.experiment.train.start
    begins = start is None or locate(start, beside=places.runs).joinpath("checkpoints").is_dir()
    return entry.status != "failed" and begins


def _train(entries: Sequence[Entry], places: Places, executor: Executor, tell: Tell) -> None:
    """Train in worker processes; who diverges or fails leaves a note, and the others go on."""
    trials = [trial(entry.experiment, places.runs) for entry in entries if entry.experiment is not None]
    before = ["" for _ in trials]

    def note(index: int, stand: Standing) -> None:
        path, old, before[index] = trials[index].path, before[index], stand.status
        if not old or old == stand.status:
            return
        if stand.status == "finished":
            folder = Folder(path, "")
            origin = folder.provenance()
            write_json(path / "provenance.json", {**origin, "side_by_side": executor.workers})
            tell(path.name, f"finished in {origin['train_seconds']:.0f} s, error {stand.metrics.get('error'):.3g}")
        else:
            if stand.status in ("diverged", "failed"):
                path.mkdir(parents=True, exist_ok=True)
                (path / "failed").write_text(f"{stand.status}: {stand.message}\n")
            tell(path.name, f"{stand.status} at step {stand.step} {stand.message}".strip())

    sweep(trials, executor, tell=note)


def _measure(entries: Sequence[Entry], scale: str, places: Places, device: torch.device, tell: Tell) -> None:
    """Measure figures whose trainings are there, and families; one that cannot be measured does not stop the others."""
    for entry in entries:
        assert entry.study is not None
        tell(entry.name, "is being measured")
        try:
            result = reproduce(
                entry.study, scale, out=places.measured, runs=places.runs, device=device, shipped=own_results()
            )
        except (ValueError, OSError, Diverged) as error:
            tell(entry.name, f"could not be measured: {error}")
            continue
        places.results.mkdir(parents=True, exist_ok=True)
        shutil.copy(result.path, places.results)
        tell(entry.name, f"measured in {result.provenance['seconds']:.0f} s")


def _share_gpu() -> None:
    """Start CUDA's MPS, without which processes take turns on the card; it stays."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        log.warning("looped: nvidia-cuda-mps-control is not here, so trainings take turns on the GPU.")
        return
    subprocess.run([control, "-d"], check=False, capture_output=True)  # fails where it runs already
