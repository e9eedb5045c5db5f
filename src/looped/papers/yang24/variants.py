"""What yang24's figures share: names, how models are evaluated at each scale, and experiments with other loops."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from looped.baselines.linear import least_squares
from looped.evaluation.errors import Baseline
from looped.experiment import Experiment, training
from looped.functional.schedules import Staircase
from looped.papers.yang24.trainings import short
from looped.studies import Cell, Curves, Learned, Table
from looped.studies.expressions import Derived, Quantity, bracketed
from looped.tasks.task import Task
from looped.tasks.trees import DecisionTree

C = TypeVar("C", bound=Curves)
LOOPED, UNLOOPED = "looped transformer", "transformer"
"""The two models that most figures compare."""
LEAST_SQUARES = "least squares"
BEFORE_DRIFT = Learned(of="by_loops", at="trained_loops", best=0.0)
"""Models are held to their error at the trained loops where claims are about what becomes of it beyond them."""
FLAT = 1.5
"""Error far past the trained loops over the error at them that still counts as a fixed point."""
DIVERGED = 2.0
"""A drift of at least this counts as diverging; `FLAT` is the bound of a fixed point."""
MATCHES = 0.05
"""Largest gap between two curves by examples, in units of predicting zero, that counts as a match."""
PRINTED_MATCH = 7.8e-4 / 4.8e-4
"""Looped over 12-layer error in the authors' logs (linear regression, k = 40), of which the paper says "matches"."""
EVALUATION = {
    "smoke": Curves(prompts=16, loops=8),
    "cpu": Curves(seeds=(3, 4, 5), prompts=512, loops=64),
    "paper": Curves(prompts=1280, loops=500),
}
"""How models are evaluated; `cpu` settings were tuned on seeds 0 to 2, so other seeds are shown."""
TWO_SEEDS = {**EVALUATION, "cpu": replace(EVALUATION["cpu"], seeds=(3, 4))}
"""The same for figures of many trainings."""
GRID_STEPS = 8000
"""Steps of 64 prompts that models of linear and sparse functions get at `paper` scale in figures of many trainings:
about 10 to 50 seconds on one H200. With b = 20, T = 15 they gave .00063 at k = 40, where .00078 is published."""
SHORT: dict[str, dict[str, Any]] = {"smoke": {"steps": 6}, "cpu": {}, "paper": {}}
"""What a figure changes of a scale's recipe."""


@dataclass(frozen=True, kw_only=True)
class ClassCurves(Curves):
    """Curves of several function classes; models of decision trees are read after other numbers of loops."""

    tree_loops: int
    """The most loops for decision trees."""

    def far(self, experiment: Experiment) -> int:
        """The most loops that a model of this experiment is read after."""
        return self.tree_loops if isinstance(experiment.task, DecisionTree) else super().far(experiment)


@dataclass(frozen=True, kw_only=True)
class LearnedSomewhere(Learned):
    """Any model of the study may have learned, also one that the claim does not read; none is worse than zero."""

    def obstacle(self, table: Table, cells: Collection[Cell]) -> str:
        """Why the study's models cannot be judged; empty where they can."""
        return super().obstacle(table, table.cells())


def second_half(inner: Quantity) -> Quantity:
    """The quantity from the middle of its axis on: with k = 2d examples, from d on."""
    words = f"second half of {bracketed(inner)}"
    return Derived(words, (inner,), lambda readings: dict(list(readings.items())[len(readings) // 2 :]))


def evaluation(scale: str, kind: type[C], **fields: Any) -> C:
    """Curves of another kind, with the seeds, prompts and loops of the scale."""
    return kind(**{**vars(EVALUATION[scale]), **fields})


def only_least_squares(task: Task) -> dict[str, Baseline]:
    """The one baseline of Figure 2."""
    return {LEAST_SQUARES: least_squares}


def cheap(experiment: Experiment, scale: str, *, cpu: int, paper: int = GRID_STEPS) -> Experiment:
    """The experiment as figures of many trainings have it: `cpu` steps of 32 prompts, or `paper` steps of 64."""
    if scale == "paper":
        return short(experiment, steps=paper)
    return training(experiment, **{**SHORT, "cpu": {"steps": cpu, "batch": 32}}[scale])


def with_loops(experiment: Experiment, loops: int, window: int, *, every: int | None) -> Experiment:
    """Train to b = `loops` with T = `window`; loops climb from T to b by 2 every `every` steps, None: b from the start.

    Where b is below T the loss takes every loop. Ref: yang24, Eq. (1), b_0 = max(b - T, 0).
    """
    window = min(window, loops)
    climbs = every is not None and window < loops
    depth = Staircase(start=window - loops, stop=0, by=2, every=every or 1) if climbs else None
    train = replace(experiment.train, window=window, grad=window, depth=depth)
    return replace(experiment, model=replace(experiment.model, loops=loops), train=train)
