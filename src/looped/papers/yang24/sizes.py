"""Figure 7: layers, width and heads of the looped model, and layers of the unlooped one.

At `cpu` scale 13 variants of two seeds at 150 steps, about five minutes on two cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y
from looped.experiment import Experiment
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import linear, linear_12_layers
from looped.papers.yang24.judges import best_error, center, last, loops_to, measured, quotient
from looped.papers.yang24.lines import line, loops_axis, trained_mark
from looped.papers.yang24.measuring import (
    EVALUATION,
    Sizes,
    judged,
    layers,
    trained,
)
from looped.papers.yang24.trainings import around, training

SHOWN = 100
"""Loops that the paper draws."""
SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {
        **EVALUATION["smoke"],
        "looped": training(linear("smoke"), steps=6).brief(),
        "unlooped": training(linear_12_layers("smoke"), steps=6).brief(),
        "looped_layers": [1, 2],
        "unlooped_layers": [1, 2],
        "widths": [8],
        "heads": [1],
        "reference_layers": 2,
    },
    "cpu": {
        **EVALUATION["cpu"],
        "seeds": 2,
        "prompts": 256,
        "looped": training(linear("cpu"), steps=150, batch=32).brief(),
        "unlooped": training(linear_12_layers("cpu"), steps=150, batch=32).brief(),
        "looped_layers": [1, 2, 4],
        "unlooped_layers": [1, 2, 4, 8],
        "widths": [16, 32, 96],
        "heads": [1, 2, 16],
        "reference_layers": 4,
    },
    "paper": {
        **EVALUATION["paper"],
        "looped": around(linear("paper"), 30, 15).brief(),
        "unlooped": linear_12_layers("paper").brief(),
        "looped_layers": [1, 2, 4],
        "unlooped_layers": [1, 2, 4, 8, 12, 20],
        "widths": [64, 128, 384, 512],
        "heads": [2, 4, 16, 32],
        "reference_layers": 8,
    },
}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Every variant: `looped.L`, `unlooped.L`, `width.D`, `heads.h`."""
    looped, unlooped = Experiment.from_brief(sizes["looped"]), Experiment.from_brief(sizes["unlooped"])
    assert isinstance(looped.model, DecoderConfig)
    variants = {f"looped.{count}": layers(looped, count) for count in sizes["looped_layers"]}
    variants |= {f"unlooped.{count}": layers(unlooped, count) for count in sizes["unlooped_layers"]}
    variants |= {f"width.{one}": replace(looped, model=replace(looped.model, width=one)) for one in sizes["widths"]}
    variants |= {f"heads.{one}": replace(looped, model=replace(looped.model, heads=one)) for one in sizes["heads"]}
    return {
        "models": judged(trained(variants, sizes, settings), sizes, settings),
        "width": looped.model.width,
        "heads": looped.model.heads,
        "reference_layers": sizes["reference_layers"],
    }


def family(data: Data, kind: str) -> dict[int, Data]:
    """The variants of one kind by their number, ascending; the looped model of one layer is in every family of it."""
    found = {int(name.partition(".")[2]): one for name, one in data["models"].items() if name.startswith(f"{kind}.")}
    if kind in ("width", "heads"):
        found[data[kind]] = data["models"]["looped.1"]
    return dict(sorted(found.items()))


def faster_with_layers(data: Data) -> Measured:
    """Loops needed for twice the error of one layer at its trained loops fall as layers are added."""
    found = family(data, "looped")
    one = found[1]
    target = 2 * center(one["by_loops"])[one["by_loops"]["x"].index(one["trained_loops"])]
    needed = [loops_to(model["by_loops"], target) for model in found.values()]
    note = "loops needed by layers: " + ", ".join(f"{count}: {n:g}" for count, n in zip(found, needed, strict=True))
    falls = all(after <= before for before, after in itertools.pairwise(needed)) and needed[-1] < needed[0]
    return measured([quotient(needed[-1], needed[0])], falls, note)


def more_loops_than_layers(data: Data) -> Measured:
    """Loops that one layer needs for the error of the unlooped reference, over its layers."""
    count = data["reference_layers"]
    error = sum(last(data["models"][f"unlooped.{count}"]["by_examples"])) / len(
        last(data["models"][f"unlooped.{count}"]["by_examples"])
    )
    needed = loops_to(data["models"]["looped.1"]["by_loops"], error)
    note = f"{needed:g} loops reach the error {error:.3g} of {count} layers; the paper: roughly 20 loops for 8 layers"
    return measured([needed / count], needed / count >= 1 and math.isfinite(needed), note)


def middle_heads_best(data: Data) -> Measured:
    """Error with the fewest and with the most heads, over the error with the recipe's own number."""
    found = {count: _final(model) for count, model in family(data, "heads").items()}
    sides = [quotient(found[count], found[data["heads"]]) for count in (min(found), max(found))]
    return measured(sides, min(sides) >= 1, _listed("heads", found))


def width_saturates(data: Data) -> Measured:
    """Error falls with the width up to the recipe's own, and no more than by a half beyond."""
    found = {width: _final(model) for width, model in family(data, "width").items()}
    up_to = [error for width, error in found.items() if width <= data["width"]]
    falls = all(after <= before for before, after in itertools.pairwise(up_to))
    rest = quotient(found[max(found)], found[data["width"]])
    return measured([rest], falls and rest >= 0.5, _listed("width", found))


def _final(model: Data) -> float:
    errors = last(model["by_loops"])
    return sum(errors) / len(errors)


def _listed(what: str, found: dict[int, float]) -> str:
    return f"error by {what}: " + ", ".join(f"{key}: {value:.3g}" for key, value in found.items())


def draw(figure: Any, data: Data) -> None:
    """Left: looped by loops, unlooped at their depth; right: looped models of other widths and heads."""
    figure.set_size_inches(7.6, 3.6)
    left, right = figure.subplots(1, 2)
    looped, unlooped = family(data, "looped"), family(data, "unlooped")
    for index, (count, model) in enumerate(looped.items()):
        for ax in (left, right):
            line(ax, index, model["by_loops"], f"looped, L = {count}")
    trained_mark(left, 0, looped[1]["trained_loops"])
    _markers(left, unlooped)
    styles: Sequence[tuple[str, str]] = (("width", "D"), ("heads", "h"))
    for offset, (kind, letter) in enumerate(styles):
        others = [item for item in family(data, kind).items() if item[0] != data[kind]]
        for index, (count, model) in enumerate(others):
            style = {"linestyle": ((0, (4, 1.5)), (0, (1, 1.2)))[offset], "linewidth": 1.1}
            line(right, index + 3 - offset, model["by_loops"], f"L = 1, {letter} = {count}", **style)
    most = looped[1]["by_loops"]["x"][-1]
    for ax in (left, right):
        loops_axis(ax, most=min(most, SHOWN))
    right.set_ylabel("")
    finish(figure, columns=4)


def _markers(ax: Any, unlooped: dict[int, Data]) -> None:
    errors = [_mean_last(model) for model in unlooped.values()]
    ax.plot(list(unlooped), errors, "s", color="C3", markersize=4, label="unlooped, at L layers")
    log_y(ax)


def _mean_last(model: Data) -> float:
    values = last(model["by_examples"])
    return sum(values) / len(values)


fig7 = Figure(
    name="yang24.fig7",
    title="Linear regression: layers of looped and unlooped models, widths and heads of looped ones",
    settings=SETTINGS,
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig7.layers_converge_faster",
            statement="As L grows the looped model converges in fewer loops (Section 5.3, Figure 7 left).",
            tolerance="loops to twice the error of one layer never rise with L, and fall from the least to the most",
            judge=faster_with_layers,
        ),
        Claim(
            id="yang24.fig7.more_loops_than_layers",
            statement="One looped layer needs more loops than a standard transformer has layers, about 20 for 8 "
            "(Section 5.3, Figure 7 left).",
            tolerance="it reaches that transformer's error, after at least as many loops as it has layers",
            judge=more_loops_than_layers,
        ),
        Claim(
            id="yang24.fig7.width_saturates",
            statement="A larger D helps until it saturates at 256 (Section 5.3, Figure 7 right).",
            tolerance="error falls with D up to the recipe's, and the largest D does not halve it again",
            judge=width_saturates,
        ),
        Claim(
            id="yang24.fig7.middle_heads_best",
            statement="The error falls as h goes from 2 to 8 and rises from 8 to 32 (Section 5.3, Figure 7 right).",
            tolerance="error with the fewest and with the most heads at least that with the recipe's own number",
            judge=middle_heads_best,
        ),
    ),
)
