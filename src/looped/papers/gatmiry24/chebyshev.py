"""Beyond the paper: does training find the Chebyshev weights, and how far are trained models from the bounds.

Isotropic covariances s I, as in the paper, and anisotropic ones: eigenvalues uniform on [1, kappa], random directions.
With A_t = a_t I both have the same loss; but isotropic ones let every direction of A_t take the rates in its own order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from looped.functional.matrices import to_identity
from looped.functional.polynomials import chebyshev_roots, extremal_size
from looped.functional.quadrature import best_rates, interval, loss_of
from looped.models.fast_losses.restricted_loss import Scores, exact_loss
from looped.papers.gatmiry24.covariances import Anisotropic, Exact
from looped.papers.gatmiry24.families import LossCurves, Models, log_loss
from looped.papers.gatmiry24.training import EXACT, Member, spread
from looped.studies import Axis, Cell, Learned, Panels, Study, Table, claim, curve
from looped.studies.expressions import Quantity

KAPPA = 8
SETUPS = {
    "smoke": (Exact(d=3), Anisotropic(d=3, batch=8, tests=64), EXACT["smoke"].steps),
    "cpu": (Exact(), Anisotropic(batch=32, tests=2000), 1500),
    "paper": (Exact(), Anisotropic(), 10_000),
}
"""Scale -> isotropic covariances, anisotropic ones, steps of training on these."""
DEPTHS = {"smoke": (1, 2), "cpu": (1, 2, 3, 4, 6, 8), "paper": (1, 2, 3, 4, 5, 6, 7, 8)}
SEEDS = {"smoke": 1, "cpu": 2, "paper": 3}
COVARIANCES = ("isotropic", "anisotropic")
NEAR = 0.1
"""Relative distance that counts as found."""
BEST, CHEBYSHEV = "best polynomial", "Chebyshev polynomial"
UPPER, LOWER = "Theorem 2's bound", "least possible (Lemma 3)"


def cells(scale: str) -> dict[Cell, Models]:
    """Both kinds of covariance, each at all depths."""
    exact, anisotropic, steps = SETUPS[scale]
    isotropic = Models(
        kind="multilayer", depths=DEPTHS[scale], windows=spread(KAPPA), covariance=exact, training=EXACT[scale]
    )
    turned = replace(isotropic, covariance=anisotropic, training=replace(EXACT[scale], steps=steps))
    return {Cell(covariance="isotropic"): isotropic, Cell(covariance="anisotropic"): turned}


@dataclass(frozen=True, kw_only=True)
class LossesAndRates(LossCurves):
    """By depth the mean `loss` over s in [1, kappa] and the loss at the worst s, and the deepest model's weights.

    `rates` are the eigenvalues of all A_t of seed 0, ascending; `off_identity` is |A_t - a_t I| / |A_t| by layer.
    """

    def add_trained(
        self, table: Table, family: Mapping[Cell, Models], members: Sequence[Member], score: Scores
    ) -> None:
        """Losses and learned weights of a trained family."""
        super().add_trained(table, family, members, score)
        grid = torch.linspace(1, KAPPA, 400, dtype=torch.float64, device=score.device)[None]
        largest = exact_loss(score, [member.depth for member in members], grid).amax(1)
        self.add_by_member(table, family, "loss_at_worst_s", largest)
        (cell,), deepest = family, score[0].cpu()
        rates = torch.linalg.eigvals(deepest).real.flatten().sort().values.tolist()
        table.add(cell, "rates", rates, x=range(1, len(rates) + 1), seed=0)
        table.add(cell, "off_identity", to_identity(deepest).tolist(), x=range(1, len(deepest) + 1), seed=0)

    def add_references(self, table: Table, cells: Mapping[Cell, Models]) -> None:
        """The best polynomial, the Chebyshev polynomial, and the bounds."""
        models = next(iter(cells.values()))
        depths, deepest = models.depths, max(models.depths)
        nodes = interval(1, KAPPA, nodes=deepest + 1)
        weights = {
            BEST: lambda layers: best_rates(nodes, layers),
            CHEBYSHEV: lambda layers: 1 / chebyshev_roots(layers, 1, KAPPA),
        }
        for name, rates_of in weights.items():
            table.add({"model": name}, "loss", [loss_of(rates_of(L), nodes) for L in depths], x=depths)
            rates = rates_of(deepest).sort().values.repeat_interleave(models.covariance.d).tolist()
            table.add({"model": name}, "rates", rates, x=range(1, len(rates) + 1))
        upper = [(2 * math.exp(-2 * L / math.sqrt(KAPPA))) ** 2 for L in depths]
        lower = [extremal_size(L, 1, KAPPA) ** 2 for L in depths]
        table.add({"model": UPPER}, "loss_at_worst_s", upper, x=depths)
        table.add({"model": LOWER}, "loss_at_worst_s", lower, x=depths)


def rates_apart(wanted: str, **labels: str) -> Quantity:
    """The largest relative distance of a rate from the one of the same rank."""
    return abs(curve("rates", **labels) / curve("rates", model=wanted) - 1).largest()


def over_bound(model: str) -> Quantity:
    """The loss at the worst s in units of a bound, by depth."""
    return curve("loss_at_worst_s", covariance="isotropic") / curve("loss_at_worst_s", model=model)


BEYOND_CHEBYSHEV = Study(
    name="gatmiry24.beyond_chebyshev",
    title="Where training finds the Chebyshev weights: loss against the best polynomial and the bounds, exact setting",
    cells=cells,
    measure=lambda scale: LossesAndRates(seeds=SEEDS[scale]),
    panels=[
        Panels(y="loss", axis=log_loss("layers L", "mean loss over [1, κ]"), colour="covariance"),
        Panels(y="loss_at_worst_s", axis=log_loss("layers L", "largest loss over [1, κ]"), colour="covariance"),
        Panels(y="rates", axis=Axis(x="rank", y="eigenvalues of all A", log=True), colour="covariance"),
        Panels(y="off_identity", axis=log_loss("layer", "|A - a I| / |A|"), colour="covariance"),
    ],
    learned=Learned(of="loss"),
    claims=(
        *(
            claim(
                f"{covariance}.finds_best",
                f"Beyond the paper: training reaches the loss of the best polynomial at every depth, {covariance}.",
                (curve("loss", covariance=covariance) / curve("loss", model=BEST)).largest() <= 1 + NEAR,
            )
            for covariance in COVARIANCES
        ),
        *(
            claim(
                f"{covariance}.finds_{name}_rates",
                f"Beyond the paper: training finds the rates of the {model}{source}, {covariance}.",
                rates_apart(model, covariance=covariance) <= NEAR,
                remark="the mean over s is trained, not the largest; where A is far from a I, directions take the "
                "rates in orders of their own",
                beside={
                    "largest |A - a I| / |A|": curve("off_identity", covariance=covariance).largest(),
                    "best polynomial's rates against the Chebyshev polynomial's": rates_apart(CHEBYSHEV, model=BEST),
                },
            )
            for covariance in COVARIANCES
            for name, model, source in (("best", BEST, ""), ("chebyshev", CHEBYSHEV, ", as in Theorem 2"))
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
