"""chen24, Bypassing the exponential dependency: figures. Nothing is trained: the weights are Theorem 4.2's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.studies import Axis, Cell, Context, Panels, Study, Table, along, average, claim, curve, worst
from looped.theorems.chen24.vector_prompts import draw_prompts

PUBLISHED_KAPPA = {16: 4.57, 32: 3.13, 64: 2.07, 128: 1.62}
"""The mean condition numbers that Section 6 prints, by n."""
FLOOR = 1e-28
"""Squared relative errors below it are rounding: float64's 1e-14, squared."""
LOOPED, BOUND, PUBLISHED = "looped transformer", "bound, Theorem 4.4 squared", "published"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Prompts of vector generation, one for each trial."""

    n: int
    """Examples."""
    seed: int
    """Names the prompts."""
    d: int = 4
    """Dimensions."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """For every trial, as its seed: `error` by loop, its `decay_rate`, and `kappa`, the prompt's condition number.

    `error` is |theta^(T) - theta*|^2 over its first value; the bound's is Theorem 5.8's, nowhere below the rounding.
    """

    trials: int = 10
    """Prompts for each n."""
    loops: int = 200
    """Loops."""

    def __call__(self, cells: Mapping[Cell, Prompts], context: Context) -> Table:
        """Run the looped transformer on all prompts."""
        table, loops = Table(), range(self.loops + 1)
        for index, (cell, size) in enumerate(cells.items()):
            context.progress(str(cell), index / len(cells))
            prompts = draw_prompts(self.trials, size.n, size.d, size.seed, started=True)
            alpha, kappa = prompts.alpha[:, None], prompts.kappa
            start = (-prompts.query / alpha - prompts.theta).square().sum(-1)
            answers = prompts.answer(1 / prompts.highest[:, None], self.loops) / alpha
            errors = (torch.cat([start[None], (answers - prompts.theta).square().sum(-1)]) / start).T
            bounds = (-torch.tensor(loops, dtype=torch.float64) / kappa[:, None]).exp().clamp_min(FLOOR)
            numbers = zip(errors.tolist(), bounds.tolist(), kappa.tolist(), decay_rates(errors).tolist(), strict=True)
            for trial, (error, bound, condition, rate) in enumerate(numbers):
                table.add({**cell, "model": LOOPED}, "error", error, x=loops, seed=trial)
                table.add({**cell, "model": LOOPED}, "kappa", condition, seed=trial)
                table.add({**cell, "model": LOOPED}, "decay_rate", rate, seed=trial)
                table.add({**cell, "model": BOUND}, "error", bound, x=loops, seed=trial)
                table.add({**cell, "model": BOUND}, "decay_rate", 1 / condition, seed=trial)
            table.add({**cell, "model": PUBLISHED}, "kappa", PUBLISHED_KAPPA[size.n])
        return table


def decay_rates(errors: Float[Tensor, "trials loops"]) -> Float[Tensor, " trials"]:
    """How many nats the squared error falls a loop, from the start to the rounding floor."""
    last = (errors > FLOOR).long().cumprod(-1).sum(-1) - 1
    return -errors.gather(-1, last[:, None])[:, 0].log() / last


RATE = curve("decay_rate", model=LOOPED)
OVER_BOUND = RATE / curve("decay_rate", model=BOUND)
KAPPA = average(curve("kappa", model=LOOPED)) / curve("kappa", model=PUBLISHED)

FIG1 = Study(
    name="chen24.fig1",
    title="Convergence of the linear looped transformer, measured and bound, for more and more examples",
    cells=lambda scale: {Cell(n=n): Prompts(n=n, seed=index) for index, n in enumerate(PUBLISHED_KAPPA)},
    measure=lambda scale: Descent(trials=3, loops=20) if scale == "smoke" else Descent(),
    panels=Panels(
        y="error",
        axis=Axis(x="loops T", y="squared error over the first", log=True, floor=FLOOR),
        colour="n",
        dash="model",
        width=6.0,
        height=3.6,
        legend_columns=2,
    ),
    claims=(
        claim(
            "below_bound",
            "Empirical convergence consistently outperforms the theoretical upper bound, at every n and T (Section 6, "
            "Figure 1).",
            worst((curve("error", model=LOOPED) / curve("error", model=BOUND)).largest((1, math.inf)), over="n") <= 1,
        ),
        claim(
            "faster",
            "The error falls faster for larger n (Section 6, Figure 1).",
            along(average(RATE), over="n").successive().least() > 1,
        ),
        claim(
            "kappa",
            "The mean condition numbers are 4.57, 3.13, 2.07, 1.62 for n = 16, 32, 64, 128 (Section 6).",
            worst(abs(KAPPA - 1), over="n") <= 0.25,
        ),
        claim(
            "gap",
            "The gap between empirical and theoretical performance narrows as n increases (Section 6).",
            average(along(OVER_BOUND, over="n").last()) / average(along(OVER_BOUND, over="n").first()) < 1,
            remark="with eta = 1/L the slowest mode has rate -2 ln(1 - 1/kappa) > 2/kappa, twice the bound's at any n "
            "and more as kappa falls to 1: as a ratio the gap widens",
        ),
    ),
)
