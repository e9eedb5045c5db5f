"""A layer of kernel attention on a GPU: one kernel forward, one backward, nothing of size tokens x tokens in memory.

The same numbers as `kernel_loss` computes on a CPU. A program of the grid takes one model and some of its prompts
through all of their tokens; it goes over queries and keys and keeps a handful of values for each prompt in registers.
Scores are computed again in the backward pass, which costs less than to write them down.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel

KINDS: dict[Kernel, int] = {kernels.linear: 0, kernels.relu: 1, kernels.exp: 2, softmax: 3}
SOFTMAX: tl.constexpr = tl.constexpr(3)
WARPS = 1
PROMPTS = 128
"""Prompts of one program, four a thread: all coordinates of a prompt then lie in one thread."""


def forward(weights: Sequence[Any], heads: Sequence[Kernel], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The query's label coordinate (models, c) after all layers, and the rows that entered each layer.

    Ref: cheng24, Eq. (3). Tokens are columns: rows (models, width, tokens, c).
    """
    models, width, tokens, count = rows.shape
    kept = []
    layers = weights[0].label.shape[1]
    for layer in range(layers):
        kept.append(rows)
        after = rows.clone()
        for one, kernel in zip(weights, heads, strict=True):
            _forward[models, triton.cdiv(count, PROMPTS)](
                rows,
                after,
                one.score[:, layer].contiguous(),
                _values(one, layer),
                tokens,
                count,
                tokens - 1 if layer == layers - 1 else 0,
                WIDTH=width,
                PADDED=triton.next_power_of_2(width),
                KIND=KINDS[kernel],
                PROMPTS=PROMPTS,
                num_warps=WARPS,
            )
        rows = after
    return rows[:, -1, -1].clone(), kept


def backward(
    weights: Sequence[Any], heads: Sequence[Kernel], kept: list[Tensor], up: Tensor, slopes: Sequence[Any]
) -> None:
    """Add the gradient to `slopes`; `up` (models, c) is the loss's slope along the query's label."""
    models, width, tokens, count = kept[0].shape
    d, blocks = width - 1, triton.cdiv(count, PROMPTS)
    back = torch.zeros_like(kept[0])
    back[:, d, -1] = up
    queries, downs, norms = torch.empty_like(back), torch.empty_like(back), back.new_empty(models, 2, tokens, count)
    for layer in range(len(kept) - 1, -1, -1):
        before = back.clone()
        for one, kernel, slope in zip(weights, heads, slopes, strict=True):
            of_score, of_value = back.new_empty(models, blocks, d, d), back.new_empty(models, blocks, width, width)
            _backward[models, blocks](
                kept[layer],
                back,
                before,
                queries,
                downs,
                norms,
                one.score[:, layer].contiguous(),
                _values(one, layer),
                of_score,
                of_value,
                tokens,
                count,
                tokens - 1 if layer == len(kept) - 1 else 0,
                FIRST=layer == 0,
                WIDTH=width,
                PADDED=triton.next_power_of_2(width),
                KIND=KINDS[kernel],
                PROMPTS=PROMPTS,
                num_warps=WARPS,
            )
            slope.score[:, layer] += of_score.sum(1)
            total = of_value.sum(1)
            slope.label[:, layer] += total[:, d, d]
            if slope.transform is not None:
                slope.transform[:, layer] += total[:, :d, :d]
        back = before


def _values(one: Any, layer: int) -> Tensor:
    """V = diag(A, r) of every model."""
    models, d = one.score.shape[0], one.score.shape[-1]
    values = one.score.new_zeros(models, d + 1, d + 1)
    values[:, d, d] = one.label[:, layer]
    if one.transform is not None:
        values[:, :d, :d] = one.transform[:, layer]
    return values


@triton.jit
def _asks(rows, score, j, b, tokens, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, PROMPTS: tl.constexpr):
    """q_j = M x_j, 0 in the label's place."""
    column = tl.arange(0, PADDED)
    q = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
    for k in tl.static_range(WIDTH - 1):
        x = tl.load(rows + (k * tokens + j) * count + b, mask=b < count, other=0.0)
        w = tl.load(score + column * (WIDTH - 1) + k, mask=column < WIDTH - 1, other=0.0)
        q += w[:, None] * x
    return q


@triton.jit
def _weight(s, KIND: tl.constexpr):
    """h(s), but for the softmax."""
    h = s
    if KIND == 1:
        h = tl.maximum(s, 0.0)
    if KIND == 2:
        h = tl.exp(s)
    return h


@triton.jit
def _rise(s, h, slope, KIND: tl.constexpr):
    """The slope along s, given that along h(s), but for the softmax."""
    rise = slope
    if KIND == 1:
        rise = tl.where(s > 0, slope, 0.0)
    if KIND == 2:
        rise = h * slope
    return rise


@triton.jit
def _forward(
    rows,
    after,
    score,
    value,
    tokens,
    count,
    first_query,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    KIND: tl.constexpr,
    PROMPTS: tl.constexpr,
):
    """Add V sum_i h(<M x_j, x_i>) (x_i, y_i) to token j of `after`, for j from `first_query` on."""
    m = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, PADDED)[:, None]
    b = (tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS))[None, :]
    column = tl.arange(0, PADDED)
    inside = (e < WIDTH) & (b < count)
    rows += m * WIDTH * tokens * count
    after += m * WIDTH * tokens * count
    score += m * (WIDTH - 1) * (WIDTH - 1)
    value += m * WIDTH * WIDTH
    for j in range(first_query, tokens):
        q = _asks(rows, score, j, b, tokens, count, WIDTH, PADDED, PROMPTS)
        sums = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        top = tl.full([PROMPTS], float("-inf"), rows.dtype.element_ty)
        total = tl.zeros([PROMPTS], rows.dtype.element_ty)
        for i in range(tokens - 1):
            row = tl.load(rows + (e * tokens + i) * count + b, mask=inside, other=0.0)
            s = tl.sum(q * row, 0)
            if KIND == SOFTMAX:
                higher = tl.maximum(top, s)
                shrink = tl.exp(top - higher)
                h = tl.exp(s - higher)
                top = higher
                total = total * shrink + h
                sums = sums * shrink[None, :] + h[None, :] * row
            else:
                sums += _weight(s, KIND)[None, :] * row
        if KIND == SOFTMAX:
            sums = sums / total[None, :]
        out = tl.load(after + (e * tokens + j) * count + b, mask=inside, other=0.0)
        for k in tl.static_range(WIDTH):
            part = tl.sum(tl.where(e == k, sums, 0.0), 0)
            v = tl.load(value + column * WIDTH + k, mask=column < WIDTH, other=0.0)
            out += v[:, None] * part[None, :]
        tl.store(after + (e * tokens + j) * count + b, out, mask=inside)


@triton.jit
def _backward(
    rows,
    back,
    before,
    queries,
    downs,
    norms,
    score,
    value,
    of_score,
    of_value,
    tokens,
    count,
    first_query,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    KIND: tl.constexpr,
    PROMPTS: tl.constexpr,
):
    """Of one layer: slopes along M and V, summed over this program's prompts, and, added to `before`, along its rows.

    First every token as a query, which leaves what it asked (`queries`), what its answer is worth (`downs`) and the
    softmax's sums (`norms`); then every example as a key.
    """
    m = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, PADDED)[:, None]
    b = (tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS))[None, :]
    flat = tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS)
    column = tl.arange(0, PADDED)
    inside = (e < WIDTH) & (b < count)
    start = m * WIDTH * tokens * count
    rows += start
    back += start
    before += start
    queries += start
    downs += start
    norms += m * 2 * tokens * count
    score += m * (WIDTH - 1) * (WIDTH - 1)
    value += m * WIDTH * WIDTH
    by_score = tl.zeros([PADDED, PADDED], rows.dtype.element_ty)
    by_value = tl.zeros([PADDED, PADDED], rows.dtype.element_ty)
    for j in range(first_query, tokens):
        at = (e * tokens + j) * count + b
        q = _asks(rows, score, j, b, tokens, count, WIDTH, PADDED, PROMPTS)
        down = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        for k in tl.static_range(WIDTH):
            slope = tl.load(back + (k * tokens + j) * count + b, mask=b < count, other=0.0)
            v = tl.load(value + k * WIDTH + column, mask=column < WIDTH, other=0.0)
            down += v[:, None] * slope
        sums = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        turn = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        if KIND == SOFTMAX:
            top = tl.full([PROMPTS], float("-inf"), rows.dtype.element_ty)
            total = tl.zeros([PROMPTS], rows.dtype.element_ty)
            mean = tl.zeros([PROMPTS], rows.dtype.element_ty)
            for i in range(tokens - 1):
                row = tl.load(rows + (e * tokens + i) * count + b, mask=inside, other=0.0)
                s = tl.sum(q * row, 0)
                higher = tl.maximum(top, s)
                shrink = tl.exp(top - higher)
                h = tl.exp(s - higher)
                top = higher
                total = total * shrink + h
                mean = mean * shrink + h * tl.sum(down * row, 0)
            mean = mean / total
            norm = top + tl.log(total)
            for i in range(tokens - 1):
                row = tl.load(rows + (e * tokens + i) * count + b, mask=inside, other=0.0)
                h = tl.exp(tl.sum(q * row, 0) - norm)
                sums += h[None, :] * row
                turn += (h * (tl.sum(down * row, 0) - mean))[None, :] * row
            tl.store(norms + j * count + flat, norm, mask=flat < count)
            tl.store(norms + (tokens + j) * count + flat, mean, mask=flat < count)
        else:
            for i in range(tokens - 1):
                row = tl.load(rows + (e * tokens + i) * count + b, mask=inside, other=0.0)
                s = tl.sum(q * row, 0)
                h = _weight(s, KIND)
                sums += h[None, :] * row
                turn += _rise(s, h, tl.sum(down * row, 0), KIND)[None, :] * row
        up = tl.load(back + at, mask=inside, other=0.0)
        for k in tl.static_range(WIDTH):
            x = tl.load(rows + (k * tokens + j) * count + b, mask=b < count, other=0.0)
            by_score += tl.where(column[None, :] == k, tl.sum(turn * x, 1)[:, None], 0.0)
            part = tl.sum(tl.where(e == k, sums, 0.0), 0)
            by_value += tl.where(column[None, :] == k, tl.sum(up * part[None, :], 1)[:, None], 0.0)
        if not FIRST:
            out = tl.load(before + at, mask=inside, other=0.0)
            for k in tl.static_range(WIDTH - 1):
                part = tl.sum(tl.where(e == k, turn, 0.0), 0)
                w = tl.load(score + k * (WIDTH - 1) + column, mask=column < WIDTH - 1, other=0.0)
                out += w[:, None] * part[None, :]
            tl.store(before + at, out, mask=inside)
            tl.store(queries + at, q, mask=inside)
            tl.store(downs + at, down, mask=inside)
    place = tl.arange(0, PADDED)[:, None] * WIDTH + tl.arange(0, PADDED)[None, :]
    both = (tl.arange(0, PADDED)[:, None] < WIDTH) & (tl.arange(0, PADDED)[None, :] < WIDTH)
    block = m * tl.num_programs(1) + tl.program_id(1)
    tl.store(of_value + block * WIDTH * WIDTH + place, by_value, mask=both)
    place = tl.arange(0, PADDED)[:, None] * (WIDTH - 1) + tl.arange(0, PADDED)[None, :]
    both = (tl.arange(0, PADDED)[:, None] < WIDTH - 1) & (tl.arange(0, PADDED)[None, :] < WIDTH - 1)
    tl.store(of_score + block * (WIDTH - 1) * (WIDTH - 1) + place, by_score, mask=both)
    if not FIRST:
        tl.debug_barrier()
        for i in range(tokens - 1):
            at = (e * tokens + i) * count + b
            row = tl.load(rows + at, mask=inside, other=0.0)
            out = tl.load(before + at, mask=inside, other=0.0)
            for j in range(first_query, tokens):
                asked = (e * tokens + j) * count + b
                q = tl.load(queries + asked, mask=inside, other=0.0)
                down = tl.load(downs + asked, mask=inside, other=0.0)
                s = tl.sum(q * row, 0)
                slope = tl.sum(down * row, 0)
                if KIND == SOFTMAX:
                    h = tl.exp(s - tl.load(norms + j * count + flat, mask=flat < count, other=0.0))
                    rise = h * (slope - tl.load(norms + (tokens + j) * count + flat, mask=flat < count, other=0.0))
                else:
                    h = _weight(s, KIND)
                    rise = _rise(s, h, slope, KIND)
                out += rise[None, :] * q + h[None, :] * down
            tl.store(before + at, out, mask=inside)
