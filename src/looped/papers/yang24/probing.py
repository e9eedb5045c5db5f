"""Figure 8: what can be read off the states, layer by layer and loop by loop.

At `cpu` scale the models are those of figure 2; one seed of each is probed, about two minutes on two cores after that.
"""

from __future__ import annotations

from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish, reference_line
from looped.evaluation.probes import TARGETS, probe
from looped.experiment import Experiment
from looped.papers.yang24 import linear, linear_12_layers
from looped.papers.yang24.fixed_point import FIXED_POINT
from looped.papers.yang24.judges import at_least, at_most, center, measured, quotient
from looped.papers.yang24.lines import line
from looped.papers.yang24.measuring import EVALUATION, LOOPED, UNLOOPED, Sizes, finite, trained

REFINED = 1.25
"""Probe error at the last loop over the least that still counts as refined steadily."""
SHIFTED = 1.05
"""Probe error at the last layer over the least from which on the model has turned to other statistics."""
CONTROL = 0.5
"""Probe error over the control's that counts as read from the context."""
VARIANTS = {
    "smoke": FIXED_POINT["smoke"],
    "cpu": FIXED_POINT["cpu"],
    "paper": {LOOPED: linear("paper"), UNLOOPED: linear_12_layers("paper")},
}
PROBES: dict[str, dict[str, Any]] = {
    "smoke": {"loops": 2, "lengths": [2, 4], "probe_steps": 3, "probe_batch": 4, "hidden": 8, "prompts": 16},
    "cpu": {
        "loops": 12,
        "lengths": [2, 4, 6, 8, 10],
        "probe_steps": 300,
        "probe_batch": 64,
        "hidden": 64,
        "prompts": 512,
    },
    "paper": {
        "loops": 20,
        "lengths": list(range(1, 41)),
        "probe_steps": 5000,
        "probe_batch": 64,
        "hidden": 64,
        "prompts": 1280,
    },
}
"""The paper does not state steps and batch of the probes."""


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Probe error by layer or loop, averaged over context lengths, `[target][model]`, and the control's least."""
    variants = {label: Experiment.from_brief(one) for label, one in sizes["experiments"].items()}
    runs = trained(variants, sizes, settings, share=0.6)
    data: Data = {"targets": {name: {} for name in TARGETS}}
    for index, (label, members) in enumerate(runs.items()):
        experiment = members[0].experiment

        def report(done: int, steps: int, label=label, index=index) -> None:
            settings.progress(f"probing {label}", 0.6 + 0.4 * (index + done / steps) / len(runs))

        found = [
            probe(
                run.model(settings.device),
                experiment.task,
                points=experiment.train.points,
                loops=sizes["loops"] if experiment.model.loops > 1 else None,
                lengths=sizes["lengths"],
                hidden=sizes["hidden"],
                steps=sizes["probe_steps"],
                batch=sizes["probe_batch"],
                prompts=sizes["prompts"],
                seed=sizes["prompt_seed"],
                level=sizes["level"],
                progress=report,
            )
            for run in members
        ]
        for place, name in enumerate(TARGETS):
            each = [one.probed[place].by_loop for one in found]
            data["targets"][name][label] = {
                "x": each[0].x,
                **{key: [[finite(v) for v in getattr(one, key)] for one in each] for key in ("mean", "low", "high")},
                "control": min(min(one.control[place].by_loop.mean) for one in found),
                "zero": sum(found[0].probed[place].zero) / len(sizes["lengths"]),
            }
    return data


def best_error(data: Data) -> float:
    """The least probe error of any model and target, over that of answering zero."""
    curves = [curve for models in data["targets"].values() for curve in models.values()]
    return min(quotient(min(center(curve)), curve["zero"]) for curve in curves)


def refines(target: str):
    """A judge: the looped model's probe error ends near its least, below where it began."""

    def judge(data: Data) -> Measured:
        means = center(data["targets"][target][LOOPED])
        return measured(
            [quotient(means[-1], min(means))],
            means[-1] <= REFINED * min(means) and means[-1] < means[0],
            f"probe error {means[0]:.3g} after one loop, {means[-1]:.3g} after {len(means)}, least {min(means):.3g}",
        )

    return judge


def turns_away(target: str):
    """A judge: the unlooped model's probe error has its least before the last layer and rises again."""

    def judge(data: Data) -> Measured:
        means = center(data["targets"][target][UNLOOPED])
        best = 1 + means.index(min(means))
        note = f"least at layer {best} of {len(means)}; the paper: around the 10th"
        return at_least([quotient(means[-1], min(means))], SHIFTED, note)

    return judge


def beats_control(data: Data) -> Measured:
    """Least probe error over the control's least, the worst of all targets and models."""
    each = {
        f"{target}, {label}": quotient(min(center(curve)), curve["control"])
        for target, models in data["targets"].items()
        for label, curve in models.items()
    }
    return at_most([max(each.values())], CONTROL, ", ".join(f"{name}: {value:.3g}" for name, value in each.items()))


def draw(figure: Any, data: Data) -> None:
    """A panel for each target; the control's least dashed."""
    figure.set_size_inches(7.2, 3.2)
    for ax, (target, models) in zip(figure.subplots(1, len(data["targets"])), data["targets"].items(), strict=True):
        for index, label in enumerate((UNLOOPED, LOOPED)):
            curve = models[label]
            line(ax, index, curve, label)
            ends = [curve["x"][0], curve["x"][-1]]
            reference_line(ax, ends, [curve["control"]] * 2, f"control, {label}", color=f"C{index}")
        ax.set(xlabel="layer / loop iteration", ylabel="mean squared error", title=f"{target} probe error")
        ax.set_ylim(bottom=0)
    finish(figure)


def _refines(target: str, name: str) -> Claim:
    return Claim(
        id=f"yang24.fig8.{name}.refined",
        statement=f"The looped transformer steadily refines its representation over loops (Figure 8); {target}.",
        tolerance=f"probe error at the last loop at most {REFINED:g} times its least, and below that of the first loop",
        judge=refines(target),
    )


def _turns(target: str, name: str) -> Claim:
    return Claim(
        id=f"yang24.fig8.{name}.unlooped_turns",
        statement=f"The standard transformer decodes it best before its last layer (Figure 8); {target}.",
        tolerance=f"probe error at the last layer at least {SHIFTED:g} times its least",
        judge=turns_away(target),
    )


_TARGETS = (("X'y", "gradient"), ("w_ols", "least_squares"))

fig8 = Figure(
    name="yang24.fig8",
    title="Probes of X'y and of the least squares weights, by layer and by loop",
    settings={
        scale: {
            **EVALUATION[scale],
            "seeds": 1,
            **PROBES[scale],
            "experiments": {label: one.brief() for label, one in members.items()},
        }
        for scale, members in VARIANTS.items()
    },
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        *(_refines(*one) for one in _TARGETS),
        *(_turns(*one) for one in _TARGETS),
        Claim(
            id="yang24.fig8.control",
            statement="Probes use the context: the control task's error is far larger (Appendix F, Figure 8).",
            tolerance=f"least probe error at most {CONTROL:g} times the control's least, for each model and target",
            judge=beats_control,
        ),
    ),
)
