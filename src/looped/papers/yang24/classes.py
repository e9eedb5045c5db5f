"""Figure 10: other function classes, against their baselines.

At `cpu` scale a panel trains two models of three seeds, 1000 steps each, about ten minutes on two cores.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.evaluation.cache import cached
from looped.evaluation.errors import Baseline
from looped.experiment import Experiment, Scale, training
from looped.papers import yang24
from looped.papers.yang24.variants import EVALUATION, LEAST_SQUARES, LOOPED, MATCHES, SHORT, UNLOOPED, evaluation
from looped.studies import Cell, Context, Curves, Learned, Panels, Published, Study, Table, claim
from looped.studies.claims import Claim
from looped.studies.measures import TRAINING_SHARE
from looped.studies.quantities import area, at, curve, gap, last
from looped.studies.study import Cells
from looped.tasks.task import Task

NEIGHBOURS, GREEDY, XGBOOST, LASSO = "3-nearest neighbours", "greedy tree", "XGBoost", "Lasso"
FITTED_AT: dict[str, tuple[int, ...]] = {
    "smoke": (1, 4),
    "cpu": (1, 2, 4, 6, 8, 11, 15),
    "paper": (1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100),
}
"""Numbers of examples at which baselines that take long are fitted."""
NETWORK_PROMPTS = {"smoke": 2, "cpu": 64, "paper": 256}
"""Prompts of the network that is trained on every prompt: 1280 take 15 minutes, and no claim reads it."""


@dataclass(frozen=True, kw_only=True)
class CachedBaselines(Curves):
    """Curves of models and of baselines that take long: their answers are kept beside the runs."""

    baseline_prompts: int
    """Prompts for the baselines; a claim compares with a baseline only where these are the models' own."""

    def add_baselines(self, table: Table, cells: Cells, context: Context) -> None:
        """All baselines of the one task."""
        experiment = next(iter(cells.values()))
        assert self.baselines is not None

        def report(what: str, done: float) -> None:
            context.progress(what, 1 - (1 - TRAINING_SHARE) * 0.1 * (1 - done))

        for name, baseline in self.baselines(experiment.task).items():
            answer = cached(name, baseline, context.runs / "baselines", progress=report)
            errors = self.errors(answer, experiment, prompts=self.baseline_prompts, dtype=torch.float64)
            self.add_errors(table, {"model": name}, errors, experiment.task)


def sparse_baselines(task: Task) -> dict[str, Baseline]:
    """The baselines of sparse regression."""
    return {LEAST_SQUARES: least_squares, "averaging": averaging, LASSO: lasso}


@dataclass(frozen=True, kw_only=True)
class TreeBaselines:
    """The baselines of decision trees; greedy ones have depth 2 on x and 4 on signs, as in the published program."""

    at: tuple[int, ...]
    """Numbers of examples."""
    trees: int
    """Trees that XGBoost adds up."""

    def __call__(self, task: Task) -> dict[str, Baseline]:
        """By name."""
        forest = partial(boosted, trees=self.trees, at=self.at)
        return {
            NEIGHBOURS: nearest,
            GREEDY: partial(greedy_tree, depth=2, at=self.at),
            f"{GREEDY} on signs": on_signs(partial(greedy_tree, depth=4, at=self.at)),
            XGBOOST: forest,
            f"{XGBOOST} on signs": on_signs(forest),
        }


@dataclass(frozen=True, kw_only=True)
class NetworkBaselines:
    """The baselines of ReLU networks."""

    at: tuple[int, ...]
    """Numbers of examples at which a network is trained."""
    steps: int
    """Steps of its training."""

    def __call__(self, task: Task) -> dict[str, Baseline]:
        """By name."""
        network = partial(two_layer, steps=self.steps, at=self.at)
        return {LEAST_SQUARES: least_squares, NEIGHBOURS: nearest, "2-layer network, Adam": network}


Recipe = Callable[[Scale], Experiment]


def pair(looped: Recipe, unlooped: Recipe) -> Callable[[Scale], Cells]:
    """Scale -> the looped and the unlooped model."""
    return lambda scale: {
        Cell(model=LOOPED): training(looped(scale), **SHORT[scale]),
        Cell(model=UNLOOPED): training(unlooped(scale), **SHORT[scale]),
    }


def matches(what: str, *published: Published) -> Claim:
    """The looped curve lies nowhere far above the unlooped one."""
    statement = f"On {what} the looped transformer matches the standard one (Section 5.4, Figure 10)."
    return claim("matches", statement, gap(curve(model=LOOPED), curve(model=UNLOOPED)) <= MATCHES, published=published)


FIG10A = Study(
    name="yang24.fig10a",
    title="Sparse linear regression: error by examples against 12 layers, least squares, averaging and Lasso",
    cells=pair(yang24.sparse_longer, yang24.sparse_12_layers_longer),
    measure=lambda scale: evaluation(
        scale, CachedBaselines, baselines=sparse_baselines, baseline_prompts=EVALUATION[scale].prompts
    ),
    panels=Panels(y="by_examples", cut_references=True, width=5.0, height=3.2, legend_columns=3),
    learned=Learned(),
    claims=(
        claim(
            "outperforms",
            "On sparse regression the looped transformer outperforms the standard one (Section 5.4).",
            area(model=LOOPED) / area(model=UNLOOPED) < 1,
            published=(
                Published(what="looped, k = 10", number=".0213", ours=at(10, model=LOOPED)),
                Published(what="looped, k = 40", number="6.1e-4", ours=at(40, model=LOOPED)),
                Published(what="12 layers, k = 10", number=".0848", ours=at(10, model=UNLOOPED)),
                Published(what="12 layers, k = 40", number="1.7e-3", ours=at(40, model=UNLOOPED)),
            ),
        ),
        claim(
            "beats_lasso_early",
            "With fewer than 10 examples it has a smaller error than Lasso (Section 5.4, Figure 10a).",
            area(between=(1, 9), model=LOOPED) / area(between=(1, 9), model=LASSO) < 1,
            published=(
                Published(what="Lasso, k = 10", number=".0498", ours=at(10, model=LASSO)),
                Published(what="Lasso, k = 40", number="1.3e-4", ours=at(40, model=LASSO)),
                Published(what="least squares, k = 40", number="8.2e-14", ours=at(40, model=LEAST_SQUARES)),
            ),
        ),
    ),
)

FIG10B = replace(
    FIG10A,
    name="yang24.fig10b",
    title="Decision trees: error by examples against 12 layers, nearest neighbours, greedy trees and XGBoost",
    cells=pair(yang24.tree_longer, yang24.tree_12_layers_longer),
    measure=lambda scale: evaluation(
        scale,
        CachedBaselines,
        baselines=TreeBaselines(at=FITTED_AT[scale], trees=2 if scale == "smoke" else 50),
        baseline_prompts=EVALUATION[scale].prompts,
        loops=min(200, EVALUATION[scale].loops),
    ),
    claims=(
        matches("decision trees"),
        claim(
            "beats_baselines",
            "On decision trees its error after 100 examples is below that of 3-nearest neighbours, greedy trees and "
            "XGBoost (Figure 10b).",
            (last(model=LOOPED) / last(model=NEIGHBOURS) < 1)
            & (last(model=LOOPED) / last(model=GREEDY) < 1)
            & (last(model=LOOPED) / last(model=XGBOOST) < 1),
            beside={f"{name} on signs": last(model=f"{name} on signs") for name in (GREEDY, XGBOOST)},
        ),
    ),
)

FIG10C = replace(
    FIG10A,
    name="yang24.fig10c",
    title="2-layer ReLU networks: error by examples against 12 layers, least squares, neighbours and a trained network",
    cells=pair(yang24.relu_network, yang24.relu_network_12_layers),
    measure=lambda scale: evaluation(
        scale,
        CachedBaselines,
        baselines=NetworkBaselines(at=FITTED_AT[scale], steps=5 if scale == "smoke" else 1000),
        baseline_prompts=NETWORK_PROMPTS[scale],
    ),
    claims=(
        matches(
            "ReLU networks",
            Published(what="looped, k = 100", number=".1802", ours=at(100, model=LOOPED)),
            Published(what="12 layers, k = 100", number=".1695", ours=at(100, model=UNLOOPED)),
        ),
    ),
)
