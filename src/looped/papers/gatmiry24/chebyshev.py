"""Beyond the paper: does training find the Chebyshev weights, and how far are trained models from the bounds.

Isotropic covariances s I, as in the paper, and anisotropic ones: eigenvalues uniform on [1, kappa], random directions.
With A_t = a_t I both have the same loss; but isotropic ones let every direction of A_t take the rates in its own order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.polynomials import extremal_size
from looped.papers.gatmiry24.best import best_rates, chebyshev_rates, interval, loss_of
from looped.papers.gatmiry24.covariances import Anisotropic, Exact
from looped.papers.gatmiry24.families import Losses, Models, Setups, axis
from looped.papers.gatmiry24.losses import Scores, exact_loss
from looped.papers.gatmiry24.training import EXACT, Member, spread
from looped.studies import Axis, Cell, Learned, Panels, Study, Table, claim, curve
from looped.studies.expressions import Quantity

KAPPA = 8
SETUPS: dict[str, Setups] = {
    "smoke": {
        "isotropic": (Exact(d=3), EXACT["smoke"]),
        "anisotropic": (Anisotropic(d=3, batch=8, tests=64), EXACT["smoke"]),
    },
    "cpu": {
        "isotropic": (Exact(), EXACT["cpu"]),
        "anisotropic": (Anisotropic(batch=32, tests=2000), replace(EXACT["cpu"], steps=1500)),
    },
    "paper": {
        "isotropic": (Exact(), EXACT["paper"]),
        "anisotropic": (Anisotropic(), replace(EXACT["paper"], steps=10_000)),
    },
}
"""Scale -> kind of covariance -> covariances and training."""
DEPTHS = {"smoke": (1, 2), "cpu": (1, 2, 3, 4, 6, 8), "paper": (1, 2, 3, 4, 5, 6, 7, 8)}
SEEDS = {"smoke": 1, "cpu": 2, "paper": 3}
NEAR = 0.1
"""Relative distance that counts as found."""
BEST = "best polynomial"
CHEBYSHEV = "Chebyshev weights"
UPPER = "Theorem 2's bound"
LOWER = "least possible (Lemma 3)"


def cells(scale: str) -> dict[Cell, Models]:
    """Both kinds of covariance, each at all depths."""
    return {
        Cell(covariance=name): Models(
            kind="multilayer", depths=DEPTHS[scale], windows=spread(KAPPA), covariance=covariance, training=training
        )
        for name, (covariance, training) in SETUPS[scale].items()
    }


@dataclass(frozen=True, kw_only=True)
class LossesAndRates(Losses):
    """By depth `loss` and `largest_loss`, over s in [1, kappa]; of the deepest model of seed 0 `rates` and `off_identity`.

    `rates` are the eigenvalues of all its A_t, ascending; `off_identity` is how far each A_t is from a multiple of I.
    """

    def add_trained(
        self, table: Table, cells: Sequence[Cell], shared: Models, members: Sequence[Member], score: Scores
    ) -> None:
        """Losses and learned weights of a trained family."""
        super().add_trained(table, cells, shared, members, score)
        grid = torch.linspace(1, KAPPA, 400, dtype=torch.float64, device=score.device)[None]
        largest = exact_loss(score, [member.depth for member in members], grid).amax(1)
        self.add_by_member(table, cells, shared, "largest_loss", largest)
        first = score[0].cpu()
        rates = torch.linalg.eigvals(first).real.flatten().sort().values.tolist()
        (cell,) = cells
        table.add(cell, "rates", rates, x=range(1, len(rates) + 1), seed=0)
        table.add(cell, "off_identity", off_identity(first).tolist(), x=range(1, len(first) + 1), seed=0)

    def add_references(self, table: Table, cells: Mapping[Cell, Models]) -> None:
        """The best polynomial, the Chebyshev weights, and the bounds."""
        models = next(iter(cells.values()))
        depths, deepest, d = models.depths, max(models.depths), models.covariance.d
        nodes = interval(1, KAPPA, nodes=deepest + 1)
        for name, weights in ((BEST, lambda L: best_rates(nodes, L)), (CHEBYSHEV, _chebyshev)):
            table.add({"model": name}, "loss", [loss_of(weights(L), nodes) for L in depths], x=depths)
            rates = weights(deepest).sort().values.repeat_interleave(d).tolist()
            table.add({"model": name}, "rates", rates, x=range(1, len(rates) + 1))
        upper = [(2 * math.exp(-2 * L / math.sqrt(KAPPA))) ** 2 for L in depths]
        table.add({"model": UPPER}, "largest_loss", upper, x=depths)
        lower = [extremal_size(L, 1, KAPPA) ** 2 for L in depths]
        table.add({"model": LOWER}, "largest_loss", lower, x=depths)


def _chebyshev(layers: int) -> Tensor:
    return chebyshev_rates(layers, 1, KAPPA)


def off_identity(matrices: Float[Tensor, "layers d d"]) -> Float[Tensor, " layers"]:
    """|A - a I| / |A|, a the mean of the diagonal."""
    middle = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    return (matrices - middle[:, None, None] * eye).norm(dim=(-2, -1)) / matrices.norm(dim=(-2, -1))


def apart(covariance: str, model: str) -> Quantity:
    """The largest relative distance of an eigenvalue from its rate, both in ascending order."""
    return abs(curve("rates", covariance=covariance) / curve("rates", model=model) - 1).largest()


def over_bound(model: str) -> Quantity:
    """The largest loss over [1, kappa] in units of a bound, by depth."""
    return curve("largest_loss", covariance="isotropic") / curve("largest_loss", model=model)


BEYOND_CHEBYSHEV = Study(
    name="gatmiry24.beyond_chebyshev",
    title="Where training finds the Chebyshev weights: loss against the best polynomial and the bounds, exact setting",
    cells=cells,
    measure=lambda scale: LossesAndRates(seeds=SEEDS[scale]),
    panels=[
        Panels(y="loss", axis=axis("layers L", "mean loss over [1, κ]"), colour="covariance", title=" "),
        Panels(y="largest_loss", axis=axis("layers L", "largest loss over [1, κ]"), colour="covariance", title=" "),
        Panels(y="rates", axis=Axis(x="eigenvalue's rank", y="eigenvalues of all A", log=True), colour="covariance"),
        Panels(y="off_identity", axis=axis("layer", "|A - a I| / |A|"), colour="covariance"),
    ],
    learned=Learned(of="loss"),
    claims=(
        *(
            claim(
                f"{covariance}.finds_best",
                f"Beyond the paper: training reaches the loss of the best polynomial at every depth, {covariance}.",
                (curve("loss", covariance=covariance) / curve("loss", model=BEST)).largest() <= 1 + NEAR,
            )
            for covariance in SETUPS["paper"]
        ),
        *(
            claim(
                f"{covariance}.finds_{name}_rates",
                f"Beyond the paper: training finds the rates of the {what}, {covariance}.",
                apart(covariance, model) <= NEAR,
                remark="the mean over s is trained, not the largest; where A is far from a I, directions take the "
                "rates in orders of their own",
                beside={
                    "|A - a I| / |A| at most": curve("off_identity", covariance=covariance).largest(),
                    "the best and the Chebyshev rates apart": abs(
                        curve("rates", model=BEST) / curve("rates", model=CHEBYSHEV) - 1
                    ).largest(),
                },
            )
            for covariance in SETUPS["paper"]
            for name, model, what in (
                ("best", BEST, "best polynomial"),
                ("chebyshev", CHEBYSHEV, "Chebyshev polynomial, as in Theorem 2"),
            )
        ),
        claim(
            "within_bounds",
            "Beyond the paper: trained models keep Theorem 2's bound, 4 exp(-4 L / sqrt(kappa)), at every s in "
            "[1, kappa], and none beats the least possible, 1/T_L^2 (Lemma 3), though only the mean is trained.",
            (over_bound(UPPER).largest() <= 1) & (over_bound(LOWER).least() >= 1 - 1e-9),
            remark="the loss is largest at s = 1, where the mean has little weight",
        ),
    ),
)
