"""Families of restricted linear attention, trained and tested in two settings.

`exact`: the sample covariance XX'/n is Sigma = s I itself, so that the loss has a closed form (Lemma 4).
`sampled`: n Gaussian examples, whose sample covariance has eigenvalues far from s; the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.claims import Settings
from looped.experiment import AdamW
from looped.functional.schedules import Schedule
from looped.functional.streams import stream
from looped.models.batch_last import to_last
from looped.papers.gatmiry24.best import Nodes, compress, windows
from looped.papers.gatmiry24.losses import covariance_loss, exact_loss, sampled_loss
from looped.training.clip import Clip
from looped.training.family import family_folder, train_family

Kind = Literal["looped", "multilayer"]
Sizes = Mapping[str, Any]
RANGE = (0.4, 8.6)
"""Every covariance that any figure tests lies in it."""


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """A factor: 1, then half as much after every `share` of the run."""

    share: float = 0.2
    """Share of the run between two halvings."""

    def __call__(self, step: int, steps: int) -> float:
        """2^-floor(step / (share steps))."""
        return 0.5 ** int(step / (self.share * steps) + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model of a figure: its depth, what it is trained on, its seed."""

    depth: int
    """Layers, or loops."""
    centres: tuple[float, ...]
    """s is uniform on the union of windows around these."""
    half: float
    """Half the width of a window."""
    seed: int
    """Names its first weights."""

    def nodes(self, half: float | None = None) -> Nodes:
        """A rule that is exact for the model's loss as a function of s, for windows of another width too."""
        return windows(self.centres, self.half if half is None else half, nodes=self.depth + 1)


def spread(high: float) -> dict[str, Any]:
    """s uniform on [1, high]."""
    return {"centres": ((1 + high) / 2,), "half": (high - 1) / 2}


def mixture(count: int) -> dict[str, Any]:
    """s uniform on `count` values, evenly from 1 to 8."""
    return {"centres": tuple(torch.linspace(1, 8, count, dtype=torch.float64).tolist()), "half": 0.0}


def optimizer(kind: Kind, sizes: Sizes) -> dict[str, Any]:
    """AdamW, a rate that is halved again and again, each matrix's gradient clipped.

    A looped matrix's gradient is a sum over its loops: `clip_looped`, where there is one, is its own largest norm.
    """
    betas = tuple(sizes["betas"])
    adam = AdamW(learning_rate=sizes["rate"], betas=betas, schedule=Halving(share=sizes["halve"]))
    norm = sizes.get("clip_looped", sizes["clip"]) if kind == "looped" else sizes["clip"]
    return {"optimizer": adam, "clip": Clip(norm=norm, over="matrix")}


def train(
    kind: Kind,
    setting: str,
    members: Sequence[Member],
    sizes: Sizes,
    settings: Settings,
    report: Callable[[float], None],
) -> Float[Tensor, "models layers d d"]:
    """The weights of all members, which are of one kind and come deepest first, trained as one batch of models."""
    depths = [member.depth for member in members]
    layers = 1 if kind == "looped" else depths[0]
    exact = setting == "exact"
    dtype = torch.float64 if exact else torch.float32
    place = {"device": settings.device, "dtype": dtype}
    shape = (layers, sizes["d"], sizes["d"])
    start = {"score": first_weights(members, shape, sizes["std"]).to(**place)}
    if exact:
        s, weights = (part.to(**place) for part in _padded([member.nodes() for member in members]))

        def loss(family: Any, batch: Any) -> Tensor:
            return (exact_loss(family["score"], depths, s) * weights).sum(-1)

        draw, every, generators = None, 1, []
    else:
        prompts = Prompts(members, sizes, settings.device)

        def loss(family: Any, batch: Any) -> Tensor:
            return sampled_loss(family["score"], depths, *batch)

        draw, every, generators = prompts, sizes["every"], [prompts.generator]
    steps = sizes["steps"]
    trained = train_family(
        start,
        loss,
        **folder_of(f"{setting}-{kind}", members, sizes, settings),
        steps=steps,
        draw=draw,
        every=every,
        generators=generators,
        log_every=max(1, steps // 100),
        progress=lambda done: report(done / steps),
        graph=True,
        **optimizer(kind, sizes),
    )
    settings.trained(trained.folder)
    return trained.family["score"]


def folder_of(name: str, members: Sequence[Member], sizes: Sizes, settings: Settings) -> dict[str, Any]:
    """Where a family lies, and what it is."""
    identity = {
        "name": name,
        "members": [asdict(member) for member in members],
        "sizes": {key: value for key, value in sizes.items() if key != "tests"},
        "device": settings.device.type,  # it decides the random numbers
    }
    return {"folder": family_folder(settings.runs, f"gatmiry24.{name}", identity), "identity": identity}


def rotations(d: int, seed: int, count: int = 4096) -> Float[Tensor, "count d d"]:
    """Uniformly random orthogonal matrices, in float64."""
    generator = torch.Generator().manual_seed(stream(seed, "rotations"))
    basis, triangle = torch.linalg.qr(torch.randn(count, d, d, dtype=torch.float64, generator=generator))
    return basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def turned(pool: Float[Tensor, "count d d"], batch: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """Products of two matrices of a pool: as good as fresh ones, without a factorisation at every step."""
    first, second = torch.randint(len(pool), (2, batch), generator=generator, device=generator.device)
    return pool[first] @ pool[second]


def first_weights(members: Sequence[Member], shape: tuple[int, ...], std: float) -> Float[Tensor, "models ..."]:
    """Normal weights, each member's named by its seed alone, in float64."""
    seeds = [torch.Generator().manual_seed(stream(member.seed, "weights")) for member in members]
    return torch.stack([std * torch.randn(*shape, generator=seed, dtype=torch.float64) for seed in seeds])


class Prompts:
    """Prompts for all members, seed fastest: each seed has its own, which its members share but for s."""

    def __init__(self, members: Sequence[Member], sizes: Sizes, device: torch.device):
        self.sizes, self.device = sizes, device
        self.seeds = sorted({member.seed for member in members})
        if [member.seed for member in members] != self.seeds * (len(members) // len(self.seeds)):
            raise ValueError(f"members must go through their seeds in turn; got {[one.seed for one in members]}.")
        self.generator = torch.Generator(device).manual_seed(stream(sizes["prompt_seed"], "prompts"))
        longest = max(len(member.centres) for member in members)
        padded = [[*member.centres, *[0.0] * (longest - len(member.centres))] for member in members]
        self.centres = torch.tensor(padded, device=device)
        self.counts = torch.tensor([len(member.centres) for member in members], device=device)[:, None]
        self.half = torch.tensor([member.half for member in members], device=device)[:, None]

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ZZ'/n, s, w), prompts last: z and w standard normal, x = sqrt(s) z."""
        batch, d, seeds = self.sizes["batch"], self.sizes["d"], len(self.seeds)
        w = torch.randn(seeds, d, batch, generator=self.generator, device=self.device)
        covariance = wishart(seeds * batch, self.sizes["n"], d, self.generator).view(seeds, batch, d, d)
        drawn = torch.rand(2, seeds, batch, generator=self.generator, device=self.device)
        which, where = drawn.repeat(1, len(self.centres) // seeds, 1)
        centre = self.centres.gather(1, (which * self.counts).long().clamp(max=self.centres.shape[1] - 1))
        return to_last(covariance), centre + self.half * (2 * where - 1), w


def spectrum(setting: str, sizes: Sizes, *, nodes: int) -> Nodes:
    """A rule for the eigenvalues of the sample covariance in units of s, exact below degree 2 nodes."""
    if setting == "exact":
        return torch.ones(1).double(), torch.ones(1).double()
    covariance = wishart(sizes["tests"], sizes["n"], sizes["d"], torch.Generator().manual_seed(0)).double()
    values = torch.linalg.eigvalsh(covariance).flatten()
    return compress((values, torch.full_like(values, 1 / len(values))), nodes)


def product(left: Nodes, right: Nodes) -> Nodes:
    """The distribution of the product of two independent numbers."""
    return torch.outer(left[0], right[0]).flatten(), torch.outer(left[1], right[1]).flatten()


def wishart(batch: int, n: int, d: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """ZZ'/n of n standard normal examples."""
    z = torch.randn(batch, n, d, generator=generator, device=generator.device)
    return z.mT @ z / n


@torch.no_grad()
def losses_on_windows(
    setting: str,
    score: Float[Tensor, "models layers d d"],
    members: Sequence[Member],
    halves: Sequence[float | None],
    sizes: Sizes,
) -> Float[Tensor, "halves models"]:
    """Each model's loss on windows of each width (None: as trained), integrated exactly over s.

    In the sampled setting all models and widths see the same `tests` sample covariances in units of s; w* and the
    query are integrated out, and the loss as a polynomial in s is read at Chebyshev nodes.
    """
    score = score.double()
    depths = [member.depth for member in members]
    rules = [_padded([member.nodes(half) for member in members]) for half in halves]
    if setting == "exact":
        both = [(s.to(score), weights.to(score)) for s, weights in rules]
        return torch.stack([(exact_loss(score, depths, s) * weights).sum(-1) for s, weights in both])
    points = _chebyshev(2 * depths[0] + 1).to(score)
    values = torch.zeros(len(members), len(points), dtype=score.dtype, device=score.device)
    generator = torch.Generator(score.device).manual_seed(stream(sizes["prompt_seed"], "tests"))
    blocks = max(1, sizes["tests"] // 512)
    for _ in range(blocks):
        covariance = wishart(sizes["tests"] // blocks, sizes["n"], sizes["d"], generator).double()
        for index, point in enumerate(points):
            values[:, index] += covariance_loss(score, depths, covariance, point.expand(1, len(covariance))).mean(1)
    values /= blocks
    return torch.stack(
        [(_interpolate(points, values, s.to(score)) * weights.to(score)).sum(-1) for s, weights in rules]
    )


def _padded(rules: Sequence[Nodes]) -> tuple[Tensor, Tensor]:
    """Rules of several lengths as one: further points at 1, of weight 0."""
    longest = max(len(points) for points, _ in rules)
    s, weights = torch.ones(len(rules), longest).double(), torch.zeros(len(rules), longest).double()
    for row, (points, shares) in enumerate(rules):
        s[row, : len(points)], weights[row, : len(points)] = points, shares
    return s, weights


def _chebyshev(count: int) -> Tensor:
    angles = (2 * torch.arange(count, dtype=torch.float64) + 1) * (torch.pi / (2 * count))
    return (RANGE[0] + RANGE[1]) / 2 + (RANGE[1] - RANGE[0]) / 2 * angles.cos()


def _interpolate(points: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """The polynomial through (points, values) at other points, model by model: the barycentric formula."""
    index = torch.arange(len(points), dtype=points.dtype, device=points.device)
    weights = (-1.0) ** index * ((2 * index + 1) * (torch.pi / (2 * len(points)))).sin()
    gaps = at[..., None] - points
    parts = weights / torch.where(gaps == 0, 1e-300, gaps)
    return (parts * values[:, None]).sum(-1) / parts.sum(-1)
