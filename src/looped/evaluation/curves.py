"""Error by number of examples and by loop, for a model and its baselines on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares, ridge
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.evaluation.bootstrap import bootstrap
from looped.models.base import LoopedModel
from looped.models.fusing import obstacle
from looped.models.loop import check_loops, unroll
from looped.prompt import AnyPrompt, Prompt, Sequence
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.shifted import Shifted
from looped.tasks.tables import Tables
from looped.tasks.task import Task
from looped.tasks.trees import DecisionTree

CHUNK = 256
GPU_CHUNK = 2048
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
        if not math.isfinite(self.mean[at]):
            return "not finite"
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
    """What a person would use instead on this task, as far as it takes seconds; `slow_baselines_for` has the rest.

    Ridge is the Bayes estimator for noisy labels and a normal w. Ref: yang24, Fig. 2 and Fig. 10.
    """
    inner = task.task if isinstance(task, Shifted) else task
    noise = inner.label_noise
    if isinstance(inner, DecisionTree):
        return {"3-nearest neighbours": nearest, "least squares": least_squares, "averaging": averaging}
    found: dict[str, Baseline] = {"least squares": least_squares}
    if isinstance(inner, SparseRegression):
        found["Lasso"] = partial(lasso, alpha=0.01)
    if noise:
        label = "ridge (optimal)" if type(task) is LinearRegression else "ridge"
        found[label] = partial(ridge, penalty=noise**2)
    if isinstance(inner, (ReLUNetwork, Tables)):
        found["3-nearest neighbours"] = nearest
    return {**found, "averaging": averaging}


def slow_baselines_for(task: Task, *, at: Iterable[int] | None = None, workers: int = 1) -> dict[str, Baseline]:
    """The baselines that take minutes on a thousand prompts, at the positions `at`. Ref: yang24, Fig. 10b and 10c.

    Depths and sizes are those its released program draws: 2 for the greedy tree on x, 4 on sign(x).
    """
    inner = task.task if isinstance(task, Shifted) else task
    positions = None if at is None else tuple(at)
    if isinstance(inner, DecisionTree):
        boost = partial(boosted, at=positions, workers=workers)
        return {
            "greedy tree": partial(greedy_tree, depth=2, at=positions),
            "greedy tree on sign(x)": on_signs(partial(greedy_tree, depth=4, at=positions)),
            "XGBoost": boost,
            "XGBoost on sign(x)": on_signs(boost),
        }
    if isinstance(inner, ReLUNetwork):
        return {"2-layer network": partial(two_layer, at=positions)}
    return {}


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
    """Judge `model` on fresh prompts of `points` pairs: after `loops` loops, and after every loop up to `max_loops`.

    Positions of weight 0 are left out. Of a sequence the curves are by token, and over all scored tokens by loop.
    """
    if not isinstance(model, LoopedModel):
        raise ValueError(f"`model` must be a `LoopedModel`; got {type(model).__name__}. Use `looped.load(NAME)`.")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a `Task`; got {type(task).__name__}. Use such as `LinearRegression(d=20)`.")
    trained = model.config.loops
    loops, max_loops = judged_loops(trained, loops, max_loops, prompts)
    weight = next(model.parameters(), torch.empty(0))
    # on the CPU wherever the model lies: one seed names the same prompts for all of them, and for baselines
    prompt = task.sample(batch=prompts, n=points, generator=torch.Generator().manual_seed(seed))
    prompt = prompt.to(weight.device).to(weight.dtype)
    prompt.check_finite()
    errors, last = _model_errors(model, task, prompt, loops, max_loops)

    def curve(name: str, values: Tensor, x: list[int]) -> Curve:
        interval = bootstrap(values, level=level, seed=seed)
        return Curve(label=name, x=x, **{key: value.tolist() for key, value in interval._asdict().items()})

    examples = list(range(errors.shape[-1] if isinstance(prompt, Sequence) else points))
    if prompt.weights is not None and errors.shape[-1] == len(examples):
        examples = prompt.weights.any(0).nonzero().flatten().tolist()
        # each position's mean is over the prompts that score it, and its interval that of a ratio of means
        share = (prompt.weights / prompt.weights.mean(0))[:, examples]
        mean = (errors[:, examples] * share).mean(0)
        errors = mean + (errors[:, examples] - mean) * share
    if isinstance(prompt, Sequence):
        baselines = baselines or {}
    baselines = baselines_for(task) if baselines is None else baselines
    # a model that takes the last pair as its query answers there alone
    by_examples = [curve(label, errors, examples[-errors.shape[-1] :])]
    for name, baseline in baselines.items():
        judged = task.error(baseline(prompt), prompt)  # type: ignore[arg-type]
        # a slow baseline answers some positions only, and is not a number at the others
        answered = (~judged.isnan().all(0)).nonzero().flatten().tolist()
        asked = [i for i in answered or range(judged.shape[1]) if i in examples]
        by_examples.append(curve(name, judged[:, asked], asked))
    return Evaluation(
        task=repr(task),
        prompts=prompts,
        level=level,
        loops=loops,
        trained_loops=trained,
        by_examples=by_examples,
        by_loops=curve(label, last, list(range(1, max_loops + 1))),
    )


def judged_loops(trained: int, loops: int | None, max_loops: int | None, prompts: int) -> tuple[int, int]:
    """The loops behind the curves by examples, and the most of those by loops, unless a size is out of range."""
    loops = trained if loops is None else loops
    max_loops = max(loops, 4 * trained) if max_loops is None else max_loops
    check_loops(loops)
    if max_loops < loops:
        raise ValueError(f"`max_loops` must be at least loops={loops}; got {max_loops}.")
    if prompts < 2:
        raise ValueError(f"`prompts` must be at least 2, for an interval; got {prompts}.")
    return loops, max_loops


@torch.no_grad()
def _model_errors(
    model: LoopedModel, task: Task, prompt: AnyPrompt, loops: int, max_loops: int
) -> tuple[Tensor, Tensor]:
    """Errors (batch, positions) after `loops` loops, and (batch, max_loops) after every loop.

    By loop they are those at the last pair, or the mean over all scored tokens of a sequence. Errors are collected,
    never states: 1280 prompts x 500 loops of states would be tens of gigabytes.
    """
    errors, last = [], []
    size = CHUNK if next(iter(prompt.tensors())).device.type == "cpu" else GPU_CHUNK
    for first in range(0, prompt.places[0], size):
        part = prompt.rows(slice(first, first + size))

        judged = _judged(model, task, part, max_loops)
        errors.append(judged[loops - 1])
        if isinstance(part, Prompt):
            last.append(judged[:, :, -1].T)
        else:
            # a sequence too long to have a scored token has no error to speak of
            scored = slice(None) if part.weights is None else part.weights.sum(-1) > 0
            last.append(over_tokens(judged, part.weights)[:, scored].T)
    return torch.cat(errors), torch.cat(last)


def _judged(model: LoopedModel, task: Task, part: Any, loops: int) -> Float[Tensor, "loops batch positions"]:
    """Errors after every loop; on a GPU by one captured loop, where our kernels run the model."""
    weight = next(model.parameters(), torch.empty(0))
    if weight.is_cuda and weight.dtype is torch.float32 and obstacle(model) is None:
        from looped.models.gpu.replay import answers_by_loop

        return task.error(answers_by_loop(model, part, loops=loops), part)  # type: ignore[arg-type]

    def judge(state: Any, context: Any) -> Tensor:
        return task.error(model.readout(state, context), part)

    context = model.embed(part)
    return unroll(model.step, model.start(context), context, loops=loops, grad=None, keep=loops, collect=judge)


def over_tokens(errors: Float[Tensor, "*kept batch n"], weights: Tensor | None) -> Float[Tensor, "*kept batch"]:
    """The mean error over the scored tokens of each sequence; not a number where none is scored."""
    weights = torch.ones_like(errors) if weights is None else weights
    return (errors * weights).sum(-1) / weights.sum(-1)
