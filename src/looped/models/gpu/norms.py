"""What a looped decoder does token by token between its matrix products, fused into one kernel per pass.

    norm_inject_norm1   state = norm(h2 + shift);  answer = state . w + b at x tokens;  h0 = state + P;  a = norm_1(h0)
    norm2               c = norm_2(h1 + shift)

h1 and h2 come out of products that add the residual but no bias: `shift` is the sum of the biases so far. Gradients
along the vectors (scales, shifts, read-out) are sums over all tokens of all loops. `vector_gradients` computes them at
the end; each program writes to a place of its own, so no sum depends on an order.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, BACK_TILE = 4, 2
"""Tokens of one program, forward and backward. A program is a single warp: several would wait for each other."""
SUM_TILE, SUM_WARPS, SUM_PROGRAMS = 4, 1, 16
"""Tokens of one step of `vector_gradients`, warps of a program, programs per multiprocessor."""
SLOTS = ("norm_1.weight", "norm_1.bias", "norm.weight", "norm.bias", "read_out.weight", "mlp.proj.bias",
         "norm_2.weight", "norm_2.bias", "attention.proj.bias")  # fmt: skip
"""The weights that `vector_gradients` returns gradients for, in this order."""


class Vectors(NamedTuple):
    """The weights that are vectors, (models, width), in float32 (float64 in tests); a norm is (scale, bias)."""

    norm_1: tuple[Tensor, Tensor]
    norm_2: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]
    shift_1: Tensor
    """The attention's output bias."""
    shift_2: Tensor
    """The attention's and the MLP's output bias together."""
    read: Tensor
    read_bias: Tensor


def norm_inject_norm1(
    source: Tensor, prompt: Tensor, vectors: Vectors, *, first: bool, out: tuple[Tensor, Tensor, Tensor] | None = None,
    answers: Tensor | None = None, state: Tensor | None = None,
) -> None:  # fmt: skip
    """Write h0, a second copy of h0 for a product to add to, and a into `out`; None after the last loop.

    `source` is the state itself if `first`, else the previous loop's h2. The answers (models, tokens / 2) and the
    state are written where a tensor is given for them.
    """
    models, rows, width = source.shape
    _norm_inject_norm1[triton.cdiv(rows, TILE), models](
        source, prompt, *(out or (source, source, source)), _or(answers, source), _or(state, source), *vectors.norm_1,
        *vectors.norm, vectors.shift_2, vectors.read, vectors.read_bias, rows, FIRST=first, INJECT=out is not None,
        ANSWER=answers is not None, WRITE_STATE=state is not None, **_constants(source, width),
    )  # fmt: skip


def norm2(h1: Tensor, vectors: Vectors, *, out: tuple[Tensor, Tensor]) -> None:
    """Write a second copy of h1 for a product to add to, and norm_2(h1 + shift), into `out`."""
    models, rows, width = h1.shape
    _norm2[triton.cdiv(rows, TILE), models](
        h1, *out, *vectors.norm_2, vectors.shift_1, rows, **_constants(h1, width)
    )  # fmt: skip


def norm_inject_norm1_backward(
    vectors: Vectors, *, loop: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None,
    previous: tuple[Tensor, Tensor | None, Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """Gradients along h0, and along h2 of the loop before: through norm_1, the residual, the answers and the norm.

    `loop` is (da, h0, dh1; written: dh0, statistics of h0), None after the last loop. `previous` is (h2, gradient of
    the answers; written: dh2, statistics of h2), None before the first loop. Statistics are (mean, 1 / deviation) of
    each token, for `vector_gradients`.
    """
    filler = (loop or previous or ())[0]
    models, rows, width = filler.shape
    da, h0, dh1, dh0, stats_1 = loop or [filler] * 5
    h2, dy, dh2, stats = previous or (filler, None, filler, filler)
    _norm_inject_norm1_backward[triton.cdiv(rows, BACK_TILE), models](
        da, h0, dh1, dh0, stats_1, h2, _or(dy, filler), dh2, stats, vectors.norm_1[0], vectors.norm[0],
        vectors.shift_2, vectors.read, rows, LOOP=loop is not None, PREVIOUS=previous is not None,
        ANSWERED=dy is not None, **_constants(filler, width, BACK_TILE),
    )  # fmt: skip


def norm2_backward(dc: Tensor, h1: Tensor, dh2: Tensor, vectors: Vectors, *, out: Tensor, stats: Tensor) -> None:
    """Write the gradient along h1, through norm_2 and the residual, into `out`; h1's statistics into `stats`."""
    models, rows, width = h1.shape
    _norm2_backward[triton.cdiv(rows, BACK_TILE), models](
        dc, h1, dh2, out, stats, vectors.norm_2[0], vectors.shift_1, rows, **_constants(h1, width, BACK_TILE)
    )  # fmt: skip


def vector_gradients(
    streams: tuple[Tensor, ...], gradients: tuple[Tensor, ...], stats: Tensor, dy: Tensor, vectors: Vectors
) -> Tensor:
    """(slots, models, width): sums over the tokens of all loops.

    `streams` are h0, h1 and h2 of every loop, (loops, models, rows, width), `gradients` da, dc, dh0, dh1 and dh2;
    `stats` (3, loops, models, rows, 2) are those of the streams, `dy` (keep, models, ...) is that of the last loops.
    """
    h0, h1, h2 = streams
    da, dc, dh0, dh1, dh2 = gradients
    loops, models, rows, width = h0.shape
    cores = torch.cuda.get_device_properties(dy.device).multi_processor_count if dy.is_cuda else 1
    programs = max(1, min(SUM_PROGRAMS * cores // models, triton.cdiv(loops * rows, SUM_TILE)))
    partial = dy.new_empty(len(SLOTS), models, programs, width)
    grid, size = (programs, models), (rows, loops)
    constants = {**_constants(h0, width, SUM_TILE), "num_warps": SUM_WARPS}
    stride = partial.stride(0)
    _norm_gradients[grid](h0, da, da, stats[0], vectors.shift_1, partial, 0, *size, stride, SHIFTED=False, **constants)
    _norm_gradients[grid](h1, dc, dh1, stats[1], vectors.shift_1, partial, 6, *size, stride, SHIFTED=True, **constants)
    _state_gradients[grid](
        h2, dh0, dh2, dy, stats[2], partial, *vectors.norm, vectors.shift_2, vectors.read, *size, len(dy), stride,
        **constants,
    )  # fmt: skip
    return partial.sum(2)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or any other as an argument that the kernel does not read."""
    return other if tensor is None else tensor


def _constants(stream: Tensor, width: int, tile: int = TILE) -> dict[str, Any]:
    exact = tl.float64 if stream.dtype is torch.float64 else tl.float32
    return {"WIDTH": width, "PADDED": triton.next_power_of_2(width), "TILE": tile, "EXACT": exact, "num_warps": 1}


@triton.jit
def _load(pointer, m, column, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    return tl.load(pointer + m * WIDTH + column, mask=column < WIDTH, other=0.0).to(EXACT)


@triton.jit
def _normal(x, inside, WIDTH: tl.constexpr):
    """(x - mean) / deviation of each row, mean, and 1 / deviation; eps is the default of torch's LayerNorm."""
    mean = tl.sum(x, 1) / WIDTH
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + 1e-5)
    return centred * rstd[:, None], mean, rstd


@triton.jit
def _normal_backward(dy, normal, rstd, scale, WIDTH: tl.constexpr):
    grad = dy * scale
    mean = tl.sum(grad, 1) / WIDTH
    along = tl.sum(grad * normal, 1) / WIDTH
    return (grad - mean[:, None] - normal * along[:, None]) * rstd[:, None]


@triton.jit
def _place(m, tile, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr):
    """The tokens of a tile, the columns, which of them exist, and their offsets."""
    row = tile * TILE + tl.arange(0, TILE)
    column = tl.arange(0, PADDED)[None, :]
    return row, column, (row < rows)[:, None] & (column < WIDTH), (m * rows + row)[:, None] * WIDTH + column


@triton.jit
def _norm_inject_norm1(
    source, prompt, h0, copy, a, answers, state, scale_1, bias_1, scale, bias, shift, read, read_bias, rows,
    FIRST: tl.constexpr, INJECT: tl.constexpr, ANSWER: tl.constexpr, WRITE_STATE: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    x = tl.load(source + at, mask=inside, other=0.0).to(EXACT)
    injected = x
    if INJECT:  # all loads first: most of a tile's time is waiting for memory
        injected = tl.load(prompt + at, mask=inside, other=0.0).to(EXACT)
    if not FIRST:
        normal, _, _ = _normal(tl.where(inside, x + _load(shift, m, column, WIDTH, EXACT), 0.0), inside, WIDTH)
        x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
    if WRITE_STATE:
        tl.store(state + at, x.to(state.dtype.element_ty), mask=inside)
    if ANSWER:
        answer = tl.sum(x * _load(read, m, column, WIDTH, EXACT), 1) + tl.load(read_bias + m).to(EXACT)
        tl.store(answers + (m * rows + row) // 2, answer, mask=(row < rows) & (row % 2 == 0))
    if INJECT:
        x += injected
        tl.store(h0 + at, x.to(h0.dtype.element_ty), mask=inside)
        tl.store(copy + at, x.to(h0.dtype.element_ty), mask=inside)
        normal, _, _ = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
        x = normal * _load(scale_1, m, column, WIDTH, EXACT) + _load(bias_1, m, column, WIDTH, EXACT)
        tl.store(a + at, x.to(a.dtype.element_ty), mask=inside)


@triton.jit
def _norm2(
    h1, copy, c, scale, bias, shift, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    _, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    value = tl.load(h1 + at, mask=inside, other=0.0)
    tl.store(copy + at, value, mask=inside)
    normal, _, _ = _shifted(value.to(EXACT), shift, m, column, inside, WIDTH, EXACT)
    x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
    tl.store(c + at, x.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _norm_inject_norm1_backward(
    da, h0, dh1, dh0, stats_1, h2, dy, dh2, stats, scale_1, scale, shift, read, rows, LOOP: tl.constexpr,
    PREVIOUS: tl.constexpr, ANSWERED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    grad = tl.zeros([TILE, PADDED], EXACT)
    up, x, past, before, read_grad = grad, grad, grad, grad, grad
    if LOOP:
        x = tl.load(h0 + at, mask=inside, other=0.0).to(EXACT)
        up = tl.load(da + at, mask=inside, other=0.0).to(EXACT)
        past = tl.load(dh1 + at, mask=inside, other=0.0).to(EXACT)
    if PREVIOUS:
        before = tl.load(h2 + at, mask=inside, other=0.0).to(EXACT)
    if ANSWERED:
        at_x = (row < rows) & (row % 2 == 0)
        answer_grad = tl.load(dy + (m * rows + row) // 2, mask=at_x, other=0.0).to(EXACT)
        read_grad = answer_grad[:, None] * _load(read, m, column, WIDTH, EXACT)
    if LOOP:
        normal, mean, rstd = _normal(x, inside, WIDTH)
        grad = _normal_backward(up, normal, rstd, _load(scale_1, m, column, WIDTH, EXACT), WIDTH) + past
        tl.store(dh0 + at, grad.to(dh0.dtype.element_ty), mask=inside)
        _save_stats(stats_1, m, row, rows, mean, rstd)
    if PREVIOUS:
        normal, mean, rstd = _shifted(before, shift, m, column, inside, WIDTH, EXACT)
        grad = _normal_backward(grad + read_grad, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH)
        tl.store(dh2 + at, grad.to(dh2.dtype.element_ty), mask=inside)
        _save_stats(stats, m, row, rows, mean, rstd)


@triton.jit
def _norm2_backward(
    dc, h1, dh2, dh1, stats, scale, shift, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    x = tl.load(h1 + at, mask=inside, other=0.0).to(EXACT)
    up = tl.load(dc + at, mask=inside, other=0.0).to(EXACT)
    past = tl.load(dh2 + at, mask=inside, other=0.0).to(EXACT)
    normal, mean, rstd = _shifted(x, shift, m, column, inside, WIDTH, EXACT)
    grad = _normal_backward(up, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH) + past
    tl.store(dh1 + at, grad.to(dh1.dtype.element_ty), mask=inside)
    _save_stats(stats, m, row, rows, mean, rstd)


@triton.jit
def _save_stats(stats, m, row, rows, mean, rstd):
    at = stats + 2 * (m * rows + row)
    tl.store(at, mean.to(stats.dtype.element_ty), mask=row < rows)
    tl.store(at + 1, rstd.to(stats.dtype.element_ty), mask=row < rows)


@triton.jit
def _normal_from_stats(stats, m, row, rows, x, EXACT: tl.constexpr):
    """(x - mean) / deviation, from what `_save_stats` wrote; zero past the last token."""
    at = stats + 2 * (m * rows + row)
    mean = tl.load(at, mask=row < rows, other=0.0).to(EXACT)
    rstd = tl.load(at + 1, mask=row < rows, other=0.0).to(EXACT)
    return (x - mean[:, None]) * rstd[:, None]


@triton.jit
def _shifted(x, shift, m, column, inside, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    return _normal(tl.where(inside, x + _load(shift, m, column, WIDTH, EXACT), 0.0), inside, WIDTH)


@triton.jit
def _store_sum(partial, slot, stride, m, column, value, WIDTH: tl.constexpr):
    place = partial + slot * stride + (m * tl.num_programs(0) + tl.program_id(0)) * WIDTH + column
    tl.store(place, tl.sum(value, 0)[None, :], mask=column < WIDTH)


@triton.jit
def _norm_gradients(
    stream, up, past, stats, shift, partial, first, rows, loops, stride, SHIFTED: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Sums of up * normal into slot `first`, of up into the next; with SHIFTED also of `past` into slot `first` + 2."""
    m = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(rows, TILE)
    column = tl.arange(0, PADDED)[None, :]
    moved = _load(shift, m, column, WIDTH, EXACT)
    by_scale = tl.zeros([TILE, PADDED], EXACT)
    by_bias = by_scale
    by_shift = by_scale
    for index in range(tl.program_id(0), loops * tiles, tl.num_programs(0)):
        t = (index // tiles).to(tl.int64)
        place = t * tl.num_programs(1) + m
        row, _, inside, at = _place(place, index % tiles, rows, WIDTH, PADDED, TILE)
        grad = tl.load(up + at, mask=inside, other=0.0).to(EXACT)
        x = tl.load(stream + at, mask=inside, other=0.0).to(EXACT)
        if SHIFTED:
            by_shift += tl.load(past + at, mask=inside, other=0.0).to(EXACT)
            x += moved
        by_scale += grad * _normal_from_stats(stats, place, row, rows, x, EXACT)
        by_bias += grad
    _store_sum(partial, first, stride, m, column, by_scale, WIDTH)
    _store_sum(partial, first + 1, stride, m, column, by_bias, WIDTH)
    if SHIFTED:
        _store_sum(partial, first + 2, stride, m, column, by_shift, WIDTH)


@triton.jit
def _state_gradients(
    h2, dh0, dh2, dy, stats, partial, scale, bias, shift, read, rows, loops, keep, stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Slots 2 to 5: the last norm, the read-out, and the bias before them."""
    m = tl.program_id(1).to(tl.int64)
    models = tl.num_programs(1)
    tiles = tl.cdiv(rows, TILE)
    column = tl.arange(0, PADDED)[None, :]
    weight, moved = _load(read, m, column, WIDTH, EXACT), _load(shift, m, column, WIDTH, EXACT)
    scales, biases = _load(scale, m, column, WIDTH, EXACT), _load(bias, m, column, WIDTH, EXACT)
    by_scale = tl.zeros([TILE, PADDED], EXACT)
    by_bias = by_scale
    by_read = by_scale
    by_shift = by_scale
    for index in range(tl.program_id(0), loops * tiles, tl.num_programs(0)):
        t = (index // tiles).to(tl.int64)
        row, _, inside, at = _place(t * models + m, index % tiles, rows, WIDTH, PADDED, TILE)
        x = tl.load(h2 + at, mask=inside, other=0.0).to(EXACT)
        by_shift += tl.load(dh2 + at, mask=inside, other=0.0).to(EXACT)
        # the next loop's h0 and the answers read the state of this loop
        followed = (row < tl.where(t < loops - 1, rows, 0))[:, None] & (column < WIDTH)
        after = tl.load(dh0 + at + models * rows * WIDTH, mask=followed, other=0.0).to(EXACT)
        answer = t - (loops - keep)
        at_x = (row < tl.where(answer >= 0, rows, 0)) & (row % 2 == 0)
        answer_grad = tl.load(dy + ((answer * models + m) * rows + row) // 2, mask=at_x, other=0.0).to(EXACT)[:, None]
        normal = _normal_from_stats(stats, t * models + m, row, rows, x + moved, EXACT)
        by_read += answer_grad * (normal * scales + biases)
        grad = after + answer_grad * weight
        by_scale += grad * normal
        by_bias += tl.where(inside, grad, 0.0)
    _store_sum(partial, 2, stride, m, column, by_scale, WIDTH)
    _store_sum(partial, 3, stride, m, column, by_bias, WIDTH)
    _store_sum(partial, 4, stride, m, column, by_read, WIDTH)
    _store_sum(partial, 5, stride, m, column, by_shift, WIDTH)
