"""GELU's kernels against torch's in float64: on a GPU where there is one, else in triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.models.gpu.activation import gelu, gelu_backward, parts_of
from models.interpreter import DEVICE


@pytest.mark.parametrize(("models", "rows", "width"), [(1, 1, 8), (2, 37, 300), (3, 64, 256)])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_values_slopes_and_sums(models, rows, width, dtype, close):
    generator = torch.Generator().manual_seed(0)
    u = (4 * torch.randn(models, rows, width, generator=generator)).to(dtype)
    u.view(-1)[:4] = torch.tensor([0.0, -40.0, 40.0, 1e30])  # far out it must not overflow
    up = torch.randn(models, rows, width, generator=generator).to(dtype)
    exact = u.double().requires_grad_()
    expected = F.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(expected, exact, up.double())
    there, back = u.to(DEVICE), up.to(DEVICE)
    values = gelu(there, out=torch.empty_like(there))
    torch.testing.assert_close(values.cpu().double(), expected.detach(), rtol=close, atol=close)
    sums = torch.empty(models, parts_of(there), width, device=DEVICE)
    du = gelu_backward(back, there, sums=sums)
    assert du is back
    torch.testing.assert_close(du.cpu().double(), slope, rtol=close, atol=close)
    torch.testing.assert_close(sums.sum(1).cpu().double(), slope.sum(1), rtol=close, atol=close * rows**0.5)
