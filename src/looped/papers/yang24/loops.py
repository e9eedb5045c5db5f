"""Figures 2 and 3: what becomes of the error far beyond the trained loops, with input injection and without.

On two cores at `cpu` scale Figure 2 takes about ten minutes, Figure 3 three to five.
"""

from dataclasses import replace

from looped.experiment import Experiment, Scale
from looped.functional.schedules import Ramp, RandomDepth
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import linear, linear_12_layers, tied
from looped.papers.yang24.trainings import around
from looped.papers.yang24.variants import (
    BEFORE_DRIFT,
    DIVERGED,
    EVALUATION,
    FLAT,
    LEAST_SQUARES,
    LOOPED,
    MATCHES,
    PRINTED_MATCH,
    UNLOOPED,
    only_least_squares,
    second_half,
)
from looped.studies import Cell, Learned, Panels, Published, Study, claim
from looped.studies.quantities import at, curve, drift, gap
from looped.studies.study import Cells
from looped.tasks.regression import LinearRegression

TIED = "weight tying"


def fixed_point_models(scale: Scale) -> dict[Cell, Experiment]:
    """The looped model with b = 30, T = 15, and the one with layers."""
    looped = around(linear(scale), 30, 15) if scale == "paper" else linear(scale)
    return {Cell(model=LOOPED): looped, Cell(model=UNLOOPED): linear_12_layers(scale)}


def injection_models(scale: Scale) -> Cells:
    """The looped model, and the same one without input injection."""
    looped, without = linear(scale), tied(scale)
    if scale == "cpu":
        looped, without = early_loops(looped), early_loops(without)
    return {Cell(model=LOOPED): looped, Cell(model=TIED): without}


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


looped_over_unlooped = curve(model=LOOPED) / curve(model=UNLOOPED)
FIG2 = Study(
    name="yang24.fig2",
    title="Linear regression: a fixed point beyond the trained loops, and error by examples against 12 layers",
    cells=fixed_point_models,
    measure=lambda scale: replace(EVALUATION[scale], baselines=only_least_squares),
    panels=(
        Panels(y="by_loops", only={"model": LOOPED}, mark_trained=True, most=100, width=3.4),
        Panels(y="by_examples", top=1.5),
    ),
    learned=Learned(),
    claims=(
        claim(
            "fixed_point",
            "The looped transformer reaches a stable fixed point beyond the trained loops (Figure 2, left).",
            drift(model=LOOPED) <= FLAT,
        ),
        claim(
            "matches_12_layers",
            "It matches the standard 12-layer transformer (Figure 2, right).",
            (second_half(looped_over_unlooped).geomean() <= PRINTED_MATCH)
            & (looped_over_unlooped.last() <= PRINTED_MATCH),
            remark="on a log scale, from k = d on; the bound is the ratio at k = 40 in the authors' logs",
            beside={"largest ratio of errors at any k": looped_over_unlooped.largest()},
            published=(
                Published(what="looped, k = 20", number=".0242", ours=at(20, model=LOOPED)),
                Published(what="looped, k = 40", number="7.8e-4", ours=at(40, model=LOOPED)),
                Published(what="12 layers, k = 20", number=".0204", ours=at(20, model=UNLOOPED)),
                Published(what="12 layers, k = 40", number="4.8e-4", ours=at(40, model=UNLOOPED)),
            ),
        ),
        claim(
            "near_least_squares",
            "It closely aligns with the least squares solver (Figure 2, right).",
            gap(curve(model=LOOPED), curve(model=LEAST_SQUARES)) <= 2 * MATCHES,
        ),
        claim(
            "parameters",
            "It uses 1/12 of the transformer's parameters (Figure 2).",
            curve("parameters", model=LOOPED) / curve("parameters", model=UNLOOPED) <= 1.2 / 12,
            remark="the published counts leave out positions and reading in and out",
            published=(
                Published(what="looped, million weights", number=".79", ours=curve("parameters", model=LOOPED) / 1e6),
                Published(
                    what="12 layers, million weights", number="9.48", ours=curve("parameters", model=UNLOOPED) / 1e6
                ),
            ),
        ),
    ),
)

FIG3 = replace(
    FIG2,
    name="yang24.fig3",
    title="Linear regression: error by loops with input injection and with weight tying",
    cells=injection_models,
    panels=Panels(y="by_loops", mark_trained=True, most=100, width=4.0),
    learned=BEFORE_DRIFT,
    claims=(
        claim(
            "injection_flat",
            "With input injection the error stays flat beyond the trained loops (Section 4.1, Figure 3).",
            drift(model=LOOPED) <= FLAT,
        ),
        claim(
            "tying_diverges",
            "Without it the model deteriorates beyond the trained loops (Section 4.1, Figure 3).",
            drift(model=TIED) >= DIVERGED,
        ),
    ),
)
