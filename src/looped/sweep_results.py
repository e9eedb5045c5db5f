"""What a sweep answers: its trials on the same held-out prompts, seeds put together, and which point is the best.

OUT/sweeps/NAME-HASH/results.json
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.curves import Curve
from looped.evaluation.diagnosis import Estimate
from looped.evaluation.errors import draw_questions, errors_of, weight_of
from looped.files import finite, read_json, write_json
from looped.training.run import Run
from looped.training.trials import Standing, Trial

SEED = "train.seed"
RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a sweep's grid with all its seeds."""

    fields: Mapping[str, Any]
    """What the sweep sets, but for the seed."""
    seeds: list[int]
    """The seeds that were trained."""
    loops: int
    """The trained loops, behind `error`."""
    error: Estimate
    """Error at the last pair, or over all scored tokens: the mean, and the range over seeds."""
    late: Estimate
    """The same after four times as many loops."""
    difference: Estimate | None = None
    """`error` minus that of the best point, paired over prompts and seeds; None for the best, or without pairs."""
    verdict: str = ""
    """best, worse where the paired interval lies above 0, undecided; empty where points have other prompts."""
    by_loops: Curve
    """Error by loop."""


@dataclass(frozen=True, kw_only=True)
class SweepResults:
    """All points of a sweep, on prompts that no training has seen."""

    prompts: int
    """How many prompts."""
    points: list[Point]
    """In the order in which they were asked for."""

    @property
    def varied(self) -> list[str]:
        """The fields in which the points differ."""
        return varied_fields([point.fields for point in self.points])


def varied_fields(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that differ between points, each given by what it sets."""
    names = dict.fromkeys(name for fields in points for name in fields)
    return [name for name in names if len({json.dumps(fields.get(name)) for fields in points}) > 1]


def best_points(points: Sequence[Point], most: int) -> list[int]:
    """The places of at most so many points, those of least error, best first."""
    means = [point.error.mean for point in points]
    return sorted(range(len(means)), key=lambda place: (math.isnan(means[place]), means[place]))[:most]


def evaluate_sweep(
    trials: Sequence[Trial], stands: Sequence[Standing], *, prompts: int, device: torch.device | str, seed: int = 0
) -> SweepResults | None:
    """Judge the finished trials on the same held-out prompts; None where none is finished.

    An interval is the range over seeds, or with one seed a 90% bootstrap over prompts.
    """
    if prompts < 2:
        raise ValueError(f"`prompts` must be at least 2, for an interval; got {prompts}.")
    by_point: dict[str, dict[int, Trial]] = {}
    for trial, stand in zip(trials, stands, strict=True):
        if stand.status == "finished":
            fields = {name: value for name, value in trial.fields.items() if name != SEED}
            by_point.setdefault(json.dumps(fields), {})[trial.experiment.train.seed] = trial
    if not by_point:
        return None
    asked = {(repr(trial.experiment.task), trial.experiment.train.points) for trial in trials}
    comparable = len(asked) == 1 and len(by_point) > 1
    points, runs = [], []
    for fields, by_seed in by_point.items():  # of thousands of runs only the errors after the trained loops stay
        errors = {number: _errors(trial, prompts, device, seed) for number, trial in by_seed.items()}
        point = _point(json.loads(fields), next(iter(by_seed.values())), errors)
        points.append(point)
        runs.append({number: values[:, point.loops - 1].clone() for number, values in errors.items() if comparable})
    if comparable:
        points = _compared(points, runs)
    return SweepResults(prompts=prompts, points=points)


def save_results(folder: Path, results: SweepResults) -> Path:
    """Write results.json into a sweep's folder."""
    write_json(folder / RESULTS, finite(asdict(results)))
    return folder / RESULTS


def read_results(folder: Path) -> SweepResults | None:
    """What `save_results` wrote; None where the sweep was not evaluated."""
    file = folder / RESULTS
    if not file.is_file():
        return None
    data = read_json(file)
    try:
        points = [
            Point(
                **{
                    **point,
                    **{name: _numbers(Estimate, point[name]) for name in ("error", "late", "difference")},
                    "by_loops": _numbers(Curve, point["by_loops"]),
                }
            )
            for point in data["points"]
        ]
        return SweepResults(prompts=int(data["prompts"]), points=points)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error!r}). Sweep again.") from None


def _numbers(kind: type, data: Any) -> Any:
    """An estimate or a curve; what was not finite was written as null."""
    if data is None:
        return None

    def number(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, NoneType)):
            raise TypeError(f"{value!r} is no number")
        return math.nan if value is None else value

    if kind is Estimate:
        return Estimate(**{key: number(value) for key, value in data.items()})
    numbers: dict[str, Any] = {key: [*map(number, data[key])] for key in ("x", "mean", "low", "high")}
    if len({*map(len, numbers.values())}) > 1:
        raise TypeError("a curve has as many numbers as places")
    return Curve(label=str(data["label"]), **numbers)


def _errors(trial: Trial, prompts: int, device: torch.device | str, seed: int) -> Float[Tensor, "prompts loops"]:
    model, task = Run(trial.path, trial.experiment).model(device), trial.experiment.task
    questions = draw_questions(task, points=trial.experiment.train.points, prompts=prompts, seed=seed)
    weight, loops = weight_of(model), model.config.loops
    return (
        errors_of(model, task, questions.to(weight.device).to(weight.dtype), max_loops=4 * loops).by_loop.cpu().double()
    )


def _point(fields: dict[str, Any], trial: Trial, by_seed: Mapping[int, Tensor]) -> Point:
    runs, loops = [*by_seed.values()], trial.experiment.model.loops
    at = range(1, runs[0].shape[1] + 1)
    if len(runs) == 1:
        curve = Curve.over_prompts("error", at, runs[0])
    else:
        means = torch.stack([errors.mean(0) for errors in runs])
        ends = {"mean": means.mean(0), "low": means.amin(0), "high": means.amax(0)}
        curve = Curve(label="error", x=list(at), **{name: values.tolist() for name, values in ends.items()})
    return Point(
        fields=fields,
        seeds=sorted(by_seed),
        loops=loops,
        error=_over_seeds([errors[:, loops - 1] for errors in runs]),
        late=_over_seeds([errors[:, -1] for errors in runs]),
        by_loops=curve,
    )


def _compared(points: list[Point], runs: Sequence[Mapping[int, Tensor]]) -> list[Point]:
    """The points with their paired differences to the one of the least error; `runs`: of each its errors by seed."""
    best = min(range(len(points)), key=lambda at: points[at].error.mean)
    compared = []
    for at, point in enumerate(points):
        if at == best:
            compared.append(replace(point, verdict="best"))
            continue
        shared = sorted(runs[at].keys() & runs[best].keys())
        if not shared:
            compared.append(point)
            continue
        difference = _over_seeds([runs[at][seed] - runs[best][seed] for seed in shared])
        compared.append(replace(point, difference=difference, verdict="worse" if difference.low > 0 else "undecided"))
    return compared


def _over_seeds(values: Sequence[Float[Tensor, " prompts"]]) -> Estimate:
    """The mean with the range over seeds; of one seed, with a bootstrap over prompts."""
    if len(values) == 1:
        return Estimate.of(values[0], 0.9, 0)
    means = [float(part.mean()) for part in values]
    return Estimate(mean=sum(means) / len(means), low=min(means), high=max(means))
