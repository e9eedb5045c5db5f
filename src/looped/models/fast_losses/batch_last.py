"""Products of one small matrix per prompt. Prompts are the last axis, so every inner loop runs over prompts.

A stack of matrices is `(models, rows, columns, prompts)`. A batched product of 15 x 5 matrices spends its time on
calls and ragged ends; here it is a few multiply-adds of long contiguous rows.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def call_now(call: Callable[..., object], *args: object, **named: object) -> None:
    """Run the call; a plan passes its own function instead, which records the call for later."""
    call(*args, **named)


def product(
    left: Float[Tensor, "models p k c"],
    right: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p q c"] | None = None,
    *,
    start: Float[Tensor, "models p #q c"] | None = None,
    do: Callable[..., object] = call_now,
) -> Float[Tensor, "models p q c"]:
    """The matrix product for each prompt, added to `start`, which may be `out`.

    out_pq = start_pq + sum_k left_pk right_kq
    """
    lefts, rights = list(left.unsqueeze(3).unbind(2)), list(right.unsqueeze(1).unbind(2))
    out = left.new_empty(*left.shape[:2], *right.shape[2:]) if out is None else out
    if start is None:
        do(torch.mul, lefts.pop(), rights.pop(), out=out)
    elif start is not out:
        do(torch.addcmul, start, lefts.pop(), rights.pop(), out=out)
    if lefts and out.is_cpu:
        # a CPU adds them one after the other, but in a single call: between calls threads wait for each other
        do(torch._foreach_addcmul_, [out] * len(lefts), lefts, rights)  # pyright: ignore[reportPrivateImportUsage]
    else:
        for column, row in zip(lefts, rights, strict=True):
            do(out.addcmul_, column, row)
    return out


def matrix_times(
    matrix: Float[Tensor, "models p k"],
    columns: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p q c"] | None = None,
    *,
    add: bool = False,
    do: Callable[..., object] = call_now,
) -> Float[Tensor, "models p q c"]:
    """Each model's matrix times its prompts' matrices, as one long product; `add` adds it to `out`.

    Every row of `columns` and of `out` must be contiguous.
    """
    out = columns.new_empty(*matrix.shape[:2], *columns.shape[2:]) if out is None else out
    flat_out, flat_columns = (tensor.view(*tensor.shape[:2], -1) for tensor in (out, columns))
    if add:
        do(flat_out.baddbmm_, matrix, flat_columns)
    else:
        do(torch.bmm, matrix, flat_columns, out=flat_out)
    return out


def outer(
    left: Float[Tensor, "models p q c"],
    right: Float[Tensor, "models k q c"],
    out: Float[Tensor, "models p k"] | None = None,
    *,
    do: Callable[..., object] = call_now,
) -> Float[Tensor, "models p k"]:
    """The sum over prompts of left right', for each model; every row of both must be contiguous."""
    out = left.new_empty(*left.shape[:2], right.shape[1]) if out is None else out
    flat_left, flat_right = (tensor.view(*tensor.shape[:2], -1) for tensor in (left, right))
    do(torch.bmm, flat_left, flat_right.mT, out=out)
    return out


def to_last(rows: Float[Tensor, "models c p q"]) -> Float[Tensor, "models p q c"]:
    """Move the prompts from behind the models to the last axis, in new contiguous memory."""
    return rows.permute(0, 2, 3, 1).contiguous()
