"""Figures 2 and 3: a fixed point beyond the trained loops, and what becomes of it without input injection.

At `cpu` scale, three seeds each: figure 2 about ten minutes on two cores, figure 3 about three.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from looped.baselines.linear import least_squares
from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish
from looped.experiment import Experiment
from looped.functional.schedules import Ramp, RandomDepth
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import linear, linear_12_layers, tied
from looped.papers.yang24.judges import (
    DIVERGED,
    FLAT,
    MATCHES,
    at,
    at_least,
    at_most,
    beside,
    best_error,
    drift,
    largest_gap,
    last,
    measured,
)
from looped.papers.yang24.lines import baseline, examples_axis, line, loops_axis, trained_mark
from looped.papers.yang24.measuring import (
    EVALUATION,
    LOOPED,
    UNLOOPED,
    Sizes,
    baseline_curves,
    judged,
    trained,
)
from looped.papers.yang24.trainings import around
from looped.tasks.regression import LinearRegression

TIED = "weight tying"
SHOWN = 100
"""Loops that the paper draws."""

FIXED_POINT = {
    "smoke": {LOOPED: linear("smoke"), UNLOOPED: linear_12_layers("smoke")},
    "cpu": {LOOPED: linear("cpu"), UNLOOPED: linear_12_layers("cpu")},
    "paper": {LOOPED: around(linear("paper"), 30, 15), UNLOOPED: linear_12_layers("paper")},
}


def early_loops(base: Experiment) -> Experiment:
    """Two dimensions, a random number of loops up to ten, and a loss over the last six of them.

    Weight tying learns nothing in minutes from a loss over late loops alone: in some steps the first must count.
    """
    assert isinstance(base.model, DecoderConfig)
    model = replace(base.model, d=2, width=32, loops=10)
    train = replace(
        base.train,
        steps=1000,
        points=5,
        window=6,
        grad=None if base.model.inject == "none" else 6,
        depth=RandomDepth(low=-8, high=0),
        dims=Ramp(start=1, stop=2, share=0.2),
    )
    return replace(base, task=LinearRegression(d=2), model=model, train=train)


INJECTION = {
    "smoke": {LOOPED: linear("smoke"), TIED: tied("smoke")},
    "cpu": {LOOPED: early_loops(linear("cpu")), TIED: early_loops(tied("cpu"))},
    "paper": {LOOPED: linear("paper"), TIED: tied("paper")},
}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Train the variants, judge them by examples and by loops, and least squares by examples."""
    variants = {label: Experiment.from_brief(data) for label, data in sizes["experiments"].items()}
    first = next(iter(variants.values()))
    return {
        "models": judged(trained(variants, sizes, settings), sizes, settings),
        "least_squares": baseline_curves({"": least_squares}, first.task, sizes, points=first.train.points)[""],
    }


def flat(label: str):
    """A judge: the error stays flat beyond the trained loops."""

    def judge(data: Data) -> Measured:
        model = data["models"][label]
        return at_most(drift(model), FLAT, about_loops(model))

    return judge


def deteriorates(label: str):
    """A judge: the error rises beyond the trained loops."""

    def judge(data: Data) -> Measured:
        model = data["models"][label]
        return at_least(drift(model), DIVERGED, about_loops(model))

    return judge


def about_loops(model: Data) -> str:
    """Where the two ends of the ratio lie."""
    loops, trained_with = model["by_loops"]["x"][-1], model["trained_loops"]
    return f"error after {loops} loops over the error at {trained_with}, the most in training"


def matches_unlooped(data: Data) -> Measured:
    """The looped curve by examples lies nowhere far above the unlooped one."""
    one, other = (data["models"][label]["by_examples"] for label in (LOOPED, UNLOOPED))
    note = f"looped {', '.join(f'{v:.3g}' for v in last(one))}, unlooped {', '.join(f'{v:.3g}' for v in last(other))}"
    note += f" at k = {one['x'][-1]}"
    if one["x"][-1] == 40:
        loops = data["models"][LOOPED]["by_loops"]["x"][-1]
        note += f"; after {loops} loops k = 20: {beside('.0242', at(one, 20))}; k = 40: {beside('7.8e-4', at(one, 40))}"
        note += f"; 12 layers k = 20: {beside('.0204', at(other, 20))}; k = 40: {beside('4.8e-4', at(other, 40))}"
    return at_most(largest_gap(one, other), MATCHES, note)


def near_least_squares(data: Data) -> Measured:
    """The looped curve by examples lies nowhere far above least squares."""
    return at_most(largest_gap(data["models"][LOOPED]["by_examples"], data["least_squares"]), 2 * MATCHES)


def fewer_parameters(data: Data) -> Measured:
    """The looped model's share of the unlooped one's parameters."""
    one, other = (data["models"][label] for label in (LOOPED, UNLOOPED))
    share = one["parameters"] / other["parameters"]
    note = f"{one['parameters']:,} of {other['parameters']:,}; published .79M of 9.48M, without positions and reading"
    return measured([share], share <= 1.2 / other["layers"], note)


def draw_2(figure: Any, data: Data) -> None:
    """Left by loops, right by examples."""
    figure.set_size_inches(7.2, 3.2)
    left, right = figure.subplots(1, 2)
    looped = data["models"][LOOPED]
    line(left, 0, looped["by_loops"], LOOPED)
    trained_mark(left, 0, looped["trained_loops"])
    loops_axis(left, most=SHOWN if looped["by_loops"]["x"][-1] > SHOWN else None)
    for index, label in enumerate((LOOPED, UNLOOPED)):
        line(right, index, data["models"][label]["by_examples"], label)
    baseline(right, data["least_squares"], "least squares")
    examples_axis(right, top=1.5)
    finish(figure)


def draw_3(figure: Any, data: Data) -> None:
    """Error by loops, with injection and without."""
    figure.set_size_inches(4.6, 3.4)
    ax = figure.subplots()
    most = 0
    for index, label in enumerate((LOOPED, TIED)):
        model = data["models"][label]
        line(ax, index, model["by_loops"], label)
        trained_mark(ax, index, model["trained_loops"])
        most = model["by_loops"]["x"][-1]
    loops_axis(ax, most=SHOWN if most > SHOWN else None)
    finish(figure)


def _settings(variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        scale: {**EVALUATION[scale], "experiments": {label: one.brief() for label, one in members.items()}}
        for scale, members in variants.items()
    }


fig2 = Figure(
    name="yang24.fig2",
    title="Linear regression: a fixed point beyond the trained loops, and error by examples against 12 layers",
    settings=_settings(FIXED_POINT),
    measure=measure,
    draw=draw_2,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig2.fixed_point",
            statement="The looped transformer reaches a stable fixed point beyond the trained loops (Figure 2, left).",
            tolerance=f"error after the most loops at most {FLAT:g} times the error at the trained loops",
            judge=flat(LOOPED),
        ),
        Claim(
            id="yang24.fig2.matches_12_layers",
            statement="It matches the standard 12-layer transformer (Figure 2, right).",
            tolerance=f"at no number of examples more than {MATCHES:g} above it, where predicting zero costs 1",
            judge=matches_unlooped,
        ),
        Claim(
            id="yang24.fig2.near_least_squares",
            statement="It closely aligns with the least squares solver (Figure 2, right).",
            tolerance=f"at no number of examples more than {2 * MATCHES:g} above it, where predicting zero costs 1",
            judge=near_least_squares,
        ),
        Claim(
            id="yang24.fig2.parameters",
            statement="It uses 1/12 of the transformer's parameters (Figure 2).",
            tolerance="share of the parameters at most 1.2 over the number of layers",
            judge=fewer_parameters,
        ),
    ),
)

fig3 = Figure(
    name="yang24.fig3",
    title="Linear regression: error by loops with input injection and with weight tying",
    settings=_settings(INJECTION),
    measure=measure,
    draw=draw_3,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig3.injection_flat",
            statement="With input injection the error stays flat beyond the trained loops (Section 4.1, Figure 3).",
            tolerance=f"error after the most loops at most {FLAT:g} times the error at the trained loops",
            judge=flat(LOOPED),
        ),
        Claim(
            id="yang24.fig3.tying_diverges",
            statement="Without it the model deteriorates beyond the trained loops (Section 4.1, Figure 3).",
            tolerance=f"error after the most loops at least {DIVERGED:g} times the error at the trained loops",
            judge=deteriorates(TIED),
        ),
    ),
)
