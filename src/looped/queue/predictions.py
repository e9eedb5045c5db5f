"""How many seconds a training will take: from trainings that are done, scaled to its size."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from looped.bench.cases import Case
from looped.experiment import Experiment
from looped.files import read_json
from looped.queue.missing import Entry, Places, in_order, trainings
from looped.studies.study import Study
from looped.training.run import Run
from looped.training.trials import last_metrics

BEST_GAIN = 1.7
"""How much more gets done in a second by three or four trainings at once (`benchmarks/side_by_side.py`)."""
NEAREST = 3
"""A prediction is the median of those from this many trainings of the nearest sizes."""
LARGER, SMALLER = 0.87, 0.5
"""Seconds of a step grow by this power of batch x points x width^2: the first is `looped bench`'s from batch 64 to
1024; smaller steps leave the card idle, and the second is a guess for them."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The speed of a training that is done."""

    experiment: Experiment
    """What was trained."""
    seconds: float
    """Of one step, alone on the device."""
    device: str
    """Its name."""


class Predictions:
    """Seconds of trainings on one device: the one here if it is a GPU, else the one with the most samples."""

    def __init__(self, studies: Sequence[Study], scale: str, places: Places, device: torch.device):
        samples = list(known_speeds(studies, scale, places))
        names = Counter(sample.device for sample in samples if _is_cpu(sample.device) == (device.type == "cpu"))
        here = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else None
        usual = max(names, key=lambda name: names[name], default="this CPU" if device.type == "cpu" else "a GPU")
        self.device = here or usual
        self.samples = [sample for sample in samples if sample.device == self.device]
        self.families = dict(_family_seconds(studies, scale, places, self.device))

    def seconds(self, experiment: Experiment, *, done: int = 0) -> float | None:
        """Seconds of the steps after the `done` first ones; None where nothing like it was trained."""
        similar = [sample for sample in self.samples if _kind(sample.experiment) == _kind(experiment)]
        if not similar:
            return None
        ratios = sorted((_ratios(experiment, sample.experiment), sample.seconds) for sample in similar)
        nearest = sorted(ratios, key=lambda pair: sum(abs(math.log(ratio)) for ratio in pair[0]))[:NEAREST]
        steps = [seconds * depth * size ** (LARGER if size > 1 else SMALLER) for (depth, size), seconds in nearest]
        return statistics.median(steps) * (experiment.train.steps - done)

    def of(self, entry: Entry) -> float | None:
        """The seconds left of an entry; None where they are not known."""
        if entry.experiment is None:
            return self.families.get(entry.name)
        return self.seconds(entry.experiment, done=entry.step)


def gain(beside: int) -> float:
    """How much more gets done in a second with this many trainings at once than with one."""
    return min(BEST_GAIN, 1 + 0.35 * (beside - 1))


def known_speeds(studies: Sequence[Study], scale: str, places: Places) -> Iterator[Sample]:
    """The trainings whose seconds are known: run folders, kept models, trainings behind results, and `looped bench`."""
    for folder in (places.runs, places.results / "paper_runs", places.results / "models"):
        for file in folder.glob("*/provenance.json"):
            with contextlib.suppress(ValueError, OSError):  # damaged, or of code that was not handed over
                experiment = Run.open(file.parent).experiment
                yield from _sample(experiment, read_json(file), last_metrics(file.parent).get("step"))
    home = places.home()["runs"]
    for study in in_order(studies, scale):
        runs = trainings(study, scale)
        yield from (sample for run in runs for sample in _sample(run, home.get(run.folder, {}), run.train.steps))
        result = _result(study, scale, places)
        if result.get("settings_hash") == study.settings_hash(scale):
            # by name: a run that was carried over from an older version has another hash
            known = {run.name: run for run in runs}
            for facts in result["provenance"].get("trainings", ()):
                if (run := known.get(facts["run"].rpartition("-")[0])) is not None:
                    yield from _sample(run, facts, run.train.steps)
    for file in (places.results / "bench").glob("*.json"):
        measured = read_json(file)
        for case in measured.get("cases", ()):
            if case["engine"] == "fused" and case["ms"] is not None:
                sizes = {key: case[key] for key in Case.__dataclass_fields__}
                facts = {"device": measured["provenance"]["device"], "train_seconds": case["ms"] / 1000}
                yield from _sample(Case(**sizes).experiment(), facts, 1)


def _family_seconds(studies: Sequence[Study], scale: str, places: Places, device: str) -> Iterator[tuple[str, float]]:
    """The seconds of earlier measurements of figures that the queue does not train, on this device."""
    for study in in_order(studies, scale):
        origin = _result(study, scale, places).get("provenance", {})
        if origin.get("device") == device and not trainings(study, scale):
            yield study.name, origin["seconds"] + origin.get("training_seconds", 0.0)


def _result(study: Study, scale: str, places: Places) -> dict[str, Any]:
    file = places.results / f"{study.name}.{scale}.json"
    return read_json(file) if file.exists() else {}


def _sample(experiment: Experiment, facts: Mapping[str, Any], steps: float | None) -> Iterator[Sample]:
    """A sample, where the facts have what it needs; models that shared the device have their part of its seconds."""
    seconds, device = facts.get("train_seconds"), facts.get("device")
    if seconds and device and steps:
        beside = facts.get("side_by_side", 1)
        alone = seconds * gain(beside) / beside / facts.get("models_in_one_batch", 1)
        yield Sample(experiment=experiment, seconds=alone / steps, device=device)


def _is_cpu(device: str) -> bool:
    return device.endswith(" cores")


def _kind(experiment: Experiment) -> tuple[type, str, bool]:
    """Trainings of one kind are compared: the same class of model, looped or not, in the same precision."""
    return type(experiment.model), experiment.train.dtype, experiment.model.loops > 1


def _ratios(one: Experiment, other: Experiment) -> tuple[float, float]:
    """Layers passed through in a step, forwards and backwards, and the size of each: of one over those of the other."""
    (depth, size), (other_depth, other_size) = _sizes(one), _sizes(other)
    return depth / other_depth, size / other_size


def _sizes(experiment: Experiment) -> tuple[float, float]:
    train, loops = experiment.train, experiment.model.loops
    share = min(loops if train.grad is None else train.grad, loops) / loops
    width = getattr(experiment.model, "width", 1)
    return experiment.model.layers_applied * (1 + 2 * share), train.batch * train.points * width**2
