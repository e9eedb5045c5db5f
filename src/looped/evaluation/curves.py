"""Error by number of examples and by loop, for a model and its baselines on the same prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares, ridge
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.errors import Baseline, Progress, check_prompts, draw_questions, errors_of, weight_of
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.prompt import Prompt
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.shifted import Shifted
from looped.tasks.tables import Tables
from looped.tasks.task import Task
from looped.tasks.trees import DecisionTree
from looped.tasks.vector_generation import VectorGeneration


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

    @classmethod
    def over_prompts(cls, label: str, x: Sequence[int], values: Tensor, *, level: float = 0.9, seed: int = 0) -> Curve:
        """The mean of `values` (prompts, len(x)) with a bootstrap interval over prompts."""
        interval = bootstrap(values, level=level, seed=seed)
        return cls(label=label, x=list(x), **{key: part.tolist() for key, part in interval._asdict().items()})


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured on prompts of one task."""

    task: str
    """The task, as written in Python."""
    prompts: int
    """How many prompts were drawn."""
    level: float
    """Level of the intervals."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Findings):
    """A model judged on one task."""

    loops: int
    """Loops behind the curves by examples."""
    trained_loops: int
    """The loops the model was trained with."""
    by_examples: list[Curve]
    """Model first, then baselines: error against the number of examples seen."""
    by_loops: Curve
    """The model's error on the last pair of a prompt against the loops applied."""


def baselines_for(task: Task) -> dict[str, Baseline]:
    """What a person would use instead on this task, if it takes seconds; `slow_baselines_for` has the rest.

    Ridge is the Bayes estimator for noisy labels and a normal w. Ref: yang24, Fig. 2 and Fig. 10.
    """
    inner = task.task if isinstance(task, Shifted) else task
    noise = inner.label_noise
    if isinstance(inner, VectorGeneration):  # baselines predict labels
        return {}
    if isinstance(inner, DecisionTree):
        return {"3-nearest neighbours": nearest, "least squares": least_squares, "averaging": averaging}
    baselines: dict[str, Baseline] = {"least squares": least_squares}
    if isinstance(inner, SparseRegression):
        baselines["Lasso"] = partial(lasso, alpha=0.01)
    if noise:
        label = "ridge (optimal)" if type(task) is LinearRegression else "ridge"
        baselines[label] = partial(ridge, penalty=noise**2)
    if isinstance(inner, (ReLUNetwork, Tables)):
        baselines["3-nearest neighbours"] = nearest
    return {**baselines, "averaging": averaging}


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
    progress: Progress | None = None,
) -> Evaluation:
    """Judge `model` on fresh prompts of `points` pairs: after `loops` loops, and after every loop up to `max_loops`.

    Positions of weight 0, and those for which a shift defines no query, are left out. The curve by loops is that of the
    last position. For a sequence the curves are by token, and the curve by loops is over all scored tokens.
    """
    if not isinstance(model, LoopedModel):
        raise ValueError(f"`model` must be a `LoopedModel`; got {type(model).__name__}. Use `looped.load(NAME)`.")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a `Task`; got {type(task).__name__}. Use such as `LinearRegression(d=20)`.")
    trained = model.config.loops
    loops, max_loops = resolve_loops(trained, loops, max_loops, prompts)
    weight = weight_of(model)
    questions = draw_questions(task, points=points, prompts=prompts, seed=seed).to(weight.device).to(weight.dtype)
    errors = errors_of(model, task, questions, loops=loops, max_loops=max_loops, progress=progress)
    if baselines is None:
        baselines = baselines_for(task) if isinstance(questions.prompt, Prompt) else {}
    predictors = [(label, errors)]
    predictors += [(name, errors_of(baseline, task, questions)) for name, baseline in baselines.items()]
    return Evaluation(
        task=repr(task),
        prompts=prompts,
        level=level,
        loops=loops,
        trained_loops=trained,
        by_examples=[
            Curve.over_prompts(name, part.positions, part.values, level=level, seed=seed) for name, part in predictors
        ],
        by_loops=Curve.over_prompts(label, range(1, max_loops + 1), errors.by_loop, level=level, seed=seed),
    )


def resolve_loops(trained: int, loops: int | None, max_loops: int | None, prompts: int) -> tuple[int, int]:
    """`loops` and `max_loops` with their defaults filled in; refuses sizes that are out of range."""
    loops = trained if loops is None else loops
    max_loops = max(loops, 4 * trained) if max_loops is None else max_loops
    check_loops(loops)
    if max_loops < loops:
        raise ValueError(f"`max_loops` must be at least loops={loops}; got {max_loops}.")
    check_prompts(prompts)
    return loops, max_loops
