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

    second: Float[Tensor, "d d models c"]
    """S = X'X of the examples."""
    cross: Float[Tensor, "1 d models c"]
    """b' = y'X of the examples, a row."""
    query: Float[Tensor, "1 d models c"]
    """x_q', a row."""


def moments(xs: Float[Tensor, "models c tokens d"], ys: Float[Tensor, "models c tokens"]) -> Moments:
    """Of the examples, the last pair being the query."""
    examples, labels = to_last(xs[..., :-1, :]), to_last(ys[..., :-1, None])
    second = batch_last.product(examples.transpose(0, 1), examples)
    return Moments(second, batch_last.product(labels.transpose(0, 1), examples), to_last(xs[..., -1:, :]))


def linear_label(weights: Sequence[Any], given: Moments) -> Float[Tensor, "models c"]:
    """The query's label coordinate, the negative prediction, by heads that are all linear; autograd runs through it.

        y_q <- y_q + r b'M x_q;  x_q <- (I + P) x_q;  b <- (I + P)(b + r S M'b);  S <- (I + P) S (I + P)'

    P and r M are sums over heads of A S M and r M. Ref: cheng24, Eq. (3) with h linear.
    """
    second, cross, query = given
    layers, label = weights[0].label.shape[1], torch.zeros_like(query[0, 0])
    for layer in range(layers):
        gain = torch.stack([one.label[:, layer, None, None] * one.score[:, layer] for one in weights]).sum(0)
        pull = each(gain.mT, cross)  # b' r M
        label = label + (pull * query).sum((0, 1))
        if layer == layers - 1:
            break
        cross = cross + product(pull, second)
        free = [one for one in weights if one.transform is not None]
        if not free:
            continue
        # a row x' becomes x' + x' P',  P' = (S M)' A': rows of (S M)' = M'S, each through A
        shift = [each(one.transform[:, layer], each(one.score[:, layer].mT, second).transpose(0, 1)) for one in free]
        turn = torch.stack(shift).sum(0) if len(shift) > 1 else shift[0]
        query, cross = query + product(query, turn), cross + product(cross, turn)
        if layer < layers - 2:
            half = second + product(second, turn)
            second = half + product(turn.transpose(0, 1), half)
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
            batch_last.product(grads[0], right.transpose(0, 1)) if one else None,
            batch_last.product(left.transpose(0, 1), grads[0]) if other else None,
        )


class _Each(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, rows):
        ctx.save_for_backward(matrix, rows)
        return batch_last.each(matrix, rows)

    @staticmethod
    def backward(ctx, *grads):
        matrix, rows = ctx.saved_tensors
        one, other = ctx.needs_input_grad
        return (
            batch_last.outer(grads[0], rows) if one else None,
            batch_last.each(matrix.mT, grads[0]) if other else None,
        )
