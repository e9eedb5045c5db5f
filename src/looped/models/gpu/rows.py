"""What a looped decoder does token by token, forward and backward, fused between its matrix products.

    enter    state = norm(h2 + shift);  answer = state . w + b at x tokens;  h0 = state + prompt;  a = norm_1(h0)
    middle   c = norm_2(h1 + shift)

h1 and h2 come out of products that add the residual but no bias: `shift` is the sum of the biases so far. A program
takes every G-th tile of tokens; what it adds to the slopes of scales and shifts lies in a place of its own, so that no
sum depends on an order.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4
"""Tokens of one tile: a warp for each."""
PROGRAMS = 396
"""Programs of a launch, over all models: three for each multiprocessor of an H200."""
SLOTS = ("norm_1.weight", "norm_1.bias", "norm.weight", "norm.bias", "read_out.weight", "mlp.proj.bias",
         "norm_2.weight", "norm_2.bias", "attention.proj.bias")  # fmt: skip
"""What `Slopes.partial` holds, in this order: the first six from `enter_backward`, the rest from `middle_backward`."""


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
    source: Tensor, prompt: Tensor, vectors: Vectors, *, first: bool, entering: bool, answers: Tensor | None = None,
    state: Tensor | None = None, out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(h0, a) of the loop that begins; `source` is the state itself if `first`, else the last loop's h2.

    Writes the answers (models, tokens / 2) and the state where there is a tensor for them.
    """
    h0, a = out if out is not None else (torch.empty_like(source), torch.empty_like(source))
    models, rows, width = source.shape
    _enter[_programs(rows, models), models](
        source, prompt, h0, a, _or(answers, source), _or(state, source), *vectors.norm_1, *vectors.norm,
        vectors.shift_2, vectors.read, vectors.read_bias, rows, FIRST=first, ENTERING=entering,
        READ=answers is not None, KEEP=state is not None, **_constants(source, width),
    )  # fmt: skip
    return h0, a


def middle(h1: Tensor, vectors: Vectors, *, out: Tensor | None = None) -> Tensor:
    """norm_2(h1 + shift)."""
    c = torch.empty_like(h1) if out is None else out
    models, rows, width = h1.shape
    _middle[_programs(rows, models), models](
        h1, c, *vectors.norm_2, vectors.shift_1, rows, **_constants(h1, width)
    )  # fmt: skip
    return c


class Slopes(NamedTuple):
    """What the backward kernels add to."""

    partial: Tensor
    """(slots, models, programs, width): slopes of the vectors, each program's own."""
    prompt: Tensor
    """(models, rows, width): the slope along the prompt, which every loop reads."""


def slopes_for(stream: Tensor) -> Slopes:
    """Zeros for a stream (models, rows, width)."""
    models, rows, width = stream.shape
    exact = torch.float64 if stream.dtype is torch.float64 else torch.float32
    partial = stream.new_zeros(len(SLOTS), models, _programs(rows, models), width, dtype=exact)
    return Slopes(partial, torch.zeros_like(stream, dtype=exact))


def enter_backward(
    slopes: Slopes, vectors: Vectors, *, entered: tuple[Tensor, Tensor, Tensor] | None,
    left: tuple[Tensor, Tensor | None] | None, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """The slope along h2, through the loop that was entered from it, (slope of a, h0, slope of h1), and the answers.

    `left` is (h2, slopes of the answers); `entered` is None after the last loop, `left` None before the first.
    """
    some = entered[0] if entered is not None else left[0] if left is not None else None
    assert some is not None
    models, rows, width = some.shape
    da, h0, dh1 = entered if entered is not None else (some, some, some)
    h2, dy = left if left is not None else (some, None)
    dh2 = (torch.empty_like(some) if out is None else out) if left is not None else some
    _enter_backward[_programs(rows, models), models](
        da, h0, dh1, h2, _or(dy, some), dh2, *slopes, *vectors.norm_1, *vectors.norm, vectors.shift_2, vectors.read,
        rows, slopes.partial.stride(0), ENTERED=entered is not None, LEFT=left is not None, READ=dy is not None,
        **_constants(some, width),
    )  # fmt: skip
    return dh2 if left is not None else None


def middle_backward(
    slopes: Slopes, dc: Tensor, h1: Tensor, dh2: Tensor, vectors: Vectors, *, out: Tensor | None = None
) -> Tensor:
    """The slope along h1, through norm_2 and past it."""
    dh1 = torch.empty_like(h1) if out is None else out
    models, rows, width = h1.shape
    _middle_backward[_programs(rows, models), models](
        dc, h1, dh2, dh1, slopes.partial, *vectors.norm_2, vectors.shift_1, rows, slopes.partial.stride(0),
        **_constants(h1, width),
    )  # fmt: skip
    return dh1


def _programs(rows: int, models: int) -> int:
    return min(triton.cdiv(rows, TILE), max(1, PROGRAMS // models))


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's argument that it does not read is any tensor."""
    return other if tensor is None else tensor


def _constants(stream: Tensor, width: int) -> dict[str, Any]:
    exact = tl.float64 if stream.dtype is torch.float64 else tl.float32
    return {"WIDTH": width, "PADDED": triton.next_power_of_2(width), "TILE": TILE, "EXACT": exact, "num_warps": 4}


@triton.jit
def _load(pointer, m, column, WIDTH: tl.constexpr, EXACT: tl.constexpr):
    return tl.load(pointer + m * WIDTH + column, mask=column < WIDTH, other=0.0).to(EXACT)


@triton.jit
def _normal(x, inside, WIDTH: tl.constexpr):
    """(x - mean) / deviation by row, and 1 / deviation; LayerNorm's eps is torch's."""
    centred = tl.where(inside, x - (tl.sum(x, 1) / WIDTH)[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + 1e-5)
    return centred * rstd[:, None], rstd


@triton.jit
def _normal_backward(dy, normal, rstd, scale, WIDTH: tl.constexpr):
    slope = dy * scale
    mean = tl.sum(slope, 1) / WIDTH
    along = tl.sum(slope * normal, 1) / WIDTH
    return (slope - mean[:, None] - normal * along[:, None]) * rstd[:, None]


@triton.jit
def _enter(
    source, prompt, h0, a, answers, state, scale_1, bias_1, scale, bias, shift, read, read_bias, rows,
    FIRST: tl.constexpr, ENTERING: tl.constexpr, READ: tl.constexpr, KEEP: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tile * TILE + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < WIDTH)
        at = (m * rows + row)[:, None] * WIDTH + column
        x = tl.load(source + at, mask=inside, other=0.0).to(EXACT)
        if not FIRST:
            x += _load(shift, m, column, WIDTH, EXACT)
            normal, _ = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
            x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
        if KEEP:
            tl.store(state + at, x.to(state.dtype.element_ty), mask=inside)
        if READ:
            answer = tl.sum(x * _load(read, m, column, WIDTH, EXACT), 1) + tl.load(read_bias + m).to(EXACT)
            tl.store(answers + (m * rows + row) // 2, answer, mask=(row < rows) & (row % 2 == 0))
        if ENTERING:
            x += tl.load(prompt + at, mask=inside, other=0.0).to(EXACT)
            tl.store(h0 + at, x.to(h0.dtype.element_ty), mask=inside)
            normal, _ = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
            x = normal * _load(scale_1, m, column, WIDTH, EXACT) + _load(bias_1, m, column, WIDTH, EXACT)
            tl.store(a + at, x.to(a.dtype.element_ty), mask=inside)


@triton.jit
def _middle(
    h1, c, scale, bias, shift, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr
):
    m = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tile * TILE + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < WIDTH)
        at = (m * rows + row)[:, None] * WIDTH + column
        x = tl.load(h1 + at, mask=inside, other=0.0).to(EXACT) + _load(shift, m, column, WIDTH, EXACT)
        normal, _ = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
        x = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
        tl.store(c + at, x.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _add(partial, slot, stride, m, column, value, WIDTH: tl.constexpr):
    """Add a program's own sum over its tokens to its own place."""
    place = partial + slot * stride + (m * tl.num_programs(0) + tl.program_id(0)) * WIDTH + column
    total = tl.sum(value, 0)[None, :]
    tl.store(place, tl.load(place, mask=column < WIDTH, other=0.0) + total, mask=column < WIDTH)


@triton.jit
def _enter_backward(
    da, h0, dh1, h2, dy, dh2, partial, dprompt, scale_1, bias_1, scale, bias, shift, read, rows, stride,
    ENTERED: tl.constexpr, LEFT: tl.constexpr, READ: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    sum_scale_1 = tl.zeros([TILE, PADDED], EXACT)
    sum_bias_1 = tl.zeros([TILE, PADDED], EXACT)
    sum_scale = tl.zeros([TILE, PADDED], EXACT)
    sum_bias = tl.zeros([TILE, PADDED], EXACT)
    sum_read = tl.zeros([TILE, PADDED], EXACT)
    sum_shift = tl.zeros([TILE, PADDED], EXACT)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tile * TILE + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < WIDTH)
        at = (m * rows + row)[:, None] * WIDTH + column
        slope = tl.zeros([TILE, PADDED], EXACT)
        if ENTERED:
            x = tl.load(h0 + at, mask=inside, other=0.0).to(EXACT)
            normal, rstd = _normal(x, inside, WIDTH)
            up = tl.load(da + at, mask=inside, other=0.0).to(EXACT)
            sum_scale_1 += up * normal
            sum_bias_1 += up
            slope = _normal_backward(up, normal, rstd, _load(scale_1, m, column, WIDTH, EXACT), WIDTH)
            slope += tl.load(dh1 + at, mask=inside, other=0.0).to(EXACT)
            tl.store(dprompt + at, tl.load(dprompt + at, mask=inside, other=0.0) + slope, mask=inside)
        if LEFT:
            x = tl.load(h2 + at, mask=inside, other=0.0).to(EXACT) + _load(shift, m, column, WIDTH, EXACT)
            normal, rstd = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
            if READ:
                asked = (row < rows) & (row % 2 == 0)
                up = tl.load(dy + (m * rows + row) // 2, mask=asked, other=0.0).to(EXACT)[:, None]
                state = normal * _load(scale, m, column, WIDTH, EXACT) + _load(bias, m, column, WIDTH, EXACT)
                sum_read += up * state
                slope += up * _load(read, m, column, WIDTH, EXACT)
            sum_scale += slope * normal
            sum_bias += tl.where(inside, slope, 0.0)
            slope = _normal_backward(slope, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH)
            slope = tl.where(inside, slope, 0.0)
            sum_shift += slope
            tl.store(dh2 + at, slope.to(dh2.dtype.element_ty), mask=inside)
    if ENTERED:
        _add(partial, 0, stride, m, column, sum_scale_1, WIDTH)
        _add(partial, 1, stride, m, column, sum_bias_1, WIDTH)
    if LEFT:
        _add(partial, 2, stride, m, column, sum_scale, WIDTH)
        _add(partial, 3, stride, m, column, sum_bias, WIDTH)
        if READ:
            _add(partial, 4, stride, m, column, sum_read, WIDTH)
        _add(partial, 5, stride, m, column, sum_shift, WIDTH)


@triton.jit
def _middle_backward(
    dc, h1, dh2, dh1, partial, scale, bias, shift, rows, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    sum_scale = tl.zeros([TILE, PADDED], EXACT)
    sum_bias = tl.zeros([TILE, PADDED], EXACT)
    sum_shift = tl.zeros([TILE, PADDED], EXACT)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE), tl.num_programs(0)):
        row = tile * TILE + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < WIDTH)
        at = (m * rows + row)[:, None] * WIDTH + column
        x = tl.load(h1 + at, mask=inside, other=0.0).to(EXACT) + _load(shift, m, column, WIDTH, EXACT)
        normal, rstd = _normal(tl.where(inside, x, 0.0), inside, WIDTH)
        up = tl.load(dc + at, mask=inside, other=0.0).to(EXACT)
        sum_scale += up * normal
        sum_bias += up
        slope = _normal_backward(up, normal, rstd, _load(scale, m, column, WIDTH, EXACT), WIDTH)
        slope += tl.load(dh2 + at, mask=inside, other=0.0).to(EXACT)
        slope = tl.where(inside, slope, 0.0)
        sum_shift += slope
        tl.store(dh1 + at, slope.to(dh1.dtype.element_ty), mask=inside)
    _add(partial, 6, stride, m, column, sum_scale, WIDTH)
    _add(partial, 7, stride, m, column, sum_bias, WIDTH)
    _add(partial, 8, stride, m, column, sum_shift, WIDTH)
