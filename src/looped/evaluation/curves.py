"""Error by number of examples and by loop, for a model and its baselines on the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from looped.baselines.linear import averaging, least_squares, ridge
from looped.evaluation.bootstrap import bootstrap
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression
from looped.tasks.task import Task

CHUNK = 256
"""Prompts in one forward pass."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A mean error with its interval, along an axis."""

    label: str
    """What is drawn."""
    x: list[int]
    """Examples seen, or loops applied."""
    mean: list[float]
    """Error in units of predicting zero."""
    low: list[float]
    """Lower end of the interval."""
    high: list[float]
    """Upper end of the interval."""

    def at(self, x: int) -> float:
        """The mean at one place of the axis."""
        return self.mean[self.x.index(x)]

    def text(self, x: int) -> str:
        """Mean and interval at one place of the axis, or a dash where there is none."""
        if x not in self.x:
            return "-"
        at = self.x.index(x)
        return f"{self.mean[at]:.4f} [{self.low[at]:.4f}, {self.high[at]:.4f}]"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model judged on one task."""

    task: str
    """The task, as written in Python."""
    prompts: int
    """How many prompts were judged."""
    level: float
    """Level of the intervals."""
    loops: int
    """Loops behind the curves by examples."""
    trained_loops: int
    """The loops the model was trained with."""
    by_examples: list[Curve]
    """Model first, then baselines: error against the number of examples seen."""
    by_loops: Curve
    """The model's error on the last pair of a prompt against the loops applied."""

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


Baseline = Callable[[Prompt], Tensor]


def baselines_for(task: Task) -> dict[str, Baseline]:
    """What a person would use instead on this task; ridge is the Bayes estimator for noisy labels and a normal w."""
    noise = getattr(task, "noise", 0.0)
    found: dict[str, Baseline] = {"least squares": least_squares}
    if noise:
        label = "ridge (optimal)" if type(task) is LinearRegression else "ridge"
        found[label] = lambda prompt: ridge(prompt, noise**2)
    return {**found, "averaging": averaging}


def evaluate(
    model: LoopedModel,
    task: Task,
    *,
    points: int,
    loops: int | None = None,
    max_loops: int | None = None,
    prompts: int = 1280,
    seed: int = 0,
    level: float = 0.9,
    label: str = "looped transformer",
    baselines: dict[str, Baseline] | None = None,
) -> Evaluation:
    """Judge `model` on fresh prompts of `points` pairs: after `loops` loops, and after every loop up to `max_loops`."""
    trained = model.config.loops
    loops = trained if loops is None else loops
    max_loops = max(loops, 4 * trained) if max_loops is None else max_loops
    check_loops(loops)
    if max_loops < loops:
        raise ValueError(f"`max_loops` must be at least loops={loops}; got {max_loops}.")
    if prompts < 2:
        raise ValueError(f"`prompts` must be at least 2, for an interval; got {prompts}.")
    weight = next(model.parameters(), torch.empty(0))
    generator = torch.Generator(weight.device).manual_seed(seed)
    prompt = task.sample(batch=prompts, n=points, generator=generator).to(weight.dtype)
    errors, last = _model_errors(model, task, prompt, loops, max_loops)

    def curve(name: str, values: Tensor, x: list[int]) -> Curve:
        interval = bootstrap(values, level=level, seed=seed)
        return Curve(label=name, x=x, **{key: value.tolist() for key, value in interval._asdict().items()})

    examples = list(range(points))
    baselines = baselines_for(task) if baselines is None else baselines
    # a model that takes the last pair as its query answers there alone
    by_examples = [curve(label, errors, examples[-errors.shape[-1] :])]
    by_examples += [curve(name, task.error(f(prompt), prompt), examples) for name, f in baselines.items()]
    return Evaluation(
        task=repr(task),
        prompts=prompts,
        level=level,
        loops=loops,
        trained_loops=trained,
        by_examples=by_examples,
        by_loops=curve(label, last, list(range(1, max_loops + 1))),
    )


@torch.no_grad()
def _model_errors(model: LoopedModel, task: Task, prompt: Prompt, loops: int, max_loops: int) -> tuple[Tensor, Tensor]:
    """Errors (batch, n) after `loops` loops, and (batch, max_loops) at the last pair after every loop.

    Predictions are collected, never states: 1280 prompts x 500 loops of states would be tens of gigabytes.
    """
    errors, last = [], []
    for first in range(0, len(prompt.xs), CHUNK):
        part = prompt.rows(slice(first, first + CHUNK))
        judged = task.error(model(part, loops=max_loops, keep=max_loops), part)
        errors.append(judged[loops - 1])
        last.append(judged[:, :, -1].T)
    return torch.cat(errors), torch.cat(last)
