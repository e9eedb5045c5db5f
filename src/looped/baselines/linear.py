"""Least squares, ridge and averaging for every prefix of every prompt, in one batched pass."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt


def least_squares(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by the least-norm least-squares fit to the i-1 pairs before it.

        w <- w + g (y - x'w),  g = P x / |P x|^2 where x leaves the span of the earlier x, else S x / (1 + x'S x)

    P projects onto what no earlier x spans and S is the pseudo-inverse of X'X; both follow by rank-one updates
    (Greville's method). Computed in float64.
    """
    xs, ys = prompt.xs.double(), prompt.ys.double()
    batch, n, d = xs.shape
    # an orthonormal basis of what the earlier x span, filled row by row; P x = x - basis' basis x
    basis = xs.new_zeros(batch, min(n, d), d)
    inverse = xs.new_zeros(batch, d, d)
    w = xs.new_zeros(batch, d)
    predictions = torch.empty_like(ys)
    rank = torch.zeros(batch, dtype=torch.int64, device=xs.device)
    for i in range(n):
        x = xs[:, i]
        predictions[:, i] = (x * w).sum(1)
        outside = x - _project(basis, x)
        outside = outside - _project(basis, outside)
        size = outside.norm(dim=1)
        new = size > 1e-9 * x.norm(dim=1)
        direction = torch.where(new[:, None], outside / size.clamp_min(1e-300)[:, None], 0.0)
        sx = torch.einsum("bij,bj->bi", inverse, x)
        gamma = 1 + (x * sx).sum(1)
        gain = torch.where(new[:, None], direction / size.clamp_min(1e-300)[:, None], sx / gamma[:, None])
        w = w + gain * (ys[:, i] - predictions[:, i])[:, None]
        grown = inverse - _outer(gain, sx) - _outer(sx, gain) + gamma[:, None, None] * _outer(gain, gain)
        inverse = torch.where(new[:, None, None], grown, inverse - _outer(sx, sx) / gamma[:, None, None])
        place = rank.clamp(max=basis.shape[1] - 1)[:, None, None].expand(-1, 1, d)
        basis = basis.scatter_add(1, place, direction[:, None])
        rank = rank + new
    return predictions


def ridge(prompt: Prompt, penalty: float) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = (X'X + penalty I)^-1 X'y over the pairs before it, in float64.

    With noise of variance s^2 and w ~ N(0, I), penalty = s^2 is the Bayes estimator: nothing does better.
    """
    if penalty <= 0:
        raise ValueError(f"`penalty` must be above 0; got {penalty}. Use least squares for no penalty.")
    xs, ys = prompt.xs.double(), prompt.ys.double()
    d = xs.shape[-1]
    inverse = torch.eye(d, dtype=xs.dtype, device=xs.device).expand(len(xs), d, d) / penalty
    moment = torch.zeros_like(xs[:, 0])
    predictions = torch.empty_like(ys)
    for i in range(xs.shape[1]):
        x = xs[:, i]
        sx = torch.einsum("bij,bj->bi", inverse, x)
        predictions[:, i] = (sx * moment).sum(1)
        inverse = inverse - _outer(sx, sx) / (1 + (x * sx).sum(1))[:, None, None]
        moment = moment + x * ys[:, i, None]
    return predictions


def averaging(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = mean of x_j y_j over the pairs before it (0 before the first)."""
    xs, ys = prompt.xs.double(), prompt.ys.double()
    sums = (xs * ys[..., None]).cumsum(1)
    counts = torch.arange(1, xs.shape[1], device=xs.device, dtype=xs.dtype)[:, None]
    means = torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1] / counts), dim=1)
    return (means * xs).sum(-1)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] * b[:, None, :]


def _project(basis: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bkd,bk->bd", basis, torch.einsum("bkd,bd->bk", basis, x))
