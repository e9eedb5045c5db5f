"""Beyond the paper: does training find the Chebyshev weights, and how far are trained models from the bounds.

Isotropic covariances s I, as in the paper, and anisotropic ones: eigenvalues uniform on [1, kappa], random directions.
With A_t = a_t I both have the same loss; but isotropic ones let every direction of A_t take the rates in its own order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, reference_line, seeds_line
from looped.functional.polynomials import extremal_size
from looped.functional.streams import stream
from looped.papers.gatmiry24.best import best_rates, chebyshev_rates, interval, loss_of
from looped.papers.gatmiry24.depth import listed
from looped.papers.gatmiry24.losses import anisotropic_loss, exact_loss
from looped.papers.gatmiry24.sizes import CHEBYSHEV
from looped.papers.gatmiry24.training import (
    Member,
    Sizes,
    first_weights,
    folder_of,
    losses_on_windows,
    optimizer,
    rotations,
    spread,
    train,
    turned,
)
from looped.training.family import train_family

KINDS = ("isotropic", "anisotropic")
NEAR = 0.1
"""Relative distance that counts as found."""


def measure(sizes: Sizes, settings: Settings) -> Data:
    """Losses by depth, the largest loss over [1, kappa], the learned eigenvalues, and what theory has for each."""
    kappa, depths = sizes["kappa"], sizes["depths"]
    deepest_first = sorted(depths, reverse=True)
    members = [Member(depth=L, seed=seed, **spread(kappa)) for L in deepest_first for seed in range(sizes["seeds"])]
    nodes = interval(1, kappa, nodes=max(depths) + 1)
    data: Data = {"kappa": kappa, "depths": depths}
    for index, kind in enumerate(KINDS):
        each = {**sizes, **sizes[kind]}

        def report(done: float, what: str = kind, index: int = index) -> None:
            settings.progress(what, (index + done) / len(KINDS))

        if kind == "isotropic":
            score = train("multilayer", "exact", members, each, settings, report)
            losses = losses_on_windows("exact", score, members, [None], each)[0]
        else:
            score = train_anisotropic(members, each, settings, report)
            losses = _anisotropic_test(score, members, each)
        grid = torch.linspace(1, kappa, 400, dtype=torch.float64, device=score.device)[None]
        largest = exact_loss(score, [member.depth for member in members], grid).amax(1)
        first = score[0].cpu()
        data[kind] = {
            "loss": listed(losses.view(len(depths), -1).flip(0).T),
            "largest": listed(largest.view(len(depths), -1).flip(0).T),
            "eigenvalues": listed(torch.linalg.eigvals(first).real.sort().values),
            "off_identity": listed(_off_identity(first)),
        }
    data["best"] = [loss_of(best_rates(nodes, L), nodes) for L in depths]
    data["chebyshev"] = [loss_of(chebyshev_rates(L, 1, kappa), nodes) for L in depths]
    data["lower"] = [extremal_size(L, 1, kappa) ** 2 for L in depths]
    data["upper"] = [(2 * math.exp(-2 * L / math.sqrt(kappa))) ** 2 for L in depths]
    data["best_rates"] = best_rates(nodes, max(depths)).sort().values.tolist()
    data["chebyshev_rates"] = chebyshev_rates(max(depths), 1, kappa).sort().values.tolist()
    return data


def train_anisotropic(
    members: Sequence[Member], sizes: Sizes, settings: Settings, report
) -> Float[Tensor, "models layers d d"]:
    """Multilayer models on fresh covariances at every step, the sample covariance being Sigma exactly."""
    depths, steps = [member.depth for member in members], sizes["steps"]
    fresh = Roots(sizes["d"], 1, 1 + 2 * members[0].half, 0, settings.device)
    start = first_weights(members, (depths[0], sizes["d"], sizes["d"]), sizes["std"]).to(settings.device)
    trained = train_family(
        {"score": start},
        lambda family, root: anisotropic_loss(family["score"], depths, root).mean(-1),
        **folder_of("anisotropic", members, sizes, settings),
        steps=steps,
        draw=lambda step: fresh(sizes["batch"]),
        generators=[fresh.generator],
        log_every=max(1, steps // 100),
        progress=lambda done: report(done / steps),
        graph=True,
        **optimizer("multilayer", sizes),
    )
    settings.trained(trained.folder)
    return trained.family["score"]


class Roots:
    """Sigma^{1/2} with eigenvalues uniform on [low, high] and uniformly random directions, in float64."""

    def __init__(self, d: int, low: float, high: float, seed: int, device: torch.device):
        self.low, self.high = low, high
        self.pool = rotations(d, seed).to(device)
        self.generator = torch.Generator(device).manual_seed(stream(seed, "covariances"))

    def __call__(self, batch: int) -> Float[Tensor, "batch d d"]:
        """A fresh batch."""
        axes = turned(self.pool, batch, self.generator)
        place: dict[str, Any] = {"dtype": axes.dtype, "device": axes.device, "generator": self.generator}
        values = self.low + (self.high - self.low) * torch.rand(batch, 1, axes.shape[-1], **place)
        return (axes * values.sqrt()) @ axes.mT


@torch.no_grad()
def _anisotropic_test(score: Tensor, members: Sequence[Member], sizes: Sizes) -> Tensor:
    tested = Roots(sizes["d"], 1, 1 + 2 * members[0].half, 1, score.device)(sizes["tests"])
    depths = [member.depth for member in members]
    parts = [anisotropic_loss(score, depths, part) for part in tested.split(500)]
    return torch.cat(parts, 1).mean(1)


def _off_identity(matrices: Float[Tensor, "layers d d"]) -> Float[Tensor, " layers"]:
    """|A - a I| / |A|, a the mean of the diagonal."""
    middle = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    return (matrices - middle[:, None, None] * eye).norm(dim=(-2, -1)) / matrices.norm(dim=(-2, -1))


def finds_best(kind: str):
    """A judge: the trained loss is near that of the best polynomial at every depth."""

    def judge(data: Data) -> Measured:
        runs = [
            [math.inf if a is None else a / b for a, b in zip(run, data["best"], strict=True)]
            for run in data[kind]["loss"]
        ]
        worst = [max(run) for run in runs]
        mean = [sum(column) / len(column) for column in zip(*runs, strict=True)]
        shown = ", ".join(f"{L}: {value:.3g}" for L, value in zip(data["depths"], mean, strict=True))
        return Measured(
            value=max(mean), low=min(worst), high=max(worst), holds=max(mean) <= 1 + NEAR, note=f"by depth: {shown}"
        )

    return judge


def finds_rates(kind: str, wanted: str):
    """A judge: the eigenvalues of all A_t are the wanted rates, each d times, in whatever order."""

    def judge(data: Data) -> Measured:
        found = sorted(value for layer in data[kind]["eigenvalues"] for value in layer)
        d, off = len(data[kind]["eigenvalues"][0]), data[kind]["off_identity"]
        apart = [abs(a / data[f"{wanted}_rates"][index // d] - 1) for index, a in enumerate(found)]
        ideal = max(abs(a / b - 1) for a, b in zip(data["best_rates"], data["chebyshev_rates"], strict=True))
        return Measured(
            value=max(apart),
            low=min(apart),
            high=max(apart),
            holds=max(apart) <= NEAR,
            note=f"|A - a I| / |A| is {min(off):.2g} to {max(off):.2g}: "
            + ("each A is nearly one rate" if max(off) <= NEAR else "directions take the rates in orders of their own")
            + f"; the best and the Chebyshev rates differ by {ideal:.2g}: the mean over s is trained, not the largest; "
            "spread over eigenvalues of the deepest model, seed 0",
        )

    return judge


def within_bounds(data: Data) -> Measured:
    """The largest loss over s against Theorem 2's bound and the least that any weights can have, both as ratios."""
    runs = data["isotropic"]["largest"]
    upper = [[math.inf if a is None else a / b for a, b in zip(run, data["upper"], strict=True)] for run in runs]
    lower = [[math.inf if a is None else a / b for a, b in zip(run, data["lower"], strict=True)] for run in runs]
    worst = max(map(max, upper))
    least = min(map(min, lower))
    return Measured(
        value=worst,
        low=min(map(min, upper)),
        high=worst,
        holds=worst <= 1 and least >= 1 - 1e-9,
        note=f"over the least possible, 1/T_L^2: {least:.3g} to {max(map(max, lower)):.3g}; the loss is largest "
        "at s = 1, where the mean has little weight; spread over depths and seeds",
    )


def draw(figure: Any, data: Data) -> None:
    """Loss and largest loss by depth with the bounds; the learned eigenvalues of the deepest model."""
    figure.set_size_inches(9.2, 3.5)
    left, middle, right = figure.subplots(1, 3)
    for index, kind in enumerate(KINDS):
        seeds_line(left, index, data["depths"], data[kind]["loss"], kind, marker="o", markersize=3.5)
        seeds_line(middle, index, data["depths"], data[kind]["largest"], kind, marker="o", markersize=3.5)
    reference_line(left, data["depths"], data["best"], "best polynomial")
    reference_line(left, data["depths"], data["chebyshev"], "Chebyshev weights", color="C2", linestyle="-")
    reference_line(middle, data["depths"], data["upper"], "Theorem 2's bound", color="C3", linestyle="-")
    reference_line(middle, data["depths"], data["lower"], "least possible (Lemma 3)", color="C5", linestyle="-")
    for rate, other in zip(data["best_rates"], data["chebyshev_rates"], strict=True):
        reference_line(right, [0.5, len(data["best_rates"]) + 0.5], [rate, rate], "_")
        reference_line(right, [0.5, len(data["best_rates"]) + 0.5], [other, other], "_", color="C2", linestyle="-")
    for index, kind in enumerate(KINDS):
        for layer, values in enumerate(data[kind]["eigenvalues"], 1):
            place = [layer + 0.16 * (2 * index - 1)] * len(values)
            right.plot(place, values, "os"[index], color=f"C{index}", markersize=3, alpha=0.8, zorder=3)
    log_y(right)
    for ax, label in ((left, "mean loss over [1, κ]"), (middle, "largest loss over [1, κ]")):
        log_y(ax)
        ax.set(xlabel="layers L", ylabel=f"{label} (predicting zero = 1)", xticks=data["depths"])
    right.set(xlabel="layer", ylabel="eigenvalues of A", xticks=range(1, len(data["best_rates"]) + 1))
    finish(figure, columns=3)


beyond_chebyshev = Figure(
    name="gatmiry24.beyond_chebyshev",
    title="Where training finds the Chebyshev weights: loss against the best polynomial and the bounds, exact setting",
    settings=CHEBYSHEV,
    measure=measure,
    draw=draw,
    claims=(
        *(
            Claim(
                id=f"gatmiry24.beyond_chebyshev.{kind}.finds_best",
                statement=f"Beyond the paper: training reaches the loss of the best polynomial at every depth, {kind}.",
                tolerance=f"trained / best loss at most {1 + NEAR:g} at each depth, mean over seeds",
                judge=finds_best(kind),
            )
            for kind in KINDS
        ),
        *(
            Claim(
                id=f"gatmiry24.beyond_chebyshev.{kind}.finds_{wanted}_rates",
                statement=f"Beyond the paper: training finds the rates of the {name}, {kind}.",
                tolerance=f"each eigenvalue of each A_t within {NEAR:g}, relatively, of its rate, in whatever order",
                judge=finds_rates(kind, wanted),
            )
            for kind in KINDS
            for wanted, name in (("best", "best polynomial"), ("chebyshev", "Chebyshev polynomial, as in Theorem 2"))
        ),
        Claim(
            id="gatmiry24.beyond_chebyshev.within_bounds",
            statement="Beyond the paper: trained models keep Theorem 2's bound, 4 exp(-4 L / sqrt(kappa)), at every s "
            "in [1, kappa], and none beats the least possible, 1/T_L^2 (Lemma 3), though only the mean is trained.",
            tolerance="largest loss / bound at most 1 and largest loss / least possible at least 1, at each depth",
            judge=within_bounds,
        ),
    ),
)
