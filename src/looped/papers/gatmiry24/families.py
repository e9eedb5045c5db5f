"""Models trained as families, and their losses by depth or by the width of test windows, beside the best weights'."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.config import encode
from looped.functional.quadrature import Nodes, best_rate, best_rates, loss_of, product
from looped.functional.streams import stream
from looped.models.fast_losses.restricted_loss import Scores
from looped.papers.gatmiry24.covariances import Covariance, scores
from looped.papers.gatmiry24.training import Kind, Member, Training, Windows
from looped.studies import Axis, Cell, Context, Learned, Table


def log_loss(x: str, y: str = "test loss (predicting zero = 1)", *, places: bool = True) -> Axis:
    """Losses on a logarithmic axis."""
    return Axis(x=x, y=y, log=True, floor=None if places else 1e-8, places=places)


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


@dataclass(frozen=True, kw_only=True)
class LossCurves:
    """`loss` by depth, or by half-width of the test windows, of trained models and of the best weights.

    With half-widths, `loss_as_trained` and `loss_on_widest` are those at the first and the last one, by depth.
    Cells that differ in their windows alone are trained as one family.
    """

    seeds: int
    """Models of each cell and depth, from seed 0 on."""
    halves: tuple[float, ...] | None = None
    """Half-widths of the test windows, the first being that of training; None: as trained."""

    def __call__(self, cells: Mapping[Cell, Models], context: Context) -> Table:
        """Train the families and test them."""
        table = Table()
        families: dict[Models, dict[Cell, Models]] = {}
        for cell, models in cells.items():
            families.setdefault(replace(models, windows=Windows()), {})[cell] = models
        for index, (shared, family) in enumerate(families.items()):
            members = [
                Member(depth=depth, windows=models.windows, seed=seed)
                for depth in sorted(shared.depths, reverse=True)
                for models in family.values()
                for seed in range(self.seeds)
            ]
            part = context.part(str(next(iter(family))), index, len(families))
            self.add_trained(table, family, members, train(shared, members, part))
        self.add_references(table, cells)
        return table

    def add_trained(
        self, table: Table, family: Mapping[Cell, Models], members: Sequence[Member], score: Scores
    ) -> None:
        """The losses of a trained family, whose members are ordered by depth, deepest first, cell and seed."""
        covariance = next(iter(family.values())).covariance
        self.add_by_member(table, family, "loss", covariance.losses(score, members, self.halves or (None,)))

    def add_by_member(self, table: Table, family: Mapping[Cell, Models], quantity: str, values: Tensor) -> None:
        """One number for each half-width and member as series of each cell and seed."""
        depths = next(iter(family.values())).depths
        shaped = values.reshape(-1, len(depths), len(family), self.seeds).flip(1).cpu()
        for index, cell in enumerate(family):
            for seed in range(self.seeds):
                self.add_losses(table, cell, quantity, shaped[:, :, index, seed], depths, seed)

    def add_losses(
        self,
        table: Table,
        cell: Mapping[str, Any],
        quantity: str,
        losses: Float[Tensor, "halves depths"],
        depths: Sequence[int],
        seed: int | None = None,
    ) -> None:
        """By depth; or of each depth by half-width, and by depth on the narrowest and the widest windows."""
        if self.halves is None:
            table.add(cell, quantity, losses[0].tolist(), x=depths, seed=seed)
            return
        for depth, by_half in zip(depths, losses.T.tolist(), strict=True):
            table.add({**cell, "depth": depth}, quantity, by_half, x=self.halves, seed=seed)
        table.add(cell, f"{quantity}_as_trained", losses[0].tolist(), x=depths, seed=seed)
        table.add(cell, f"{quantity}_on_widest", losses[-1].tolist(), x=depths, seed=seed)

    def add_references(self, table: Table, cells: Mapping[Cell, Models]) -> None:
        """The losses of the best weights with A_t = a_t I, layer by layer or shared."""
        for cell, models in cells.items():
            nodes = max(models.depths) + 1
            spectrum = models.covariance.spectrum(nodes)
            tested = [product(models.windows.nodes(nodes, half), spectrum) for half in self.halves or (None,)]
            trained = product(models.windows.nodes(nodes), spectrum)
            rates = [best_weights(models.kind, depth, trained) for depth in models.depths]
            best = torch.tensor(
                [[loss_of(weights, eigenvalues) for weights in rates] for eigenvalues in tested], dtype=torch.float64
            )
            self.add_losses(table, {**cell, "model": f"best {models.kind}"}, "loss", best, models.depths)


@dataclass(frozen=True, kw_only=True)
class NearBest(Learned):
    """A claim is judged where all models of the cells that it reads lose little more than the best weights.

    Every place of a curve is a model of its own; those of all depths and seeds count.
    """

    factor: float = 1.3
    """The largest loss, in units of that of the best weights of the same kind."""
    nothing: float = 1e-8
    """A loss that counts as zero, where the best weights have less."""

    def obstacle(self, table: Table, cells: Collection[Cell]) -> str:
        """The first model that is too far from the best weights; empty where none is."""
        for series in table.where(self.of):
            if series.seed is not None and series.cell in cells:
                for depth, loss, largest in zip(series.x, series.value, self._largest(table, series.cell), strict=True):
                    if not loss <= largest:
                        return f"not trained to its best: {series.cell}, depth {depth}, seed {series.seed}: {loss:.3g}"
        return ""

    def needed(self, table: Table, cell: Cell) -> float:
        """The largest loss that is allowed at all depths."""
        return min(self._largest(table, cell))

    def _largest(self, table: Table, cell: Cell) -> list[float]:
        """The largest loss of a trained model by depth."""
        [best] = table.where(self.of, **{**cell, "model": f"best {cell['model']}"})
        return [max(self.factor * loss, self.nothing) for loss in best.value]


def best_weights(kind: Kind, depth: int, nodes: Nodes) -> Tensor:
    """The rates a_t with the least loss, layer by layer or shared."""
    if kind == "multilayer":
        return best_rates(nodes, depth)
    return torch.full((depth,), best_rate(nodes, depth)).double()


def train(shared: Models, members: Sequence[Member], context: Context) -> Scores:
    """The weights of all members, which come deepest first, trained as one batch of models."""
    covariance, training, layers = shared.covariance, shared.training, members[0].depth
    shape = (1 if shared.kind == "looped" else layers, covariance.d, covariance.d)
    # named by its seed alone, a member starts alike in every family
    generators = [torch.Generator().manual_seed(stream(member.seed, "weights")) for member in members]
    first = [training.first_weights(shape, seed) for seed in generators]
    family = training.train(
        {
            name: torch.stack([weights[name] for weights in first]).to(context.device, covariance.dtype)
            for name in first[0]
        },
        **covariance.objective(members, context.device)._asdict(),
        kind=shared.kind,
        identity={"covariance": encode(covariance), "members": encode(members), "training": encode(training)},
        context=context,
    )
    return scores(family)
