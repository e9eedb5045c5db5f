"""How many seconds a training will take: from trainings that are done, scaled to its size."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from looped.experiment import Experiment
from looped.files import read_json
from looped.models.decoder import DecoderConfig
from looped.models.fusing import shape_obstacle
from looped.queue.missing import Entry, Figures
from looped.training.run import Run
from looped.training.trials import last_metrics

BEST_GAIN, FUSED_GAIN = 1.7, 1.1
"""How much more gets done in a second by three or four trainings at once (`benchmarks/side_by_side.py`), and by those
that our kernels train, which fill a GPU better alone (docs/log.md)."""
MOST_READ = 200
"""In a folder of thousands of runs these many are read beside those that figures ask for: the newest."""
NEAREST = 3
"""A prediction is the median of those from trainings of the same size, or else from this many of the nearest sizes."""
LARGER, SMALLER = 0.87, 0.5
"""Seconds of a step grow by this power of batch x points x width^2: the first is that of `looped bench` from batch 64
to 1024; smaller steps leave a GPU idle, and the second is a guess for them."""


class Speed(NamedTuple):
    """Seconds of one step of a training, alone on its device."""

    experiment: Experiment
    seconds: float
    device: str


class Predictions:
    """Seconds of trainings on one device: the GPU here, else the GPU or CPU that most known trainings ran on."""

    def __init__(self, asked: Figures, device: torch.device):
        speeds = [speed for speed in known_speeds(asked) if speed.device.endswith(" cores") == (device.type == "cpu")]
        names = Counter(speed.device for speed in speeds)
        usual = names.most_common(1)[0][0] if names else {"cpu": "this CPU", "cuda": "a GPU"}[device.type]
        here = device.type == "cuda" and torch.cuda.is_available()
        self.device = torch.cuda.get_device_name(device) if here else usual
        self.speeds = [speed for speed in speeds if speed.device == self.device]

    def of(self, entry: Entry, beside: int = 1) -> float | None:
        """The seconds of the device left of a training, where `beside` share it; None for a measurement, and where
        nothing was trained.
        """
        if not isinstance(entry.what, Experiment):
            return None
        alike = [speed for speed in self.speeds if _kind(speed.experiment) == _kind(entry.what)]
        steps = sorted(
            (abs(math.log(depth)) + abs(math.log(size)), seconds * depth * size ** (LARGER if size > 1 else SMALLER))
            for experiment, seconds, _ in alike or self.speeds
            for depth, size in [_ratios(entry.what, experiment)]
        )
        like_it = [seconds for distance, seconds in steps if distance < 1e-9] or [pair[1] for pair in steps[:NEAREST]]
        left = (entry.what.train.steps - entry.step) / gain(beside, entry.what)
        return statistics.median(like_it) * left if like_it else None


def gain(beside: int, experiment: Experiment) -> float:
    """How much more gets done in a second with this many trainings like it at once than with one."""
    fused = isinstance(experiment.model, DecoderConfig) and shape_obstacle(experiment.model) is None
    return min(FUSED_GAIN if fused else BEST_GAIN, 1 + 0.35 * (beside - 1))


def known_speeds(asked: Figures) -> Iterator[Speed]:
    """Of run folders, of kept models, of trainings behind results, and of those that were brought home."""
    wanted = {run.folder for study in asked.studies for run in asked.trainings(study)}
    for folder in (asked.runs, asked.results / "paper_runs", asked.results / "models"):
        for file in _newest(folder, wanted):
            with contextlib.suppress(ValueError, OSError):  # damaged, or of code that was not handed over
                experiment = Run.open(file.parent).experiment
                yield from _speed(experiment, read_json(file), last_metrics(file.parent).get("step"))
    home = asked.home()
    for study in asked.studies:
        runs, trained = asked.trainings(study), asked.result(study).get("provenance", {}).get("trainings", ())
        facts = {training["run"]: training for training in trained}
        # a run that was carried over from an older version has another hash; its name tells where it is the only one
        alone = {run.name for run in runs if sum(other.name == run.name for other in runs) == 1}
        facts |= {name: facts[key] for key in [*facts] if (name := key.rpartition("-")[0]) in alone}
        for run in runs:
            yield from _speed(
                run, home.get(run.folder) or facts.get(run.folder) or facts.get(run.name, {}), run.train.steps
            )


def _newest(folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """The provenance of runs: of the newest, and of those whose names are wanted."""
    entries = [*os.scandir(folder)] if folder.is_dir() else []
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    files = (Path(entry.path, "provenance.json") for entry in entries)
    others = (file for file in files if file.parent.name not in wanted and file.exists())
    yield from itertools.islice(others, MOST_READ)
    yield from (file for name in sorted(wanted) if (file := folder / name / "provenance.json").exists())


def _speed(experiment: Experiment, facts: Mapping[str, Any], steps: float | None) -> Iterator[Speed]:
    """A speed, where the facts have what it needs; trainings that shared a device get their part of its seconds."""
    seconds, device, beside = facts.get("train_seconds"), facts.get("device"), facts.get("side_by_side", 1)
    if seconds and device and steps:
        alone = seconds * gain(beside, experiment) / beside / facts.get("models_in_one_batch", 1)
        yield Speed(experiment, alone / steps, device)


def _kind(experiment: Experiment) -> tuple[type, str, bool]:
    """Trainings of one kind are compared, where there are any: class of model, looped or not, precision."""
    return type(experiment.model), experiment.train.dtype, experiment.model.loops > 1


def _ratios(new: Experiment, old: Experiment) -> tuple[float, float]:
    """Layers of a step, forwards and backwards, and the size of each: of the new training over those of the old."""
    (depth, size), (old_depth, old_size) = _sizes(new), _sizes(old)
    return depth / old_depth, size / old_size


def _sizes(experiment: Experiment) -> tuple[float, float]:
    train, loops = experiment.train, experiment.model.loops
    backwards = loops if train.grad is None else train.grad
    width = getattr(experiment.model, "width", 1)
    return experiment.model.layers_applied * (1 + 2 * backwards / loops), train.batch * train.points * width**2
