"""Functions of several kinds, mixed: what a person may draw, and a prior for small tables to start from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True, kw_only=True)
class FunctionClass(ABC):
    """One kind of random function: a sum of units of one shape.

        f(x) = sum_j v_j shape(w_j'x + c_j),  v_j ~ N(0, 1 / units),  w_j ~ N(0, I / d),  c_j ~ N(0, 1)

    E f(x)^2 = 1 where the coordinates of x have mean 0 and variance 1.
    """

    units: int = 1
    """How many units are summed."""

    def __post_init__(self) -> None:
        check_at_least(1, units=self.units)

    @abstractmethod
    def shape(self, z: Tensor) -> Tensor:
        """What a unit makes of w'x + c, of mean square 1 for z ~ N(0, 2)."""

    def scale(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch"] | float:
        """What multiplies w, new for every prompt."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Lines(FunctionClass):
    """Straight lines, in several dimensions planes: shape(z) = z / sqrt(2)."""

    def shape(self, z: Tensor) -> Tensor:
        """z / sqrt(2)."""
        return z / sqrt(2)


@dataclass(frozen=True, kw_only=True)
class Networks(FunctionClass):
    """Small ReLU networks, which are lines with kinks: shape(z) = max(z, 0)."""

    units: int = 5
    """Hidden units."""

    def shape(self, z: Tensor) -> Tensor:
        """max(z, 0)."""
        return z.relu()


@dataclass(frozen=True, kw_only=True)
class Steps(FunctionClass):
    """Stairs: shape(z) = 1 where z > 0, else -1."""

    units: int = 3
    """How many steps; some lie beyond the examples."""

    def shape(self, z: Tensor) -> Tensor:
        """The sign of z."""
        return torch.where(z > 0, 1.0, -1.0).to(z)


@dataclass(frozen=True, kw_only=True)
class Waves(FunctionClass):
    """Cosines: one unit is a wave, many are a draw of a Gaussian process with an RBF kernel of length 1 / frequency.

    shape(z) = sqrt(2) cos(2 pi z)
    """

    frequency: tuple[float, float] = (0.5, 2.0)
    """w is multiplied by a number from this range, log-uniform and new for every prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.frequency[0] <= self.frequency[1]:
            raise ValueError(f"`frequency` must be two numbers above 0 in ascending order; got {self.frequency}.")

    def shape(self, z: Tensor) -> Tensor:
        """A cosine; its phase 2 pi c is uniform to eight digits."""
        return sqrt(2) * (2 * pi * z).cos()

    def scale(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch"]:
        """Frequencies, divided by the 2 pi that `shape` multiplies by."""
        low, high = self.frequency
        where = torch.rand(batch, generator=generator, device=generator.device)
        return low * (high / low) ** where / (2 * pi)


CLASSES = (Lines(), Networks(), Steps(), Waves(units=1, frequency=(1.0, 3.0)), Waves(units=32))
"""Lines, small networks, stairs, single waves, smooth curves."""


@dataclass(frozen=True, kw_only=True)
class FunctionMixture(Task):
    """Every prompt shows a function of one of several classes, with noise of its own size.

    y = f(x) + sigma e,  x uniform with mean 0 and variance 1,  sigma = noise u^2,  u uniform on [0, 1],  e ~ N(0, 1)
    """

    d: int = 1
    """Dimension of x."""
    classes: tuple[FunctionClass, ...] = CLASSES
    """What a prompt's function is drawn from, each with the same probability."""
    noise: float = 0.5
    """The largest standard deviation of the noise."""
    captured: ClassVar[bool] = True
    """Sampling stays on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.classes:
            raise ValueError("`classes` must name at least one class of functions; got none.")
        if self.noise < 0:
            raise ValueError(f"`noise` is a standard deviation, at least 0; got {self.noise}.")

    @property
    def label_variance(self) -> float:
        """1 + E[sigma^2]."""
        return 1 + self.label_noise**2

    @property
    def label_noise(self) -> float:
        """The root of E[sigma^2] = noise^2 E[u^4] = noise^2 / 5."""
        return self.noise / sqrt(5)

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, class, function and noise for every prompt; x and w are 0 outside the active coordinates."""
        device, units = generator.device, max(kind.units for kind in self.classes)
        mask = active_mask(self.d, dims, device)
        uniform = torch.rand(batch, n, self.d, generator=generator, device=device)
        xs = sqrt(3) * (2 * uniform - 1) * mask
        kind = (torch.rand(batch, generator=generator, device=device) * len(self.classes)).long()
        w = torch.randn(batch, units, self.d, generator=generator, device=device) * mask / mask.sum().sqrt()
        v = torch.randn(batch, units, generator=generator, device=device)
        for index, functions in enumerate(self.classes):
            chosen = kind == index
            scale = functions.scale(batch, generator) * chosen + ~chosen
            w = w * scale[:, None, None]
            share = (torch.arange(units, device=device) < functions.units) / sqrt(functions.units)
            v = torch.where(chosen[:, None], v * share, v)
        c = torch.randn(batch, units, generator=generator, device=device)
        sigma = self.noise * torch.rand(batch, generator=generator, device=device).square()
        truth = {"kind": kind, "w": w, "c": c, "v": v, "sigma": sigma}
        noise = sigma[:, None] * torch.randn(batch, n, generator=generator, device=device)
        return Prompt(xs, self._values(xs, truth) + noise, truth=truth)

    def _values(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """f(x) without noise; not `labels`, since these functions grow in no common way as x does."""
        z = xs @ truth["w"].to(xs).mT + truth["c"].to(xs)[:, None]
        values = torch.zeros_like(z)
        for index, functions in enumerate(self.classes):
            values = torch.where((truth["kind"] == index)[:, None, None], functions.shape(z), values)
        return (values @ truth["v"].to(xs)[..., None]).squeeze(-1)
