"""Gradient descent and Newton's iteration for every prefix of every prompt: algorithms that a loop can run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.functional import descent
from looped.prompt import Prompt

CHUNK = 2**24
"""Number of float64 numbers in memory at once."""


@checked
def gradient_descent(prompt: Prompt, steps: int, rate: float | None = None) -> Float[Tensor, "batch n"]:
    """Predict y_i by `steps` steps of gradient descent from 0 on the i-1 pairs before it, in float64.

        w <- w - rate X'(X w - y)

    Ref: gao24, Fig. 5. The loss is |y - X w|^2 / 2, not its mean; without a `rate`, each prefix uses 1 / |X'X|.
    """

    def fit(xs: Tensor, ys: Tensor) -> Tensor:
        rates = _inverse(_largest(xs)) if rate is None else rate
        return descent.gradient_descent(xs, ys, steps=steps, rate=rates)[-1]

    _, n, d = prompt.xs.shape
    return _by_prefix(prompt, steps, fit, numbers=n * d + steps * d)


@checked
def newton(prompt: Prompt, steps: int) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = M X'y with M after `steps` steps of Newton's iteration for (X'X)^-1, in float64.

        M <- 2 M - M S M,  M_0 = S / |S|^2,  S = X'X

    Ref: gao24, Theorem 4.1 and Fig. 5. With fewer pairs than dimensions M tends to the pseudo-inverse, and w to the
    least-norm fit.
    """

    def fit(xs: Tensor, ys: Tensor) -> Tensor:
        squares = xs.mT @ xs
        inverse = descent.newton_inverse(squares, steps=steps, alpha=_inverse(_largest(xs)).square())[-1]
        return torch.einsum("bij,bnj,bn->bi", inverse, xs, ys)

    _, n, d = prompt.xs.shape
    return _by_prefix(prompt, steps, fit, numbers=n * d + (steps + 1) * d * d)


def _by_prefix(
    prompt: Prompt, steps: int, fit: Callable[[Tensor, Tensor], Tensor], *, numbers: int
) -> Float[Tensor, "batch n"]:
    """Fit to the pairs before each position, with later pairs set to 0, in batches; a fit needs `numbers` numbers."""
    if steps < 0:
        raise ValueError(f"`steps` must be at least 0; got {steps}.")
    xs, ys = prompt.xs.double(), prompt.ys.double()
    _, n, d = xs.shape
    before = torch.ones(n, n, dtype=torch.bool, device=xs.device).tril(-1)
    parts = []
    rows = max(1, CHUNK // (n * numbers))
    for x, y in zip(xs.split(rows), ys.split(rows), strict=True):
        seen_x = torch.where(before[..., None], x[:, None], 0.0).reshape(-1, n, d)
        seen_y = torch.where(before, y[:, None], 0.0).reshape(-1, n)
        w = fit(seen_x, seen_y).reshape(x.shape)
        parts.append((w * x).sum(-1))
    return torch.cat(parts)


def _largest(xs: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch"]:
    """The largest eigenvalue of X'X, from the smaller of the two Gram matrices."""
    gram = xs @ xs.mT if xs.shape[1] < xs.shape[2] else xs.mT @ xs
    return torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0.0)


def _inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 where value is 0: there are no examples."""
    return torch.where(value > 0, 1 / torch.where(value > 0, value, 1.0), 0.0)
