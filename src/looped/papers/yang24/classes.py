"""Figure 10: other function classes, against their baselines.

At `cpu` scale a panel trains two variants of three seeds, 1000 steps each, about ten minutes on two cores.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.evaluation.cache import cached
from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.curves import Baseline
from looped.evaluation.panels import finish
from looped.experiment import Experiment
from looped.papers.yang24 import (
    Scale,
    relu_network,
    relu_network_12_layers,
    sparse_12_layers_longer,
    sparse_longer,
    tree,
    tree_12_layers,
)
from looped.papers.yang24.judges import (
    MATCHES,
    area,
    at,
    at_most,
    beside,
    best_error,
    center,
    largest_gap,
    measured,
    ratios,
)
from looped.papers.yang24.lines import baseline, examples_axis, line
from looped.papers.yang24.measuring import (
    EVALUATION,
    LOOPED,
    UNLOOPED,
    Sizes,
    baseline_curves,
    judged,
    trained,
)
from looped.papers.yang24.trainings import SHORT, training

EACH: tuple[Scale, ...] = ("smoke", "cpu", "paper")
CHEAP: dict[str, dict[str, Any]] = {**SHORT, "cpu": {"steps": 300, "batch": 32}}
"""For figures of many trainings."""


def baselines_of(kind: str, slow: Data) -> dict[str, Baseline]:
    """What a panel of figure 10 compares with; `slow` says how large the fitted ones are, and at which positions."""
    if kind == "sparse":
        return {"least squares": least_squares, "averaging": averaging, "Lasso": lasso}
    if kind == "relu":
        trained_network = partial(two_layer, steps=slow["network_steps"], at=slow["at"])
        return {"least squares": least_squares, NEIGHBOURS: nearest, "2-layer network, Adam": trained_network}
    forest = partial(boosted, trees=slow["trees"], at=slow["at"])
    return {
        NEIGHBOURS: nearest,
        "greedy tree": partial(greedy_tree, depth=2, at=slow["at"]),
        "greedy tree on signs": on_signs(partial(greedy_tree, depth=4, at=slow["at"])),
        "XGBoost": forest,
        "XGBoost on signs": on_signs(forest),
    }


NEIGHBOURS = "3-nearest neighbours"
SLOW: dict[str, dict[str, Any]] = {
    "smoke": {"prompts": 2, "at": [1, 4], "trees": 2, "network_steps": 5},
    "cpu": {"prompts": 64, "at": [1, 2, 4, 6, 8, 11, 15], "trees": 50, "network_steps": 1000},
    "paper": {
        "prompts": 256,
        "at": [1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100],
        "trees": 50,
        "network_steps": 1000,
    },
}
"""Baselines that are fitted prompt by prompt; greedy trees have depth 2 on x and 4 on signs, as in the program."""


def panel_sizes(scale: Scale, kind: str, looped: Experiment, unlooped: Experiment) -> dict[str, Any]:
    """A panel of figure 10: both models, and whose baselines; fewer prompts for slow baselines on a CPU."""
    far = {"smoke": 8, "cpu": 64, "paper": 200 if kind == "tree" else 500}[scale]
    return {
        **EVALUATION[scale],
        "loops": far,
        "baselines": kind,
        "baseline_prompts": EVALUATION[scale]["prompts"] if kind == "sparse" else SLOW[scale]["prompts"],
        "slow": SLOW[scale],
        "experiments": {
            LOOPED: training(looped, **SHORT[scale]).brief(),
            UNLOOPED: training(unlooped, **SHORT[scale]).brief(),
        },
    }


def measure_panel(sizes: Sizes, settings: Settings) -> Data:
    """Both models, and the baselines of their function class."""
    variants = {label: Experiment.from_brief(one) for label, one in sizes["experiments"].items()}
    first = variants[LOOPED]
    models = judged(trained(variants, sizes, settings, share=0.8), sizes, settings)

    def report(what: str, done: float) -> None:
        settings.progress(what, 0.9 + 0.1 * done)

    found = baselines_of(sizes["baselines"], sizes["slow"])
    kept = {label: cached(label, one, settings.runs / "baselines", progress=report) for label, one in found.items()}
    baselines = baseline_curves(kept, first.task, sizes, points=first.train.points)
    return {"models": models, "baselines": baselines}


def curves_of(data: Data) -> tuple[Data, Data]:
    """The looped and the unlooped model's error by examples."""
    looped, unlooped = (data["models"][label]["by_examples"] for label in (LOOPED, UNLOOPED))
    return looped, unlooped


def published(data: Data, numbers: dict[int, tuple[str, str]]) -> str:
    """Published errors beside ours, at the numbers of examples that both have."""
    looped, unlooped = curves_of(data)
    if looped["x"][-1] not in numbers:
        return ""
    loops = data["models"][LOOPED]["by_loops"]["x"][-1]
    return f"the looped one after {loops} loops; " + "; ".join(
        f"k = {k}: looped {beside(theirs, at(looped, k))}, transformer {beside(others, at(unlooped, k))}"
        for k, (theirs, others) in numbers.items()
    )


def outperforms(numbers: dict[int, tuple[str, str]]):
    """A judge: the looped model's mean error over examples is below the unlooped one's."""

    def judge(data: Data) -> Measured:
        looped, unlooped = curves_of(data)
        values = ratios(area(looped), area(unlooped))
        return measured(values, statistics.fmean(values) < 1, published(data, numbers))

    return judge


def matches(numbers: dict[int, tuple[str, str]]):
    """A judge: the looped curve lies nowhere far above the unlooped one."""

    def judge(data: Data) -> Measured:
        return at_most(largest_gap(*curves_of(data)), MATCHES, published(data, numbers))

    return judge


def beats_lasso_early(data: Data) -> Measured:
    """Mean error at the first quarter of the examples over that of Lasso."""
    looped, other = data["models"][LOOPED]["by_examples"], data["baselines"]["Lasso"]
    few = range(1, max(2, looped["x"][-1] // 4))
    values = ratios(
        [statistics.fmean(at(looped, k)[seed] for k in few) for seed in range(len(looped["mean"]))],
        [statistics.fmean(center(other)[other["x"].index(k)] for k in few)],
    )
    note = f"mean error at 1 to {few[-1]} examples, over Lasso's"
    if looped["x"][-1] == 40:
        few, all_of = ([center(other)[k]] for k in (10, 40))
        note += f"; Lasso k = 10: {beside('.0498', few)}; k = 40: {beside('1.3e-4', all_of)}"
    return measured(values, statistics.fmean(values) < 1, note)


def draw_panel(figure: Any, data: Data) -> None:
    """Error by examples, models in colour and baselines in ink and the colours left."""
    figure.set_size_inches(5.6, 3.6)
    ax = figure.subplots()
    for index, label in enumerate((LOOPED, UNLOOPED)):
        line(ax, index, data["models"][label]["by_examples"], label)
    for index, (label, curve) in enumerate(data["baselines"].items()):
        baseline(ax, curve, label, color=f"C{2 + index % 4}", linestyle=(0, (1 + index, 1.2)))
    top = max(max(center(data["models"][label]["by_examples"])) for label in (LOOPED, UNLOOPED))
    examples_axis(ax, top=min(1.6, 1.3 * top))
    finish(figure, columns=3)


def _panel(letter: str, kind: str, title: str, recipe: Any, other: Any, claims: tuple[Claim, ...]) -> Figure:
    return Figure(
        name=f"yang24.fig10{letter}",
        title=title,
        settings={scale: panel_sizes(scale, kind, recipe(scale), other(scale)) for scale in EACH},
        measure=measure_panel,
        draw=draw_panel,
        best_error=best_error,
        claims=claims,
    )


def _match(letter: str, what: str, numbers: dict[int, tuple[str, str]]) -> Claim:
    return Claim(
        id=f"yang24.fig10{letter}.matches",
        statement=f"On {what} the looped transformer matches the standard one (Section 5.4, Figure 10{letter}).",
        tolerance=f"at no number of examples more than {MATCHES:g} above it, where predicting zero costs 1",
        judge=matches(numbers),
    )


fig10a = _panel(
    "a",
    "sparse",
    "Sparse linear regression: error by examples against 12 layers, least squares, averaging and Lasso",
    sparse_longer,
    sparse_12_layers_longer,
    (
        Claim(
            id="yang24.fig10a.outperforms",
            statement="On sparse regression the looped transformer outperforms the standard one (Section 5.4).",
            tolerance="mean error over examples below the standard one's",
            judge=outperforms({10: (".0213", ".0848"), 40: ("6.1e-4", "1.7e-3")}),
        ),
        Claim(
            id="yang24.fig10a.beats_lasso_early",
            statement="With fewer than 10 examples it has a smaller error than Lasso (Section 5.4, Figure 10a).",
            tolerance="mean error at 1 to k/4 - 1 examples, k the most, below that of Lasso with alpha .01",
            judge=beats_lasso_early,
        ),
    ),
)
fig10b = _panel(
    "b",
    "tree",
    "Decision trees: error by examples against 12 layers, nearest neighbours, greedy trees and XGBoost",
    tree,
    tree_12_layers,
    (_match("b", "decision trees", {}),),
)
fig10c = _panel(
    "c",
    "relu",
    "2-layer ReLU networks: error by examples against 12 layers, least squares, neighbours and a trained network",
    relu_network,
    relu_network_12_layers,
    (_match("c", "ReLU networks", {100: (".1802", ".1695")}),),
)
