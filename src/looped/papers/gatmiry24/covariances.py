"""Where a prompt's sample covariance XX'/n comes from: what models are trained on, and how they are tested."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.quadrature import Nodes, chebyshev_nodes, interpolate
from looped.functional.streams import stream
from looped.models.fast_losses import restricted_loss as fast
from looped.models.fast_losses.batch_last import to_last
from looped.papers.gatmiry24.spectra import draw_spectra, eigenvalue_rule, spectra
from looped.papers.gatmiry24.training import Member
from looped.training.family import Draw, Loss

RANGE = (0.4, 8.6)
"""Every covariance that any figure tests lies in it."""
Losses = Float[Tensor, "halves models"]
"""Each model's loss on windows of each half-width, None being as trained."""


class Objective(NamedTuple):
    """A family's loss and the batches that it reads, as `train_family` takes them."""

    loss: Loss
    draw: Draw | None = None
    every: int = 1
    generators: Sequence[torch.Generator] = ()


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The sample covariance is Sigma = s I itself, so that the loss has a closed form (Lemma 4)."""

    dtype: ClassVar[torch.dtype] = torch.float64
    d: int = 10
    """Dimensions."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean loss over s, integrated exactly."""
        depths, (s, weights) = _depths(members), _rule(members, device)
        return Objective(lambda family, batch: (fast.exact_loss(scores(family), depths, s) * weights).sum(-1))

    @torch.no_grad()
    def losses(self, score: fast.Scores, members: Sequence[Member], halves: Sequence[float | None]) -> Losses:
        """Mean losses over s, integrated exactly."""
        rules = [_rule(members, score.device, half) for half in halves]
        return torch.stack([(fast.exact_loss(score, _depths(members), s) * weights).sum(-1) for s, weights in rules])

    def spectrum(self, nodes: int) -> Nodes:
        """A rule for the eigenvalues of the sample covariance in units of s, exact below degree 2 nodes."""
        return torch.ones(1).double(), torch.ones(1).double()


@dataclass(frozen=True, kw_only=True)
class Anisotropic(Exact):
    """The sample covariance is Sigma itself, with eigenvalues uniform on the members' one window, turned at random."""

    batch: int = 256
    """Covariances in a step's batch."""
    tests: int = 20_000
    """Covariances that models are tested on."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean loss over fresh covariances in every step."""
        depths, generator = _depths(members), torch.Generator(device).manual_seed(stream(0, "covariances"))
        return Objective(
            lambda family, root: fast.anisotropic_loss(scores(family), depths, root).mean(-1),
            lambda step: self.roots(members[0], self.batch, generator, seed=0),
            generators=[generator],
        )

    @torch.no_grad()
    def losses(self, score: fast.Scores, members: Sequence[Member], halves: Sequence[float | None]) -> Losses:
        """Mean losses over `tests` covariances; there are no windows but those of training."""
        assert list(halves) == [None]
        generator = torch.Generator(score.device).manual_seed(stream(1, "covariances"))
        parts = self.roots(members[0], self.tests, generator, seed=1).split(500)
        return torch.cat([fast.anisotropic_loss(score, _depths(members), part) for part in parts], 1).mean(1)[None]

    def roots(self, member: Member, batch: int, generator: torch.Generator, *, seed: int) -> Float[Tensor, "batch d d"]:
        """Sigma^{1/2} with eigenvalues uniform on a member's window and uniformly random directions."""
        (centre,), half = member.windows.centres, member.windows.half
        axes = rotated(self.d, batch, generator, seed=seed, dtype=torch.float64)
        place: dict[str, Any] = {"dtype": axes.dtype, "device": axes.device, "generator": generator}
        values = (centre - half) + 2 * half * torch.rand(batch, 1, self.d, **place)
        return (axes * values.sqrt()) @ axes.mT


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """n Gaussian examples, whose sample covariance has eigenvalues far from s: the paper's experiments.

    Prompts are drawn with more large eigenvalues than they have, and weighted (`spectra.draw_spectra`).
    """

    dtype: ClassVar[torch.dtype] = torch.float32
    d: int = 10
    """Dimensions."""
    n: int = 20
    """Examples in a prompt."""
    batch: int = 8192
    """Fresh prompts in every step, for each seed."""
    spectra: int = 131_072
    """Sample covariances whose eigenvalues are drawn from; their axes are fresh."""
    tests: int = 32_768
    """Sample covariances that models are tested on."""
    prompt_seed: int = 0
    """Names the prompts."""

    def objective(self, members: Sequence[Member], device: torch.device) -> Objective:
        """The mean squared error over fresh prompts in every step."""
        depths, generator = _depths(members), torch.Generator(device).manual_seed(stream(self.prompt_seed, "prompts"))
        return Objective(
            lambda family, batch: fast.sampled_loss(scores(family), depths, *batch),
            lambda step: self.prompts(members, generator),
            generators=[generator],
        )

    def covariances(self, count: int, generator: torch.Generator, purpose: str) -> tuple[Tensor, Tensor]:
        """(ZZ'/n, weight) of `count` prompts, z standard normal under the weights."""
        pool = spectra(self.d, self.n, self.spectra, purpose, generator.device)
        values, weights = draw_spectra(pool, self.n, count, generator)
        axes = rotated(self.d, count, generator, seed=0, dtype=values.dtype)
        return (axes * values[:, None]) @ axes.mT, weights

    def prompts(self, members: Sequence[Member], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """(ZZ'/n, s, w), prompts last: z and w standard normal, x = sqrt(s) z; w carries the root of its weight.

        Members come seed fastest; each seed has its own prompts, which its members share but for s.
        """
        device, order = generator.device, [member.seed for member in members]
        seeds = len(set(order))
        if order != sorted(set(order)) * (len(members) // seeds):
            raise ValueError(f"members must go through their seeds in turn; got {order}.")
        windows = [member.windows for member in members]
        counts = torch.tensor([[len(window.centres)] for window in windows], device=device)
        half = torch.tensor([[window.half] for window in windows], device=device)
        longest = int(counts.max())
        padded = [[*window.centres, *[0.0] * (longest - len(window.centres))] for window in windows]
        covariance, weights = self.covariances(seeds * self.batch, generator, "prompts")
        covariance = covariance.to(self.dtype).unflatten(0, (seeds, self.batch))
        w = torch.randn(seeds, self.d, self.batch, generator=generator, device=device)
        w *= weights.to(self.dtype).sqrt().view(seeds, 1, self.batch)
        drawn = torch.rand(2, seeds, self.batch, generator=generator, device=device)
        which, where = drawn.repeat(1, len(members) // seeds, 1)
        centre = torch.tensor(padded, device=device).gather(1, (which * counts).long().clamp(max=longest - 1))
        return to_last(covariance), centre + half * (2 * where - 1), w

    @torch.no_grad()
    def losses(self, score: fast.Scores, members: Sequence[Member], halves: Sequence[float | None]) -> Losses:
        """Mean losses over the same `tests` sample covariances for all, integrated exactly over s, w* and the query.

        The loss is a polynomial in s, read at Chebyshev nodes.
        """
        score, depths = score.double(), _depths(members)
        points = chebyshev_nodes(2 * depths[0] + 1, *RANGE).to(score)
        values = torch.zeros(len(members), len(points), dtype=score.dtype, device=score.device)
        generator = torch.Generator(score.device).manual_seed(stream(self.prompt_seed, "tests"))
        blocks, total = max(1, self.tests // 1024), 0.0
        for _ in range(blocks):
            covariance, weights = self.covariances(self.tests // blocks, generator, "tests")
            total += weights.sum()
            for index, point in enumerate(points):
                s = point.expand(1, len(covariance))
                values[:, index] += fast.covariance_loss(score, depths, covariance, s) @ weights
        rules = [_rule(members, score.device, half) for half in halves]
        return torch.stack([(interpolate(points, values / total, s) * weights).sum(-1) for s, weights in rules])

    def spectrum(self, nodes: int) -> Nodes:
        """A rule for the eigenvalues of the sample covariance in units of s, exact below degree 2 nodes."""
        return eigenvalue_rule(self.d, self.n, nodes)


Covariance = Exact | Sampled


def scores(family: Any) -> fast.Scores:
    """A of every layer; with gains u it is exp(u) times what is trained beside them."""
    return family["gain"].exp()[..., None, None] * family["score"] if "gain" in family else family["score"]


def rotated(
    d: int, batch: int, generator: torch.Generator, *, seed: int, dtype: torch.dtype
) -> Float[Tensor, "batch d d"]:
    """Random rotations: products of two of a pool, as good as fresh ones without a factorisation at every step."""
    pool = _pool(d, seed, generator.device, dtype)
    first, second = torch.randint(len(pool), (2, batch), generator=generator, device=generator.device)
    return pool[first] @ pool[second]


@cache
def _pool(d: int, seed: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "count d d"]:
    """Uniformly random orthogonal matrices."""
    generator = torch.Generator().manual_seed(stream(seed, "rotations"))
    basis, triangle = torch.linalg.qr(torch.randn(4096, d, d, dtype=torch.float64, generator=generator))
    return (basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]).to(device, dtype)


def _depths(members: Sequence[Member]) -> list[int]:
    return [member.depth for member in members]


def _rule(members: Sequence[Member], device: torch.device, half: float | None = None) -> tuple[Tensor, Tensor]:
    """Each member's rule for s, exact for its loss; those with fewer points have further ones at 1, of weight 0."""
    rules = [member.windows.nodes(member.depth + 1, half) for member in members]
    longest = max(len(points) for points, _ in rules)
    s, weights = torch.ones(len(rules), longest).double(), torch.zeros(len(rules), longest).double()
    for row, (points, shares) in enumerate(rules):
        s[row, : len(points)], weights[row, : len(points)] = points, shares
    return s.to(device), weights.to(device)
