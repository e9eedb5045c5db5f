"""The GPU's kernels against the CPU's passes in float64: on a GPU where there is one, else in triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.models.fast_losses import cheng24_gpu, cheng24_loss, gatmiry24_gpu
from looped.models.fast_losses.batch_last import to_last
from looped.models.fast_losses.cheng24_loss import HeadWeights
from looped.prompt import Prompt

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS = {
    "linear": (kernels.linear,),
    "relu": (kernels.relu,),
    "exp": (kernels.exp,),
    "softmax": (softmax,),
    "two heads": (kernels.linear, kernels.exp),
}


@pytest.mark.parametrize(("layers", "free"), [(1, True), (3, True), (2, False)])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("n", "d", "count"), [(4, 3, 37), (6, 5, 32)])
def test_loss_and_gradient_are_those_of_the_cpu(name, layers, free, n, d, count):
    heads, generator = HEADS[name], torch.Generator().manual_seed(layers)

    def normal(*shape, size=1.0):
        return size * torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = [
        HeadWeights(
            normal(2, layers, d, d, size=0.3), normal(2, layers, d, d, size=0.1) if free else None, normal(2, layers)
        )
        for _ in heads
    ]
    prompt = Prompt(normal(2, count, n + 1, d, size=0.5), normal(2, count, n + 1))
    flat = [part.requires_grad_() for head in weights for part in head if part is not None]
    loss = cheng24_loss.in_context_loss(weights, heads, cheng24_loss.prepare(prompt, heads))
    expected = torch.autograd.grad(loss.sum(), flat, allow_unused=True)
    hidden = torch.cat([prompt.ys[..., :-1], torch.zeros_like(prompt.ys[..., -1:])], -1)
    rows = to_last(torch.cat([prompt.xs, hidden[..., None]], -1).mT).to(DEVICE)
    with torch.no_grad():
        there = [HeadWeights(*(None if part is None else part.to(DEVICE) for part in head)) for head in weights]
        total = [HeadWeights(*(None if part is None else torch.zeros_like(part) for part in head)) for head in there]
        label, saved_rows = cheng24_gpu.forward(there, heads, rows)
        error = label + prompt.ys[..., -1].to(DEVICE)
        cheng24_gpu.backward(there, heads, saved_rows, 2 / count * error, total)
    torch.testing.assert_close(error.square().mean(1).cpu(), loss.detach(), rtol=1e-10, atol=1e-12)
    gradients = [part.cpu() for head in total for part in head if part is not None]
    for gradient, wanted in zip(gradients, expected, strict=True):
        wanted = torch.zeros_like(gradient) if wanted is None else wanted
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("d", "count"), [(4, 9), (10, 64), (10, 130)])
def test_a_step_of_descent_and_its_gradients_are_those_of_einsum(d, count):
    generator = torch.Generator().manual_seed(d)
    half, e, a, rates = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE)
        for shape in ((3, d, d, count), (6, d, count), (6, d, d), (6, count))
    )
    matrices = half + half.transpose(1, 2)
    e.requires_grad_()
    a.requires_grad_()
    moved = torch.einsum("gijc,mgjc,mgc->mgic", matrices, e.view(2, 3, d, count), rates.view(2, 3, count))
    expected = e - a.mT @ moved.reshape(6, d, count)
    result = gatmiry24_gpu.Step.apply(e, a, matrices, rates)
    torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-11)
    up = torch.randn(6, d, count, generator=generator, dtype=torch.float64).to(DEVICE)
    gradients = [torch.autograd.grad((out * up).sum(), (e, a)) for out in (result, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-10)
