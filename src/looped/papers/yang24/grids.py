"""Figures 4, 9, 12 and 13: models trained to b loops with a loss over the last T, for grids of b and T.

At `cpu` scale a figure trains 6 to 12 cells of three seeds for 200 steps each, 3 to 5 minutes on two cores; figures 4
and 9 reuse the cells of 12 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish
from looped.experiment import Experiment
from looped.papers.yang24 import linear, relu_network, sparse, tree
from looped.papers.yang24.judges import (
    DIVERGED,
    FLAT,
    area,
    at_least,
    at_most,
    best_error,
    center,
    drift,
    last,
    loops_to,
    measured,
    ratios,
)
from looped.papers.yang24.lines import examples_axis, line, loops_axis, trained_mark
from looped.papers.yang24.measuring import EVALUATION, Sizes, judged, trained, with_loops
from looped.papers.yang24.trainings import training

LINEAR, SPARSE, TREE, RELU = "linear regression", "sparse linear regression", "decision tree", "2-layer ReLU network"
RECIPES: dict[str, Callable[..., Experiment]] = {LINEAR: linear, SPARSE: sparse, TREE: tree, RELU: relu_network}
LOOPS = {
    "smoke": {key: [2, 4] for key in RECIPES},
    "cpu": {key: [4, 8, 12] for key in RECIPES},
    "paper": {**{key: [12, 20, 30, 40, 50] for key in RECIPES}, TREE: [12, 50, 70, 100]},
}
WINDOWS = {"smoke": [1, 2], "cpu": [2, 4], "paper": [5, 10, 15]}
MIDDLE = {"smoke": 2, "cpu": 4, "paper": 10}
"""The window of figure 9: T = 10."""
CHEAP: dict[str, dict[str, Any]] = {"smoke": {"steps": 6}, "cpu": {"steps": 200, "batch": 32}, "paper": {}}
EVERY = {"smoke": 2, "cpu": 10, "paper": 100}
SHOWN = 200
"""Loops that the paper draws."""


def sizes_of(scale: str, tasks: Sequence[str], windows: Sequence[int]) -> dict[str, Any]:
    """A grid's settings: its base experiments, the values of b for each, and those of T."""
    return {
        **EVALUATION[scale],
        "loops": {"smoke": 8, "cpu": 48, "paper": 500}[scale],
        "tree_loops": {"smoke": 8, "cpu": 48, "paper": 200}[scale],
        "prompts": {"smoke": 8, "cpu": 256, "paper": 1280}[scale],
        "experiments": {task: training(RECIPES[task](scale), **CHEAP[scale]).brief() for task in tasks},
        "trained_loops": {task: LOOPS[scale][task] for task in tasks},
        "windows": list(windows),
        "every": EVERY[scale],
    }


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Every cell `[task][T][b]`."""
    wanted = {
        f"{task}, T = {window}, b = {loops}": (task, window, loops)
        for task in sizes["experiments"]
        for window in sizes["windows"]
        for loops in sizes["trained_loops"][task]
    }
    variants = {
        label: with_loops(Experiment.from_brief(sizes["experiments"][task]), loops, window, every=sizes["every"])
        for label, (task, window, loops) in wanted.items()
    }
    runs = trained(variants, sizes, settings)
    data: Data = {"tasks": list(sizes["experiments"]), "windows": sizes["windows"], "cells": {}}
    for label, (task, window, loops) in wanted.items():
        far = sizes["tree_loops"] if task == TREE else sizes["loops"]
        cell = judged({label: runs[label]}, {**sizes, "loops": far}, settings)[label]
        data["cells"].setdefault(task, {}).setdefault(str(window), {})[str(loops)] = cell
    return data


def cells(data: Data, task: str, window: int) -> list[tuple[int, Data]]:
    """(b, cell) of one task and window, b ascending."""
    return sorted((int(b), cell) for b, cell in data["cells"][task][str(window)].items())


def drifts(data: Data, task: str) -> str:
    """Every cell's error far past b over the error at b, for a note."""
    return "; ".join(
        f"T = {window}: " + ", ".join(f"b = {b} {_mean(drift(cell)):.3g}" for b, cell in cells(data, task, window))
        for window in data["windows"]
    )


def largest_is_fixed(task: str):
    """A judge: with the largest b and T the model has a fixed point."""

    def judge(data: Data) -> Measured:
        return at_most(drift(cells(data, task, data["windows"][-1])[-1][1]), FLAT, f"by cell: {drifts(data, task)}")

    return judge


def smallest_diverges(task: str):
    """A judge: with the smallest b the model diverges for some T."""

    def judge(data: Data) -> Measured:
        found = [drift(cells(data, task, window)[0][1]) for window in data["windows"]]
        return at_least(max(found, key=_mean), DIVERGED, f"the T that drifts most; by cell: {drifts(data, task)}")

    return judge


def saturates(task: str):
    """A judge: the error stops falling before b."""

    def judge(data: Data) -> Measured:
        b, cell = cells(data, task, data["windows"][-1])[-1]
        reached = loops_to(cell["by_loops"], 1.1 * center(cell["by_loops"])[cell["by_loops"]["x"].index(b)])
        return measured([reached], reached < b, f"loops to within a tenth of the error at b = {b}")

    return judge


def short_window_costs(task: str):
    """A judge: at the largest b, the smallest T ends with a larger error by examples than the largest."""

    def judge(data: Data) -> Measured:
        short, long = (cells(data, task, data["windows"][index])[-1][1] for index in (0, -1))
        return at_least(ratios(area(short["by_examples"]), area(long["by_examples"])), 1.0, "mean over examples")

    return judge


def easier_than_linear(data: Data) -> Measured:
    """At the b next to the smallest, the sparse model drifts less than the linear one."""
    window = data["windows"][0]
    b, easy = cells(data, SPARSE, window)[1]
    hard = dict(cells(data, LINEAR, window))[b]
    note = f"T = {window}, b = {b}: sparse {_mean(drift(easy)):.3g}, linear {_mean(drift(hard)):.3g}"
    return at_most(ratios(drift(easy), drift(hard)), 1.0, note)


def needs_few(task: str):
    """A judge: the smallest b has a fixed point already."""

    def judge(data: Data) -> Measured:
        b, cell = cells(data, task, data["windows"][-1])[0]
        return at_most(drift(cell), FLAT, f"b = {b}, T = {data['windows'][-1]}; by cell: {drifts(data, task)}")

    return judge


def better_until_saturation(task: str):
    """A judge: the largest b ends with a smaller error than the smallest."""

    def judge(data: Data) -> Measured:
        row = cells(data, task, data["windows"][-1])
        return at_most(ratios(last(row[-1][1]["by_loops"]), last(row[0][1]["by_loops"])), 1.0, "after the most loops")

    return judge


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def panel(ax: Any, data: Data, task: str, window: int, kind: str) -> None:
    """One panel: a line for every b; by loops with b dashed, or by examples."""
    for index, (b, cell) in enumerate(cells(data, task, window)):
        line(ax, index, cell[kind], f"b = {b}")
        if kind == "by_loops":
            trained_mark(ax, index, b)
    if kind == "by_loops":
        most = max(cell[kind]["x"][-1] for _, cell in cells(data, task, window))
        loops_axis(ax, most=min(most, SHOWN))
    else:
        examples_axis(ax)


def draw_4(figure: Any, data: Data) -> None:
    """A panel for each T."""
    figure.set_size_inches(2.5 * len(data["windows"]) + 0.4, 3.0)
    axes = figure.subplots(1, len(data["windows"]), sharey=True, squeeze=False)[0]
    for ax, window in zip(axes, data["windows"], strict=True):
        panel(ax, data, LINEAR, window, "by_loops")
        ax.set_title(f"T = {window}")
    for ax in axes[1:]:
        ax.set_ylabel("")
    finish(figure, columns=5)


def draw_9(figure: Any, data: Data) -> None:
    """A panel for each function class."""
    tasks = [task for task in data["tasks"] if task != LINEAR]
    figure.set_size_inches(2.6 * len(tasks) + 0.4, 3.0)
    for ax, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        panel(ax, data, task, data["windows"][0], "by_loops")
        ax.set_title(task)
    finish(figure, columns=8)


def draw_grid(figure: Any, data: Data) -> None:
    """For each function class a row by loops and a row by examples; a column for each T."""
    rows = [(task, kind) for task in data["tasks"] for kind in ("by_loops", "by_examples")]
    figure.set_size_inches(2.5 * len(data["windows"]) + 0.4, 2.3 * len(rows) + 0.4)
    axes = figure.subplots(len(rows), len(data["windows"]), sharey="row", squeeze=False)
    for line_of_axes, (task, kind) in zip(axes, rows, strict=True):
        for ax, window in zip(line_of_axes, data["windows"], strict=True):
            panel(ax, data, task, window, kind)
            if kind == "by_loops":
                ax.set_title(f"{task}, T = {window}")
        for ax in line_of_axes[1:]:
            ax.set_ylabel("")
    finish(figure, columns=8)


def _about(figure: str, what: str, statement: str, tolerance: str, judge: Callable[[Data], Measured]) -> Claim:
    return Claim(id=f"yang24.{figure}.{what}", statement=statement, tolerance=tolerance, judge=judge)


def _fixed(figure: str, task: str, name: str) -> Claim:
    statement = f"A higher b finds a fixed point that does not diverge past b (Section 4.2, Appendix B); {task}."
    tolerance = f"largest b and T: error after the most loops at most {FLAT:g} times the error at b"
    return _about(figure, f"{name}.fixed_point", statement, tolerance, largest_is_fixed(task))


def _window(figure: str, task: str, name: str) -> Claim:
    statement = f"A smaller T gives a larger error (Appendix B); {task}."
    tolerance = "largest b: mean error over examples with the smallest T at least that with the largest"
    return _about(figure, f"{name}.window", statement, tolerance, short_window_costs(task))


def _figure(number: int, title: str, tasks: Sequence[str], draw: Any, claims: tuple[Claim, ...]) -> Figure:
    windows = {scale: [MIDDLE[scale]] if number == 9 else WINDOWS[scale] for scale in LOOPS}
    return Figure(
        name=f"yang24.fig{number}",
        title=title,
        settings={scale: sizes_of(scale, tasks, windows[scale]) for scale in LOOPS},
        measure=measure,
        draw=draw,
        best_error=best_error,
        claims=claims,
    )


fig4 = _figure(
    4,
    "Linear regression: error by loops for models trained to b loops with a loss over T of them",
    [LINEAR],
    draw_4,
    (
        _fixed("fig4", LINEAR, "linear"),
        _about(
            "fig4",
            "low_b_diverges",
            "A lower b may diverge after the trained loops (Section 4.2, Figure 4).",
            f"smallest b: for some T, error after the most loops at least {DIVERGED:g} times the error at b",
            smallest_diverges(LINEAR),
        ),
        _about(
            "fig4",
            "saturates",
            "The fixed point saturates before the trained loops (Section 4.2, Figure 4).",
            "largest b and T: within a tenth of the error at b after fewer than b loops",
            saturates(LINEAR),
        ),
    ),
)

fig9 = _figure(
    9,
    "Error by loops for models trained to b loops, T = 10: sparse linear regression, decision tree, ReLU network",
    [LINEAR, SPARSE, TREE, RELU],
    draw_9,
    (
        _about(
            "fig9",
            "sparse_easier",
            "With T = 10 linear regression diverges at b = 20, sparse regression does not (Section 5.4, Figure 9).",
            "second smallest b: the sparse model's error past b over the error at b is below the linear model's",
            easier_than_linear,
        ),
        _about(
            "fig9",
            "relu_needs_few",
            "ReLU networks need fewer loops than linear regression (Section 5.4, Figure 9).",
            f"smallest b: error after the most loops at most {FLAT:g} times the error at b",
            needs_few(RELU),
        ),
    ),
)

fig12 = _figure(
    12,
    "Grids of b and T, by loops and by examples: linear and sparse linear regression",
    [LINEAR, SPARSE],
    draw_grid,
    tuple(
        make("fig12", task, name)
        for make in (_fixed, _window)
        for task, name in ((LINEAR, "linear"), (SPARSE, "sparse"))
    ),
)

fig13 = _figure(
    13,
    "Grids of b and T, by loops and by examples: decision tree and 2-layer ReLU network",
    [TREE, RELU],
    draw_grid,
    (
        *(make("fig13", task, name) for make in (_fixed, _window) for task, name in ((TREE, "tree"), (RELU, "relu"))),
        _about(
            "fig13",
            "tree_needs_more",
            "Decision trees need a larger b (Appendix B, Figure 13).",
            "largest T: error after the most loops with the largest b at most that with the smallest",
            better_until_saturation(TREE),
        ),
    ),
)
