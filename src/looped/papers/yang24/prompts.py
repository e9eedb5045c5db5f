"""Figures 5 and 14: error against the number of distinct prompts seen in training.

Prompts are drawn once, before training, and repeated; there is no curriculum and no schedule of loops (Appendix C).
The error is that of the query after k examples. Of several learning rates the best is shown, as in the paper. At `cpu`
scale figure 5 has two dimensions and takes about ten minutes on two cores; figure 14 adds as long again for three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.panels import finish
from looped.experiment import Experiment, Muon, OptimizerConfig
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import Scale, linear, linear_12_layers
from looped.papers.yang24.judges import best_error, center, measured, quotient, seeds
from looped.papers.yang24.lines import line
from looped.papers.yang24.measuring import EVALUATION, Sizes, judged, trained, with_loops
from looped.papers.yang24.trainings import as_published, training
from looped.tasks.regression import LinearRegression

Kind = Literal["looped", "unlooped"]
LABELS: dict[Kind, str] = {"unlooped": "transformer", "looped": "looped transformer"}
FEWER = 0.9
"""Looped over unlooped error, as a geometric mean over numbers of prompts, that counts as better."""
CPU_STEPS = {2: 2500, 3: 1500}
"""By dimension."""
PAPER_POOLS = [1000, 2000, 5000, 10_000, 20_000, 40_000, 80_000]


def variant(base: Experiment, d: int, points: int) -> Experiment:
    """Linear regression of dimension d on a fixed set of prompts (how many is set later), all dimensions active."""
    assert isinstance(base.model, DecoderConfig)
    train = replace(base.train, points=points, dims=None, active_points=None)
    return replace(base, task=LinearRegression(d=d), model=replace(base.model, d=d), train=train)


def pair(scale: Scale, d: int, points: int) -> dict[str, Data]:
    """The looped and the unlooped experiment of one dimension, as data."""
    looped, unlooped = linear(scale), linear_12_layers(scale)
    if scale == "paper":
        looped, unlooped = with_loops(as_published(looped), 30, 15, every=None), as_published(unlooped)
    looped, unlooped = variant(looped, d, points), variant(unlooped, d, points)
    return {
        "looped": _cheaper(looped, scale).brief(),
        "unlooped": _cheaper(unlooped, scale).brief(),
    }


def _cheaper(experiment: Experiment, scale: str) -> Experiment:
    if scale == "paper":
        return experiment
    if scale == "smoke":
        return training(experiment, steps=6)
    # narrow and long: one layer cannot learn this many prompts by heart, eight can
    assert isinstance(experiment.model, DecoderConfig)
    narrow = replace(experiment, model=replace(experiment.model, width=16))
    return training(narrow, steps=CPU_STEPS[experiment.task.d], batch=32, checkpoint_every=500)


def _at_rate(optimizer: OptimizerConfig, rate: float) -> OptimizerConfig:
    """Adam's rate as given, and Muon's in proportion."""
    if isinstance(optimizer, Muon):
        muon = optimizer.muon_learning_rate * rate / optimizer.learning_rate
        return replace(optimizer, learning_rate=rate, muon_learning_rate=muon)
    return replace(optimizer, learning_rate=rate)


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Error after k examples by number of distinct prompts, for every dimension and both models."""
    wanted = {
        f"{LABELS[kind]}, d = {d}, {pool} prompts, rate {rate:g}": (kind, d, pool, rate)
        for d, panel in sizes["panels"].items()
        for pool in panel["pools"]
        for kind in LABELS
        for rate in panel["rates"]
    }
    variants = {}
    for label, (kind, d, pool, rate) in wanted.items():
        one = Experiment.from_brief(sizes["panels"][d]["experiments"][kind])
        variants[label] = training(one, pool=pool, optimizer=_at_rate(one.train.optimizer, rate))
    found = judged(trained(variants, sizes, settings), sizes, settings)
    data: Data = {"panels": {}}
    for d, panel in sizes["panels"].items():
        data["panels"][d] = {"k": None}
        for kind in LABELS:
            chosen = []
            for pool in panel["pools"]:
                names = [name for name, cell in wanted.items() if cell[:3] == (kind, d, pool)]
                chosen.append(min((found[name]["by_examples"] for name in names), key=lambda one: center(one)[-1]))
            data["panels"][d]["k"] = chosen[0]["x"][-1]
            data["panels"][d][kind] = {
                "x": panel["pools"],
                **{
                    key: [[one[key][seed][-1] for one in chosen] for seed in range(sizes["seeds"])]
                    for key in ("mean", "low", "high")
                },
            }
    return data


def improvement(panel: Data) -> list[float]:
    """Looped over unlooped error, the geometric mean over numbers of prompts, for each seed."""
    pairs = zip(seeds(panel["looped"]), seeds(panel["unlooped"]), strict=True)
    found = []
    for looped, unlooped in pairs:
        each = [quotient(a, b) for a, b in zip(looped, unlooped, strict=True)]
        found.append(math.exp(sum(map(math.log, each)) / len(each)) if all(map(math.isfinite, each)) else math.inf)
    return found


def looped_better(dims: Sequence[str] | None = None):
    """A judge: with few distinct prompts the looped model errs less, in every dimension."""

    def judge(data: Data) -> Measured:
        chosen = dims or list(data["panels"])
        values = [value for d in chosen for value in improvement(data["panels"][d])]
        means = {d: sum(improvement(data["panels"][d])) / len(improvement(data["panels"][d])) for d in chosen}
        notes = []
        for d in chosen:
            panel = data["panels"][d]
            rows = zip(panel["looped"]["x"], center(panel["looped"]), center(panel["unlooped"]), strict=True)
            shown = ", ".join(f"{pool}: {a:.3g} for {b:.3g}" for pool, a, b in rows)
            notes.append(f"d = {d}, looped for unlooped error by prompts: {shown}")
        return measured(values, all(mean <= FEWER for mean in means.values()), "; ".join(notes))

    return judge


def draw(figure: Any, data: Data) -> None:
    """A panel for each dimension, the number of prompts logarithmic."""
    panels = data["panels"]
    figure.set_size_inches(max(4.4, 2.6 * len(panels)), 3.2)
    for ax, (d, panel) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for index, (kind, label) in enumerate(LABELS.items()):
            line(ax, index, panel[kind], label, marker="o", markersize=3.5)
        ax.set_xscale("log")
        pools = panel["looped"]["x"]
        ax.set_xticks(pools, [f"{pool // 1000}k" if pool % 1000 == 0 else str(pool) for pool in pools])
        ax.minorticks_off()
        ax.set(xlabel="distinct prompts seen in training", ylabel="squared error", title=f"d = {d}, k = {panel['k']}")
        ax.set_ylim(bottom=0)
    finish(figure)


def _settings(panels: dict[Scale, dict[int, list[float]]]) -> dict[str, dict[str, Any]]:
    """For each scale its dimensions and, for each, the learning rates tried."""
    pools = {"smoke": [8, 32], "cpu": [512, 1024], "paper": PAPER_POOLS}
    return {
        scale: {
            **EVALUATION[scale],
            "panels": {
                str(d): {"experiments": pair(scale, d, 2 * d + 1), "pools": pools[scale], "rates": rates}
                for d, rates in dims.items()
            },
        }
        for scale, dims in panels.items()
    }


SMOKE_RATE, CPU_RATES = [5e-3], [5e-3, 2.5e-3]
"""The recipes' own, for what Muon leaves to Adam."""

fig5 = Figure(
    name="yang24.fig5",
    title="Linear regression: error against the number of distinct prompts seen in training",
    settings=_settings({"smoke": {3: SMOKE_RATE}, "cpu": {2: CPU_RATES}, "paper": {10: [1e-5, 1e-4]}}),
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig5.fewer_prompts",
            statement="The looped transformer learns from fewer distinct prompts (Section 5.2, Figure 5).",
            tolerance=f"looped / unlooped error at most {FEWER:g}, the geometric mean over numbers of prompts",
            judge=looped_better(),
        ),
    ),
)

fig14 = Figure(
    name="yang24.fig14",
    title="Error against the number of distinct prompts seen in training, in three dimensions",
    settings=_settings(
        {
            "smoke": {2: SMOKE_RATE, 3: SMOKE_RATE},
            "cpu": {2: CPU_RATES, 3: CPU_RATES},
            "paper": {5: [1e-4], 10: [1e-5, 1e-4], 20: [1e-5, 1e-4, 1e-3]},
        }
    ),
    measure=measure,
    draw=draw,
    best_error=best_error,
    claims=(
        Claim(
            id="yang24.fig14.fewer_prompts",
            statement="In every dimension the looped transformer learns from fewer prompts (Appendix C, Figure 14).",
            tolerance=f"in each, looped / unlooped error at most {FEWER:g}, the geometric mean over numbers of prompts",
            judge=looped_better(),
        ),
    ),
)
