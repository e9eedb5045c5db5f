"""How families of models are trained, and on which scales s of the covariance s I.

The paper states no optimiser. Where the loss has a closed form it is that of the program which the paper builds on. On
sampled prompts that one stops at 5 to 17 times the least loss; there each layer has a gain, u_t, which is trained too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from looped.experiment import AdamW
from looped.functional.quadrature import Nodes, interval
from looped.functional.schedules import Schedule
from looped.studies import Context
from looped.tasks.isotropic import merged
from looped.training.clip import Clip
from looped.training.family import Family, Loss, family_folder, train_family

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
    """Adam's decay rates."""
    clip: float | None = 0.01
    """Largest norm of a matrix's gradient; None: any."""
    clip_looped: float | None = None
    """The same for a looped matrix, whose gradient is a sum over its loops; None: `clip`."""
    std: float = 1e-4
    """Size of the noise in the first weights."""
    start: float | None = None
    """The first rate of a layer, where A_t = exp(u_t) M_t is trained; None: A_t is trained, and starts as noise."""
    spread: float = 0.3
    """Spread of the first gains u: layers that start alike stay alike for long."""

    def first_weights(self, shape: tuple[int, int, int], generator: torch.Generator) -> dict[str, Tensor]:
        """Of one model: A = noise as its score, or M = I + noise, with the gains u = log(start) + noise."""
        noise = self.std * torch.randn(*shape, generator=generator, dtype=torch.float64)
        if self.start is None:
            return {"score": noise}
        gain = math.log(self.start) + self.spread * torch.randn(shape[0], generator=generator, dtype=torch.float64)
        return {"score": torch.eye(shape[-1]).double() + noise, "gain": gain}

    def train(
        self, family: Family, loss: Loss, *, kind: Kind, identity: Mapping[str, Any], context: Context, **data: Any
    ) -> Any:
        """The family after training; killed in the middle, it goes on. `data` is what `train_family` draws from."""
        identity = {**identity, "kind": kind, "device": context.device.type}
        adam = AdamW(learning_rate=self.rate, betas=self.betas, schedule=Halving(share=self.halve))
        clip = self.clip if kind == "multilayer" or self.clip_looped is None else self.clip_looped
        trained = train_family(
            family,
            loss,
            folder=family_folder(context.runs, f"gatmiry24.{kind}", identity),
            identity=identity,
            steps=self.steps,
            optimizer=adam,
            clip=None if clip is None else Clip(norm=clip, over="matrix"),
            log_every=max(1, self.steps // 100),
            progress=lambda done: context.progress("", done / self.steps),
            graph=True,
            **data,
        )
        context.note_training(trained.folder)
        return trained.family


EXACT = {"smoke": Training(steps=20, rate=0.05), "cpu": Training(steps=3000), "paper": Training()}
"""Scale -> training where the loss has a closed form."""
GAINS = Training(steps=1000, rate=0.03, halve=0.12, betas=(0.9, 0.99), clip=None, std=0.01, start=0.04)
"""Training on prompts. The best rates of 16 layers span a factor of 150: plain Adam ends at 4 times the least loss."""
SAMPLED = {"smoke": replace(GAINS, steps=10), "cpu": replace(GAINS, steps=800), "paper": GAINS}
"""Scale -> training on sampled prompts."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A distribution of s: uniform on the union of windows around some centres. Ref: gatmiry24, Section 5."""

    centres: tuple[float, ...] = ()
    """Where the windows lie."""
    half: float = 0.0
    """Half the width of a window; 0: s is one of the centres."""

    def nodes(self, nodes: int, half: float | None = None) -> Nodes:
        """A rule that is exact for polynomials in s below degree 2 nodes, for windows of another width too."""
        half = self.half if half is None else half
        if half == 0:
            points = torch.tensor(sorted(self.centres), dtype=torch.float64)
            return points, torch.full_like(points, 1 / len(points))
        parts = merged(self.centres, half)
        rules = [interval(low, high, nodes=nodes) for low, high in parts]
        total = sum(high - low for low, high in parts)
        shares = [weights * ((high - low) / total) for (_, weights), (low, high) in zip(rules, parts, strict=True)]
        return torch.cat([points for points, _ in rules]), torch.cat(shares)


def spread(high: float) -> Windows:
    """s uniform on [1, high]."""
    return Windows(centres=((1 + high) / 2,), half=(high - 1) / 2)


def mixture(count: int) -> Windows:
    """s uniform on `count` values, evenly from 1 to 8."""
    return Windows(centres=tuple(torch.linspace(1, 8, count, dtype=torch.float64).tolist()))


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model of a family: its depth, what it is trained on, its seed."""

    depth: int
    """Layers, or loops."""
    windows: Windows
    """The distribution of s in training."""
    seed: int
    """Names its first weights."""
