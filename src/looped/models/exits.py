"""Exit rules of the kernel transformer, which read an error bound off its residuals; for `LoopedModel.settle`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.models.kernel_transformer import Rows


@dataclass(frozen=True, kw_only=True)
class ResidualRule(ABC):
    """Stop when the residuals of the examples bound the query's error by `tolerance`.

        |w'x_q - prediction| = |v'x_q| <= |X'v| |x_q|_{(XX')^-1} = |y^(l)| |x_q|_{(XX')^-1}

    The labels of a linear-attention model that starts from realizable ones are residuals v'x_i of one and the same v
    at examples and query, so Cauchy and Schwarz bound the error. With noise the residuals never leave the noise's part
    orthogonal to the examples: the bound still holds, for the distance to least squares, but stays above
    |noise_perp| |x_q|_{(XX')^-1}, and a tolerance below that is never met.

    Ref: gatmiry24, Theorem 3, whose printed norm |x_q|_{XX'} is the wrong one of the two: this is its dual.
    """

    d: int
    """Dimension of the covariates."""
    tolerance: float
    """The largest error, in units of y."""
    kind: ClassVar[Literal["certificate", "estimate"]]
    """Whether the bound is always true, or may be too small."""

    @abstractmethod
    def dual_norm(self, xs: Float[Tensor, "batch n d"], query: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """|x_q|_{(XX')^-1}, or what stands for it."""

    def bound(self, state: Float[Tensor, "batch tokens width"], context: Rows) -> Float[Tensor, " batch"]:
        """The bound on each prompt's error, with what rounding may add to it."""
        rows, d = context.rows, self.d
        dual = self.dual_norm(rows[:, :-1, :d], rows[:, -1, :d])
        first, now = rows[:, :-1, d].norm(dim=-1), state[:, :-1, d].norm(dim=-1)
        rounding = 4 * rows.shape[1] * torch.finfo(rows.dtype).eps
        return dual * (now * (1 + rounding) + first * rounding)

    def __call__(self, state: Tensor, previous: Tensor, context: Rows, t: int) -> Bool[Tensor, " batch"]:
        """True where the bound is at most the tolerance."""
        return self.bound(state, context) <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class ResidualCertificate(ResidualRule):
    """The bound with the exact dual norm, or with a true lower bound on the eigenvalues: never wrong.

    Ref: gatmiry24, Theorem 3, corrected.
    """

    lowest: float | None = None
    """A true lower bound on the eigenvalues of XX'; None takes the exact norm, at the price of a Cholesky factor."""
    kind: ClassVar[Literal["certificate", "estimate"]] = "certificate"

    def dual_norm(self, xs: Float[Tensor, "batch n d"], query: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """sqrt(x_q'(XX')^-1 x_q), infinite where XX' is singular to working precision; or |x_q| / sqrt(lowest)."""
        if self.lowest is not None:
            return query.norm(dim=-1) / self.lowest**0.5
        factor, failed = torch.linalg.cholesky_ex(xs.mT @ xs)
        solved = torch.linalg.solve_triangular(factor, query[..., None], upper=False)[..., 0].norm(dim=-1)
        pivots = factor.diagonal(dim1=-2, dim2=-1).abs()
        singular = pivots.amin(-1) <= xs.shape[-1] * torch.finfo(xs.dtype).eps ** 0.5 * pivots.amax(-1)
        return torch.where((failed > 0) | singular, torch.inf, solved)


@dataclass(frozen=True, kw_only=True)
class ResidualEstimate(ResidualRule):
    """The bound with an eigenvalue estimated by power iteration: cheap, and too small when the estimate is too large.

    It is no certificate: a Rayleigh quotient never lies below the lowest eigenvalue.
    """

    iterations: int = 10
    """Steps of power iteration for the highest eigenvalue, and as many for the lowest."""
    kind: ClassVar[Literal["certificate", "estimate"]] = "estimate"

    def dual_norm(self, xs: Float[Tensor, "batch n d"], query: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """|x_q| / sqrt(estimate of the lowest eigenvalue), started at the query."""
        covariance = xs.mT @ xs
        _, high = self._power(covariance, query)
        flipped = 1.01 * high[:, None, None] * torch.eye(self.d, dtype=xs.dtype, device=xs.device) - covariance
        vector, _ = self._power(flipped, query)
        low = torch.einsum("bd,bde,be->b", vector, covariance, vector)
        return query.norm(dim=-1) / low.sqrt()

    def _power(self, matrix: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.iterations):
            vector = torch.einsum("bde,be->bd", matrix, vector / vector.norm(dim=-1, keepdim=True))
        vector = vector / vector.norm(dim=-1, keepdim=True)
        return vector, torch.einsum("bd,bde,be->b", vector, matrix, vector)
