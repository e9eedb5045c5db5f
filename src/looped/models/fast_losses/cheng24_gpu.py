"""A layer of kernel attention on a GPU: one kernel forward, one backward, nothing of size tokens x tokens in memory.

The numbers are those that `cheng24_loss` computes on a CPU. A thread takes one prompt at a time, each coordinate in a
register of its own. It holds a block of tokens and goes over the others, so that each is read once for the whole block:
reading is what limits it. The backward pass computes scores again, which costs less than storing them. Where A is 0
covariates never change, and nothing is computed for them.
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
PROMPTS = 32
"""Prompts that a program takes at a time, one per thread."""
BLOCK = 4
"""Tokens that a program holds at a time, queries or keys."""
BLOCK_FREE = 2
"""Queries that it holds in a backward pass where A is free, and its gradient takes registers too."""
PROGRAMS = 4096
"""Programs of a backward pass, over all models: they fill a card, and what they store for themselves stays in cache."""


def forward(weights: Sequence[Any], heads: Sequence[Kernel], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The query's label coordinate (models, c) after all layers, and the rows that entered each layer.

    Ref: cheng24, Eq. (3). Tokens are columns: rows (models, width, tokens, c).
    """
    models, width, tokens, count = rows.shape
    saved_rows = []
    layers = weights[0].label.shape[1]
    for layer in range(layers):
        saved_rows.append(rows)
        # the last layer only moves the query; the others are not read again
        after, first_query = (torch.empty_like(rows), 0) if layer < layers - 1 else (rows.clone(), tokens - 1)
        for index, (head, kernel) in enumerate(zip(weights, heads, strict=True)):
            _forward[models, triton.cdiv(count, PROMPTS)](
                rows, after if index else rows, after, *_matrices(head, layer), tokens, count, first_query,
                QUERIES=BLOCK, **_constants(head, width, kernel),
            )  # fmt: skip
        rows = after
    return rows[:, -1, -1].clone(), saved_rows


def backward(
    weights: Sequence[Any], heads: Sequence[Kernel], saved_rows: list[Tensor], up: Tensor, gradient: Sequence[Any]
) -> None:
    """Add to `gradient`; `up` (models, c) is the loss's derivative with respect to the query's label."""
    models, width, tokens, count = saved_rows[0].shape
    d, programs = width - 1, max(1, min(PROGRAMS // models, triton.cdiv(count, PROMPTS)))
    back = torch.zeros_like(saved_rows[0])
    back[:, d, -1] = up
    # M x, V' times the gradient, and the softmax's normaliser and mean, of the prompts in work
    scratch = back.new_empty(models, programs, 2 * d + 3, tokens, PROMPTS)
    for layer in range(len(saved_rows) - 1, -1, -1):
        last = layer == len(saved_rows) - 1
        # what no query of the last layer adds to is the same before
        before = back.clone() if last else torch.empty_like(back)
        for index, (head, kernel, grad) in enumerate(zip(weights, heads, gradient, strict=True)):
            parts = back.new_empty(models, programs, 2 * d * d + 1)
            _backward[models, programs](
                saved_rows[layer], back, before if index else back, before, scratch, *_matrices(head, layer), parts,
                tokens, count, PROMPTS, tokens - 1 if last else 0, FIRST=layer == 0, KEYS=BLOCK,
                QUERIES=BLOCK if head.transform is None else BLOCK_FREE, **_constants(head, width, kernel),
            )  # fmt: skip
            total = parts.sum(1)
            grad.score[:, layer] += total[:, : d * d].view(models, d, d)
            grad.label[:, layer] += total[:, -1]
            if grad.transform is not None:
                grad.transform[:, layer] += total[:, d * d : -1].view(models, d, d)
        back = before


def _matrices(head: Any, layer: int) -> tuple[Tensor, ...]:
    """M, A and r of every model; where there is no A, M stands in its place and is not read."""
    transform = head.score if head.transform is None else head.transform
    return tuple(part[:, layer].contiguous() for part in (head.score, transform, head.label))


def _constants(head: Any, width: int, kernel: Kernel) -> dict[str, Any]:
    sizes = {"WIDTH": width, "PROMPTS": PROMPTS, "num_warps": 1}
    return {**sizes, "KIND": KINDS[kernel], "FREE": head.transform is not None}


@triton.jit
def _zeros(like, N: tl.constexpr, SHAPE: tl.constexpr):
    """N tensors of zeros."""
    zeros = ()
    for _ in tl.static_range(N):
        zeros = zeros + (tl.zeros(SHAPE, like.dtype.element_ty),)
    return zeros


@triton.jit
def _load(rows, first: tl.constexpr, last: tl.constexpr, j, b, tokens, count, mask):
    """Coordinates `first` to `last` - 1 of tokens j."""
    row = ()
    for k in tl.static_range(first, last):
        row = row + (tl.load(rows + (k * tokens + j) * count + b, mask=mask, other=0.0),)
    return row


@triton.jit
def _store(rows, values, first: tl.constexpr, j, b, tokens, count, mask):
    """Store coordinates from `first` on of tokens j."""
    for k in tl.static_range(len(values)):
        tl.store(rows + ((first + k) * tokens + j) * count + b, values[k], mask=mask)


@triton.jit
def _times(matrix, x, ROW: tl.constexpr, COLUMN: tl.constexpr):
    """matrix x, the entry of row e and column k lying at ROW e + COLUMN k.

    Loads are volatile, or the compiler would hold all entries in registers.
    """
    product = ()
    for e in tl.static_range(len(x)):
        total = tl.load(matrix + e * ROW, volatile=True) * x[0]
        for k in tl.static_range(1, len(x)):
            total += tl.load(matrix + e * ROW + k * COLUMN, volatile=True) * x[k]
        product = product + (total,)
    return product


@triton.jit
def _dot(x, y):
    """<x, y> over the coordinates of x."""
    total = x[0] * y[0]
    for k in tl.static_range(1, len(x)):
        total += x[k] * y[k]
    return total


@triton.jit
def _add(sums, factor, x):
    """sums + factor x, over the coordinates of sums."""
    moved = ()
    for k in tl.static_range(len(sums)):
        moved = moved + (sums[k] + factor * x[k],)
    return moved


@triton.jit
def _scale(sums, factor):
    """factor sums."""
    scaled = ()
    for k in tl.static_range(len(sums)):
        scaled = scaled + (factor * sums[k],)
    return scaled


@triton.jit
def _outer(sums, x, y):
    """sums + x y', summed over a block of tokens; sums has the entries row by row."""
    moved = ()
    for e in tl.static_range(len(x)):
        for k in tl.static_range(len(y)):
            moved = moved + (sums[e * len(y) + k] + tl.sum(x[e] * y[k], 0, keep_dims=True),)
    return moved


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


@triton.jit(do_not_specialize=["count"])  # known to divide 16, it would give a thread four prompts
def _forward(
    rows, base, after, score, transform, label, tokens, count, first_query, WIDTH: tl.constexpr, KIND: tl.constexpr,
    FREE: tl.constexpr, PROMPTS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """after_j = base_j + V sum_i h(<M x_j, x_i>) (x_i, y_i), for tokens j from `first_query` on."""
    D: tl.constexpr = WIDTH - 1
    LOW: tl.constexpr = 0 if FREE else WIDTH - 1  # the first coordinate that changes
    m = tl.program_id(0).to(tl.int64)
    b = (tl.program_id(1) * PROMPTS + tl.arange(0, PROMPTS))[None, :]
    start = m * WIDTH * tokens * count
    rows += start
    base += start
    after += start
    score += m * D * D
    transform += m * D * D
    r = tl.load(label + m)
    for first in range(first_query, tokens, QUERIES):
        j = first + tl.arange(0, QUERIES)[:, None]
        there = (j < tokens) & (b < count)
        q = _times(score, _load(rows, 0, D, j, b, tokens, count, there), D, 1)
        sums = _zeros(rows, WIDTH - LOW, [QUERIES, PROMPTS])
        top = tl.full([QUERIES, PROMPTS], float("-inf"), rows.dtype.element_ty)
        total = tl.zeros([QUERIES, PROMPTS], rows.dtype.element_ty)
        for i in range(tokens - 1):
            row = _load(rows, 0, WIDTH, i, b, tokens, count, b < count)
            s = _dot(q, row)
            if KIND == SOFTMAX:
                higher = tl.maximum(top, s)
                shrink = tl.exp(top - higher)
                h = tl.exp(s - higher)
                top = higher
                total = total * shrink + h
                sums = _add(_scale(sums, shrink), h, row[LOW:])
            else:
                sums = _add(sums, _kernel(s, KIND), row[LOW:])
        if KIND == SOFTMAX:
            sums = _scale(sums, 1 / total)
        out = _load(base, 0, WIDTH, j, b, tokens, count, there)
        moved = out[:D]
        if FREE:
            moved = _add(moved, 1.0, _times(transform, sums[:D], D, 1))
        _store(after, moved + (out[D] + r * sums[D - LOW],), 0, j, b, tokens, count, there)


@triton.jit(do_not_specialize=["count", "lanes"])
def _backward(
    rows, back, base, before, scratch, score, transform, label, parts, tokens, count, lanes, first_query,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr, FREE: tl.constexpr, PROMPTS: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One layer's gradient along M, A and r, summed over this program's prompts; `before` is `base` plus that of rows.

    First tokens are queries, a block at a time: this fills `scratch`. Then examples are keys, a block at a time.
    """
    D: tl.constexpr = WIDTH - 1
    LOW: tl.constexpr = 0 if FREE else WIDTH - 1
    m = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PROMPTS)[None, :]
    start = m * WIDTH * tokens * count
    rows += start
    back += start
    base += start
    before += start
    scratch += (m * tl.num_programs(1) + tl.program_id(1)) * (2 * WIDTH + 1) * tokens * lanes
    downs = scratch + D * tokens * lanes
    norms = downs + WIDTH * tokens * lanes
    score += m * D * D
    transform += m * D * D
    r = tl.load(label + m)
    by_score = _zeros(rows, D * D, [1, PROMPTS])
    by_transform = _zeros(rows, D * D if FREE else 1, [1, PROMPTS])
    by_label = tl.zeros([1, PROMPTS], rows.dtype.element_ty)
    for chunk in range(tl.program_id(1) * PROMPTS, count, tl.num_programs(1) * PROMPTS):
        b = chunk + lane
        for first in range(first_query, tokens, QUERIES):
            j = first + tl.arange(0, QUERIES)[:, None]
            there = (j < tokens) & (b < count)
            x = _load(rows, 0, D, j, b, tokens, count, there)
            q = _times(score, x, D, 1)
            up = _load(back, LOW, WIDTH, j, b, tokens, count, there)
            down = (r * up[D - LOW],)
            if FREE:
                down = _times(transform, up[:D], 1, D) + down
            sums = _zeros(rows, WIDTH - LOW, [QUERIES, PROMPTS])
            grad_q = _zeros(rows, D, [QUERIES, PROMPTS])
            if KIND == SOFTMAX:
                top = tl.full([QUERIES, PROMPTS], float("-inf"), rows.dtype.element_ty)
                total = tl.zeros([QUERIES, PROMPTS], rows.dtype.element_ty)
                mean = tl.zeros([QUERIES, PROMPTS], rows.dtype.element_ty)
                for i in range(tokens - 1):
                    row = _load(rows, 0, WIDTH, i, b, tokens, count, b < count)
                    s = _dot(q, row)
                    higher = tl.maximum(top, s)
                    shrink = tl.exp(top - higher)
                    h = tl.exp(s - higher)
                    top = higher
                    total = total * shrink + h
                    mean = mean * shrink + h * _dot(down, row[LOW:])
                mean = mean / total
                norm = top + tl.log(total)
                for i in range(tokens - 1):
                    row = _load(rows, 0, WIDTH, i, b, tokens, count, b < count)
                    h = tl.exp(_dot(q, row) - norm)
                    sums = _add(sums, h, row[LOW:])
                    grad_q = _add(grad_q, h * (_dot(down, row[LOW:]) - mean), row)
                _store(norms, (norm, mean), 0, j, lane, tokens, lanes, j < tokens)
            else:
                for i in range(tokens - 1):
                    row = _load(rows, 0, WIDTH, i, b, tokens, count, b < count)
                    s = _dot(q, row)
                    h = _kernel(s, KIND)
                    sums = _add(sums, h, row[LOW:])
                    grad_q = _add(grad_q, _grad_raw(s, h, _dot(down, row[LOW:]), KIND), row)
            by_score = _outer(by_score, grad_q, x)
            by_label += tl.sum(up[D - LOW] * sums[D - LOW], 0, keep_dims=True)
            if FREE:
                by_transform = _outer(by_transform, up[:D], sums[:D])
            if not FIRST:
                out = _load(base, LOW, WIDTH, j, b, tokens, count, there)
                if FREE:
                    out = _add(out[:D], 1.0, _times(score, grad_q, 1, D)) + out[D:]
                _store(before, out, LOW, j, b, tokens, count, there)
                _store(scratch, q, 0, j, lane, tokens, lanes, j < tokens)
                _store(downs, down, LOW, j, lane, tokens, lanes, j < tokens)
        if not FIRST:
            tl.debug_barrier()
            for first in range(0, tokens - 1, KEYS):
                i = first + tl.arange(0, KEYS)[:, None]
                there = (i < tokens - 1) & (b < count)
                row = _load(rows, 0, WIDTH, i, b, tokens, count, there)
                out = _load(before, LOW, WIDTH, i, b, tokens, count, there)
                for j in range(first_query, tokens):
                    q = _load(scratch, 0, D, j, lane, tokens, lanes, lane < lanes)
                    down = _load(downs, LOW, WIDTH, j, lane, tokens, lanes, lane < lanes)
                    s = _dot(q, row)
                    if KIND == SOFTMAX:
                        norm_mean = _load(norms, 0, 2, j, lane, tokens, lanes, lane < lanes)
                        h = tl.exp(s - norm_mean[0])
                        grad_s = h * (_dot(down, row[LOW:]) - norm_mean[1])
                    else:
                        h = _kernel(s, KIND)
                        grad_s = _grad_raw(s, h, _dot(down, row[LOW:]), KIND)
                    out = _add(out, h, down)
                    if FREE:
                        out = _add(out[:D], grad_s, q) + out[D:]
                _store(before, out, LOW, i, b, tokens, count, there)
            tl.debug_barrier()
    parts += (m * tl.num_programs(1) + tl.program_id(1)) * (2 * D * D + 1)
    for k in tl.static_range(D * D):
        tl.store(parts + k, tl.sum(by_score[k]))
        if FREE:
            tl.store(parts + D * D + k, tl.sum(by_transform[k]))
    tl.store(parts + 2 * D * D, tl.sum(by_label))
