"""What the figures share: experiments as settings, the runs behind a figure, and their curves.

A figure's settings hold its experiments as data, so that they say all that changes its result. A curve is
`{"x": [...], "mean": [[...], ...], "low": ..., "high": ...}` with one list for each seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.claims import Data, Settings, seeds_of
from looped.evaluation.curves import Baseline, Evaluation, evaluate
from looped.experiment import Experiment
from looped.functional.schedules import Staircase
from looped.models.base import LoopedModel
from looped.models.decoder import DecoderConfig
from looped.tasks.task import Task
from looped.training.grid import train_variants
from looped.training.run import Run

Sizes = Mapping[str, Any]
LOOPED, UNLOOPED = "looped transformer", "transformer"
"""Labels of the two models that most figures compare."""
EVALUATION: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": 1, "prompts": 16, "prompt_seed": 1, "loops": 8, "level": 0.9},
    "cpu": {"seeds": 3, "first_seed": 3, "prompts": 512, "prompt_seed": 1, "loops": 64, "level": 0.9},
    "paper": {"seeds": 1, "prompts": 1280, "prompt_seed": 1, "loops": 500, "level": 0.9},
}
"""How models are judged: looped ones after `loops` loops, each on the same `prompts` prompts.

`cpu` settings were tuned on seeds 0 to 2, so they are judged on others.
"""


def layers(experiment: Experiment, count: int) -> Experiment:
    """The experiment with `count` layers a loop."""
    assert isinstance(experiment.model, DecoderConfig)
    return replace(experiment, model=replace(experiment.model, layers=count))


def with_loops(experiment: Experiment, loops: int, window: int, *, every: int | None) -> Experiment:
    """Trained to b = `loops` with T = `window`; the loops climb from T to b by 2 every `every` steps, None: at once.

    Where b is below T the loss takes every loop. Ref: yang24, Eq. (1), b_0 = max(b - T, 0).
    """
    window = min(window, loops)
    climbs = every is not None and window < loops
    depth = Staircase(start=window - loops, stop=0, by=2, every=every or 1) if climbs else None
    train = replace(experiment.train, window=window, grad=window, depth=depth)
    return replace(experiment, model=replace(experiment.model, loops=loops), train=train)


def trained_loops(experiment: Experiment) -> int:
    """The most loops a step of its training takes."""
    train, loops = experiment.train, experiment.model.loops
    return loops if train.depth is None else loops + int(train.depth.bounds(train.steps)[1])


def trained(
    variants: Mapping[str, Experiment], sizes: Sizes, settings: Settings, *, share: float = 0.9
) -> dict[str, list[Run]]:
    """The runs of every variant, one for each seed; `share` of the figure's progress."""
    return train_variants(variants, seeds_of(sizes), **settings.training(share))


def judged(runs: Mapping[str, Sequence[Run]], sizes: Sizes, settings: Settings) -> Data:
    """For every label the error by examples and by loops, the trained loops and the number of parameters."""
    data: Data = {}
    for index, (label, members) in enumerate(runs.items()):
        settings.progress(f"judging {label}", 0.9 + 0.1 * index / len(runs))
        experiment = members[0].experiment
        far = sizes["loops"] if experiment.model.loops > 1 else 1
        models = [run.model(settings.device) for run in members]
        found = [errors_of(model, experiment, sizes, loops=far) for model in models]
        by_loops = [one.by_loops for one in found]
        places = shown_loops(far, trained_loops(experiment))
        data[label] = {
            "trained_loops": trained_loops(experiment),
            "layers": getattr(experiment.model, "layers", 1),
            "parameters": models[0].num_parameters,
            "by_examples": joined([one.by_examples[0] for one in found]),
            "by_loops": joined(by_loops, places),
        }
    return data


def errors_of(model: LoopedModel, experiment: Experiment, sizes: Sizes, *, loops: int) -> Evaluation:
    """A model's errors on the figure's prompts: by examples after `loops` loops, and by loops up to there."""
    return evaluate(
        model,
        experiment.task,
        points=experiment.train.points,
        loops=loops,
        max_loops=loops,
        prompts=sizes["prompts"],
        seed=sizes["prompt_seed"],
        level=sizes["level"],
        baselines={},
    )


def joined(curves: Sequence[Any], places: Iterable[int] | None = None) -> Data:
    """One curve a seed as plain data, at all places of the axis or at some."""
    x = list(curves[0].x if places is None else places)
    at = [curves[0].x.index(one) for one in x]
    return {
        "x": x,
        **{
            key: [[finite(getattr(curve, key)[index]) for index in at] for curve in curves]
            for key in ("mean", "low", "high")
        },
    }


def shown_loops(most: int, trained: int) -> list[int]:
    """Every loop up to 50, then every fifth, and always the trained and the last."""
    return sorted({*range(1, min(most, 50) + 1), *range(50, most + 1, 5), min(trained, most), most} - {0})


def baseline_curves(baselines: Mapping[str, Baseline], task: Task, sizes: Sizes, *, points: int) -> Data:
    """Error by examples of what a person would use instead, on prompts drawn as for the models."""
    prompts = sizes.get("baseline_prompts", sizes["prompts"])
    generator = torch.Generator().manual_seed(sizes["prompt_seed"])
    prompt = task.sample(batch=prompts, n=points, generator=generator).to(torch.float64)
    found: Data = {}
    for label, baseline in baselines.items():
        errors = task.error(baseline(prompt), prompt)
        found[label] = errors_curve([errors], list(range(points)), sizes)
    return found


def errors_curve(errors: Sequence[Tensor], x: Sequence[int], sizes: Sizes) -> Data:
    """The curve of errors (prompts, places), one tensor a seed, with its intervals.

    Places without a number are left out: not every baseline is asked everywhere, nor does every shift define a query.
    """
    kept = [place for place, missing in enumerate(errors[0].isnan().all(0).tolist()) if not missing]
    intervals = [bootstrap(one[:, kept], level=sizes["level"], seed=sizes["prompt_seed"])._asdict() for one in errors]
    values = {key: [[finite(v) for v in one[key].tolist()] for one in intervals] for key in ("mean", "low", "high")}
    return {"x": [x[place] for place in kept], **values}


def finite(value: float) -> float | None:
    """The number, or None, which JSON can hold, where there is none."""
    return value if math.isfinite(value) else None
