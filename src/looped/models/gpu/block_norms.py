"""What a block does token by token before and after its matrix products: norm, residual, and the biases' sums.

    norm            copy = x + shift;  a = norm(x)
    norm_backward   dx = da norm'(x) + past, and the sums over tokens of da normal(x), da and past

`copy` is what a product adds to, so `shift` is that product's bias; `past` is the gradient along the product's output.
Without a norm, a = x.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.models.gpu.norms import (
    BACK_TILE,
    TILE,
    _constants,
    _load,
    _normal,
    _normal_backward,
    _place,
    _store_sum,
)

STEPS = 4
"""Tiles of a program in the backward pass, which writes the sums over their tokens."""
Norm = tuple[Tensor, Tensor] | None
"""Scale and bias, (models, width), or no norm."""


def norm(x: Tensor, scales: Norm, shift: Tensor, *, out: tuple[Tensor, Tensor]) -> None:
    """Write x + shift and the norm of x (models, rows, width) into `out`."""
    models, rows, width = x.shape
    _norm[triton.cdiv(rows, TILE), models](
        x, *out, *(scales or (shift, shift)), shift, rows, NORM=scales is not None, **_constants(x, width)
    )


def norm_backward(da: Tensor, x: Tensor, past: Tensor, scales: Norm, *, out: Tensor, sums: Tensor) -> None:
    """Write the gradient along x into `out`, and its part of the vectors' gradients into `sums` (see `sums_like`)."""
    models, rows, width = x.shape
    scale = past if scales is None else scales[0]  # not read without a norm
    _norm_backward[sums.shape[2], models](
        da, x, past, out, sums, scale, rows, sums.stride(0), NORM=scales is not None, STEPS=STEPS,
        **_constants(x, width, BACK_TILE),
    )  # fmt: skip


def sums_like(x: Tensor, *lead: int) -> Tensor:
    """(*lead, 3, models, parts, width) for `norm_backward`: gradients of scale, bias and shift, in parts to be added.

    Without a norm, those of scale and bias stay unwritten.
    """
    models, rows, width = x.shape
    return x.new_empty(*lead, 3, models, triton.cdiv(rows, BACK_TILE * STEPS), width, dtype=torch.float32)


@triton.jit
def _norm(
    x, copy, a, scale, bias, shift, rows, NORM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    _, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    value = tl.load(x + at, mask=inside, other=0.0).to(EXACT)
    tl.store(copy + at, (value + _load(shift, m, column, WIDTH, EXACT)).to(copy.dtype.element_ty), mask=inside)
    if NORM:
        normal, _, _ = _normal(value, inside, WIDTH)
        value = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
    tl.store(a + at, value.to(a.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    da, x, past, out, sums, scale, rows, stride, NORM: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    by_scale = tl.zeros([TILE, PADDED], EXACT)
    by_bias = by_scale
    by_shift = by_scale
    for step in tl.static_range(STEPS):
        _, _, inside, at = _place(m, tl.program_id(0) * STEPS + step, rows, WIDTH, PADDED, TILE)
        grad = tl.load(da + at, mask=inside, other=0.0).to(EXACT)
        along = tl.load(past + at, mask=inside, other=0.0).to(EXACT)
        by_shift += along
        if NORM:
            value = tl.load(x + at, mask=inside, other=0.0).to(EXACT)
            normal, _, rstd = _normal(value, inside, WIDTH)
            by_scale += grad * normal
            by_bias += grad
            grad = _normal_backward(grad, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH)
        tl.store(out + at, (grad + along).to(out.dtype.element_ty), mask=inside)
    if NORM:
        _store_sum(sums, 0, stride, m, column, by_scale, WIDTH)
        _store_sum(sums, 1, stride, m, column, by_bias, WIDTH)
    _store_sum(sums, 2, stride, m, column, by_shift, WIDTH)
