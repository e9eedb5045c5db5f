"""How families of models are trained, and on which covariances.

Training at `paper` scale takes the optimiser of the program that the paper builds on, since the paper states none.
`cpu` has fewer steps and smaller batches, whose gradients have heavier tails: there the rate starts higher and ends
lower, Adam's second moment forgets more slowly, and only outliers are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from looped.experiment import OptimizerConfig
from looped.functional.schedules import Schedule
from looped.papers.gatmiry24.best import Nodes, windows
from looped.studies import Context
from looped.training.family import Clip, Draw, Family, Loss, train_family
from looped.training.trainer import stream

Kind = Literal["looped", "multilayer"]
KINDS: tuple[Kind, ...] = ("multilayer", "looped")


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """A factor: 1, then half as much after every `share` of the run."""

    share: float = 0.2
    """Share of the run between two halvings."""

    def __call__(self, step: int, steps: int) -> float:
        """2^-floor(step / (share steps))."""
        return 0.5 ** int(step / (self.share * steps) + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Training:
    """AdamW, a rate that is halved again and again, each matrix's gradient clipped."""

    steps: int = 20_000
    """Steps."""
    rate: float = 0.01
    """Learning rate at first."""
    halve: float = 0.2
    """Share of the steps after which the rate is halved, each time."""
    betas: tuple[float, float] = (0.99, 0.9)
    """How slowly Adam's two moments forget."""
    clip: float = 0.01
    """Largest norm of a matrix's gradient."""
    clip_looped: float | None = None
    """The same for a looped matrix, whose gradient is a sum over its loops; None: `clip`."""
    std: float = 1e-4
    """Size of the weights at first."""

    def optimizer(self, kind: Kind) -> dict[str, Any]:
        """The optimiser's options of `train_family`."""
        schedule = Halving(share=self.halve)
        adam = OptimizerConfig(kind="adamw", learning_rate=self.rate, betas=self.betas, schedule=schedule)
        norm = self.clip if kind == "multilayer" or self.clip_looped is None else self.clip_looped
        return {"optimizer": adam, "clip": Clip(norm=norm, over="matrix")}


EXACT = {"smoke": Training(steps=20, rate=0.05), "cpu": Training(steps=3000), "paper": Training()}
"""Scale -> training where the loss has a closed form."""
NOISY = Training(steps=900, rate=0.03, halve=0.1, betas=(0.9, 0.99), clip=1.0, clip_looped=10.0)
"""Training on small batches of prompts."""
SAMPLED = {"smoke": replace(NOISY, steps=10, rate=0.02), "cpu": NOISY, "paper": Training()}
"""Scale -> training on sampled prompts."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A distribution of the scale s: uniform on the union of windows around some centres."""

    centres: tuple[float, ...]
    """Where the windows lie."""
    half: float
    """Half the width of a window; 0: s is one of the centres."""

    def nodes(self, nodes: int, half: float | None = None) -> Nodes:
        """A rule that is exact for polynomials in s below degree 2 nodes, for windows of another width too."""
        return windows(self.centres, self.half if half is None else half, nodes=nodes)


def spread(high: float) -> Windows:
    """s uniform on [1, high]."""
    return Windows(centres=((1 + high) / 2,), half=(high - 1) / 2)


def mixture(count: int) -> Windows:
    """s uniform on `count` values, evenly from 1 to 8."""
    return Windows(centres=tuple(torch.linspace(1, 8, count, dtype=torch.float64).tolist()), half=0.0)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model of a family: its depth, what it is trained on, its seed."""

    depth: int
    """Layers, or loops."""
    windows: Windows
    """The distribution of s in training."""
    seed: int
    """Names its first weights."""

    def nodes(self, half: float | None = None) -> Nodes:
        """A rule that is exact for the model's loss as a function of s."""
        return self.windows.nodes(self.depth + 1, half)


def first_weights(members: Sequence[Member], shape: tuple[int, ...], std: float) -> Float[Tensor, "models ..."]:
    """Normal weights, each member's named by its seed alone, in float64."""
    seeds = [torch.Generator().manual_seed(stream(member.seed, "weights")) for member in members]
    return torch.stack([std * torch.randn(*shape, generator=seed, dtype=torch.float64) for seed in seeds])


def train(
    family: Family,
    loss: Loss,
    *,
    name: str,
    identity: Mapping[str, Any],
    kind: Kind,
    training: Training,
    context: Context,
    progress: Callable[[float], None],
    draw: Draw | None = None,
    every: int = 1,
    generators: Sequence[torch.Generator] = (),
) -> Any:
    """The family after training."""
    steps = training.steps
    trained = train_family(
        family,
        loss,
        steps=steps,
        draw=draw,
        every=every,
        log_every=max(1, steps // 100),
        progress=lambda done: progress(done / steps),
        graph=True,
        **training.optimizer(kind),
    )
    return trained.family
