"""Products of one small matrix a prompt, prompts last: every inner loop runs over prompts, so it vectorises.

A stack of matrices is `(models, rows, columns, prompts)`. A batched product of 15 x 5 matrices spends its time on
calls and ragged ends; here it is a few multiply-adds of long contiguous rows.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


class Arena:
    """Memory that is taken bit by bit and given back all at once: what is used again stays in the cache.

    On a GPU every tensor is torch's own, whose allocator does the same.
    """

    def __init__(self, like: Tensor):
        self.like, self.used, self.buffer = like, 0, like.new_empty(0)

    def take(self, *shape: int) -> Tensor:
        """A tensor whose values are undefined."""
        if self.like.is_cuda:
            return self.like.new_empty(shape)
        start, size = self.used, math.prod(shape)
        self.used += size
        if self.used > len(self.buffer):
            return self.like.new_empty(shape)
        return self.buffer[start : self.used].view(shape)

    def reset(self) -> None:
        """Everything taken may be overwritten from here on."""
        if self.used > len(self.buffer):
            self.buffer = self.like.new_empty(self.used)
        self.used = 0


def product(
    left: Float[Tensor, "models p k c"], right: Float[Tensor, "models k q c"], arena: Arena | None = None
) -> Float[Tensor, "models p q c"]:
    """The matrix product, prompt by prompt.

    out_pq = sum_k left_pk right_kq
    """
    (one, other), *terms = zip(left.unsqueeze(3).unbind(2), right.unsqueeze(1).unbind(2), strict=True)
    out = None if arena is None else arena.take(*left.shape[:2], *right.shape[2:])
    out = torch.mul(one, other, out=out)
    for one, other in terms:
        out.addcmul_(one, other)
    return out


def each(
    matrix: Float[Tensor, "models p k"], columns: Float[Tensor, "models k q c"], arena: Arena | None = None
) -> Float[Tensor, "models p q c"]:
    """Each model's matrix times its prompts' matrices, as one long product."""
    models, p, _ = matrix.shape
    tail = columns.shape[2:]
    flat = columns.reshape(models, columns.shape[1], -1)
    out = None if arena is None else arena.take(models, p, flat.shape[-1])
    return torch.bmm(matrix, flat, out=out).view(models, p, *tail)


def outer(left: Float[Tensor, "models p q c"], right: Float[Tensor, "models k q c"]) -> Float[Tensor, "models p k"]:
    """The sum over prompts of left right', model by model."""
    one, other = (part.reshape(*part.shape[:2], -1) for part in (left, right))
    return torch.bmm(one, other.mT)


def to_last(rows: Float[Tensor, "models c p q"]) -> Float[Tensor, "models p q c"]:
    """Prompts from behind the models to the end, laid out anew."""
    return rows.permute(0, 2, 3, 1).contiguous()
