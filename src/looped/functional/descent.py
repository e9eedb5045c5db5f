"""The algorithms that loops are compared with, batched. Each returns all its iterates, from the start on.

Losses are sums over the examples, 1/2 |y - X w|^2. Where a paper takes the mean, its rate is n times the one here.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.kernels import Kernel

Xs = Float[Tensor, "batch n d"]
Ys = Float[Tensor, "batch n"]
Iterates = Float[Tensor, "iterates batch d"]
Rate = float | Tensor
"""One rate, or a tensor that broadcasts to (steps, batch): (steps, 1) is one per step, (1, batch) one per prompt."""


def gradient_descent(
    xs: Xs, ys: Ys, *, steps: int, rate: Rate, start: Float[Tensor, "batch d"] | None = None
) -> Iterates:
    """Gradient descent on least squares.

        w <- w - rate X'(X w - y),  starting at w = 0 or at `start`

    Ref: chen24, Eq. (2); gatmiry24, proof of Theorem 5.
    """
    w = torch.zeros_like(xs[:, 0]) if start is None else start
    rates = torch.as_tensor(rate, dtype=xs.dtype, device=xs.device).expand(steps, len(xs))
    iterates = [w]
    for step_rate in rates:
        w = w - step_rate[:, None] * _gradient(xs, ys, w)
        iterates.append(w)
    return torch.stack(iterates)


def preconditioned_descent(xs: Xs, ys: Ys, *, preconditioners: Float[Tensor, "steps d d"]) -> Iterates:
    """Gradient descent from 0 whose rate is a matrix, one per step; it need not be symmetric.

        w <- w - A_t X'(X w - y)

    Ref: gatmiry24, Section 2.3, where the layer with Q = diag(A, 0) has A_t = A' / n.
    """
    w = torch.zeros_like(xs[:, 0])
    iterates = [w]
    for matrix in preconditioners:
        w = w - _gradient(xs, ys, w) @ matrix.T
        iterates.append(w)
    return torch.stack(iterates)


def functional_descent(
    xs: Xs, ys: Ys, queries: Float[Tensor, "batch m d"], *, kernel: Kernel, steps: int, rate: Rate
) -> Float[Tensor, "iterates batch m"]:
    """Gradient descent in the kernel's function space, read at `queries`.

        f <- f + rate sum_i (y_i - f(x_i)) kernel(x_i, .),  starting at f = 0

    Ref: cheng24, Eq. (9).
    """
    among, across = kernel(xs, xs), kernel(xs, queries)
    rates = torch.as_tensor(rate, dtype=xs.dtype, device=xs.device).expand(steps, len(xs))
    residual, prediction = ys, torch.zeros_like(queries[..., 0])
    iterates = [prediction]
    for step_rate in rates:
        prediction = prediction + step_rate[:, None] * torch.einsum("bn,bnm->bm", residual, across)
        residual = residual - step_rate[:, None] * torch.einsum("bn,bnm->bm", residual, among)
        iterates.append(prediction)
    return torch.stack(iterates)


def chebyshev_iteration(xs: Xs, ys: Ys, *, steps: int, low: float | Tensor, high: float | Tensor) -> Iterates:
    """Chebyshev semi-iteration: every iterate is the best of its degree for eigenvalues of X'X in [low, high].

        w_{t+1} = w_t + b_t (w_t - w_{t-1}) - a_t X'(X w_t - y),  where the error of w_t is R_t(X'X) w*

    Ref: gatmiry24, Theorem 2 (R_t: Lemma 3), which fixes the degree in advance and takes rates from the roots; the last
    iterates agree.
    """
    centre, radius = (high + low) / (high - low), (high - low) / 2
    w = previous = torch.zeros_like(xs[:, 0])
    iterates, ratio = [w], 1 / centre
    for t in range(steps):
        if t == 0:
            w, previous = w - 2 / (high + low) * _gradient(xs, ys, w), w
        else:
            next_ratio = 1 / (2 * centre - ratio)
            step = w - previous
            w, previous = w + next_ratio * ratio * step - 2 * next_ratio / radius * _gradient(xs, ys, w), w
            ratio = next_ratio
        iterates.append(w)
    return torch.stack(iterates)


def newton_inverse(
    matrix: Float[Tensor, "*batch d d"], *, steps: int, alpha: float | Tensor
) -> Float[Tensor, "iterates *batch d d"]:
    """Newton's iteration for the inverse of a symmetric positive definite matrix.

        M <- 2 M - M S M,  starting at M = alpha S

    Ref: gatmiry24, Theorem 4 (which prints M <- 2 M S M); gao24, Theorem 4.1. It converges for 0 < alpha < 2/|S|^2.
    """
    inverse = torch.as_tensor(alpha, dtype=matrix.dtype, device=matrix.device)[..., None, None] * matrix
    iterates = [inverse]
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ matrix @ inverse
        iterates.append(inverse)
    return torch.stack(iterates)


def _gradient(xs: Tensor, ys: Tensor, w: Tensor) -> Tensor:
    """X'(X w - y) of each prompt."""
    return torch.einsum("bnd,bn->bd", xs, torch.einsum("bnd,bd->bn", xs, w) - ys)
