"""Least squares, ridge and averaging for every prefix of every prompt, in one batched pass."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt


def least_squares(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by the least-norm least-squares fit to the i-1 pairs before it.

        w = B'u,  R u = z,  X B' = Q R,  z = Q'y

    The rows of B are an orthonormal basis of what the x so far span; R and z follow by plane rotations, one new row at
    a time, which is as stable as a QR of each prefix: one that was nearly singular does not spoil those after it.
    Computed in float64.
    """
    xs, ys = prompt.xs.double(), prompt.ys.double()
    batch, n, d = xs.shape
    most = min(n, d)
    basis, factor, target = xs.new_zeros(batch, most, d), xs.new_zeros(batch, most, most), xs.new_zeros(batch, most)
    rank = torch.zeros(batch, dtype=torch.int64, device=xs.device)
    predictions = torch.zeros_like(ys)
    for i in range(n - 1):
        x, y = xs[:, i], ys[:, i]
        outside = x - _project(basis, x)
        outside = outside - _project(basis, outside)
        size = outside.norm(dim=1)
        new = size > 1e-9 * x.norm(dim=1)
        direction = torch.where(new[:, None], outside / size.clamp_min(1e-300)[:, None], 0.0)
        place = rank.clamp(max=most - 1)[:, None, None].expand(-1, 1, d)
        basis = basis.scatter_add(1, place, direction[:, None])
        rank = rank + new
        row = torch.einsum("bkd,bd->bk", basis, x)
        for j in range(min(i + 1, most)):
            above, here = factor[:, j].clone(), target[:, j].clone()
            length = torch.hypot(above[:, j], row[:, j])
            safe = torch.where(length > 0, length, 1.0)
            cosine, sine = torch.where(length > 0, above[:, j] / safe, 1.0), row[:, j] / safe
            factor[:, j], row = _rotate(cosine[:, None], sine[:, None], above, row)
            target[:, j], y = _rotate(cosine, sine, here, y)
        # directions not met yet have zero rows here: 1 on their diagonal leaves their part of u zero
        unmet = torch.diag_embed((factor.diagonal(dim1=1, dim2=2) == 0).double())
        u = torch.linalg.solve_triangular(factor + unmet, target[..., None], upper=True)
        w = torch.einsum("bkd,bk->bd", basis, u[..., 0])
        predictions[:, i + 1] = (xs[:, i + 1] * w).sum(1)
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


def _rotate(cosine: Tensor, sine: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return cosine * a + sine * b, cosine * b - sine * a


def _project(basis: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bkd,bk->bd", basis, torch.einsum("bkd,bd->bk", basis, x))
