"""Figures 5 and 14: error against the number of distinct prompts seen in training.

Prompts are drawn once, before training, and repeated; there is no curriculum and no schedule of loops (Appendix C).
The error is that of the query after k = 2d examples. Of several learning rates the best is shown, as in the paper. At
`paper` scale there is one for each dimension and model, and our optimiser in place of 500k steps of Adam
(`trainings.as_published`): `PAPER_STEPS`, `RATES`. On two cores at `cpu` scale Figure 5, in two dimensions, takes about
ten minutes; Figure 14 adds as long again for three.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from looped.experiment import Experiment, Muon, OptimizerConfig, Scale, training
from looped.papers.yang24 import linear, linear_12_layers
from looped.papers.yang24.trainings import short
from looped.papers.yang24.variants import LOOPED, UNLOOPED, evaluation, with_loops
from looped.studies import Axis, Cell, Context, Curves, Learned, Panels, Study, Table, claim
from looped.studies.expressions import Quantity
from looped.studies.quantities import curve, loops_to, worst
from looped.studies.study import Cells
from looped.studies.table import Series
from looped.tasks.regression import LinearRegression

POOLS: dict[str, tuple[int, ...]] = {
    "smoke": (8, 32),
    "cpu": (512, 1024),
    "paper": (1000, 2000, 5000, 10_000, 20_000, 40_000, 80_000),
}
"""Numbers of distinct prompts: n."""
CPU_STEPS = {2: 2500, 3: 1500}
"""By dimension."""
PAPER_STEPS = 6000
"""Steps of 64 prompts of both models: 8 to 35 seconds on one H200."""
RATES: dict[str, dict[int, Mapping[str, Sequence[float]]]] = {
    "smoke": {d: dict.fromkeys((UNLOOPED, LOOPED), (5e-3,)) for d in (2, 3)},
    "cpu": {d: dict.fromkeys((UNLOOPED, LOOPED), (5e-3, 2.5e-3)) for d in (2, 3)},
    "paper": {
        5: {UNLOOPED: (3e-3,), LOOPED: (3e-3,)},
        10: {UNLOOPED: (3e-3,), LOOPED: (3e-3,)},
        20: {UNLOOPED: (3e-3,), LOOPED: (3e-3,)},
    },
}
"""Scale -> dimension -> model -> learning rates that are tried, for what Muon leaves to Adam; Muon's is in proportion.

Those of `paper` scale are untuned: the rate of `trainings.PAPER`. Seed 100 is the one to choose others by; seed 0 is
judged.
"""


def few_prompts(scale: Scale, dims: Sequence[int]) -> Cells:
    """Both models for every dimension, number of prompts and learning rate."""
    return {
        Cell(model=model, d=d, n=pool, rate=rate): training(
            base, pool=pool, optimizer=at_rate(base.train.optimizer, rate)
        )
        for d in dims
        for pool in POOLS[scale]
        for model, base in bases(scale, d).items()
        for rate in RATES[scale][d][model]
    }


def bases(scale: Scale, d: int) -> dict[str, Experiment]:
    """Both models of one dimension; prompts of 2d + 1 points, all dimensions active."""
    looped, unlooped = linear(scale), linear_12_layers(scale)
    if scale == "paper":
        looped = short(with_loops(looped, 30, 15, every=None), steps=PAPER_STEPS)
        unlooped = short(unlooped, steps=PAPER_STEPS)
    # at `cpu` scale narrow and long: one layer cannot learn this many prompts by heart, eight can
    width = {"width": 16} if scale == "cpu" else {}
    small = {"steps": CPU_STEPS.get(d), "batch": 32, "checkpoint_every": 500}
    steps = {"smoke": {"steps": 6}, "cpu": small, "paper": {}}[scale]
    experiments = {}
    for model, base in ((UNLOOPED, unlooped), (LOOPED, looped)):
        sized = replace(base, task=LinearRegression(d=d), model=replace(base.model, d=d, **width))
        experiments[model] = training(sized, points=2 * d + 1, dims=None, active_points=None, **steps)
    return experiments


def at_rate(optimizer: OptimizerConfig, rate: float) -> OptimizerConfig:
    """Adam's rate as given, and Muon's in proportion."""
    if isinstance(optimizer, Muon):
        muon = optimizer.muon_learning_rate * rate / optimizer.learning_rate
        return replace(optimizer, learning_rate=rate, muon_learning_rate=muon)
    return replace(optimizer, learning_rate=rate)


@dataclass(frozen=True, kw_only=True)
class BestRates(Curves):
    """Error after all examples by number of prompts, at the learning rate whose mean error over seeds is least.

    For every model, dimension and seed: `by_prompts`.
    """

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train and evaluate everything, then choose the rates."""
        measured = super().__call__(cells, context).where("by_examples")
        table = Table()
        for labels in dict.fromkeys(Cell(model=cell["model"], d=cell["d"]) for cell in cells):
            trained = measured.where(**labels)
            pools = [int(n) for n in trained.labels("n")]
            chosen = [best_rate(trained.where(n=pool)) for pool in pools]
            for index, seed in enumerate(self.seeds):
                runs = [members[index] for members in chosen]
                value, low, high = (
                    [ends[-1] for ends in sides if ends is not None]
                    for sides in zip(*((run.value, run.low, run.high) for run in runs), strict=True)
                )
                draws = [run.draws[-1] for run in runs if run.draws is not None] or None
                table.add(labels, "by_prompts", value, x=pools, low=low, high=high, draws=draws, seed=seed)
        return table


def best_rate(table: Table) -> list[Series]:
    """The runs of every seed at the rate with the least last error, mean over seeds."""
    rates = [table.where(rate=rate).series for rate in table.labels("rate")]
    return min(rates, key=lambda runs: fmean(series.value[-1] for series in runs))


AXIS = Axis(x="distinct prompts seen in training", log_x=True, places=True)
SAME_PROMPTS = "read as: at equal numbers of prompts its error is lower, a geometric mean over them"
looped_over_unlooped = curve("by_prompts", model=LOOPED) / curve("by_prompts", model=UNLOOPED)


def prompts_to_half(model: str) -> Quantity:
    """Distinct prompts at which the error falls to half of predicting zero."""
    return loops_to(0.5, "by_prompts", interpolate=True, model=model)


SHOWN_FIRST: Mapping[str, Sequence[int]] = {"smoke": (3,), "cpu": (2,), "paper": (10,)}
"""The dimension of Figure 5."""

FIG5 = Study(
    name="yang24.fig5",
    title="Linear regression: error against the number of distinct prompts seen in training",
    cells=lambda scale: few_prompts(scale, SHOWN_FIRST[scale]),
    measure=lambda scale: evaluation(scale, BestRates),
    panels=Panels(y="by_prompts", axis=AXIS, column="d", colour="model", line="{model}", share_y=False),
    learned=Learned(of="by_prompts", best=0.0),
    claims=(
        claim(
            "fewer_prompts",
            "The looped transformer learns from fewer distinct prompts (Section 5.2, Figure 5).",
            looped_over_unlooped.geomean() < 1,
            remark=SAME_PROMPTS,
            beside={f"prompts to an error of 1/2, {model}": prompts_to_half(model) for model in (LOOPED, UNLOOPED)},
        ),
    ),
)

FIG14 = replace(
    FIG5,
    name="yang24.fig14",
    title="Error against the number of distinct prompts seen in training, in three dimensions",
    cells=lambda scale: few_prompts(scale, list(RATES[scale])),
    claims=(
        claim(
            "fewer_prompts",
            "In every dimension the looped transformer learns from fewer prompts (Appendix C, Figure 14).",
            worst(looped_over_unlooped.geomean(), over="d") < 1,
            remark=SAME_PROMPTS,
        ),
    ),
)
