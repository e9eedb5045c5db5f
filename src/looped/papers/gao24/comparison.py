"""Figure 2: the AlgoFormer, the vanilla looped and the standard transformer on the paper's three tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, seeds_line
from looped.papers import gao24
from looped.papers.gao24.variants import MODELS, Sizes, judged, ratio, read, three, trained, written

PANELS = {
    "regression": gao24.regression,
    "autoregression": gao24.autoregression,
    "chain_of_thought": gao24.chain_of_thought,
}
TITLES = {
    "regression": "regression with representation",
    "autoregression": "AR(q) with representation",
    "chain_of_thought": "chain of thought with MLPs",
}
AXES = {"regression": "examples seen", "autoregression": "states seen", "chain_of_thought": "examples seen"}
EVALUATION: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": 1, "prompts": 8, "prompt_seed": 1, "max_loops": 6},
    "cpu": {"seeds": 3, "first_seed": 3, "prompts": 512, "prompt_seed": 1, "max_loops": 24},
    "paper": {"seeds": 1, "prompts": 1280, "prompt_seed": 1, "max_loops": 200},
}
"""How models are judged, each on the same `prompts` prompts; `cpu` was tuned on seeds 0 to 2, not on those judged."""
LAYERS = {"smoke": 2, "cpu": 6, "paper": 12}
"""Layers of the standard transformer."""


def _settings(scale: gao24.Scale) -> Data:
    made = {
        f"{panel}/{label}": one
        for panel, recipe in PANELS.items()
        for label, one in three(recipe(scale), LAYERS[scale]).items()
    }
    return {**EVALUATION[scale], "experiments": written(made)}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train the nine models, all seeds of one as one stack, and judge them."""
    found = judged(trained(read(sizes["experiments"]), sizes, settings), sizes, settings)
    return {panel: {label: found[f"{panel}/{label}"] for label in MODELS} for panel in PANELS}


def draw(figure: Any, data: Data) -> None:
    """Error against in-context samples, a panel a task, a line a model."""
    figure.set_size_inches(9.6, 3.2)
    for ax, panel in zip(figure.subplots(1, 3), PANELS, strict=True):
        for index, label in enumerate(MODELS):
            curve = data[panel][label]["by_points"]
            seeds_line(ax, index, curve["x"], curve["mean"], label)
        log_y(ax)
        ax.set(xlabel=AXES[panel], ylabel="error (predicting zero = 1)", title=TITLES[panel])
    finish(figure, columns=3)


def beats(panel: str, worse: str) -> Callable[[Data], Measured]:
    """A judge: the AlgoFormer's error is below another model's."""
    return lambda data: ratio(data[panel], "AlgoFormer", worse, most=0.95)


fig2 = Figure(
    name="gao24.fig2",
    title="AlgoFormer, vanilla looped and standard transformer on three tasks",
    settings={scale: _settings(scale) for scale in gao24.SCALES},
    measure=measure,
    draw=draw,
    claims=(
        *(
            Claim(
                id=f"gao24.fig2.{panel}.beats_{other}",
                statement=f"The AlgoFormer does better than the {other} transformer on {TITLES[panel]} (Section 5.2).",
                tolerance="error, mean over all points, at most 0.95 of the other model's, mean over seeds; equal "
                "width, prompts, steps and optimiser",
                judge=beats(panel, other),
            )
            for panel in PANELS
            for other in ("looped", "standard")
        ),
        Claim(
            id="gao24.fig2.chain_of_thought.standard_beats_looped",
            statement="On chain of thought the standard transformer too does better than the looped one (Sec. 5.2).",
            tolerance="error, mean over all points, at most 0.95 of the looped model's, mean over seeds",
            judge=lambda data: ratio(data["chain_of_thought"], "standard", "looped", most=0.95),
        ),
    ),
)
