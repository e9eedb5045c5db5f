"""One step of preconditioned descent for many models and prompts on a GPU: one kernel forward, one backward.

    e <- e - A' (rate S e),  S symmetric, one per prompt

Library products of 10 x 10 matrices with 20,000 columns use a small part of the card. Here a program takes one model
and some prompts, and the whole step stays in registers.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROMPTS = 64
"""Prompts of one program."""


class Step(torch.autograd.Function):
    """(e, A, S, rates) -> e - A' (rate S e), with gradients for e and A. Model m reads group m mod groups."""

    @staticmethod
    def forward(ctx, e: Tensor, a: Tensor, covariance: Tensor, rates: Tensor) -> Tensor:
        """Save rate S e, which the gradient along A reads."""
        e, a, rates = e.contiguous(), a.contiguous(), rates.contiguous()
        out, moved = torch.empty_like(e), torch.empty_like(e)
        models, d, count = e.shape
        _forward[models, triton.cdiv(count, PROMPTS)](
            e, a, covariance, rates, out, moved, len(covariance), count, **_constants(d)
        )
        ctx.save_for_backward(a, covariance, rates, moved)
        return out

    @staticmethod
    def backward(ctx, *grads):
        """Gradients along e and A; S and the rates get none."""
        a, covariance, rates, moved = ctx.saved_tensors
        up = grads[0].contiguous()
        models, d, count = up.shape
        blocks = triton.cdiv(count, PROMPTS)
        of_e, of_a = torch.empty_like(up), up.new_empty(models, blocks, d, d)
        _backward[models, blocks](up, a, covariance, rates, moved, of_e, of_a, len(covariance), count, **_constants(d))
        return of_e, of_a.sum(1), None, None


def _constants(d: int) -> dict[str, int]:
    return {"D": d, "PADDED": triton.next_power_of_2(d), "PROMPTS": PROMPTS, "num_warps": 1}


@triton.jit
def _forward(
    e, a, covariance, rates, out, moved, groups, count, D: tl.constexpr, PADDED: tl.constexpr, PROMPTS: tl.constexpr
):
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)[:, None]
    b = (tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS))[None, :]
    inside = (i < D) & (b < count)
    covariance += (m % groups) * D * D * count
    a += m * D * D
    at = (m * D + i) * count + b
    new = tl.zeros([PADDED, PROMPTS], e.dtype.element_ty)
    for k in tl.static_range(D):
        s = tl.load(covariance + (k * D + i) * count + b, mask=inside, other=0.0)
        new += s * tl.load(e + (m * D + k) * count + b, mask=b < count, other=0.0)
    new *= tl.load(rates + m * count + b, mask=b < count, other=0.0)
    tl.store(moved + at, new, mask=inside)
    left = tl.load(e + at, mask=inside, other=0.0)
    for k in tl.static_range(D):
        part = tl.sum(tl.where(i == k, new, 0.0), 0)[None, :]
        left -= tl.load(a + k * D + i, mask=i < D, other=0.0) * part
    tl.store(out + at, left, mask=inside)


@triton.jit
def _backward(
    up, a, covariance, rates, moved, of_e, of_a, groups, count, D: tl.constexpr, PADDED: tl.constexpr,
    PROMPTS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    b = (tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS))[None, :]
    inside = (i < D) & (b < count)
    covariance += (m % groups) * D * D * count
    a += m * D * D
    at = (m * D + i) * count + b
    slope = tl.load(up + at, mask=inside, other=0.0)
    turned = tl.zeros([PADDED, PROMPTS], up.dtype.element_ty)
    by_a = tl.zeros([PADDED, PADDED], up.dtype.element_ty)
    for k in tl.static_range(D):
        weight = tl.load(a + i * D + k, mask=i < D, other=0.0)
        turned += weight * tl.load(up + (m * D + k) * count + b, mask=b < count, other=0.0)
        part = tl.load(moved + (m * D + k) * count + b, mask=b < count, other=0.0)
        by_a -= tl.where(column == k, tl.sum(slope * part, 1)[:, None], 0.0)
    turned *= tl.load(rates + m * count + b, mask=b < count, other=0.0)
    for k in tl.static_range(D):
        s = tl.load(covariance + (k * D + i) * count + b, mask=inside, other=0.0)
        slope -= s * tl.sum(tl.where(i == k, turned, 0.0), 0)[None, :]
    tl.store(of_e + at, slope, mask=inside)
    block = m * tl.num_programs(1) + tl.program_id(1)
    tl.store(of_a + block * D * D + column * D + i, by_a, mask=(i < D) & (column < D))
