"""Figure 11: sparse linear regression with more or fewer nonzero weights.

At `cpu` scale six variants of two seeds at 300 steps, about four minutes on two cores.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish
from looped.experiment import Experiment
from looped.papers.yang24 import Scale, sparse, sparse_12_layers
from looped.papers.yang24.classes import CHEAP, EACH
from looped.papers.yang24.judges import area, at_most, best_error, ratios
from looped.papers.yang24.lines import examples_axis, line
from looped.papers.yang24.measuring import EVALUATION, LOOPED, UNLOOPED, Sizes, judged, trained
from looped.papers.yang24.trainings import around, training
from looped.tasks.regression import SparseRegression


def sparsity_sizes(scale: Scale) -> dict[str, Any]:
    """Figure 11: both models for every number of nonzero weights; b = 30, T = 15."""
    looped, unlooped = sparse(scale), sparse_12_layers(scale)
    if scale == "paper":
        looped = around(looped, 30, 15)
    return {
        **EVALUATION[scale],
        "seeds": {"smoke": 1, "cpu": 2, "paper": 1}[scale],
        "nonzero": {"smoke": [1, 2], "cpu": [1, 2, 4], "paper": [1, 3, 6, 9, 12]}[scale],
        "experiments": {
            LOOPED: training(looped, **CHEAP[scale]).brief(),
            UNLOOPED: training(unlooped, **CHEAP[scale]).brief(),
        },
    }


def measure_sparsity(sizes: Sizes, settings: Settings) -> Data:
    """Error by examples, `[nonzero][model]`."""
    variants = {}
    for count in sizes["nonzero"]:
        for label, one in sizes["experiments"].items():
            base = Experiment.from_brief(one)
            variants[f"{count}.{label}"] = replace(base, task=SparseRegression(d=base.task.d, nonzero=count))
    found = judged(trained(variants, sizes, settings), sizes, settings)
    data: Data = {"levels": {}}
    for name, model in found.items():
        count, _, label = name.partition(".")
        data["levels"].setdefault(count, {})[label] = model["by_examples"]
    return data


def better_at_every_level(data: Data) -> Measured:
    """Looped over unlooped mean error over examples, the worst number of nonzero weights."""
    each = {s: ratios(area(level[LOOPED]), area(level[UNLOOPED])) for s, level in data["levels"].items()}
    worst = max(each, key=lambda s: statistics.fmean(each[s]))
    note = "by nonzero weights: " + ", ".join(f"{s}: {statistics.fmean(values):.3g}" for s, values in each.items())
    return at_most(each[worst], 1.05, f"the worst of all; {note}")


def draw_sparsity(figure: Any, data: Data) -> None:
    """A colour for each number of nonzero weights; looped solid, unlooped dashed."""
    figure.set_size_inches(5.6, 3.6)
    ax = figure.subplots()
    for index, (count, level) in enumerate(data["levels"].items()):
        line(ax, index, level[LOOPED], f"{LOOPED}, s = {count}", linestyle="-")
        line(ax, index, level[UNLOOPED], f"{UNLOOPED}, s = {count}", linestyle=(0, (4, 1.6)), linewidth=1.1)
    examples_axis(ax)
    finish(figure, columns=2)


fig11 = Figure(
    name="yang24.fig11",
    title="Sparse linear regression with more or fewer nonzero weights: error by examples",
    settings={scale: sparsity_sizes(scale) for scale in EACH},
    measure=measure_sparsity,
    draw=draw_sparsity,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig11.every_sparsity",
            statement="At every sparsity the looped transformer matches or outperforms the standard one (Figure 11).",
            tolerance="mean error over examples at most 1.05 times the standard one's, for every s",
            judge=better_at_every_level,
        ),
    ),
)
