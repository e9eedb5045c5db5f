"""Products with GELU against plain float64: on a GPU where there is one, else in triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.models.gpu.products import Tiles, gelu_backward_product, linear_gelu
from models.interpreter import DEVICE, repair

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
SMALL = Tiles(16, 32, 16, 4, 2)


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch):
    repair(monkeypatch)


def _normal(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def _near(found, expected, dtype):
    """Within rounding of the largest value."""
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert (found.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


def _plain(c, weight, bias):
    before = c.double() @ weight.double().mT + bias.double().unsqueeze(-2)
    return before, F.gelu(before, approximate="tanh")


def _slope(dh, weight, u):
    u = u.double().requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(u, approximate="tanh"), u, dh.double() @ weight.double())
    return slope


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("lead", "rows", "depth", "columns", "tiles"),
    [
        ((), 1, 16, 32, SMALL),
        ((), 37, 48, 64, SMALL),
        ((), 37, 40, 72, SMALL),
        ((3,), 37, 48, 64, SMALL),
        ((2,), 16, 20, 33, SMALL),
        ((), 82, 256, 256, None),
        ((2,), 70, 64, 128, None),
        ((), 130, 64, 128, Tiles(128, 128, 64, 8, 3, 128)),
    ],
)
def test_products_and_gelu_are_those_of_plain_torch(lead, rows, depth, columns, tiles, dtype):
    if tiles is not None and tiles.rows == 128 and dtype == torch.float32:
        tiles = None  # never chosen for float32: its registers would spill
    c = _normal(*lead, rows, depth, dtype=dtype, seed=1)
    weight = _normal(*lead, columns, depth, dtype=dtype, seed=2) / depth**0.5
    bias = _normal(*lead, columns, dtype=dtype, seed=3)
    before, after = _plain(c, weight, bias)
    u, g = linear_gelu(c, weight, bias, tiles=tiles)
    _near(u, before, dtype)
    _near(g, after, dtype)
    none, alone = linear_gelu(c, weight, bias, keep=False, tiles=tiles)
    assert none is None
    assert torch.equal(alone, g)
    back = _normal(*lead, depth, columns, dtype=dtype, seed=4) / depth**0.5
    _near(gelu_backward_product(c, back, u, tiles=tiles), _slope(c, back, u), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_and_its_slope_at_large_and_small_values(dtype):
    values = torch.tensor(
        [-1e30, -1e15, -200.0, -30.0, -10.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 10.0, 30.0, 200.0, 1e15, 1e30]
    )
    u = torch.zeros(16, 16, dtype=dtype, device=DEVICE)
    u[0, :15] = values.to(dtype).to(DEVICE)
    one = torch.eye(16, dtype=dtype, device=DEVICE)
    zero = torch.zeros(16, dtype=dtype, device=DEVICE)
    tiles = Tiles(16, 16, 16, 4, 2)
    _, g = linear_gelu(u, one, zero, tiles=tiles)
    expected = F.gelu(u.double(), approximate="tanh")
    torch.testing.assert_close(g.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)
    ones = torch.ones(16, 16, dtype=dtype, device=DEVICE)
    slope = gelu_backward_product(ones, one, u, tiles=tiles)
    x = u.double().clamp(-50, 50).requires_grad_()  # beyond, the slope is 0 or 1
    (expected,) = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)
    torch.testing.assert_close(slope.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_results_go_into_strided_buffers_and_nowhere_else(lead):
    rows, depth, columns, dtype = 21, 32, 48, torch.bfloat16
    wide = _normal(*lead, 2 * rows, 2 * depth, dtype=dtype, seed=5)
    c = wide[..., ::2, :depth]
    weight, bias = _normal(*lead, columns, depth, dtype=dtype, seed=6), _normal(*lead, columns, dtype=dtype, seed=7)
    u, g = linear_gelu(c.contiguous(), weight, bias, tiles=SMALL)
    back = _normal(*lead, depth, columns, dtype=dtype, seed=8)
    du = gelu_backward_product(c.contiguous(), back, u, tiles=SMALL)
    buffers = torch.full((*lead, 3, rows + 1, columns + 16), 7.0, dtype=dtype, device=DEVICE)
    places = [buffers[..., i, :rows, :columns] for i in range(3)]
    linear_gelu(c, weight, bias, u=places[0], g=places[1], tiles=SMALL)
    gelu_backward_product(c, back, places[0], du=places[2], tiles=SMALL)
    for place, expected in zip(places, (u, g, du), strict=True):
        assert torch.equal(place, expected)
        place.fill_(7.0)
    assert (buffers == 7.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear_gelu(torch.zeros(4, 8), torch.zeros(6, 9), torch.zeros(6)), "`c` must be"),
        (lambda: linear_gelu(torch.zeros(4, 8), torch.zeros(6, 8), torch.zeros(7)), "`bias` must be"),
        (lambda: linear_gelu(torch.zeros(8, 4).mT, torch.zeros(6, 8), torch.zeros(6)), "last axis contiguous"),
        (lambda: gelu_backward_product(torch.zeros(4, 8), torch.zeros(8, 6), torch.zeros(4, 7)), "`u` must be"),
        (lambda: gelu_backward_product(*(torch.zeros(4, 4, dtype=torch.float64),) * 3), "bfloat16 or float32"),
    ],
)
def test_shapes_it_cannot_take_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
