"""Models trained as families, and their losses by depth or by the width of test windows, beside the best weights'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from looped.config import encode
from looped.papers.gatmiry24.best import Nodes, best_rate, best_rates, loss_of, product
from looped.papers.gatmiry24.covariances import Covariance, Exact, Sampled
from looped.papers.gatmiry24.losses import Scores
from looped.papers.gatmiry24.training import EXACT, SAMPLED, Kind, Member, Training, Windows, first_weights, train
from looped.studies import Axis, Cell, Context, Table

SETTINGS = ("exact", "sampled")
"""Where sample covariances come from."""
Setups = Mapping[str, tuple[Covariance, Training]]
"""Setting -> covariances and training."""
SETUPS: dict[str, Setups] = {
    "smoke": {
        "exact": (Exact(d=3), EXACT["smoke"]),
        "sampled": (Sampled(d=3, n=6, batch=32, every=2, tests=64), SAMPLED["smoke"]),
    },
    "cpu": {"exact": (Exact(), EXACT["cpu"]), "sampled": (Sampled(batch=2000, every=2, tests=4096), SAMPLED["cpu"])},
    "paper": {"exact": (Exact(), EXACT["paper"]), "sampled": (Sampled(), SAMPLED["paper"])},
}
"""Scale -> the paper's settings."""


def axis(x: str, y: str = "test loss (predicting zero = 1)") -> Axis:
    """Losses on a logarithmic axis."""
    return Axis(x=x, y=y, log=True, floor=1e-8, places=True)


def best_of(kind: str) -> str:
    """The `model` label of the best weights of a kind."""
    return f"best {kind}"


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of one cell, one for each depth and seed."""

    kind: Kind
    """Whether layers share their weights."""
    depths: tuple[int, ...]
    """Layers, or loops, ascending."""
    windows: Windows
    """The distribution of s in training."""
    covariance: Covariance
    """Where the sample covariance comes from."""
    training: Training
    """How they are trained."""

    def members(self, depth: int, seeds: int) -> list[Member]:
        """The models of one depth."""
        return [Member(depth=depth, windows=self.windows, seed=seed) for seed in range(seeds)]


@dataclass(frozen=True, kw_only=True)
class Losses:
    """`loss` by depth, or by half-width of the test windows, of trained models and of the best weights.

    Cells that differ in their windows alone are trained as one family.
    """

    seeds: int
    """Models of each cell and depth, from seed 0 on."""
    halves: tuple[float, ...] | None = None
    """Half-widths of the test windows, for cells of one depth; None: as trained, by depth."""

    def __call__(self, cells: Mapping[Cell, Models], context: Context) -> Table:
        """Train the families and test them."""
        table = Table()
        families: dict[Models, dict[Cell, Models]] = {}
        for cell, models in cells.items():
            families.setdefault(replace(models, windows=Windows(centres=(), half=0)), {})[cell] = models
        for index, (shared, family) in enumerate(families.items()):

            def progress(share: float, index: int = index, what: str = str(next(iter(family)))) -> None:
                context.progress(what, (index + share) / len(families))

            depths = sorted(shared.depths, reverse=True)
            members = [
                member for depth in depths for models in family.values() for member in models.members(depth, self.seeds)
            ]
            score = train_scores(shared, members, context, progress)
            self.add_trained(table, list(family), shared, members, score)
        self.add_references(table, cells)
        return table

    def add_trained(
        self, table: Table, cells: Sequence[Cell], shared: Models, members: Sequence[Member], score: Scores
    ) -> None:
        """The losses of a trained family, whose members are ordered by depth, deepest first, cell and seed."""
        halves = (None,) if self.halves is None else self.halves
        losses = shared.covariance.losses(score, members, halves)
        self.add_by_member(table, cells, shared, "loss", losses)

    def add_by_member(self, table: Table, cells: Sequence[Cell], shared: Models, quantity: str, values: Tensor) -> None:
        """One number for each place and member as one series for each cell and seed."""
        shaped = values.reshape(-1, len(shared.depths), len(cells), self.seeds).flip(1).cpu()
        for index, cell in enumerate(cells):
            for seed in range(self.seeds):
                series = shaped[:, :, index, seed].flatten().tolist()
                table.add(cell, quantity, series, x=self.halves or shared.depths, seed=seed)

    def add_references(self, table: Table, cells: Mapping[Cell, Models]) -> None:
        """The losses of the best weights with A_t = a_t I, layer by layer or shared."""
        for cell, models in cells.items():
            deepest = max(models.depths)
            spectrum = models.covariance.spectrum(2 * deepest)
            nodes = 2 * deepest if self.halves is None else deepest + 1
            trained = product(models.windows.nodes(nodes), spectrum)
            best = [
                loss_of(best_weights(models.kind, depth, trained), product(models.windows.nodes(nodes, half), spectrum))
                for depth in models.depths
                for half in (self.halves or (None,))
            ]
            table.add({**cell, "model": best_of(models.kind)}, "loss", best, x=self.halves or models.depths)


def best_weights(kind: Kind, depth: int, nodes: Nodes) -> Tensor:
    """The rates a_t with the least loss, layer by layer or shared."""
    if kind == "multilayer":
        return best_rates(nodes, depth)
    return torch.full((depth,), best_rate(nodes, depth)).double()


def train_scores(
    shared: Models, members: Sequence[Member], context: Context, progress: Callable[[float], None]
) -> Scores:
    """The weights of all members, which come deepest first, trained as one batch of models."""
    covariance, depth = shared.covariance, members[0].depth
    shape = (1 if shared.kind == "looped" else depth, covariance.d, covariance.d)
    start = first_weights(members, shape, shared.training.std).to(context.device, covariance.dtype)
    objective = covariance.objective(members, context.device)
    family = train(
        {"score": start},
        name=f"gatmiry24.{shared.kind}",
        identity={"models": encode(shared), "members": encode(members)},
        kind=shared.kind,
        training=shared.training,
        context=context,
        progress=progress,
        **objective._asdict(),
    )
    return family["score"]
