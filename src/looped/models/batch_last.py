"""Products of one small matrix a prompt, prompts last: every inner loop runs over prompts, so it vectorises.

A stack of matrices is `(models, rows, columns, prompts)`. A batched product of 15 x 5 matrices spends its time on
calls and ragged ends; here it is a few multiply-adds of long contiguous rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def at_once(call: Callable[..., object], *args: object, **named: object) -> None:
    """Call it; in this one's place a plan may note the call for later."""
    call(*args, **named)


def product(
    left: Float[Tensor, "models p k c"],
    right: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p q c"] | None = None,
    *,
    start: Float[Tensor, "models p #q c"] | None = None,
    do: Callable[..., object] = at_once,
) -> Float[Tensor, "models p q c"]:
    """The matrix product, prompt by prompt, on top of `start`, which may be `out`.

    out_pq = start_pq + sum_k left_pk right_kq
    """
    ones, others = list(left.unsqueeze(3).unbind(2)), list(right.unsqueeze(1).unbind(2))
    out = left.new_empty(*left.shape[:2], *right.shape[2:]) if out is None else out
    if start is None:
        do(torch.mul, ones.pop(), others.pop(), out=out)
    elif start is not out:
        do(torch.addcmul, start, ones.pop(), others.pop(), out=out)
    if ones and out.is_cpu:
        # one after the other on a CPU, but a single call: between calls threads wait for each other
        do(torch._foreach_addcmul_, [out] * len(ones), ones, others)  # pyright: ignore[reportPrivateImportUsage]
    else:
        for one, other in zip(ones, others, strict=True):
            do(out.addcmul_, one, other)
    return out


def each(
    matrix: Float[Tensor, "models p k"],
    columns: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p q c"] | None = None,
    *,
    add: bool = False,
    do: Callable[..., object] = at_once,
) -> Float[Tensor, "models p q c"]:
    """Each model's matrix times its prompts' matrices, as one long product; `add` is on top of what `out` holds.

    A row of `columns` and of `out` must lie in one piece.
    """
    out = columns.new_empty(*matrix.shape[:2], *columns.shape[2:]) if out is None else out
    flat, long = (part.view(*part.shape[:2], -1) for part in (out, columns))
    if add:
        do(flat.baddbmm_, matrix, long)
    else:
        do(torch.bmm, matrix, long, out=flat)
    return out


def outer(
    left: Float[Tensor, "models p q c"],
    right: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p k"] | None = None,
    *,
    do: Callable[..., object] = at_once,
) -> Float[Tensor, "models p k"]:
    """The sum over prompts of left right', model by model; a row of each must lie in one piece."""
    out = left.new_empty(*left.shape[:2], right.shape[1]) if out is None else out
    one, other = (part.view(*part.shape[:2], -1) for part in (left, right))
    do(torch.bmm, one, other.mT, out=out)
    return out


def to_last(rows: Float[Tensor, "models c p q"]) -> Float[Tensor, "models p q c"]:
    """Prompts from behind the models to the end, laid out anew."""
    return rows.permute(0, 2, 3, 1).contiguous()
