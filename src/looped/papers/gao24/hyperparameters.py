"""Figures 3 and 4: what the loops T and dT, the heads and the layers do on regression with representation.

The text does not say which values the panels show; the `paper` scale takes those around its default (20, 15). Figure 3
is about the loop as printed: with pre(X) injected into every loop, all are stable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, seeds_line
from looped.experiment import Experiment
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.papers import gao24
from looped.papers.gao24.comparison import EVALUATION
from looped.papers.gao24.variants import Sizes, as_printed, average, judged, read, trained, with_loops, written

LOOPS = {
    "smoke": ((1, (2, 3)), (2, (2, 3))),
    "cpu": ((1, (4, 6)), (3, (4, 6))),
    "paper": ((5, (10, 15, 20)), (10, (10, 15, 20)), (15, (15, 20, 30))),
}
"""(dT, its T's): one panel each."""
SHAPES = {
    "smoke": ((1, 1), (1, 2), (2, 2)),
    "cpu": ((1, 1), (1, 4), (2, 4)),
    "paper": ((1, 4), (1, 8), (1, 16), (2, 8), (3, 8), (4, 8), (4, 16)),
}
"""(layers, heads) of pre, loop and post."""


def with_shape(experiment: Experiment, layers: int, heads: int) -> Experiment:
    """Pre, loop and post of `layers` layers and `heads` heads."""
    assert isinstance(experiment.model, AlgoFormerConfig)
    part = Part(layers=layers, heads=heads)
    return replace(experiment, model=replace(experiment.model, pre=part, loop=part, post=part))


def _loop_settings(scale: gao24.Scale) -> Data:
    grid = [(window, loops) for window, each in LOOPS[scale] for loops in each]
    base = replace(as_printed(gao24.regression(scale)), name="gao24.regression_printed")
    made = {f"dT={window}, T={loops}": with_loops(base, loops, window) for window, loops in grid}
    return {**EVALUATION[scale], "grid": [list(one) for one in grid], "experiments": written(made)}


def _shape_settings(scale: gao24.Scale) -> Data:
    made = {
        f"L={layers}, h={heads}": with_shape(gao24.regression(scale), layers, heads) for layers, heads in SHAPES[scale]
    }
    return {**EVALUATION[scale], "grid": [list(one) for one in SHAPES[scale]], "experiments": written(made)}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train one AlgoFormer for each place of the grid and seed, and judge all, far beyond their trained loops too."""
    runs = trained(read(sizes["experiments"]), sizes, settings)
    return {"grid": sizes["grid"], "models": judged(runs, sizes, settings)}


def draw_3(figure: Any, data: Data) -> None:
    """Error at the last pair against loops, a panel for each dT, a line for each T, a dot where training stopped."""
    windows = sorted({window for window, _ in data["grid"]})
    figure.set_size_inches(3.2 * len(windows), 3.2)
    for ax, window in zip(figure.subplots(1, len(windows), squeeze=False)[0], windows, strict=True):
        each = [loops for one, loops in data["grid"] if one == window]
        for index, loops in enumerate(each):
            curve = data["models"][f"dT={window}, T={loops}"]["by_loops"]
            seeds_line(ax, index, curve["x"], curve["mean"], f"T = {loops}", marker="o", markevery=[loops - 1])
        log_y(ax)
        ax.set(xlabel="loops", ylabel="error at the last pair", title=f"ΔT = {window}")
    finish(figure, columns=4)


def draw_4(figure: Any, data: Data) -> None:
    """Error against examples, a line for each number of layers and heads."""
    figure.set_size_inches(5.2, 3.4)
    ax = figure.subplots()
    for index, (layers, heads) in enumerate(data["grid"]):
        curve = data["models"][f"L={layers}, h={heads}"]["by_points"]
        seeds_line(ax, index, curve["x"], curve["mean"], f"L = {layers}, h = {heads}")
    log_y(ax)
    ax.set(xlabel="examples seen", ylabel="error (predicting zero = 1)")
    finish(figure, columns=3)


def growth(data: Data, label: str) -> float:
    """Error at the most loops over error at the trained ones, geometric mean over seeds; infinite if it diverged."""
    model, ratios = data["models"][label], []
    for values in model["by_loops"]["mean"]:
        end, trained_at = values[-1], values[model["loops"] - 1]
        if end is None or trained_at is None:
            return math.inf
        ratios.append(math.log(end / trained_at))
    return math.exp(sum(ratios) / len(ratios))


def steadier(data: Data) -> Measured:
    """Growth with the least dT over growth with the most, at the T they share."""
    windows = sorted({window for window, _ in data["grid"]})
    few, many = ({loops for one, loops in data["grid"] if one == window} for window in (windows[0], windows[-1]))
    grown = [
        (growth(data, f"dT={windows[0]}, T={loops}"), growth(data, f"dT={windows[-1]}, T={loops}"))
        for loops in sorted(few & many)
    ]
    ratios = [a / b if math.isfinite(b) else 0.0 for a, b in grown]
    shown = ", ".join(f"{a:.3g} against {b:.3g}" for a, b in grown)
    return Measured(
        value=min(ratios),
        low=min(ratios),
        high=max(ratios),
        holds=min(ratios) >= 1,
        note=f"error at the most loops over error at T, dT={windows[0]} against dT={windows[-1]}, by T: {shown}",
    )


def lower(change: str) -> Callable[[Data], Measured]:
    """A judge: the error falls as layers, or heads, are added."""

    def judge(data: Data) -> Measured:
        index = 0 if change == "layers" else 1
        steps = [
            (a, b)
            for a, b in itertools.combinations(data["grid"], 2)
            if a[1 - index] == b[1 - index] and a[index] < b[index]
        ]
        seeds = range(len(data["models"][_name(steps[0][0])]["by_points"]["mean"]))
        error = {
            _name(one): sum(average(data["models"], _name(one), seed) for seed in seeds) / len(seeds)
            for one in data["grid"]
        }
        ratios = [error[_name(b)] / error[_name(a)] for a, b in steps]
        shown = ", ".join(f"{label}: {value:.4f}" for label, value in error.items())
        return Measured(
            value=max(ratios),
            low=min(ratios),
            high=max(ratios),
            holds=max(ratios) <= 1,
            note=f"mean error over points: {shown}; the paper itself sees 4 layers and 16 heads do worse",
        )

    return judge


def _name(shape: list[int]) -> str:
    return f"L={shape[0]}, h={shape[1]}"


fig3 = Figure(
    name="gao24.fig3",
    title="Error far beyond the trained loops, for several T and dT",
    settings={scale: _loop_settings(scale) for scale in gao24.SCALES},
    measure=measure,
    draw=draw_3,
    claims=(
        Claim(
            id="gao24.fig3.larger_window_is_steadier",
            statement="A larger dT makes inference beyond T loops more stable (Section 5.3).",
            tolerance="the error grows from T to the most loops by no more with the largest dT than with the smallest, "
            "at every T that both have",
            judge=steadier,
        ),
    ),
)

fig4 = Figure(
    name="gao24.fig4",
    title="Error for several numbers of layers and heads",
    settings={scale: _shape_settings(scale) for scale in gao24.SCALES},
    measure=measure,
    draw=draw_4,
    claims=tuple(
        Claim(
            id=f"gao24.fig4.more_{what}",
            statement=f"More {what} give lower errors (Section 5.3, Figure 4).",
            tolerance=f"mean error over points and seeds falls whenever {what} alone are added",
            judge=lower(what),
        )
        for what in ("layers", "heads")
    ),
)
