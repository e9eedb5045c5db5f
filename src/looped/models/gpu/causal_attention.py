"""Causal softmax attention of short sequences on a GPU: one kernel forward, one backward, q, k and v packed.

    p = softmax(q k' / sqrt(head_width)),  out = p v

Tokens are cut into tiles, and only pairs of tiles on or below the diagonal are computed (82 tokens: 6 pairs of 32 x 32,
where one padded square has 16). Each pass is written twice:

- unrolled, for short bfloat16: a program takes one head of one row, all partial results stay in registers, and every
  product is computed once;
- looped, for any length: little code and few registers, and a program may take a part of the tiles; the backward pass
  computes scores twice, for queries and for keys.

No sum is shared between programs, so results do not depend on their order.
"""

# ruff: noqa: RUF005 (triton adds tuples; it does not unpack them)
# pyright: reportIndexIssue=false, reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from looped.models.fusing import HEAD_WIDTHS

LONGEST_UNROLLED = 128
"""Tokens; the partial results of more tiles do not fit into registers."""
TILE = 32
"""Tokens of a tile: enough rows of the tensor cores for two warps, and 82 tokens are padded only to 96."""
WARPS = {torch.bfloat16: 2, torch.float32: 4}
"""Warps of a program. A tensor core multiplies 16 rows, so a tile of 32 feeds two warps and no more. float32 does not
use them, and needs the registers of more threads."""
LIMIT_REGISTERS_ABOVE = 1024
"""Heads times rows above which unrolled programs get fewer registers each, so that more of them run at a time."""
REGISTERS = {"forward": 128, "backward": 168}
"""A few bytes spill; even so 1,024 rows of 82 tokens took 88 instead of 131 us forward, 179 instead of 205 backward."""
SPLIT_TILES_BELOW = 2048
"""Heads times rows below which the looped kernels run one program per tile, to fill the card."""
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


def attention(
    qkv: Tensor, heads: int, *, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(rows, seq, 3 heads width) -> mixed values (rows, seq, heads width) and log-sum-exps (rows, heads, seq)."""
    rows, seq, inner, width = _shape(qkv, heads)
    out = qkv.new_empty(rows, seq, inner) if out is None else out
    lse = qkv.new_empty(rows, heads, seq, dtype=torch.float32) if lse is None else lse
    _check(out, "out", (rows, seq, inner), qkv.dtype)
    _check(lse, "lse", (rows, heads, seq), torch.float32)
    unrolled, grid, constants = _plan(qkv.dtype, rows * heads, seq, width, "forward")
    (_forward if unrolled else _forward_looped)[grid](
        qkv, out, lse, heads, seq, *qkv.stride()[:2], *out.stride()[:2], *lse.stride()[:2], **constants
    )
    return out, lse


def attention_backward(
    dout: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, *, dqkv: Tensor, sums: Tensor
) -> None:
    """Write the gradient along qkv into `dqkv`, given that along `attention`'s output and what `attention` returned.

    `sums` (rows, heads width) in float32 receives the queries' part summed over each row's tokens, from which the
    bias's gradient is made. (For keys this sum is zero, and for values it is that of `dout`: softmax weights sum to 1.)
    """
    rows, seq, inner, width = _shape(qkv, heads)
    _check(dout, "dout", (rows, seq, inner), qkv.dtype)
    _check(out, "out", (rows, seq, inner), qkv.dtype)
    _check(lse, "lse", (rows, heads, seq), torch.float32)
    _check(dqkv, "dqkv", tuple(qkv.shape), qkv.dtype)
    unrolled, grid, constants = _plan(qkv.dtype, rows * heads, seq, width, "backward")
    tensors = (qkv, out, lse, dout, dqkv)
    steps = [step for tensor in tensors for step in tensor.stride()[:2]]
    if unrolled:
        _backward[grid](*tensors, sums, heads, seq, *steps, sums.stride(0), **constants)
    else:
        _backward_looped[grid](*tensors, heads, seq, *steps, **constants)
        torch.sum(dqkv[..., :inner], 1, dtype=torch.float32, out=sums)


def _shape(qkv: Tensor, heads: int) -> tuple[int, int, int, int]:
    """Rows, tokens, width of all heads, width of one head."""
    if qkv.ndim != 3 or qkv.shape[2] % (3 * heads) or qkv.stride(2) != 1 or qkv.dtype not in WARPS:
        raise ValueError(
            f"`qkv` must be (rows, seq, 3 * {heads} heads * width), bfloat16 or float32, its last axis contiguous; "
            f"got {qkv.dtype} {tuple(qkv.shape)} with strides {qkv.stride()}. Lay it out as blocks.Attention does."
        )
    rows, seq, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    if inner // heads not in HEAD_WIDTHS:
        raise ValueError(
            f"heads must be {HEAD_WIDTHS} wide here; got {inner // heads}. Use F.scaled_dot_product_attention."
        )
    return rows, seq, inner, inner // heads


def _check(tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.stride(-1) != 1:
        raise ValueError(
            f"`{name}` must be {dtype} {shape}, its last axis contiguous; got {tensor.dtype} {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}. Pass a buffer of that shape."
        )


def _plan(
    dtype: torch.dtype, units: int, seq: int, width: int, direction: str
) -> tuple[bool, tuple[int, ...], dict[str, int]]:
    """Whether unrolled, the grid, and the kernel's constants, for `units` = rows x heads."""
    tiles = triton.cdiv(seq, TILE)
    constants = {"WIDTH": width, "TILE": TILE, "num_warps": WARPS[dtype], "num_stages": 1}
    if not _unrolls(dtype, seq, width):
        return False, (units, tiles if units < SPLIT_TILES_BELOW else 1), constants
    if units > LIMIT_REGISTERS_ABOVE:
        constants["maxnreg"] = REGISTERS[direction]
    return True, (units,), constants | {"COUNT": tiles}


def _unrolls(dtype: torch.dtype, seq: int, width: int) -> bool:
    return dtype == torch.bfloat16 and seq <= LONGEST_UNROLLED and width <= 32


@triton.jit
def _row_and_head(heads):
    """Which row and head this program takes."""
    return (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads


@triton.jit
def _unpacked(packed, row, row_stride, head, heads, WIDTH: tl.constexpr):
    """Where q, k and v of one head of one row begin."""
    q_at = packed + row * row_stride + head * WIDTH
    k_at = q_at + heads * WIDTH
    return q_at, k_at, k_at + heads * WIDTH


@triton.jit
def _read(base, i, seq, step, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """The tokens of tile i; zeros past the end."""
    token = i * TILE + tl.arange(0, TILE)[:, None]
    return tl.load(base + token * step + tl.arange(0, WIDTH)[None, :], mask=token < seq, other=0.0)


@triton.jit
def _write(base, value, i, seq, step, TILE: tl.constexpr, WIDTH: tl.constexpr):
    token = i * TILE + tl.arange(0, TILE)[:, None]
    at = base + token * step + tl.arange(0, WIDTH)[None, :]
    tl.store(at, value.to(base.dtype.element_ty), mask=token < seq)


@triton.jit
def _mean(dout, out, i, seq, dout_token, out_token, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """sum(dout out) for each query of tile i, which the softmax's backward pass subtracts."""
    up = _read(dout, i, seq, dout_token, TILE, WIDTH).to(tl.float32)
    return tl.sum(up * _read(out, i, seq, out_token, TILE, WIDTH).to(tl.float32), 1)


@triton.jit
def _dot(a, b):
    """A product in float32; float32 factors are not rounded."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _forward(
    qkv, out, lse, heads, seq, qkv_row, qkv_token, out_row, out_token, lse_row, lse_head,
    WIDTH: tl.constexpr, TILE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """A tile of queries and all its scores stay in registers: one maximum, one sum, no correction."""
    row, head = _row_and_head(heads)
    q_at, k_at, v_at = _unpacked(qkv, row, qkv_row, head, heads, WIDTH)
    out += row * out_row + head * WIDTH
    lse += row * lse_row + head * lse_head
    place = tl.arange(0, TILE)
    seen = place[:, None] >= place[None, :]
    ks = ()
    vs = ()
    for j in tl.static_range(COUNT):
        ks = ks + (_read(k_at, j, seq, qkv_token, TILE, WIDTH),)
        vs = vs + (_read(v_at, j, seq, qkv_token, TILE, WIDTH),)
    for i in tl.static_range(COUNT):
        q = _read(q_at, i, seq, qkv_token, TILE, WIDTH)
        # Scores in powers of 2. Keys past the end come after every query, so the mask of the diagonal hides them too.
        scores = ()
        for j in tl.static_range(i + 1):
            s = _dot(q, ks[j].T) * (LOG2E / WIDTH**0.5)
            if j == i:
                s = tl.where(seen, s, float("-inf"))
            scores = scores + (s,)
        top = tl.max(scores[i], 1)
        for j in tl.static_range(i):
            top = tl.maximum(top, tl.max(scores[j], 1))
        total = tl.zeros([TILE], tl.float32)
        mixed = tl.zeros([TILE, WIDTH], tl.float32)
        for j in tl.static_range(i + 1):
            p = tl.exp2(scores[j] - top[:, None])
            total += tl.sum(p, 1)
            mixed += _dot(p.to(vs[j].dtype), vs[j])
        _write(out, mixed / total[:, None], i, seq, out_token, TILE, WIDTH)
        token = i * TILE + place
        tl.store(lse + token, (top + tl.log2(total)) * LN2, mask=token < seq)


@triton.jit
def _backward(
    qkv, out, lse, dout, dqkv, sums, heads, seq, qkv_row, qkv_token, out_row, out_token, lse_row, lse_head, dout_row,
    dout_token, dqkv_row, dqkv_token, sums_row, WIDTH: tl.constexpr, TILE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Each tile of keys with the queries that see it: ds = p (dout v' - sum(dout out)), transposed: keys are rows.

    Queries past the end are zero and so is their gradient: they add nothing, whatever their scores.
    """
    row, head = _row_and_head(heads)
    q_at, k_at, v_at = _unpacked(qkv, row, qkv_row, head, heads, WIDTH)
    dq_at, dk_at, dv_at = _unpacked(dqkv, row, dqkv_row, head, heads, WIDTH)
    sums += row * sums_row + head * WIDTH + tl.arange(0, WIDTH)
    out += row * out_row + head * WIDTH
    dout += row * dout_row + head * WIDTH
    lse += row * lse_row + head * lse_head
    place = tl.arange(0, TILE)
    seen = place[:, None] <= place[None, :]
    scale: tl.constexpr = 1 / WIDTH**0.5
    sum_q = tl.zeros([WIDTH], tl.float32)
    norms = ()
    means = ()
    dqs = ()
    for i in tl.static_range(COUNT):
        token = i * TILE + place
        means = means + (_mean(dout, out, i, seq, dout_token, out_token, TILE, WIDTH),)
        norms = norms + (tl.load(lse + token, mask=token < seq, other=0.0) * LOG2E,)
        dqs = dqs + (tl.zeros([TILE, WIDTH], tl.float32),)
    for j in tl.static_range(COUNT):
        k = _read(k_at, j, seq, qkv_token, TILE, WIDTH)
        v = _read(v_at, j, seq, qkv_token, TILE, WIDTH)
        dk = tl.zeros([TILE, WIDTH], tl.float32)
        dv = tl.zeros([TILE, WIDTH], tl.float32)
        later = ()
        for i in tl.static_range(j, COUNT):
            # Read again, from the nearest cache: in registers, in the two forms that products need, they would spill.
            q = _read(q_at, i, seq, qkv_token, TILE, WIDTH)
            up = _read(dout, i, seq, dout_token, TILE, WIDTH)
            s = _dot(k, q.T) * (LOG2E * scale) - norms[i][None, :]
            if i == j:
                s = tl.where(seen, s, float("-inf"))
            p = tl.exp2(s)
            ds = (p * (_dot(v, up.T) - means[i][None, :])).to(k.dtype)
            dv += _dot(p.to(k.dtype), up)
            dk += _dot(ds, q)
            dq = dqs[i - j] + _dot(ds.T, k)
            if i == j:
                _write(dq_at, dq * scale, i, seq, dqkv_token, TILE, WIDTH)
                sum_q += tl.sum(dq, 0)  # the gradient of tokens past the end is zero
            else:
                later = later + (dq,)
        dqs = later
        _write(dk_at, dk * scale, j, seq, dqkv_token, TILE, WIDTH)
        _write(dv_at, dv, j, seq, dqkv_token, TILE, WIDTH)
    tl.store(sums, sum_q * scale)


@triton.jit
def _forward_looped(
    qkv, out, lse, heads, seq, qkv_row, qkv_token, out_row, out_token, lse_row, lse_head,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Keys tile by tile; sums are scaled down whenever a higher score comes."""
    row, head = _row_and_head(heads)
    q_at, k_at, v_at = _unpacked(qkv, row, qkv_row, head, heads, WIDTH)
    out += row * out_row + head * WIDTH
    lse += row * lse_row + head * lse_head
    place = tl.arange(0, TILE)
    for i in range(tl.program_id(1), tl.cdiv(seq, TILE), tl.num_programs(1)):
        q = _read(q_at, i, seq, qkv_token, TILE, WIDTH)
        token = i * TILE + place
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        mixed = tl.zeros([TILE, WIDTH], tl.float32)
        for j in range(i + 1):
            s = _dot(q, _read(k_at, j, seq, qkv_token, TILE, WIDTH).T) * (LOG2E / WIDTH**0.5)
            s = tl.where(token[:, None] >= (j * TILE + place)[None, :], s, float("-inf"))
            higher = tl.maximum(top, tl.max(s, 1))
            shrink = tl.exp2(top - higher)
            p = tl.exp2(s - higher[:, None])
            v = _read(v_at, j, seq, qkv_token, TILE, WIDTH)
            total = total * shrink + tl.sum(p, 1)
            mixed = mixed * shrink[:, None] + _dot(p.to(v.dtype), v)
            top = higher
        _write(out, mixed / total[:, None], i, seq, out_token, TILE, WIDTH)
        tl.store(lse + token, (top + tl.log2(total)) * LN2, mask=token < seq)


@triton.jit
def _backward_looped(
    qkv, out, lse, dout, dqkv, heads, seq, qkv_row, qkv_token, out_row, out_token, lse_row, lse_head, dout_row,
    dout_token, dqkv_row, dqkv_token, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each tile as queries, with the keys before it, then as keys, with the queries after it: all cost the same."""
    row, head = _row_and_head(heads)
    q_at, k_at, v_at = _unpacked(qkv, row, qkv_row, head, heads, WIDTH)
    dq_at, dk_at, dv_at = _unpacked(dqkv, row, dqkv_row, head, heads, WIDTH)
    out += row * out_row + head * WIDTH
    dout += row * dout_row + head * WIDTH
    lse += row * lse_row + head * lse_head
    place = tl.arange(0, TILE)
    scale: tl.constexpr = 1 / WIDTH**0.5
    tiles = tl.cdiv(seq, TILE)
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        here = tile * TILE + place
        q = _read(q_at, tile, seq, qkv_token, TILE, WIDTH)
        up = _read(dout, tile, seq, dout_token, TILE, WIDTH)
        mean = _mean(dout, out, tile, seq, dout_token, out_token, TILE, WIDTH)
        norm = tl.load(lse + here, mask=here < seq, other=0.0) * LOG2E
        dq = tl.zeros([TILE, WIDTH], tl.float32)
        for j in range(tile + 1):
            k = _read(k_at, j, seq, qkv_token, TILE, WIDTH)
            v = _read(v_at, j, seq, qkv_token, TILE, WIDTH)
            s = _dot(q, k.T) * (LOG2E * scale) - norm[:, None]
            p = tl.exp2(tl.where(here[:, None] >= (j * TILE + place)[None, :], s, float("-inf")))
            dq += _dot((p * (_dot(up, v.T) - mean[:, None])).to(k.dtype), k)
        _write(dq_at, dq * scale, tile, seq, dqkv_token, TILE, WIDTH)
        k = _read(k_at, tile, seq, qkv_token, TILE, WIDTH)
        v = _read(v_at, tile, seq, qkv_token, TILE, WIDTH)
        dk = tl.zeros([TILE, WIDTH], tl.float32)
        dv = tl.zeros([TILE, WIDTH], tl.float32)
        for i in range(tile, tiles):
            token = i * TILE + place
            q = _read(q_at, i, seq, qkv_token, TILE, WIDTH)
            up = _read(dout, i, seq, dout_token, TILE, WIDTH)
            mean = _mean(dout, out, i, seq, dout_token, out_token, TILE, WIDTH)
            norm = tl.load(lse + token, mask=token < seq, other=0.0) * LOG2E
            s = _dot(k, q.T) * (LOG2E * scale) - norm[None, :]
            p = tl.exp2(tl.where(here[:, None] <= token[None, :], s, float("-inf")))
            dv += _dot(p.to(k.dtype), up)
            dk += _dot((p * (_dot(v, up.T) - mean[None, :])).to(k.dtype), q)
        _write(dk_at, dk * scale, tile, seq, dqkv_token, TILE, WIDTH)
        _write(dv_at, dv, tile, seq, dqkv_token, TILE, WIDTH)
