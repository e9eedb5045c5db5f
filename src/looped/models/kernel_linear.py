"""Linear attention in the d-dimensional space: a prompt enters through its second moments alone.

X_{l+1} = X_l (I + P)',  P = A S M,  S = X'X:  rows are never formed, so the number of examples costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class Moments(NamedTuple):
    """What linear attention reads of a prompt."""

    second: Float[Tensor, "models batch d d"]
    """S = X'X of the examples."""
    cross: Float[Tensor, "models batch d"]
    """b = X'y of the examples."""
    query: Float[Tensor, "models batch d"]
    """x_q."""


class Weights(Protocol):
    """The weights of a head; see `kernel_loss.HeadWeights`."""

    @property
    def score(self) -> Tensor: ...
    @property
    def transform(self) -> Tensor | None: ...
    @property
    def label(self) -> Tensor: ...


def moments(xs: Float[Tensor, "models batch tokens d"], ys: Float[Tensor, "models batch tokens"]) -> Moments:
    """Of the examples, the last pair being the query."""
    examples, labels = xs[..., :-1, :], ys[..., :-1, None]
    return Moments(examples.mT @ examples, (examples.mT @ labels)[..., 0], xs[..., -1, :].contiguous())


def linear_predictions(weights: Sequence[Weights], given: Moments) -> Float[Tensor, "models batch"]:
    """Predictions of +y at the query by heads that are all linear.

        y_q <- y_q + r b'M x_q;  x_q <- (I + P) x_q;  b <- (I + P)(b + r S M'b);  S <- (I + P) S (I + P)'

    P and r M are sums over heads of A S M and r M. Ref: cheng24, Eq. (3) with h linear.
    """
    second, cross, query = given.second, given.cross[..., None, :], given.query[..., None, :]
    models, _, d, _ = second.shape
    layers = weights[0].label.shape[1]
    label = torch.zeros_like(given.query[..., 0])
    for layer in range(layers):
        gain = sum(one.label[:, layer, None, None] * one.score[:, layer] for one in weights)  # r M
        pull = _right(cross, gain)  # b' r M, a row
        label = label + (pull * query).sum((-2, -1))
        if layer == layers - 1:
            break
        cross = cross + pull @ second
        free = [one for one in weights if one.transform is not None]
        if not free:
            continue
        # rows times (I + P)', P' = M'S A'
        turn = torch.eye(d, dtype=second.dtype, device=second.device)
        turn = turn + sum(_right(_left(one.score[:, layer].mT, second), one.transform[:, layer].mT) for one in free)
        query, cross = query @ turn, cross @ turn
        if layer < layers - 2:
            second = turn.mT @ second @ turn
    return -label


def _right(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows (models, batch, k, d) times each model's matrix, as one product."""
    models, count, k, d = rows.shape
    return torch.bmm(rows.reshape(models, count * k, d), matrix).view(models, count, k, -1)


def _left(matrix: Tensor, symmetric: Tensor) -> Tensor:
    """Each model's matrix times a symmetric one a prompt: (S M')'."""
    return _right(symmetric, matrix.mT).mT
