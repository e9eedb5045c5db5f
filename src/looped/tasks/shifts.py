"""Shifts of a task's distribution: `Shifted(task=..., shifts=...)` is a task again.

Shifts of x act first, then those of the query, then those of the labels, whatever their order; within a stage they act
in the order given. The function that a prompt was drawn with labels the shifted x.
Ref: yang24, App. D, after Garg et al. 2022.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.tasks.shifted import Draw, Shift
from looped.tasks.shifted import Shifted as Shifted


@dataclass(frozen=True, kw_only=True)
class SkewedCovariance(Shift):
    """x <- Q D Q'x, D_ii proportional to 1/i, the covariance's trace still d, Q uniform, new for every prompt.

    The covariance Q D^2 Q' has eigenvalues proportional to 1/i^2: condition number d^2, 400 for d = 20. Garg et al.
    draw one Q for all prompts; here every prompt has its own Q, so that prompts are independent.
    """

    def __call__(self, draw: Draw) -> Draw:
        """Transform the active coordinates."""
        return _transformed(draw, draw.mask / torch.arange(1, len(draw.mask) + 1, device=draw.mask.device))


@dataclass(frozen=True, kw_only=True)
class HalfSubspace(Shift):
    """x <- sqrt(d / r) Q Q'x, Q a uniform basis of r = floor(d / 2) dimensions, new for every prompt."""

    def __call__(self, draw: Draw) -> Draw:
        """Project the active coordinates, keeping E|x|^2."""
        rank = (draw.rank / 2).floor().clamp(min=1)
        places = torch.arange(len(draw.mask), device=draw.mask.device)
        return replace(_transformed(draw, draw.mask * (places < rank)), rank=rank)


@dataclass(frozen=True, kw_only=True)
class ScaledX(Shift):
    """x <- factor x, labelled by the function at the scaled x. Ref: yang24, Fig. 6c and 16a (1/3, 1/2, 2, 3)."""

    factor: float = 3.0
    """What multiplies x."""

    def __post_init__(self) -> None:
        _positive(self.factor, "factor")

    def __call__(self, draw: Draw) -> Draw:
        """Scale every x; the noise of the task stays as it is."""
        signal = draw.variance - draw.noise**2
        variance = signal * self.factor ** (2 * draw.degree) + draw.noise**2
        xs = self.factor * draw.xs
        return replace(draw, xs=xs, queries=xs, variance=variance)


@dataclass(frozen=True, kw_only=True)
class CovarianceWindow(Shift):
    """x <- sqrt(s) x and f <- f(x / sqrt(s)), s uniform in centre +- half, new for every prompt: labels do not change.

    For linear functions x ~ N(0, s I) and w ~ N(0, I / s). Ref: gatmiry24, Section 5.
    """

    same_function: ClassVar[bool] = False
    centre: float = 4.5
    """The middle of the window."""
    half: float = 3.5
    """Half its width."""

    def __post_init__(self) -> None:
        if self.half < 0 or self.centre - self.half <= 0:
            raise ValueError(
                f"`centre` minus `half` must be above 0: s is a variance; got {self.centre} and {self.half}."
            )

    def __call__(self, draw: Draw) -> Draw:
        """One s for every prompt."""
        where = torch.rand(len(draw.xs), 1, 1, generator=draw.generator, device=draw.xs.device)
        root = (self.centre + self.half * (2 * where - 1)).sqrt()
        xs = root * draw.xs
        return replace(draw, xs=xs, queries=xs, labels=lambda xs: draw.labels(xs / root))


@dataclass(frozen=True, kw_only=True)
class OrthogonalQuery(Shift):
    """The query at i loses its part in the span of the i examples before it, and keeps its length.

        q_i = |x_i| r / |r|,  r = x_i - (projection of x_i on span(x_1 .. x_{i-1}))

    After as many examples as x has dimensions there is none: later positions are not defined. Garg et al. give every
    query the length sqrt(d), and use a query of zeros where there is none.
    """

    stage: ClassVar[int] = 1

    def __call__(self, draw: Draw) -> Draw:
        """All positions by one QR decomposition: column i of Q is r / |r|, up to its sign."""
        n, d = draw.xs.shape[1:]
        # in float64: the last of d examples leaves a short r
        basis, triangle = torch.linalg.qr(draw.xs[:, : min(n, d)].double().mT)
        signs = torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
        units = (basis * signs[:, None]).mT.to(draw.xs.dtype)
        units = torch.nn.functional.pad(units, (0, 0, 0, n - units.shape[1]))
        units = units * self.defined(n, draw.rank)[:, None]
        return replace(draw, queries=units * draw.queries.norm(dim=-1, keepdim=True))

    def defined(self, n: int, rank: Tensor) -> Bool[Tensor, "n"]:
        """Fewer examples than dimensions."""
        return torch.arange(n, device=rank.device) < rank


@dataclass(frozen=True, kw_only=True)
class EqualQuery(Shift):
    """The query at i is one of the i examples before it, drawn uniformly; the first query stays as it is."""

    stage: ClassVar[int] = 1

    def __call__(self, draw: Draw) -> Draw:
        """Copy an earlier x; its label gets fresh noise."""
        batch, n, _ = draw.xs.shape
        part = torch.rand(batch, n, generator=draw.generator, device=draw.xs.device, dtype=torch.float64)
        chosen = (part * torch.arange(n, device=draw.xs.device)).long()
        return replace(draw, queries=draw.xs.gather(1, chosen[..., None].expand_as(draw.xs)))


@dataclass(frozen=True, kw_only=True)
class DifferentOrthants(Shift):
    """All examples lie in one orthant, drawn uniformly for every prompt; queries are as drawn, or in the opposite one.

    A query as drawn (Garg et al.'s definition) lies in the orthant of the examples with probability 2^-d.
    """

    stage: ClassVar[int] = 1
    opposite: bool = False
    """Whether every coordinate of the query has the other sign."""

    def __call__(self, draw: Draw) -> Draw:
        """Change the signs of the examples; the queries stay, or take the opposite signs."""
        batch, _, d = draw.xs.shape
        coins = torch.rand(batch, 1, d, generator=draw.generator, device=draw.xs.device)
        signs = torch.where(coins < 0.5, -1.0, 1.0).to(draw.xs.dtype)
        examples = signs * draw.xs.abs()
        return replace(draw, xs=examples, queries=-examples if self.opposite else draw.queries)


@dataclass(frozen=True, kw_only=True)
class NoisyOutputs(Shift):
    """y <- sqrt(v / (v + std^2)) (y + std noise), v = E[y^2]: noisy labels of the same variance as before.

    Garg et al. rescale by the variance measured in the batch; here it is the exact one.
    """

    stage: ClassVar[int] = 2
    same_function: ClassVar[bool] = False
    std: float = 1.0
    """Standard deviation of the noise, before labels are rescaled."""
    rescale: bool = True
    """Whether labels keep their variance, as in Garg et al."""

    def __post_init__(self) -> None:
        _positive(self.std, "std")

    def __call__(self, draw: Draw) -> Draw:
        """Add independent noise to every label, the query's too."""
        noisy = draw.variance + self.std**2
        factor = math.sqrt(draw.variance / noisy) if self.rescale else 1.0

        def labels(xs: Tensor) -> Tensor:
            clean = draw.labels(xs)
            noise = torch.randn(clean.shape, generator=draw.generator, device=clean.device)
            return factor * (clean + self.std * noise)

        return replace(draw, labels=labels, variance=draw.variance if self.rescale else noisy)


@dataclass(frozen=True, kw_only=True)
class ScaledLabels(Shift):
    """y <- factor y: for linear functions w is scaled. Ref: yang24, Fig. 16b (1/3, 1/2, 2, 3)."""

    stage: ClassVar[int] = 2
    same_function: ClassVar[bool] = False
    factor: float = 3.0
    """What multiplies y."""

    def __post_init__(self) -> None:
        _positive(self.factor, "factor")

    def __call__(self, draw: Draw) -> Draw:
        """Scale every label."""
        variance = self.factor**2 * draw.variance
        return replace(draw, labels=lambda xs: self.factor * draw.labels(xs), variance=variance)


def shifts_by_name() -> dict[str, type[Shift]]:
    """The shifts of this file under the names that commands take: `SkewedCovariance` is skewed-covariance."""
    kinds = (kind for kind in Shift.__subclasses__() if kind.__module__ == __name__)
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower(): kind for kind in kinds}


def _positive(value: float, name: str) -> None:
    if value <= 0:
        raise ValueError(f"`{name}` must be above 0; got {value}.")


def _transformed(draw: Draw, spread: Float[Tensor, "d"]) -> Draw:
    """x <- Q diag(spread) Q'x, with `spread` rescaled to keep E|x|^2 of standard normal x, Q new for every prompt.

    Q mixes the active coordinates only: the QR decomposition of a block-diagonal matrix has a block-diagonal Q.
    """
    spread = spread * (draw.mask.sum() / spread.square().sum()).sqrt()
    d = len(draw.mask)
    normal = torch.randn(len(draw.xs), d, d, generator=draw.generator, device=draw.xs.device)
    block = normal * draw.mask * draw.mask[:, None] + torch.diag(1 - draw.mask)
    basis, triangle = torch.linalg.qr(block.double())
    # the library chooses the signs of R's diagonal; Q is uniform once they are all positive
    basis = (basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]).to(draw.xs.dtype)
    xs = ((draw.xs @ basis) * spread.to(draw.xs)) @ basis.mT
    return replace(draw, xs=xs, queries=xs)
