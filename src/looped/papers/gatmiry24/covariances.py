"""Where a prompt's sample covariance XX'/n comes from: what is trained on, and how models are tested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.batch_last import to_last
from looped.papers.gatmiry24.best import Nodes, compress
from looped.papers.gatmiry24.losses import Scores, anisotropic_loss, covariance_loss, exact_loss, sampled_loss
from looped.papers.gatmiry24.training import Member
from looped.training.family import Draw, Loss
from looped.training.trainer import stream

RANGE = (0.4, 8.6)
"""Every covariance that any figure tests lies in it."""


class Objective(NamedTuple):
    """What a family is trained on, as `train_family` takes it."""

    loss: Loss
    draw: Draw | None = None
    every: int = 1
    generators: Sequence[torch.Generator] = ()


@dataclass(frozen=True, kw_only=True)
class Covariance(ABC):
    """A way to get a prompt's sample covariance."""

    dtype: ClassVar[torch.dtype] = torch.float64
    """Of weights in training."""
    d: int = 10
    """Dimensions."""

    @abstractmethod
    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The loss of a family of these members and the batches that it reads."""

    @abstractmethod
    def losses(
        self, score: Scores, members: Sequence[Member], halves: Sequence[float | None]
    ) -> Float[Tensor, "halves models"]:
        """Each model's loss on windows of each half-width; None: as trained."""

    def spectrum(self, nodes: int) -> Nodes:
        """A rule for the eigenvalues of the sample covariance in units of s, exact below degree 2 nodes."""
        return torch.ones(1).double(), torch.ones(1).double()


@dataclass(frozen=True, kw_only=True)
class Exact(Covariance):
    """The sample covariance is Sigma = s I itself, so that the loss has a closed form (Lemma 4)."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean loss over s, integrated exactly."""
        depths = [member.depth for member in members]
        s, weights = (part.to(device) for part in _padded([member.nodes() for member in members]))
        return Objective(lambda family, batch: (exact_loss(family["score"], depths, s) * weights).sum(-1))

    @torch.no_grad()
    def losses(
        self, score: Scores, members: Sequence[Member], halves: Sequence[float | None]
    ) -> Float[Tensor, "halves models"]:
        """Each model's loss, integrated exactly over s."""
        depths = [member.depth for member in members]
        rules = [_padded([member.nodes(half) for member in members]) for half in halves]
        parts = [exact_loss(score, depths, s.to(score)) * weights.to(score) for s, weights in rules]
        return torch.stack([part.sum(-1) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Sampled(Covariance):
    """n Gaussian examples, whose sample covariance has eigenvalues far from s: the paper's experiments."""

    dtype: ClassVar[torch.dtype] = torch.float32
    n: int = 20
    """Examples in a prompt."""
    batch: int = 20_000
    """Prompts in a training batch, for each seed."""
    every: int = 100
    """Steps after which a batch is drawn anew."""
    tests: int = 65_536
    """Sample covariances that models are tested on."""
    prompt_seed: int = 0
    """Names the prompts."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean squared error over a batch of prompts."""
        depths, prompts = [member.depth for member in members], Prompts(members, self, device)

        def loss(family: Any, batch: Any) -> Tensor:
            return sampled_loss(family["score"], depths, *batch)

        return Objective(loss, prompts, self.every, [prompts.generator])

    @torch.no_grad()
    def losses(
        self, score: Scores, members: Sequence[Member], halves: Sequence[float | None]
    ) -> Float[Tensor, "halves models"]:
        """Each model's loss, integrated exactly over s, w* and the query.

        All models and widths see the same `tests` sample covariances in units of s; the loss as a polynomial in s is
        read at Chebyshev nodes.
        """
        score = score.double()
        depths = [member.depth for member in members]
        points = _chebyshev_nodes(2 * depths[0] + 1).to(score)
        values = torch.zeros(len(members), len(points), dtype=score.dtype, device=score.device)
        generator = torch.Generator(score.device).manual_seed(stream(self.prompt_seed, "tests"))
        blocks = max(1, self.tests // 512)
        for _ in range(blocks):
            covariance = wishart(self.tests // blocks, self.n, self.d, generator).double()
            for index, point in enumerate(points):
                values[:, index] += covariance_loss(score, depths, covariance, point.expand(1, len(covariance))).mean(1)
        values /= blocks
        rules = [_padded([member.nodes(half) for member in members]) for half in halves]
        parts = [_interpolate(points, values, s.to(score)) * weights.to(score) for s, weights in rules]
        return torch.stack([part.sum(-1) for part in parts])

    def spectrum(self, nodes: int) -> Nodes:
        """A rule for the eigenvalues of `tests` sample covariances."""
        covariance = wishart(self.tests, self.n, self.d, torch.Generator().manual_seed(0)).double()
        values = torch.linalg.eigvalsh(covariance).flatten()
        return compress((values, torch.full_like(values, 1 / len(values))), nodes)


class Prompts:
    """Prompts for all members, seed fastest: each seed has its own, which its members share but for s."""

    def __init__(self, members: Sequence[Member], sizes: Sampled, device: torch.device):
        self.sizes, self.device = sizes, device
        self.seeds = sorted({member.seed for member in members})
        seeds = [member.seed for member in members]
        if seeds != self.seeds * (len(members) // len(self.seeds)):
            raise ValueError(f"members must go through their seeds in turn; got {seeds}.")
        self.generator = torch.Generator(device).manual_seed(stream(sizes.prompt_seed, "prompts"))
        centres = [member.windows.centres for member in members]
        longest = max(map(len, centres))
        self.centres = torch.tensor([[*values, *[0.0] * (longest - len(values))] for values in centres], device=device)
        self.counts = torch.tensor([len(values) for values in centres], device=device)[:, None]
        self.half = torch.tensor([member.windows.half for member in members], device=device)[:, None]

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ZZ'/n, s, w), prompts last: z and w standard normal, x = sqrt(s) z."""
        batch, d, seeds = self.sizes.batch, self.sizes.d, len(self.seeds)
        w = torch.randn(seeds, d, batch, generator=self.generator, device=self.device)
        covariance = wishart(seeds * batch, self.sizes.n, d, self.generator).view(seeds, batch, d, d)
        drawn = torch.rand(2, seeds, batch, generator=self.generator, device=self.device)
        which, where = drawn.repeat(1, len(self.centres) // seeds, 1)
        centre = self.centres.gather(1, (which * self.counts).long().clamp(max=self.centres.shape[1] - 1))
        return to_last(covariance), centre + self.half * (2 * where - 1), w


@dataclass(frozen=True, kw_only=True)
class Anisotropic(Covariance):
    """The sample covariance is Sigma itself, with eigenvalues uniform on the members' one window, turned at random."""

    batch: int = 256
    """Covariances in a step's batch."""
    tests: int = 20_000
    """Covariances that models are tested on."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean loss over fresh covariances in every step."""
        depths, roots = [member.depth for member in members], Roots(self.d, members[0], 0, device)
        return Objective(
            lambda family, root: anisotropic_loss(family["score"], depths, root).mean(-1),
            lambda step: roots(self.batch),
            generators=[roots.generator],
        )

    @torch.no_grad()
    def losses(
        self, score: Scores, members: Sequence[Member], halves: Sequence[float | None]
    ) -> Float[Tensor, "halves models"]:
        """Each model's mean loss over `tests` covariances, as trained."""
        assert list(halves) == [None], "anisotropic covariances have no other windows"
        tested = Roots(self.d, members[0], 1, score.device)(self.tests)
        depths = [member.depth for member in members]
        return torch.cat([anisotropic_loss(score, depths, part) for part in tested.split(500)], 1).mean(1)[None]


class Roots:
    """Sigma^{1/2} with eigenvalues uniform on a member's window and uniformly random directions, in float64."""

    def __init__(self, d: int, member: Member, seed: int, device: torch.device):
        (centre,) = member.windows.centres
        self.low, self.high = centre - member.windows.half, centre + member.windows.half
        self.pool = rotations(d, seed).to(device)
        self.generator = torch.Generator(device).manual_seed(stream(seed, "covariances"))

    def __call__(self, batch: int) -> Float[Tensor, "batch d d"]:
        """A fresh batch."""
        axes = turned(self.pool, batch, self.generator)
        place: dict[str, Any] = {"dtype": axes.dtype, "device": axes.device, "generator": self.generator}
        values = self.low + (self.high - self.low) * torch.rand(batch, 1, axes.shape[-1], **place)
        return (axes * values.sqrt()) @ axes.mT


def wishart(batch: int, n: int, d: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """ZZ'/n of n standard normal examples."""
    z = torch.randn(batch, n, d, generator=generator, device=generator.device)
    return z.mT @ z / n


def rotations(d: int, seed: int, count: int = 4096) -> Float[Tensor, "count d d"]:
    """Uniformly random orthogonal matrices, in float64."""
    generator = torch.Generator().manual_seed(stream(seed, "rotations"))
    basis, triangle = torch.linalg.qr(torch.randn(count, d, d, dtype=torch.float64, generator=generator))
    return basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def turned(pool: Float[Tensor, "count d d"], batch: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """Products of two matrices of a pool: as good as fresh ones, without a factorisation at every step."""
    first, second = torch.randint(len(pool), (2, batch), generator=generator, device=generator.device)
    return pool[first] @ pool[second]


def _padded(rules: Sequence[Nodes]) -> tuple[Tensor, Tensor]:
    """Rules of several lengths as one: further points at 1, of weight 0."""
    longest = max(len(points) for points, _ in rules)
    s, weights = torch.ones(len(rules), longest).double(), torch.zeros(len(rules), longest).double()
    for row, (points, shares) in enumerate(rules):
        s[row, : len(points)], weights[row, : len(points)] = points, shares
    return s, weights


def _chebyshev_nodes(count: int) -> Tensor:
    angles = (2 * torch.arange(count, dtype=torch.float64) + 1) * (torch.pi / (2 * count))
    return (RANGE[0] + RANGE[1]) / 2 + (RANGE[1] - RANGE[0]) / 2 * angles.cos()


def _interpolate(points: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """The polynomial through (points, values) at other points, model by model: the barycentric formula."""
    index = torch.arange(len(points), dtype=points.dtype, device=points.device)
    weights = (-1.0) ** index * ((2 * index + 1) * (torch.pi / (2 * len(points)))).sin()
    gaps = at[..., None] - points
    parts = weights / torch.where(gaps == 0, 1e-300, gaps)
    return (parts * values[:, None]).sum(-1) / parts.sum(-1)
