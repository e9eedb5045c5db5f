"""Matrix products of an MLP on a GPU with what follows them: GELU after the first layer, its slope before it.

    u = c W' + b,  g = gelu(u);      du = (dh W) gelu'(u)

Written with a leading axis of models too, all of them in one launch. With K = 256 and N = 1024 these products are bound
by memory (writing u and g is three quarters of the bytes), so a program ends with everything its tile needs.
Tiles are fixed by a table and not searched for at run time: a captured graph must not time anything, and the order of
sums must not depend on what was fastest that day.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiles(NamedTuple):
    """How a product is cut."""

    rows: int
    """Rows of A of one program."""
    columns: int
    """Columns of the result of one program."""
    depth: int
    """Summands of one step."""
    warps: int
    stages: int
    """Steps in flight. Three of 128 x 64 and 64 x 128 are 96 KB: two programs share a processor, and while one computes
    GELU and writes, the other multiplies."""
    registers: int | None = None
    """At most so many of each thread; None leaves it to the compiler, which takes up to 255 and halves the programs."""


FEW_ROWS = 16384
"""Rows of all models below which tiles are halved: 5,248 rows fill 132 processors 4.97 times, against 2.48 times."""
_SMALL = Tiles(64, 64, 16, 4, 3)
"""float32 multiplies without tensor cores: small tiles, no spilled registers."""
FORWARD = {
    (torch.bfloat16, True): Tiles(64, 128, 64, 4, 3),
    (torch.bfloat16, False): Tiles(128, 128, 64, 8, 3),
    (torch.float32, True): _SMALL,
    (torch.float32, False): _SMALL,
}
"""By dtype and whether rows are few. On the H200 they take 135 and 110 registers: 3 and 2 programs at a time."""
BACKWARD = FORWARD | {(torch.bfloat16, False): Tiles(128, 128, 64, 8, 3, 128)}
"""Left alone the large tile would take 154 registers and its processor alone."""
SLOPE: tl.constexpr = tl.constexpr(2 * (2 / 3.141592653589793) ** 0.5)
CUBIC: tl.constexpr = tl.constexpr(0.044715)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


def linear_gelu(
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    keep: bool = True,
    u: Tensor | None = None,
    g: Tensor | None = None,
    tiles: Tiles | None = None,
) -> tuple[Tensor | None, Tensor]:
    """c ([models,] M, K), weight ([models,] N, K), bias ([models,] N) -> u = c W' + b and gelu(u).

    With `keep=False` only gelu(u) is written, and the first result is None.
    """
    shape = (*c.shape[:-1], weight.shape[-2])
    _check(c, "c", (*weight.shape[:-2], c.shape[-2], weight.shape[-1]), c)
    _check(weight, "weight", tuple(weight.shape), c)
    _check(bias, "bias", tuple(weight.shape[:-1]), c)
    g = c.new_empty(shape) if g is None else g
    _check(g, "g", shape, c)
    if keep:
        u = c.new_empty(shape) if u is None else u
        _check(u, "u", shape, c)
    before = u if keep and u is not None else g
    grid, constants = _plan(c, weight.shape[-2], weight.shape[-1], tiles, FORWARD)
    _linear_gelu[grid](
        c, weight, bias, before, g, *c.shape[-2:], weight.shape[-2], *_strides(c), *_strides(weight),
        bias.stride(0) if bias.ndim == 2 else 0, *_strides(before), *_strides(g), KEEP=keep, **constants,
    )  # fmt: skip
    return (before if keep else None), g


def gelu_backward_product(
    dh: Tensor,
    weight: Tensor,
    u: Tensor,
    *,
    du: Tensor | None = None,
    sums: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """dh ([models,] M, K), weight ([models,] K, N), u ([models,] M, N) -> (dh W) gelu'(u), the slope along u.

    `sums` ([models,] tiles of rows, N) in float32 receives the sums over each tile's rows: a bias's slope in parts.
    """
    shape = (*dh.shape[:-1], weight.shape[-1])
    _check(dh, "dh", (*weight.shape[:-2], dh.shape[-2], weight.shape[-2]), dh)
    _check(weight, "weight", tuple(weight.shape), dh)
    _check(u, "u", shape, dh)
    du = dh.new_empty(shape) if du is None else du
    _check(du, "du", shape, dh)
    grid, constants = _plan(dh, weight.shape[-1], weight.shape[-2], tiles, BACKWARD)
    into = du if sums is None else sums
    _gelu_backward[grid](
        dh, weight, u, du, into, *dh.shape[-2:], weight.shape[-1], *_strides(dh), *_strides(weight), *_strides(u),
        *_strides(du), *_strides(into), SUMS=sums is not None, **constants,
    )  # fmt: skip
    return du


def backward_tiles(dh: Tensor) -> int:
    """Into how many tiles of rows `gelu_backward_product` cuts dh."""
    models = dh.shape[0] if dh.ndim == 3 else 1
    return triton.cdiv(dh.shape[-2], BACKWARD[dh.dtype, models * dh.shape[-2] < FEW_ROWS].rows)


def _check(tensor: Tensor, name: str, shape: tuple[int, ...], like: Tensor) -> None:
    fits = tuple(tensor.shape) == shape and tensor.dtype == like.dtype and tensor.stride(-1) == 1
    if not fits or (tensor.dtype, True) not in FORWARD:
        raise ValueError(
            f"`{name}` must be {shape}, bfloat16 or float32 like all others, its last axis contiguous; got "
            f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}. Convert or copy it."
        )


def _strides(matrix: Tensor) -> tuple[int, int]:
    """From one model to the next, and from one row to the next."""
    return (matrix.stride(0) if matrix.ndim == 3 else 0), matrix.stride(-2)


def _plan(
    a: Tensor, columns: int, depth: int, tiles: Tiles | None, table: dict[tuple[torch.dtype, bool], Tiles]
) -> tuple[tuple[int, int], dict[str, int | bool]]:
    """The grid and the kernel's constants; models of one launch share the card, so their rows count together."""
    models = a.shape[0] if a.ndim == 3 else 1
    if tiles is None:
        tiles = table[a.dtype, models * a.shape[-2] < FEW_ROWS]
    constants = {
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "DEPTH": tiles.depth,
        "EVEN": depth % tiles.depth == 0 and columns % tiles.columns == 0,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    if tiles.registers is not None:
        constants["maxnreg"] = tiles.registers
    return (triton.cdiv(a.shape[-2], tiles.rows) * triton.cdiv(columns, tiles.columns), models), constants


@triton.jit
def _sigmoid(u):
    """s with gelu(u) = u s, (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), and u within 10 of 0.

    Beyond 10 s is 1 or less than 2e-38, and nothing overflows.
    """
    near = tl.minimum(tl.maximum(u, -10.0), 10.0)
    return 1 / (1 + tl.exp2(near * (near * near * CUBIC + 1) * (-LOG2E * SLOPE))), near


@triton.jit
def _tile(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of this program. Columns run fastest: programs at work together share rows of A and all of W."""
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column


@triton.jit
def _product(
    a, b, row, column, rows, depth, columns, a_row, b_depth, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sum over k of a[row, k] b[k, column] in float32. Past the end the last row is read again, which needs no mask."""
    k = tl.arange(0, DEPTH)
    a += tl.minimum(row, rows - 1)[:, None].to(tl.int64) * a_row + k[None, :]
    b += k[:, None] * b_depth + column[None, :] * b_column
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        if EVEN:
            total = tl.dot(tl.load(a), tl.load(b), total, input_precision="ieee")
        else:
            left = depth - start
            x = tl.load(a, mask=k[None, :] < left, other=0.0)
            y = tl.load(b, mask=(k[:, None] < left) & (column < columns)[None, :], other=0.0)
            total = tl.dot(x, y, total, input_precision="ieee")
        a += DEPTH
        b += DEPTH * b_depth
    return total


@triton.jit
def _linear_gelu(
    c, weight, bias, u, g, rows, depth, columns, c_model, c_row, weight_model, weight_row, bias_model, u_model, u_row,
    g_model, g_row, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    row, column = _tile(rows, columns, ROWS, COLUMNS)
    value = _product(
        c + model * c_model, weight + model * weight_model, row, column, rows, depth, columns, c_row, 1, weight_row,
        ROWS, COLUMNS, DEPTH, EVEN,
    )  # fmt: skip
    shift = tl.load(bias + model * bias_model + column, mask=column < columns, other=0.0).to(tl.float32)
    value += shift[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    if KEEP:
        at = u + model * u_model + row[:, None].to(tl.int64) * u_row + column[None, :]
        tl.store(at, value.to(u.dtype.element_ty), mask=inside)
    s, _ = _sigmoid(value)
    at = g + model * g_model + row[:, None].to(tl.int64) * g_row + column[None, :]
    tl.store(at, (value * s).to(g.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
    dh, weight, u, du, sums, rows, depth, columns, dh_model, dh_row, weight_model, weight_row, u_model, u_row, du_model,
    du_row, sums_model, sums_row, SUMS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    row, column = _tile(rows, columns, ROWS, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = _product(
        dh + model * dh_model, weight + model * weight_model, row, column, rows, depth, columns, dh_row, weight_row, 1,
        ROWS, COLUMNS, DEPTH, EVEN,
    )  # fmt: skip
    at = u + model * u_model + row[:, None].to(tl.int64) * u_row + column[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    s, near = _sigmoid(x)
    value *= s + s * (1 - s) * near * SLOPE * (near * near * (3 * CUBIC) + 1)
    at = du + model * du_model + row[:, None].to(tl.int64) * du_row + column[None, :]
    tl.store(at, value.to(du.dtype.element_ty), mask=inside)
    if SUMS:
        tile = tl.program_id(0) // tl.cdiv(columns, COLUMNS)
        total = tl.sum(tl.where(inside, value, 0.0), 0)
        tl.store(sums + model * sums_model + tile * sums_row + column, total, mask=column < columns)
