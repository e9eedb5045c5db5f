"""Causal attention of short sequences against plain float64: on a GPU, else in triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.models.gpu import causal_attention
from looped.models.gpu.causal_attention import attention, attention_backward
from models.interpreter import DEVICE, repair

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch):
    repair(monkeypatch)


def _choose(monkeypatch, unrolled):
    monkeypatch.setattr(causal_attention, "_unrolls", lambda *shape: unrolled)


def _backward(up, qkv, out, lse, heads):
    """The slope along qkv; the sums of its queries' part are checked on the way."""
    dqkv, sums = torch.empty_like(qkv), torch.empty_like(up[:, 0], dtype=torch.float32)
    attention_backward(up, qkv, out, lse, heads, dqkv=dqkv, sums=sums)
    expected = dqkv[..., : sums.shape[-1]].double().sum(1)
    close = TOLERANCE[qkv.dtype] * qkv.shape[1] ** 0.5
    assert (sums - expected).abs().max() <= close * expected.abs().max().clamp(min=1)
    return dqkv


def _normal(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def _plain(qkv, heads, up):
    """Output, log-sum-exps and the slope along qkv, in float64 and by autograd."""
    rows, seq, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    qkv = qkv.double().requires_grad_()
    q, k, v = qkv.view(rows, seq, 3, heads, inner // heads).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / (inner // heads) ** 0.5
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool, device=DEVICE).triu(1), float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, seq, inner)
    (slope,) = torch.autograd.grad(out, qkv, up.double())
    return out.detach(), scores.logsumexp(-1).detach(), slope


def _near(result, expected, dtype):
    """Within rounding of the largest value."""
    assert result.isfinite().all()
    assert (result.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1)


SHAPES = [  # rows, tokens, heads, width
    (3, 1, 2, 32), (2, 2, 1, 16), (2, 17, 3, 16), (2, 32, 1, 64), (2, 82, 2, 32), (1, 101, 2, 32), (1, 128, 1, 64),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("unrolled", [True, False])
@pytest.mark.parametrize(("rows", "seq", "heads", "width"), SHAPES)
def test_output_and_slope_are_those_of_plain_attention(rows, seq, heads, width, unrolled, dtype, monkeypatch):
    _choose(monkeypatch, unrolled)
    if DEVICE.type == "cuda" and unrolled and dtype == torch.float32:
        pytest.skip("float32 unrolled is never chosen: it compiles for half a minute")
    qkv = _normal(rows, seq, 3 * heads * width, dtype=dtype, seed=seq)
    up = _normal(rows, seq, heads * width, dtype=dtype, seed=seq + 1)
    out, norms, slope = _plain(qkv, heads, up)
    result, lse = attention(qkv, heads)
    assert result.dtype == dtype
    assert lse.dtype == torch.float32
    _near(result, out, dtype)
    _near(lse, norms, torch.float32)
    _near(_backward(up, qkv, result, lse, heads), slope, dtype)


@pytest.mark.parametrize(("seq", "dtype"), [(202, torch.bfloat16), (202, torch.float32), (82, torch.float32)])
@pytest.mark.parametrize("split", [True, False])
def test_long_sequences_and_parts_of_the_tiles(seq, dtype, split, monkeypatch):
    monkeypatch.setattr(causal_attention, "SPLIT_TILES_BELOW", 2048 if split else 0)
    qkv = _normal(1, seq, 3 * 2 * 32, dtype=dtype, seed=4)
    up = _normal(1, seq, 2 * 32, dtype=dtype, seed=5)
    out, norms, slope = _plain(qkv, 2, up)
    result, lse = attention(qkv, 2)
    _near(result, out, dtype)
    _near(lse, norms, torch.float32)
    _near(_backward(up, qkv, result, lse, 2), slope, dtype)


@pytest.mark.parametrize("unrolled", [True, False])
def test_large_scores_do_not_overflow(unrolled, monkeypatch):
    _choose(monkeypatch, unrolled)
    dtype = torch.bfloat16
    qkv = 30 * _normal(2, 40, 3 * 16, dtype=dtype, seed=6)
    up = _normal(2, 40, 16, dtype=dtype, seed=7)
    out, norms, _ = _plain(qkv, 1, up)
    result, lse = attention(qkv, 1)
    _near(result, out, dtype)
    _near(lse, norms, torch.float32)
    assert _backward(up, qkv, result, lse, 1).isfinite().all()


@pytest.mark.parametrize("unrolled", [True, False])
def test_results_go_into_strided_buffers_and_nowhere_else(unrolled, monkeypatch):
    _choose(monkeypatch, unrolled)
    rows, seq, heads, width, dtype = 2, 37, 2, 16, torch.bfloat16
    qkv = _normal(rows, seq, 3 * heads * width, dtype=dtype, seed=8)
    up = _normal(rows, seq, heads * width, dtype=dtype, seed=9)
    plain = attention(qkv, heads)
    slope = _backward(up, qkv, *plain, heads)
    outs = torch.full((rows, 3, seq + 2, heads * width + 16), 7.0, dtype=dtype, device=DEVICE)
    norms = torch.full((2, rows, heads, seq), 7.0, device=DEVICE)
    slopes = torch.full((rows, 3, seq, 3 * heads * width), 7.0, dtype=dtype, device=DEVICE)
    out, lse = attention(qkv, heads, out=outs[:, 1, :seq, : heads * width], lse=norms[1])
    assert out.data_ptr() == outs[:, 1].data_ptr()
    wide = torch.zeros(rows, seq, 5 * heads * width, dtype=dtype, device=DEVICE)
    wide[..., heads * width : 2 * heads * width] = up
    up, sums = wide[..., heads * width : 2 * heads * width], torch.empty(rows, heads * width, device=DEVICE)
    attention_backward(up, qkv, out, lse, heads, dqkv=slopes[:, 2], sums=sums)
    assert torch.equal(outs[:, 1, :seq, : heads * width], plain[0])
    assert torch.equal(norms[1], plain[1])
    assert torch.equal(slopes[:, 2], slope)
    for buffer, place in (
        (outs, (slice(None), 1, slice(seq), slice(heads * width))),
        (norms, 1),
        (slopes, (slice(None), 2)),
    ):
        buffer[place] = 7.0
        assert (buffer == 7.0).all()


def test_agrees_with_the_library_on_the_layout_of_blocks():
    qkv = _normal(2, 20, 3 * 64, dtype=torch.float32, seed=10)
    q, k, v = qkv.view(2, 20, 3, 4, 16).permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 20, 64)
    torch.testing.assert_close(attention(qkv, 4)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention(torch.zeros(2, 5, 100), 2), "`qkv` must be"),
        (lambda: attention(torch.zeros(2, 5, 3 * 2 * 24), 2), r"\(16, 32, 64\) wide here; got 24"),
        (lambda: attention(torch.zeros(2, 5, 96), 2, out=torch.zeros(2, 5, 33)), "`out` must be"),
        (lambda: attention(torch.zeros(2, 5, 96, dtype=torch.float64), 2), "bfloat16 or float32"),
    ],
)
def test_shapes_it_cannot_take_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
