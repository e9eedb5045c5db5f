"""Figure 17: loops that climb in training, or are there from the start.

At `cpu` scale eight variants of two seeds at 150 steps, about three minutes on two cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish
from looped.experiment import Experiment
from looped.papers.yang24 import Scale, linear, relu_network, sparse, tree
from looped.papers.yang24.classes import CHEAP, EACH
from looped.papers.yang24.judges import area, at_most, best_error, measured, ratios
from looped.papers.yang24.lines import examples_axis, line
from looped.papers.yang24.measuring import EVALUATION, Sizes, judged, trained, with_loops
from looped.papers.yang24.trainings import training

SCHEDULED, AT_ONCE = "with scheduling", "without scheduling"
SAME = 0.05
"""Difference of mean errors, in units of predicting zero, that counts as none."""
CLASSES: dict[str, tuple[Callable[[Scale], Experiment], int, int]] = {
    "linear regression": (linear, 20, 15),
    "sparse linear regression": (sparse, 20, 10),
    "decision tree": (tree, 70, 15),
    "2-layer ReLU network": (relu_network, 12, 5),
}


def schedule_sizes(scale: Scale) -> dict[str, Any]:
    """Figure 17: every function class with its own b and T, loops climbing from T to b or at b from the start."""
    experiments: dict[str, Any] = {}
    for label, (recipe, b, window) in CLASSES.items():
        b, window = {"smoke": (4, 2), "cpu": (8, 4), "paper": (b, window)}[scale]
        base = training(recipe(scale), **({**CHEAP[scale], "steps": 150} if scale == "cpu" else CHEAP[scale]))
        every = {"smoke": 2, "cpu": 20, "paper": 100}[scale]
        experiments[label] = {
            SCHEDULED: with_loops(base, b, window, every=every).brief(),
            AT_ONCE: with_loops(base, b, window, every=None).brief(),
        }
    return {
        **EVALUATION[scale],
        "seeds": {"smoke": 1, "cpu": 2, "paper": 1}[scale],
        "loops": {"smoke": 4, "cpu": 8, "paper": 500}[scale],
        "tree_loops": {"smoke": 4, "cpu": 8, "paper": 200}[scale],
        "experiments": experiments,
    }


def measure_schedule(sizes: Sizes, settings: Settings) -> Data:
    """Error by examples, `[function class][with or without]`."""
    variants = {
        (label, kind): Experiment.from_brief(one)
        for label, kinds in sizes["experiments"].items()
        for kind, one in kinds.items()
    }
    runs = trained({f"{label}, {kind}": one for (label, kind), one in variants.items()}, sizes, settings)
    data: Data = {"classes": {}}
    for label, kind in variants:
        far = sizes["tree_loops"] if label == "decision tree" else sizes["loops"]
        name = f"{label}, {kind}"
        model = judged({name: runs[name]}, {**sizes, "loops": far}, settings)[name]
        data["classes"].setdefault(label, {})[kind] = model["by_examples"]
    return data


def same_without(data: Data) -> Measured:
    """Difference of mean errors over examples, the function class where it is largest, trees left out."""
    gaps = {
        label: statistics.fmean(area(pair[SCHEDULED])) - statistics.fmean(area(pair[AT_ONCE]))
        for label, pair in data["classes"].items()
        if label != "decision tree"
    }
    worst = max(gaps.values(), key=abs)
    note = ", ".join(f"{label} {gap:+.3g}" for label, gap in gaps.items())
    return measured([worst], abs(worst) <= SAME, f"with minus without: {note}")


def tree_gains(data: Data) -> Measured:
    """Mean error over examples on trees, with over without."""
    pair = data["classes"]["decision tree"]
    return at_most(ratios(area(pair[SCHEDULED]), area(pair[AT_ONCE])), 1.0)


def draw_schedule(figure: Any, data: Data) -> None:
    """A panel for each function class; with scheduling solid, without dashed."""
    figure.set_size_inches(6.4, 5.2)
    for ax, (label, pair) in zip(figure.subplots(2, 2).flatten(), data["classes"].items(), strict=True):
        for index, kind in enumerate((SCHEDULED, AT_ONCE)):
            line(ax, index, pair[kind], kind)
        examples_axis(ax)
        ax.set_title(label)
    finish(figure)


fig17 = Figure(
    name="yang24.fig17",
    title="Error by examples with loops scheduled in training and without, for four function classes",
    settings={scale: schedule_sizes(scale) for scale in EACH},
    measure=measure_schedule,
    draw=draw_schedule,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig17.no_difference",
            statement="In most cases the schedule of loops makes no difference (Appendix E, Figure 17).",
            tolerance=f"linear, sparse, ReLU: mean errors over examples differ by at most {SAME:g}",
            judge=same_without,
        ),
        Claim(
            id="yang24.fig17.tree_gains",
            statement="On decision trees the schedule gives slightly better results (Appendix E, Figure 17).",
            tolerance="mean error over examples with it at most that without it",
            judge=tree_gains,
        ),
    ),
)
