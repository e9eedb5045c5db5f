"""Linear attention in the d-dimensional space: a prompt enters through its second moments alone.

X_{l+1} = X_l (I + P)',  P = A S M,  S = X'X:  rows are never formed, so the number of examples costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models import batch_last
from looped.models.batch_last import to_last


class Moments(NamedTuple):
    """What linear attention reads of a prompt, prompts last."""

    second: Float[Tensor, "models d d c"]
    """S = X'X of the examples."""
    cross: Float[Tensor, "models d 1 c"]
    """b = X'y of the examples, a column."""
    query: Float[Tensor, "models d 1 c"]
    """x_q, a column."""


def moments(xs: Float[Tensor, "models c tokens d"], ys: Float[Tensor, "models c tokens"]) -> Moments:
    """Of the examples, the last pair being the query."""
    examples, labels = to_last(xs[..., :-1, :].mT), to_last(ys[..., :-1, None])
    second = batch_last.product(examples, examples.transpose(1, 2))
    return Moments(second, batch_last.product(examples, labels), to_last(xs[..., -1:, :].mT))


def linear_label(weights: Sequence[Any], given: Moments) -> Float[Tensor, "models c"]:
    """The query's label coordinate, the negative prediction, by heads that are all linear; autograd runs through it.

        y_q <- y_q + r b'M x_q;  x_q <- (I + P) x_q;  b <- (I + P)(b + r S M'b);  S <- (I + P) S (I + P)'

    P and r M are sums over heads of A S M and r M. Ref: cheng24, Eq. (3) with h linear.
    """
    second, cross, query = given
    layers, label = weights[0].label.shape[1], torch.zeros_like(query[:, 0, 0])
    for layer in range(layers):
        gain = torch.stack([one.label[:, layer, None, None] * one.score[:, layer] for one in weights]).sum(0)
        pull = each(gain.mT, cross)  # r M'b
        label = label + (pull * query).sum((1, 2))
        if layer == layers - 1:
            break
        cross = cross + product(second, pull)
        free = [one for one in weights if one.transform is not None]
        if not free:
            continue
        # P = A S M = A (M'S)'
        shift = [each(one.transform[:, layer], each(one.score[:, layer].mT, second).transpose(1, 2)) for one in free]
        turn = torch.stack(shift).sum(0) if len(shift) > 1 else shift[0]
        query, cross = query + product(turn, query), cross + product(turn, cross)
        if layer < layers - 2:
            half = second + product(turn, second)
            second = half + product(half, turn.transpose(1, 2))
    return label


def product(left: Tensor, right: Tensor) -> Tensor:
    """`batch_last.product` for autograd."""
    return _Product.apply(left, right)  # type: ignore[return-value]


def each(matrix: Tensor, rows: Tensor) -> Tensor:
    """`batch_last.each` for autograd."""
    return _Each.apply(matrix, rows)  # type: ignore[return-value]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right):
        ctx.save_for_backward(left, right)
        return batch_last.product(left, right)

    @staticmethod
    def backward(ctx, *grads):
        left, right = ctx.saved_tensors
        one, other = ctx.needs_input_grad
        return (
            batch_last.product(grads[0], right.transpose(1, 2)) if one else None,
            batch_last.product(left.transpose(1, 2), grads[0]) if other else None,
        )


class _Each(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, rows):
        rows = rows.contiguous()
        ctx.save_for_backward(matrix, rows)
        return batch_last.each(matrix, rows)

    @staticmethod
    def backward(ctx, *grads):
        matrix, rows = ctx.saved_tensors
        one, other = ctx.needs_input_grad
        up = grads[0].contiguous()
        return batch_last.outer(up, rows) if one else None, batch_last.each(matrix.mT, up) if other else None
