"""The algorithms that loops are compared with, batched, each returning all its iterates, the first one included.

Losses are 1/2 |y - X w|^2 over the examples, not their mean: a rate here is the paper's over n where it has 1/n.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.kernels import Kernel

Rate = float | Tensor
"""One rate, or a tensor that broadcasts to (steps, batch): one a step is (steps, 1), one a prompt (1, batch)."""


def gradient_descent(
    xs: Float[Tensor, "batch n d"],
    ys: Float[Tensor, "batch n"],
    *,
    steps: int,
    rate: Rate,
    start: Float[Tensor, "batch d"] | None = None,
) -> Float[Tensor, "kept batch d"]:
    """Gradient descent on least squares.

        w <- w - rate X'(X w - y),  w = 0 first unless `start` is given

    Ref: chen24, Eq. (2); gatmiry24, proof of Theorem 5.
    """
    w = torch.zeros_like(xs[:, 0]) if start is None else start
    rates = torch.as_tensor(rate, dtype=xs.dtype, device=xs.device).expand(steps, len(xs))
    iterates = [w]
    for now in rates:
        w = w - now[:, None] * _gradient(xs, ys, w)
        iterates.append(w)
    return torch.stack(iterates)


def preconditioned_descent(
    xs: Float[Tensor, "batch n d"], ys: Float[Tensor, "batch n"], *, preconditioners: Float[Tensor, "steps d d"]
) -> Float[Tensor, "kept batch d"]:
    """Gradient descent from 0 with a matrix for a rate, one a step; it need not be symmetric.

        w <- w - A_t X'(X w - y)

    Ref: gatmiry24, Section 2.3, where the layer with Q = diag(A, 0) has A_t = A' / n.
    """
    w = torch.zeros_like(xs[:, 0])
    iterates = [w]
    for matrix in preconditioners:
        w = w - _gradient(xs, ys, w) @ matrix.T
        iterates.append(w)
    return torch.stack(iterates)


def gradient_descent_plus_plus(
    xs: Float[Tensor, "batch n d"],
    ys: Float[Tensor, "batch n"],
    queries: Float[Tensor, "batch m d"],
    *,
    steps: int,
    rate: float,
    transform: float,
) -> Float[Tensor, "kept batch m"]:
    """GD++: every gradient step is followed by a transformation of all covariates, which conditions them better.

        f(x_j) <- f(x_j) + rate sum_i (y_i - f(x_i)) <x_i, x_j>;  x_j <- x_j - transform sum_i <x_i, x_j> x_i

    Ref: cheng24, Section 4.4 (von Oswald et al., 2023). The iterates are predictions at `queries`: the weights of
    successive steps live in different coordinates.
    """
    residual, prediction = ys, torch.zeros_like(queries[..., 0])
    iterates = [prediction]
    for _ in range(steps):
        prediction = prediction + rate * torch.einsum("bn,bnd,bmd->bm", residual, xs, queries)
        residual = residual - rate * torch.einsum("bn,bnd,bmd->bm", residual, xs, xs)
        covariance = xs.mT @ xs
        xs, queries = xs - transform * xs @ covariance, queries - transform * queries @ covariance
        iterates.append(prediction)
    return torch.stack(iterates)


def functional_descent(
    xs: Float[Tensor, "batch n d"],
    ys: Float[Tensor, "batch n"],
    queries: Float[Tensor, "batch m d"],
    *,
    kernel: Kernel,
    steps: int,
    rate: Rate,
) -> Float[Tensor, "kept batch m"]:
    """Gradient descent in the kernel's function space, read at `queries`.

        f <- f + rate sum_i (y_i - f(x_i)) kernel(x_i, .),  f = 0 first

    Ref: cheng24, Eq. (9).
    """
    among, across = kernel(xs, xs), kernel(xs, queries)
    rates = torch.as_tensor(rate, dtype=xs.dtype, device=xs.device).expand(steps, len(xs))
    residual, prediction = ys, torch.zeros_like(queries[..., 0])
    iterates = [prediction]
    for now in rates:
        prediction = prediction + now[:, None] * torch.einsum("bn,bnm->bm", residual, across)
        residual = residual - now[:, None] * torch.einsum("bn,bnm->bm", residual, among)
        iterates.append(prediction)
    return torch.stack(iterates)


def chebyshev_iteration(
    xs: Float[Tensor, "batch n d"],
    ys: Float[Tensor, "batch n"],
    *,
    steps: int,
    low: float | Tensor,
    high: float | Tensor,
) -> Float[Tensor, "kept batch d"]:
    """Chebyshev semi-iteration: every iterate is the best its degree allows for eigenvalues of X'X in [low, high].

        w_{t+1} = w_t + b_t (w_t - w_{t-1}) - a_t X'(X w_t - y),  the error of w_t being extremal_t(X'X) w*

    Ref: gatmiry24, Theorem 2, which fixes the degree beforehand and uses the roots as rates; the last iterates agree.
    """
    centre, radius = (high + low) / (high - low), (high - low) / 2
    w = previous = torch.zeros_like(xs[:, 0])
    iterates, ratio = [w], 1 / centre
    for t in range(steps):
        if t == 0:
            w, previous = w - 2 / (high + low) * _gradient(xs, ys, w), w
        else:
            after = 1 / (2 * centre - ratio)
            step = w - previous
            w, previous = w + after * ratio * step - 2 * after / radius * _gradient(xs, ys, w), w
            ratio = after
        iterates.append(w)
    return torch.stack(iterates)


def newton_inverse(
    matrix: Float[Tensor, "*batch d d"], *, steps: int, alpha: float | Tensor
) -> Float[Tensor, "kept *batch d d"]:
    """Newton's iteration for the inverse of a symmetric positive definite matrix.

        M <- 2 M - M S M,  M = alpha S first

    Ref: gatmiry24, Theorem 4 (which prints M <- 2 M S M); gao24, Theorem 4.1. It converges for 0 < alpha < 2/|S|^2.
    """
    inverse = torch.as_tensor(alpha, dtype=matrix.dtype, device=matrix.device)[..., None, None] * matrix
    iterates = [inverse]
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ matrix @ inverse
        iterates.append(inverse)
    return torch.stack(iterates)


def conjugate_gradient(
    xs: Float[Tensor, "batch n d"], ys: Float[Tensor, "batch n"], *, steps: int
) -> Float[Tensor, "kept batch d"]:
    """Conjugate gradients on the normal equations, which no fixed weights can match: the rates depend on the prompt.

    w <- w + (|g|^2 / |X p|^2) p,  g the negative gradient, p its part conjugate to the directions before
    """
    w = torch.zeros_like(xs[:, 0])
    gradient = -_gradient(xs, ys, w)
    direction, size = gradient, gradient.square().sum(-1, keepdim=True)
    tiny = torch.finfo(xs.dtype).tiny
    iterates = [w]
    for _ in range(steps):
        image = torch.einsum("bnd,bd->bn", xs, direction)
        rate = size / image.square().sum(-1, keepdim=True).clamp_min(tiny)
        w = w + rate * direction
        gradient = gradient - rate * torch.einsum("bnd,bn->bd", xs, image)
        size, before = gradient.square().sum(-1, keepdim=True), size
        direction = gradient + size / before.clamp_min(tiny) * direction
        iterates.append(w)
    return torch.stack(iterates)


def _gradient(xs: Tensor, ys: Tensor, w: Tensor) -> Tensor:
    """X'(X w - y), prompt by prompt."""
    return torch.einsum("bnd,bn->bd", xs, torch.einsum("bnd,bd->bn", xs, w) - ys)
