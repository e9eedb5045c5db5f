"""GELU between two matrix products, forward and backward, on a GPU.

    g = gelu(u);      du = dg gelu'(u)

The products themselves are cuBLAS's: our own products with GELU as their last step took longer than its product and
these passes together (docs/log.md).
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, BACK_TILE = 4, 2
"""Tokens of one step of a program, forward and backward; a program is a single warp."""
COLUMNS = 256
"""Columns of a program: 16 bytes of bfloat16 per thread."""
STEPS = 4
"""Steps of a program in the backward pass, which writes the sum over their tokens."""
SLOPE: tl.constexpr = tl.constexpr(2 * (2 / 3.141592653589793) ** 0.5)
CUBIC: tl.constexpr = tl.constexpr(0.044715)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


def gelu(u: Tensor, *, out: Tensor) -> Tensor:
    """GPT-2's GELU of (..., width), into `out`."""
    rows, width = u.numel() // u.shape[-1], u.shape[-1]
    grid = triton.cdiv(rows, TILE), triton.cdiv(width, COLUMNS)
    _gelu[grid](u, out, rows, width, FAST=_fast(u), TILE=TILE, COLUMNS=COLUMNS, num_warps=1)
    return out


def gelu_backward(dg: Tensor, u: Tensor, *, sums: Tensor) -> Tensor:
    """The gradient along u (models, rows, width), written over dg; its row sums go to `sums` (models, parts, width)."""
    models, rows, width = u.shape
    grid = triton.cdiv(rows, BACK_TILE * STEPS), triton.cdiv(width, COLUMNS), models
    _gelu_backward[grid](
        dg, u, sums, rows, width, FAST=_fast(u), TILE=BACK_TILE, STEPS=STEPS, COLUMNS=COLUMNS, num_warps=1
    )
    return dg


def parts_of(u: Tensor) -> int:
    """How many parts `gelu_backward` cuts the sum over rows into, for u (models, rows, width)."""
    return triton.cdiv(u.shape[1], BACK_TILE * STEPS)


def _fast(u: Tensor) -> bool:
    return u.is_cuda and u.dtype == torch.bfloat16


@triton.jit
def _sigmoid(u, FAST: tl.constexpr):
    """s with gelu(u) = u s, which is (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), and u clipped to [-10, 10].

    Beyond 10, s is 1 or less than 2e-38, so nothing overflows. FAST takes one instruction for tanh, good to 2^-11:
    results are rounded to bfloat16's 2^-9 anyway.
    """
    near = tl.minimum(tl.maximum(u, -10.0), 10.0)
    z = near * (near * near * CUBIC + 1)
    if FAST:
        s = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [z * (SLOPE / 2)], dtype=tl.float32, is_pure=True, pack=1
        )
        s = s * 0.5 + 0.5
    else:
        s = 1 / (1 + tl.exp2(z * (-LOG2E * SLOPE)))
    return s, near


@triton.jit
def _gelu(u, g, rows, width, FAST: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr):
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (column < width)
    x = tl.load(u + row * width + column, mask=inside, other=0.0).to(tl.float32)
    s, _ = _sigmoid(x, FAST)
    tl.store(g + row * width + column, (x * s).to(g.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
    dg, u, sums, rows, width, FAST: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr
):
    m = tl.program_id(2).to(tl.int64)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    total = tl.zeros([TILE, COLUMNS], tl.float32)
    for step in tl.static_range(STEPS):
        row = ((tl.program_id(0) * STEPS + step) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < width)
        at = (m * rows + row) * width + column
        x = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(dg + at, mask=inside, other=0.0).to(tl.float32)
        s, near = _sigmoid(x, FAST)
        slope *= s + s * (1 - s) * near * SLOPE * (near * near * (3 * CUBIC) + 1)
        total += slope
        tl.store(dg + at, slope.to(dg.dtype.element_ty), mask=inside)
    place = (m * tl.num_programs(0) + tl.program_id(0)) * width + column
    tl.store(sums + place, tl.sum(total, 0)[None, :], mask=column < width)
