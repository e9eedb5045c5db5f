"""Figures 6, 15 and 16: models trained on linear regression, evaluated under shifts of the prompts.

At `cpu` scale Figure 6 trains three models, Figures 15 and 16 share six: two seeds at 1000 steps, about a quarter of an
hour on two cores for all six. Loop counts are random there, up to b, so that models are stable where they are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from looped.baselines.linear import least_squares
from looped.experiment import Experiment, Scale, training
from looped.functional.schedules import RandomDepth
from looped.models.base import LoopedModel
from looped.papers.yang24 import linear, linear_12_layers
from looped.papers.yang24.trainings import around, shaped, short
from looped.papers.yang24.variants import (
    GRID_STEPS,
    LEAST_SQUARES,
    LOOPED,
    SHORT,
    TWO_SEEDS,
    UNLOOPED,
    evaluation,
    with_loops,
)
from looped.studies import Cell, Context, Curves, Learned, Panels, Study, Table, claim
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity
from looped.studies.quantities import along, area, best, curve, mean, within_factor
from looped.studies.study import Cells
from looped.tasks import shifts
from looped.tasks.shifts import Shift

Shifts = tuple[tuple[str, Shift], ...]
SKEWED, HALF, NOISY = "skewed covariance", "d/2-dimensional subspace", "noisy output"
ORTHOGONAL, EQUAL, ORTHANTS = "orthogonal query", "query matches an example", "different orthants"
BY_2, BY_3 = "x scaled by 2", "x scaled by 3"
FACTORS = {"1/3": 1 / 3, "1/2": 1 / 2, "2": 2.0, "3": 3.0}
DISTRIBUTIONS: Shifts = (
    (SKEWED, shifts.SkewedCovariance()),
    (HALF, shifts.HalfSubspace()),
    (NOISY, shifts.NoisyOutputs()),
    (ORTHOGONAL, shifts.OrthogonalQuery()),
    (EQUAL, shifts.EqualQuery()),
    (ORTHANTS, shifts.DifferentOrthants()),
)
SCALED: Shifts = (
    *((f"x scaled by {name}", shifts.ScaledX(factor=factor)) for name, factor in FACTORS.items()),
    *((f"y scaled by {name}", shifts.ScaledLabels(factor=factor)) for name, factor in FACTORS.items()),
)
SCALED_AT_SMOKE: Shifts = tuple(pair for pair in SCALED if pair[0] in (BY_2, "y scaled by 1/2"))
SHOWN_FIRST: Shifts = tuple(pair for pair in DISTRIBUTIONS + SCALED if pair[0] in (SKEWED, NOISY, BY_3))
"""The shifts of Figure 6."""
FEW = {"smoke": ([2], [4]), "cpu": ([8], [8, 16]), "paper": ([12], [20, 30, 50, 100])}
MANY = {"smoke": ([1, 2], [4]), "cpu": ([1, 4, 8], [8, 16, 24]), "paper": ([1, 4, 12, 20], [20, 30, 50, 100])}
"""Depths and b of Figure 6, and of Figures 15 and 16."""
MATCHES_DEEPEST = 1.25
"""Mean error over that of the deepest unlooped model that still counts as a match."""
ALIKE = 2.0
"""Ratio of mean errors, either way, that counts as similar."""


def models(scale: Scale, depths: Sequence[int], loops: Sequence[int]) -> Cells:
    """Unlooped models of some depths and looped ones of some b; at `paper` scale all have the steps of the grids."""
    cells = {
        **{Cell(model=UNLOOPED, L=count): shaped(linear_12_layers(scale), layers=count) for count in depths},
        **{Cell(model=LOOPED, b=b): looped_with(scale, b) for b in loops},
    }
    if scale == "paper":
        return {cell: short(experiment, steps=GRID_STEPS) for cell, experiment in cells.items()}
    return {cell: training(experiment, **SHORT[scale]) for cell, experiment in cells.items()}


def looped_with(scale: Scale, loops: int) -> Experiment:
    """Linear regression trained to b = `loops`."""
    if scale == "paper":
        return around(linear("paper"), loops, 15)
    base = with_loops(linear(scale), loops, 2 if scale == "smoke" else 4, every=None)
    return training(base, depth=RandomDepth(low=base.train.window - loops, high=0))


@dataclass(frozen=True, kw_only=True)
class ShiftedCurves(Curves):
    """Error by examples under each shift, in units of the unshifted task.

    For every cell and seed, with the label `shift`: `by_examples`, and `unshifted`, the last error without a shift.
    """

    shifts: Shifts
    """Name and shift."""

    @property
    def evaluations(self) -> int:
        """Without a shift, and under each; some shifts have queries of their own, which cost twice."""
        return 1 + 2 * len(self.shifts)

    def add_model(self, table: Table, cell: Cell, seed: int, experiment: Experiment, model: LoopedModel) -> None:
        """One model's curve under every shift."""
        loops = self.far(experiment)
        unshifted = self.errors(model, experiment, loops=loops).values[:, -1].mean().item()
        for name, shift in self.shifts:
            labels = Cell(cell, shift=name)
            errors = self.errors(model, experiment, loops=loops, shifts=(shift,))
            self.add_errors(table, labels, errors, experiment.task, seed=seed)
            table.add(labels, "unshifted", unshifted, seed=seed)

    def add_baselines(self, table: Table, cells: Cells, context: Context) -> None:
        """Least squares under every shift."""
        experiment = next(iter(cells.values()))
        for name, shift in self.shifts:
            errors = self.errors(least_squares, experiment, shifts=(shift,), dtype=torch.float64)
            self.add_errors(table, Cell(model=LEAST_SQUARES, shift=name), errors, experiment.task)


def evaluated_under(scale: Scale, named: Shifts) -> ShiftedCurves:
    """How models are evaluated under these shifts."""
    return evaluation(scale, ShiftedCurves, seeds=TWO_SEEDS[scale].seeds, shifts=named)


def looped_over_unlooped(shift: str, **depth: object) -> Quantity:
    """Mean error over examples of a looped model over that of an unlooped one, the deepest unless `L` is given."""
    return area(model=LOOPED, shift=shift) / area(model=UNLOOPED, shift=shift, **{"L": max, **depth})


def depth_helps(shift: str, name: str) -> tuple[Claim, Claim]:
    """Deeper unlooped models are better, and the best looped one is about as good as the deepest."""
    return (
        claim(
            f"{name}.deeper_better",
            f"For the standard transformer every larger L is better (Appendix D, Figure 15); {shift}.",
            along(area(model=UNLOOPED, shift=shift), over="L").successive().largest() < 1,
        ),
        claim(
            f"{name}.looped_matches",
            f"The looped transformer matches or outperforms even L = 20 (Appendix D, Figure 15); {shift}.",
            best(looped_over_unlooped(shift), over="b") <= MATCHES_DEEPEST,
            remark="at the best b, since the figure has four and names none",
        ),
    )


def alike(shift: str, name: str) -> Claim:
    """Looped models err like the deepest unlooped one."""
    statement = f"The looped transformer performs similarly to the standard one (Appendix D, Figure 15); {shift}."
    return claim(f"{name}.alike", statement, within_factor(mean(looped_over_unlooped(shift), over="b"), ALIKE))


PANELS = Panels(
    y="by_examples", column="shift", dash="model", wrap=3, cut_references=True, share_y=False, legend_columns=3
)
PEAK = "the peak is the largest error within d/4 of d = 20 examples"


def noisy_peak(**labels: Any) -> Quantity:
    """The peak under label noise."""
    return curve(shift=NOISY, **labels).largest((15, 25))


four_layers_peak = noisy_peak(model=UNLOOPED, L=4)
FIG6 = Study(
    name="yang24.fig6",
    title="Linear regression under skewed covariance, noisy labels and scaled x",
    cells=lambda scale: models(scale, *FEW[scale]),
    measure=lambda scale: evaluated_under(scale, SHOWN_FIRST),
    panels=PANELS,
    learned=Learned(of="unshifted", best=0.0),
    claims=(
        claim(
            "skewed_better",
            "The looped transformer handles skewed covariance better (Section 5.2, Figure 6a).",
            mean(looped_over_unlooped(SKEWED), over="b") < 1,
        ),
        claim(
            "noisy_peak",
            "Under label noise it has a reduced peak in the double descent curve (Section 5.2, Figure 6b).",
            mean(noisy_peak(model=LOOPED) / noisy_peak(model=UNLOOPED), over="b") <= 1,
            remark=PEAK,
        ),
        claim(
            "scaled_worse",
            "With x scaled by 3 it underperforms the unlooped transformer (Section 5.2, Figure 6c).",
            mean(looped_over_unlooped(BY_3), over="b") >= 1,
        ),
    ),
)


FIG15 = replace(
    FIG6,
    name="yang24.fig15",
    title="Linear regression under six shifts: transformers of several depths, looped ones of several b",
    cells=lambda scale: models(scale, *MANY[scale]),
    measure=lambda scale: evaluated_under(scale, DISTRIBUTIONS),
    claims=(
        *depth_helps(SKEWED, "skewed"),
        *depth_helps(HALF, "subspace"),
        *depth_helps(ORTHANTS, "orthants"),
        alike(ORTHOGONAL, "orthogonal"),
        alike(EQUAL, "equal"),
        claim(
            "noisy.peak_of_4_layers",
            "Under label noise a transformer with L = 4 has a reduced peak at d examples (Appendix D, Figure 15).",
            (four_layers_peak / noisy_peak(model=UNLOOPED, L=12) < 1)
            & (four_layers_peak / noisy_peak(model=UNLOOPED, L=20) < 1),
            remark=PEAK,
        ),
        claim(
            "noisy.looped_peak",
            "The looped transformer has one too, the more so the larger b is (Appendix D, Figure 15).",
            (mean(noisy_peak(model=LOOPED), over="b") / noisy_peak(model=UNLOOPED, L=20) < 1)
            & (noisy_peak(model=LOOPED, b=100) / noisy_peak(model=LOOPED, b=20) < 1),
            remark=f"{PEAK}; below that of L = 20, and of b = 100 below that of b = 20",
        ),
    ),
)

over_four_layers = mean(area(model=LOOPED) / area(model=UNLOOPED, L=4), over="b")
scaled_y = along(over_four_layers, over="shift", among=[f"y scaled by {name}" for name in FACTORS])
FIG16 = replace(
    FIG15,
    name="yang24.fig16",
    title="Linear regression with x or w scaled: transformers of several depths, looped ones of several b",
    measure=lambda scale: evaluated_under(scale, SCALED_AT_SMOKE if scale == "smoke" else SCALED),
    panels=replace(PANELS, wrap=4),
    claims=(
        claim(
            "scaled_by_2",
            "With x scaled by 2 the looped transformer performs like a standard one with L = 4 (Appendix D).",
            within_factor(mean(looped_over_unlooped(BY_2, L=4), over="b"), ALIKE),
        ),
        claim(
            "scaled_y",
            "With y (that is, w) scaled the looped transformer performs like a standard one with fewer layers "
            "(Appendix D, Figure 16).",
            (scaled_y.largest() <= ALIKE) & (scaled_y.least() >= 1 / ALIKE),
            remark="L = 4, as for x scaled by 2; for every factor",
        ),
    ),
)
