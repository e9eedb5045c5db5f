"""Exit rules for `LoopedModel.settle`: when a prompt may leave the loop.

A rule is any callable (state, previous state, context, t) -> (batch) bool.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.models.kernel_transformer import Rows
from looped.models.loop import Context, State, leaves
from looped.models.recurrent_depth import Halting


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Stop after a fixed number of loops."""

    loops: int
    """How many."""

    def __call__(self, state: State, previous: State, context: Context, t: int) -> Bool[Tensor, "batch"]:
        """True for every prompt from loop `loops` on."""
        first = leaves(state)[0]
        return torch.full((first.shape[0],), t + 1 >= self.loops, device=first.device)


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """Stop when one loop changes the state by less than `tolerance`, relative to its size."""

    tolerance: float
    """Largest relative change, in the Euclidean norm over a prompt's whole state."""

    def __call__(self, state: State, previous: State, context: Context, t: int) -> Bool[Tensor, "batch"]:
        """True where |state - previous| <= tolerance |state|, both finite: a state that overflowed has not settled."""
        pairs = list(zip(leaves(state), leaves(previous), strict=True))
        change = sum((new - old).flatten(1).square().sum(1) for new, old in pairs)
        size = sum(new.flatten(1).square().sum(1) for new, _ in pairs)
        change, size = torch.as_tensor(change), torch.as_tensor(size)
        return (change <= self.tolerance**2 * size) & change.isfinite()


@dataclass(frozen=True, kw_only=True)
class TokenChange:
    """For `settle_tokens`: a token stays when one loop changes it by less than `tolerance`, relative to its size."""

    tolerance: float
    """Largest relative change, in the Euclidean norm over a token's part of the state."""

    def __call__(self, state: Tensor, previous: Tensor, context: Context, t: int) -> Bool[Tensor, "batch tokens"]:
        """True where |state - previous| <= tolerance |state|, both finite."""
        change = (state - previous).norm(dim=-1)
        return (change <= self.tolerance * state.norm(dim=-1)) & change.isfinite()


@dataclass(frozen=True, kw_only=True)
class Halted:
    """What a model with `ponder` has learned: a token stays when it has halted with a chance of at least `chance`.

    For `settle_tokens`. Ref: Graves 2016, whose threshold is .99.
    """

    chance: float = 0.99
    """How sure."""

    def __post_init__(self) -> None:
        if not 0 < self.chance < 1:
            raise ValueError(f"`chance` must be between 0 and 1; got {self.chance}.")

    def __call__(self, state: State, previous: State, context: Context, t: int) -> Bool[Tensor, "batch tokens"]:
        """True where the remaining chance is at most 1 - chance."""
        if not isinstance(state, Halting):
            raise ValueError("`Halted` is for models that learn to halt; this one does not. Train with `model.ponder`.")
        return state.remaining <= 1 - self.chance


@dataclass(frozen=True, kw_only=True)
class ResidualCertificate:
    """Stop when the residuals of the examples bound the query's error by `tolerance`; for the kernel transformer.

        |w'x_q - prediction| = |v'x_q| <= |X'v| |x_q|_{(XX')^-1} = |y^(l)| |x_q|_{(XX')^-1}

    In a linear-attention model that starts from realizable labels, the labels are residuals v'x_i of one v at examples
    and query alike, so the Cauchy-Schwarz inequality bounds the error. With noise, the residuals keep the part of the
    noise that is orthogonal to the examples. The bound then still holds, for the distance to least squares, but it
    stays above |noise_perp| |x_q|_{(XX')^-1}: a tolerance below that is never met.

    Ref: gatmiry24, Theorem 3, whose printed norm |x_q|_{XX'} is the wrong one of the two: this is its dual. An
    eigenvalue estimated by power iteration makes no certificate: it never lies below the lowest eigenvalue.
    """

    d: int
    """Dimension of the covariates."""
    tolerance: float
    """The largest error, in units of y."""
    lowest: float | None = None
    """A true lower bound on the eigenvalues of XX'; None takes the exact norm, which costs a Cholesky factor."""

    def __call__(self, state: Tensor, previous: Tensor, context: Rows, t: int) -> Bool[Tensor, " batch"]:
        """True where the bound is at most the tolerance."""
        return self.bound(state, context) <= self.tolerance

    def bound(self, state: Float[Tensor, "batch tokens width"], context: Rows) -> Float[Tensor, " batch"]:
        """The bound on each prompt's error, including what rounding may add."""
        rows, d = context.rows, self.d
        dual = self.dual_norm(rows[:, :-1, :d], rows[:, -1, :d])
        first, now = rows[:, :-1, d].norm(dim=-1), state[:, :-1, d].norm(dim=-1)
        rounding = 4 * rows.shape[1] * torch.finfo(rows.dtype).eps
        return dual * (now * (1 + rounding) + first * rounding)

    def dual_norm(self, xs: Float[Tensor, "batch n d"], query: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        """sqrt(x_q'(XX')^-1 x_q), infinite where XX' is singular to working precision; or |x_q| / sqrt(lowest)."""
        if self.lowest is not None:
            return query.norm(dim=-1) / self.lowest**0.5
        factor, failed = torch.linalg.cholesky_ex(xs.mT @ xs)
        solved = torch.linalg.solve_triangular(factor, query[..., None], upper=False)[..., 0].norm(dim=-1)
        pivots = factor.diagonal(dim1=-2, dim2=-1).abs()
        singular = pivots.amin(-1) <= xs.shape[-1] * torch.finfo(xs.dtype).eps ** 0.5 * pivots.amax(-1)
        return torch.where((failed > 0) | singular, torch.inf, solved)
