"""What a looped decoder does token by token, forward and backward, fused between its matrix products.

    enter    state = norm(h2 + shift);  answer = state . w + b at x tokens;  h0 = state + prompt;  a = norm_1(h0)
    middle   c = norm_2(h1 + shift)

h1 and h2 come out of products that add the residual but no bias: `shift` is the sum of the biases so far. Slopes along
the vectors (scales, shifts, read-out) are sums over all tokens of all loops: `vector_slopes` takes them at the end,
each program into a place of its own, so that no sum depends on an order.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, BACK_TILE = 4, 2
"""Tokens of one program, forward and backward, which is a single warp: more would wait for each other at every sum."""
SUM_TILE, SUM_WARPS, SUMS = 4, 1, 16
"""Tokens of one step of `vector_slopes`, warps of a program, programs for each multiprocessor."""
SLOTS = ("norm_1.weight", "norm_1.bias", "norm.weight", "norm.bias", "read_out.weight", "mlp.proj.bias",
         "norm_2.weight", "norm_2.bias", "attention.proj.bias")  # fmt: skip
"""What `vector_slopes` gives, in this order."""


class Vectors(NamedTuple):
    """The weights that are vectors, (models, width), in float32 (float64 in tests)."""

    norm_1: tuple[Tensor, Tensor]
    norm_2: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]
    shift_1: Tensor
    """The attention's output bias."""
    shift_2: Tensor
    """That, and the MLP's."""
    read: Tensor
    read_bias: Tensor


def enter(
    source: Tensor, prompt: Tensor, vectors: Vectors, *, first: bool, out: tuple[Tensor, Tensor, Tensor] | None = None,
    answers: Tensor | None = None, state: Tensor | None = None,
) -> None:  # fmt: skip
    """Into `out`: h0, the same again for a product to add to, and a. Without `out` no loop is entered.

    `source` is the state itself if `first`, else the last loop's h2. Writes the answers (models, tokens / 2) and the
    state where there is a tensor for them.
    """
    models, rows, width = source.shape
    _enter[triton.cdiv(rows, TILE), models](
        source, prompt, *(out or (source, source, source)), _or(answers, source), _or(state, source), *vectors.norm_1,
        *vectors.norm, vectors.shift_2, vectors.read, vectors.read_bias, rows, FIRST=first, ENTERING=out is not None,
        READ=answers is not None, KEEP=state is not None, **_constants(source, width),
    )  # fmt: skip


def middle(h1: Tensor, vectors: Vectors, *, out: tuple[Tensor, Tensor]) -> None:
    """Into `out`: h1 again, for a product to add to, and norm_2(h1 + shift)."""
    models, rows, width = h1.shape
    _middle[triton.cdiv(rows, TILE), models](
        h1, *out, *vectors.norm_2, vectors.shift_1, rows, **_constants(h1, width)
    )  # fmt: skip


def enter_backward(
    vectors: Vectors, *, entered: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None,
    left: tuple[Tensor, Tensor | None, Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """Slopes along h0, and along h2 of the loop before, through norm_1, what goes past it, the answers and the norm.

    `entered` is (slope of a, h0, slope of h1; written: slope of h0, statistics of h0), None after the last loop; `left`
    is (h2, slopes of the answers; written: slope of h2, statistics of h2), None before the first. Statistics are
    (mean, 1 / deviation) by token, for `vector_slopes`.
    """
    some = entered[0] if entered is not None else left[0] if left is not None else None
    assert some is not None
    models, rows, width = some.shape
    da, h0, dh1, dh0, stats_1 = entered if entered is not None else (some, some, some, some, some)
    h2, dy, dh2, stats = left if left is not None else (some, None, some, some)
    _enter_backward[triton.cdiv(rows, BACK_TILE), models](
        da, h0, dh1, dh0, stats_1, h2, _or(dy, some), dh2, stats, vectors.norm_1[0], vectors.norm[0],
        vectors.shift_2, vectors.read, rows, ENTERED=entered is not None, LEFT=left is not None, READ=dy is not None,
        **_constants(some, width, BACK_TILE),
    )  # fmt: skip


def middle_backward(dc: Tensor, h1: Tensor, dh2: Tensor, vectors: Vectors, *, out: Tensor, stats: Tensor) -> None:
    """Into `out`: the slope along h1, through norm_2 and past it; into `stats`: the statistics of h1."""
    models, rows, width = h1.shape
    _middle_backward[triton.cdiv(rows, BACK_TILE), models](
        dc, h1, dh2, out, stats, vectors.norm_2[0], vectors.shift_1, rows, **_constants(h1, width, BACK_TILE)
    )  # fmt: skip


class Streams(NamedTuple):
    """Streams and their slopes in every loop, (loops, models, rows, width)."""

    h0: Tensor
    h1: Tensor
    h2: Tensor
    da: Tensor
    dc: Tensor
    dh0: Tensor
    dh1: Tensor
    dh2: Tensor


def vector_slopes(streams: Streams, stats: Tensor, dy: Tensor, vectors: Vectors) -> Tensor:
    """(slots, models, width): sums over the tokens of all loops.

    `stats` (3, loops, models, rows, 2) are those of h0, h1 and h2; `dy` is of the last loops, (keep, models, ...).
    """
    loops, models, rows, width = streams.h0.shape
    cores = torch.cuda.get_device_properties(dy.device).multi_processor_count if dy.is_cuda else 1
    programs = max(1, min(SUMS * cores // models, triton.cdiv(loops * rows, SUM_TILE)))
    partial = dy.new_empty(len(SLOTS), models, programs, width)
    h0, h1, h2, da, dc, dh0, dh1, dh2 = streams
    grid, size = (programs, models), (rows, loops)
    constants = {**_constants(h0, width, SUM_TILE), "num_warps": SUM_WARPS}
    stride = partial.stride(0)
    _norm_slopes[grid](h0, da, da, stats[0], vectors.shift_1, partial, 0, *size, stride, SHIFTED=False, **constants)
    _norm_slopes[grid](h1, dc, dh1, stats[1], vectors.shift_1, partial, 6, *size, stride, SHIFTED=True, **constants)
    _state_slopes[grid](
        h2, dh0, dh2, dy, stats[2], partial, *vectors.norm, vectors.shift_2, vectors.read, *size, len(dy), stride,
        **constants,
    )  # fmt: skip
    return partial.sum(2)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's argument that it does not read is any tensor."""
    return other if tensor is None else tensor


def _constants(stream: Tensor, width: int, tile: int = TILE) -> dict[str, Any]:
    exact = tl.float64 if stream.dtype is torch.float64 else tl.float32
    return {"WIDTH": width, "PADDED": triton.next_power_of_2(width), "TILE": tile, "EXACT": exact, "num_warps": 1}


@triton.jit
def _load(pointer, m, column, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    return tl.load(pointer + m * WIDTH + column, mask=column < WIDTH, other=0.0).to(EXACT)


@triton.jit
def _normal(x, inside, WIDTH: tl.constexpr):
    """(x - mean) / deviation by row, mean, and 1 / deviation; LayerNorm's eps is torch's."""
    mean = tl.sum(x, 1) / WIDTH
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + 1e-5)
    return centred * rstd[:, None], mean, rstd


@triton.jit
def _normal_backward(dy, normal, rstd, scale, WIDTH: tl.constexpr):
    slope = dy * scale
    mean = tl.sum(slope, 1) / WIDTH
    along = tl.sum(slope * normal, 1) / WIDTH
    return (slope - mean[:, None] - normal * along[:, None]) * rstd[:, None]


@triton.jit
def _place(m, tile, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr):
    """The tokens of a tile, the columns, what of them there is, and where it lies."""
    row = tile * TILE + tl.arange(0, TILE)
    column = tl.arange(0, PADDED)[None, :]
    return row, column, (row < rows)[:, None] & (column < WIDTH), (m * rows + row)[:, None] * WIDTH + column


@triton.jit
def _enter(
    source, prompt, h0, again, a, answers, state, scale_1, bias_1, scale, bias, shift, read, read_bias, rows,
    FIRST: tl.constexpr, ENTERING: tl.constexpr, READ: tl.constexpr, KEEP: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    x = tl.load(source + at, mask=inside, other=0.0).to(EXACT)
    shown = x
    if ENTERING:  # all loads first: a tile is short, and waiting for memory is most of its time
        shown = tl.load(prompt + at, mask=inside, other=0.0).to(EXACT)
    if not FIRST:
        normal, _, _ = _normal(tl.where(inside, x + _load(shift, m, column, WIDTH, EXACT), 0.0), inside, WIDTH)
        x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
    if KEEP:
        tl.store(state + at, x.to(state.dtype.element_ty), mask=inside)
    if READ:
        answer = tl.sum(x * _load(read, m, column, WIDTH, EXACT), 1) + tl.load(read_bias + m).to(EXACT)
        tl.store(answers + (m * rows + row) // 2, answer, mask=(row < rows) & (row % 2 == 0))
    if ENTERING:
        x += shown
        tl.store(h0 + at, x.to(h0.dtype.element_ty), mask=inside)
        tl.store(again + at, x.to(h0.dtype.element_ty), mask=inside)
        normal, _, _ = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
        x = normal * _load(scale_1, m, column, WIDTH, EXACT) + _load(bias_1, m, column, WIDTH, EXACT)
        tl.store(a + at, x.to(a.dtype.element_ty), mask=inside)


@triton.jit
def _middle(
    h1, again, c, scale, bias, shift, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    _, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    same = tl.load(h1 + at, mask=inside, other=0.0)
    tl.store(again + at, same, mask=inside)
    normal, _, _ = _shifted(same.to(EXACT), shift, m, column, inside, WIDTH, EXACT)
    x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
    tl.store(c + at, x.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _enter_backward(
    da, h0, dh1, dh0, stats_1, h2, dy, dh2, stats, scale_1, scale, shift, read, rows, ENTERED: tl.constexpr,
    LEFT: tl.constexpr, READ: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    slope = tl.zeros([TILE, PADDED], EXACT)
    up, x, past, before, said = slope, slope, slope, slope, slope
    if ENTERED:
        x = tl.load(h0 + at, mask=inside, other=0.0).to(EXACT)
        up = tl.load(da + at, mask=inside, other=0.0).to(EXACT)
        past = tl.load(dh1 + at, mask=inside, other=0.0).to(EXACT)
    if LEFT:
        before = tl.load(h2 + at, mask=inside, other=0.0).to(EXACT)
    if READ:
        asked = (row < rows) & (row % 2 == 0)
        answered = tl.load(dy + (m * rows + row) // 2, mask=asked, other=0.0).to(EXACT)
        said = answered[:, None] * _load(read, m, column, WIDTH, EXACT)
    if ENTERED:
        normal, mean, rstd = _normal(x, inside, WIDTH)
        slope = _normal_backward(up, normal, rstd, _load(scale_1, m, column, WIDTH, EXACT), WIDTH) + past
        tl.store(dh0 + at, slope.to(dh0.dtype.element_ty), mask=inside)
        _keep(stats_1, m, row, rows, mean, rstd)
    if LEFT:
        normal, mean, rstd = _shifted(before, shift, m, column, inside, WIDTH, EXACT)
        slope = _normal_backward(slope + said, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH)
        tl.store(dh2 + at, slope.to(dh2.dtype.element_ty), mask=inside)
        _keep(stats, m, row, rows, mean, rstd)


@triton.jit
def _middle_backward(
    dc, h1, dh2, dh1, stats, scale, shift, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    row, column, inside, at = _place(m, tl.program_id(0), rows, WIDTH, PADDED, TILE)
    x = tl.load(h1 + at, mask=inside, other=0.0).to(EXACT)
    up = tl.load(dc + at, mask=inside, other=0.0).to(EXACT)
    past = tl.load(dh2 + at, mask=inside, other=0.0).to(EXACT)
    normal, mean, rstd = _shifted(x, shift, m, column, inside, WIDTH, EXACT)
    slope = _normal_backward(up, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH) + past
    tl.store(dh1 + at, slope.to(dh1.dtype.element_ty), mask=inside)
    _keep(stats, m, row, rows, mean, rstd)


@triton.jit
def _keep(stats, m, row, rows, mean, rstd):
    at = stats + 2 * (m * rows + row)
    tl.store(at, mean.to(stats.dtype.element_ty), mask=row < rows)
    tl.store(at + 1, rstd.to(stats.dtype.element_ty), mask=row < rows)


@triton.jit
def _kept(stats, m, row, rows, x, EXACT: tl.constexpr):
    """(x - mean) / deviation, by what `_keep` wrote; zero past the last token."""
    at = stats + 2 * (m * rows + row)
    mean = tl.load(at, mask=row < rows, other=0.0).to(EXACT)
    rstd = tl.load(at + 1, mask=row < rows, other=0.0).to(EXACT)
    return (x - mean[:, None]) * rstd[:, None]


@triton.jit
def _shifted(x, shift, m, column, inside, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    return _normal(tl.where(inside, x + _load(shift, m, column, WIDTH, EXACT), 0.0), inside, WIDTH)


@triton.jit
def _put(partial, slot, stride, m, column, value, WIDTH: tl.constexpr):
    place = partial + slot * stride + (m * tl.num_programs(0) + tl.program_id(0)) * WIDTH + column
    tl.store(place, tl.sum(value, 0)[None, :], mask=column < WIDTH)


@triton.jit
def _norm_slopes(
    stream, up, past, stats, shift, partial, first, rows, loops, stride, SHIFTED: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Slots `first` and the next: sums of up normal and up; with SHIFTED also of `past`, into slot `first` + 2."""
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
        slope = tl.load(up + at, mask=inside, other=0.0).to(EXACT)
        x = tl.load(stream + at, mask=inside, other=0.0).to(EXACT)
        if SHIFTED:
            by_shift += tl.load(past + at, mask=inside, other=0.0).to(EXACT)
            x += moved
        by_scale += slope * _kept(stats, place, row, rows, x, EXACT)
        by_bias += slope
    _put(partial, first, stride, m, column, by_scale, WIDTH)
    _put(partial, first + 1, stride, m, column, by_bias, WIDTH)
    if SHIFTED:
        _put(partial, first + 2, stride, m, column, by_shift, WIDTH)


@triton.jit
def _state_slopes(
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
        # the state of this loop is read by the next one's h0 and by the answers
        followed = (row < tl.where(t < loops - 1, rows, 0))[:, None] & (column < WIDTH)
        after = tl.load(dh0 + at + models * rows * WIDTH, mask=followed, other=0.0).to(EXACT)
        kept = t - (loops - keep)
        asked = (row < tl.where(kept >= 0, rows, 0)) & (row % 2 == 0)
        said = tl.load(dy + ((kept * models + m) * rows + row) // 2, mask=asked, other=0.0).to(EXACT)[:, None]
        normal = _kept(stats, t * models + m, row, rows, x + moved, EXACT)
        by_read += said * (normal * scales + biases)
        slope = after + said * weight
        by_scale += slope * normal
        by_bias += tl.where(inside, slope, 0.0)
    _put(partial, 2, stride, m, column, by_scale, WIDTH)
    _put(partial, 3, stride, m, column, by_bias, WIDTH)
    _put(partial, 4, stride, m, column, by_read, WIDTH)
    _put(partial, 5, stride, m, column, by_shift, WIDTH)
