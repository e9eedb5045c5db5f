"""Linear function classes: plain, noisy, sparse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.task import NoisyTask, active_mask


@dataclass(frozen=True, kw_only=True)
class LinearRegression(NoisyTask):
    """y = w'x + noise, with x and w standard normal in the active coordinates. Ref: yang24, Sec. 4."""

    captured: ClassVar[bool] = True
    """Sampling stays on the device."""

    @property
    def label_variance(self) -> float:
        """d + noise^2."""
        return self.d + self.noise**2

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, w and noise for every prompt."""
        device = generator.device
        mask = None if dims is None else active_mask(self.d, dims, device)
        xs = masked(torch.randn(batch, n, self.d, generator=generator, device=device), mask)
        w = self.weights(batch, mask, generator)
        return Prompt(xs, self.add_noise(self.labels(xs, {"w": w}), generator), truth={"w": w})

    def labels(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """w'x, without noise."""
        return torch.einsum("bnd,bd->bn", xs, truth["w"])

    def weights(self, batch: int, mask: Tensor | None, generator: torch.Generator) -> Float[Tensor, "batch d"]:
        """The hidden w of each prompt, zero outside the active coordinates; no mask means that all are active."""
        return masked(torch.randn(batch, self.d, generator=generator, device=generator.device), mask)


@dataclass(frozen=True, kw_only=True)
class SparseRegression(LinearRegression):
    """y = w'x where w has `nonzero` nonzero entries, at random active coordinates."""

    nonzero: int = 3
    """How many entries of w are not zero: the paper's s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.nonzero <= self.d:
            raise ValueError(f"`nonzero` must be in [1, d={self.d}]; got {self.nonzero}.")

    @property
    def label_variance(self) -> float:
        """nonzero + noise^2."""
        return self.nonzero + self.noise**2

    def weights(self, batch: int, mask: Tensor | None, generator: torch.Generator) -> Float[Tensor, "batch d"]:
        """Normal entries at `nonzero` random active places (at all of them where fewer are active)."""
        keys = torch.rand(batch, self.d, generator=generator, device=generator.device) + (1.0 if mask is None else mask)
        places = keys.topk(self.nonzero, dim=1).indices
        support = torch.zeros_like(keys).scatter_(1, places, 1.0)
        return super().weights(batch, mask, generator) * support


def masked(values: Float[Tensor, "*batch d"], mask: Float[Tensor, "d"] | None) -> Float[Tensor, "*batch d"]:
    """The values, zero outside the mask; without a mask nothing is multiplied, which saves a captured step a kernel."""
    return values if mask is None else values * mask
