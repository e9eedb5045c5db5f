"""A layer of kernel attention on a GPU: one kernel forward, one backward, nothing of size tokens x tokens in memory.

The numbers are those that `cheng24_loss` computes on a CPU. A program of the grid takes one model and some of its
prompts through all of their tokens: it goes over queries and keys, with a few values per prompt in registers. The
backward pass computes scores again, which costs less than storing them.
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
"""Prompts of one program, four per thread: one thread then holds all coordinates of a prompt."""


def forward(weights: Sequence[Any], heads: Sequence[Kernel], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The query's label coordinate (models, c) after all layers, and the rows that entered each layer.

    Ref: cheng24, Eq. (3). Tokens are columns: rows (models, width, tokens, c).
    """
    models, width, tokens, count = rows.shape
    saved_rows = []
    layers = weights[0].label.shape[1]
    for layer in range(layers):
        saved_rows.append(rows)
        after = rows.clone()
        first_query = tokens - 1 if layer == layers - 1 else 0
        for head, kernel in zip(weights, heads, strict=True):
            _forward[models, triton.cdiv(count, PROMPTS)](
                rows, after, *_matrices(head, layer), tokens, count, first_query, **_constants(width, kernel)
            )
        rows = after
    return rows[:, -1, -1].clone(), saved_rows


def backward(
    weights: Sequence[Any], heads: Sequence[Kernel], saved_rows: list[Tensor], up: Tensor, gradient: Sequence[Any]
) -> None:
    """Add to `gradient`; `up` (models, c) is the loss's derivative with respect to the query's label."""
    models, width, tokens, count = saved_rows[0].shape
    d, blocks = width - 1, triton.cdiv(count, PROMPTS)
    back = torch.zeros_like(saved_rows[0])
    back[:, d, -1] = up
    queries, downs, norms = torch.empty_like(back), torch.empty_like(back), back.new_empty(models, 2, tokens, count)
    for layer in range(len(saved_rows) - 1, -1, -1):
        before = back.clone()
        first_query = tokens - 1 if layer == len(saved_rows) - 1 else 0
        for head, kernel, grad in zip(weights, heads, gradient, strict=True):
            of_score, of_value = back.new_empty(models, blocks, d, d), back.new_empty(models, blocks, width, width)
            _backward[models, blocks](
                saved_rows[layer], back, before, queries, downs, norms, *_matrices(head, layer), of_score, of_value,
                tokens, count, first_query, FIRST=layer == 0, **_constants(width, kernel),
            )  # fmt: skip
            grad.score[:, layer] += of_score.sum(1)
            total = of_value.sum(1)
            grad.label[:, layer] += total[:, d, d]
            if grad.transform is not None:
                grad.transform[:, layer] += total[:, :d, :d]
        back = before


def _matrices(head: Any, layer: int) -> tuple[Tensor, Tensor]:
    """M and V = diag(A, r) of every model."""
    models, d = head.score.shape[0], head.score.shape[-1]
    values = head.score.new_zeros(models, d + 1, d + 1)
    values[:, d, d] = head.label[:, layer]
    if head.transform is not None:
        values[:, :d, :d] = head.transform[:, layer]
    return head.score[:, layer].contiguous(), values


def _constants(width: int, kernel: Kernel) -> dict[str, int]:
    padded = triton.next_power_of_2(width)
    return {"WIDTH": width, "PADDED": padded, "KIND": KINDS[kernel], "PROMPTS": PROMPTS, "num_warps": WARPS}


@triton.jit
def _query(rows, score, j, b, tokens, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, PROMPTS: tl.constexpr):
    """q_j = M x_j, with 0 in the label's coordinate."""
    column = tl.arange(0, PADDED)
    q = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
    for k in tl.static_range(WIDTH - 1):
        x = tl.load(rows + (k * tokens + j) * count + b, mask=b < count, other=0.0)
        w = tl.load(score + column * (WIDTH - 1) + k, mask=column < WIDTH - 1, other=0.0)
        q += w[:, None] * x
    return q


@triton.jit
def _kernel(s, KIND: tl.constexpr):
    """h(s); not for the softmax."""
    h = s
    if KIND == 1:
        h = tl.maximum(s, 0.0)
    if KIND == 2:
        h = tl.exp(s)
    return h


@triton.jit
def _grad_raw(s, h, grad_h, KIND: tl.constexpr):
    """The gradient along s, given that along h(s); not for the softmax."""
    grad_s = grad_h
    if KIND == 1:
        grad_s = tl.where(s > 0, grad_h, 0.0)
    if KIND == 2:
        grad_s = h * grad_h
    return grad_s


@triton.jit
def _forward(
    rows, after, score, value, tokens, count, first_query, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    KIND: tl.constexpr, PROMPTS: tl.constexpr,
):  # fmt: skip
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
        q = _query(rows, score, j, b, tokens, count, WIDTH, PADDED, PROMPTS)
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
                sums += _kernel(s, KIND)[None, :] * row
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
    rows, back, before, queries, downs, norms, score, value, of_score, of_value, tokens, count, first_query,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, KIND: tl.constexpr, PROMPTS: tl.constexpr,
):  # fmt: skip
    """One layer's gradient along M and V, summed over this program's prompts; that along its rows is added to `before`.

    First every token is a query. This stores M x (`queries`), V' times the gradient (`downs`) and the softmax's
    normaliser and mean (`norms`). Then every example is a key.
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
        q = _query(rows, score, j, b, tokens, count, WIDTH, PADDED, PROMPTS)
        down = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        for k in tl.static_range(WIDTH):
            grad = tl.load(back + (k * tokens + j) * count + b, mask=b < count, other=0.0)
            v = tl.load(value + k * WIDTH + column, mask=column < WIDTH, other=0.0)
            down += v[:, None] * grad
        sums = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
        grad_q = tl.zeros([PADDED, PROMPTS], rows.dtype.element_ty)
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
                grad_q += (h * (tl.sum(down * row, 0) - mean))[None, :] * row
            tl.store(norms + j * count + flat, norm, mask=flat < count)
            tl.store(norms + (tokens + j) * count + flat, mean, mask=flat < count)
        else:
            for i in range(tokens - 1):
                row = tl.load(rows + (e * tokens + i) * count + b, mask=inside, other=0.0)
                s = tl.sum(q * row, 0)
                h = _kernel(s, KIND)
                sums += h[None, :] * row
                grad_q += _grad_raw(s, h, tl.sum(down * row, 0), KIND)[None, :] * row
        up = tl.load(back + at, mask=inside, other=0.0)
        for k in tl.static_range(WIDTH):
            x = tl.load(rows + (k * tokens + j) * count + b, mask=b < count, other=0.0)
            by_score += tl.where(column[None, :] == k, tl.sum(grad_q * x, 1)[:, None], 0.0)
            part = tl.sum(tl.where(e == k, sums, 0.0), 0)
            by_value += tl.where(column[None, :] == k, tl.sum(up * part[None, :], 1)[:, None], 0.0)
        if not FIRST:
            out = tl.load(before + at, mask=inside, other=0.0)
            for k in tl.static_range(WIDTH - 1):
                part = tl.sum(tl.where(e == k, grad_q, 0.0), 0)
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
                query_at = (e * tokens + j) * count + b
                q = tl.load(queries + query_at, mask=inside, other=0.0)
                down = tl.load(downs + query_at, mask=inside, other=0.0)
                s = tl.sum(q * row, 0)
                grad_h = tl.sum(down * row, 0)
                if KIND == SOFTMAX:
                    h = tl.exp(s - tl.load(norms + j * count + flat, mask=flat < count, other=0.0))
                    grad_s = h * (grad_h - tl.load(norms + (tokens + j) * count + flat, mask=flat < count, other=0.0))
                else:
                    h = _kernel(s, KIND)
                    grad_s = _grad_raw(s, h, grad_h, KIND)
                out += grad_s[None, :] * q + h[None, :] * down
            tl.store(before + at, out, mask=inside)
