"""Linear attention in the d-dimensional space: it reads a prompt only through its second moments.

X_{l+1} = X_l (I + P)',  P = A S M,  S = X'X:  rows are never formed, so the number of examples costs nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.fast_losses import batch_last
from looped.models.fast_losses.batch_last import to_last


class Moments(NamedTuple):
    """What linear attention reads of a prompt; prompts are the last axis."""

    second: Float[Tensor, "models d d c"]
    """S = X'X of the examples."""
    cross: Float[Tensor, "models d 1 c"]
    """b = X'y of the examples, a column."""
    query: Float[Tensor, "models d 1 c"]
    """x_q, a column."""


def moments(xs: Float[Tensor, "models c tokens d"], ys: Float[Tensor, "models c tokens"]) -> Moments:
    """The moments of the examples; the last pair is the query."""
    examples, labels = to_last(xs[..., :-1, :].mT), to_last(ys[..., :-1, None])
    second = batch_last.product(examples, examples.transpose(1, 2))
    return Moments(second, batch_last.product(examples, labels), to_last(xs[..., -1:, :].mT))


def linear_label(weights: Sequence[Any], moments: Moments) -> Float[Tensor, "models c"]:
    """The query's label coordinate, minus the prediction, where all heads are linear; autograd runs through it.

        y_q <- y_q + r b'M x_q;  x_q <- (I + P) x_q;  b <- (I + P)(b + r S M'b);  S <- (I + P) S (I + P)'

    P and r M are sums over heads of A S M and r M. Ref: cheng24, Eq. (3) with h linear.
    """
    second, cross, query = moments
    layers, label = weights[0].label.shape[1], torch.zeros_like(query[:, 0, 0])
    for layer in range(layers):
        gain = torch.stack([head.label[:, layer, None, None] * head.score[:, layer] for head in weights]).sum(0)
        pull = matrix_times(gain.mT, cross)  # r M'b
        label = label + (pull * query).sum((1, 2))
        if layer == layers - 1:
            break
        cross = cross + product(second, pull)
        free = [head for head in weights if head.transform is not None]
        if not free:
            continue
        # P = A S M = A (M'S)'
        turned = [matrix_times(head.score[:, layer].mT, second).transpose(1, 2) for head in free]
        terms = [matrix_times(head.transform[:, layer], part) for head, part in zip(free, turned, strict=True)]
        p = torch.stack(terms).sum(0)
        query, cross = query + product(p, query), cross + product(p, cross)
        if layer < layers - 2:
            half = second + product(p, second)
            second = half + product(half, p.transpose(1, 2))
    return label


class _Product(torch.autograd.Function):
    """`batch_last.product` for autograd."""

    @staticmethod
    def forward(ctx, left, right):
        ctx.save_for_backward(left, right)
        return batch_last.product(left, right)

    @staticmethod
    def backward(ctx, *grads):
        left, right = ctx.saved_tensors
        left_needs, right_needs = ctx.needs_input_grad
        return (
            batch_last.product(grads[0], right.transpose(1, 2)) if left_needs else None,
            batch_last.product(left.transpose(1, 2), grads[0]) if right_needs else None,
        )


class _MatrixTimes(torch.autograd.Function):
    """`batch_last.matrix_times` for autograd."""

    @staticmethod
    def forward(ctx, matrix, columns):
        columns = columns.contiguous()
        ctx.save_for_backward(matrix, columns)
        return batch_last.matrix_times(matrix, columns)

    @staticmethod
    def backward(ctx, *grads):
        matrix, columns = ctx.saved_tensors
        matrix_needs, columns_need = ctx.needs_input_grad
        grad = grads[0].contiguous()
        return (
            batch_last.outer(grad, columns) if matrix_needs else None,
            batch_last.matrix_times(matrix.mT, grad) if columns_need else None,
        )


product: Callable[[Tensor, Tensor], Tensor] = _Product.apply
matrix_times: Callable[[Tensor, Tensor], Tensor] = _MatrixTimes.apply
