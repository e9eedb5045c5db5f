"""The fused loops against the plain model in float64: on a GPU where there is one, else in triton's interpreter."""

import copy
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.models.blocks import stack
from looped.models.decoder import DecoderConfig
from looped.prompt import Prompt, join
from looped.training.fused import FusedPasses
from looped.training.passes import Passes
from models.interpreter import DEVICE, repair


def model_and_prompt(models: int, batch: int = 3, n: int = 5):
    """Weights far from their start, so that every term of every gradient counts."""
    torch.manual_seed(0)
    config = DecoderConfig(d=4, width=32, heads=2, positions=24, loops=4)
    singles = [config.build() for _ in range(models)]
    for single in singles:
        for parameter in single.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    prompts = [Prompt(torch.randn(batch, n, 4), torch.randn(batch, n)) for _ in singles]
    model = stack(singles) if models > 1 else singles[0]
    return model, join(prompts)


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(("loops", "keep", "ahead"), [(1, 1, 0), (3, 2, 0), (2, 2, 3)])
def test_answers_and_gradients_are_those_of_the_plain_model(models, loops, keep, ahead):
    model, prompt = model_and_prompt(models)
    exact = copy.deepcopy(model).double()
    plain = exact(prompt.to(torch.float64), loops=ahead + loops, grad=loops, keep=keep)
    up = torch.randn(plain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad((plain * up).sum(), list(exact.parameters()))

    passes = FusedPasses(model.to(DEVICE), torch.float32)
    there, window = prompt.to(DEVICE), {"loops": loops, "grad": loops, "keep": keep}

    def in_parts():
        context, state = passes.begin(there)
        for _ in range(ahead):
            state = passes.loop(state, context)
        return passes.finish(there, state if ahead else None, **window)

    for answer in (in_parts, lambda: passes.whole(there, ahead=ahead, **window)):
        outputs = answer()
        torch.testing.assert_close(outputs.cpu().double(), plain, rtol=2e-5, atol=2e-5)
        gradients = passes.gradients((outputs * up.to(outputs)).sum())
        for name, gradient, other in zip(dict(model.named_parameters()), gradients, expected, strict=True):
            error = (gradient.cpu().double() - other).norm() / other.norm()
            assert error < 2e-5, (name, error)


def test_a_shorter_prompt_keeps_nothing_of_a_longer_one():
    """Positions behind a prompt have no slope, whatever came before."""
    model, prompt = model_and_prompt(1)
    passes = FusedPasses(model.to(DEVICE), torch.float32)
    place = list(dict(model.named_parameters())).index("positions")
    for n in (5, 3, 5, 3):
        outputs = passes.finish(prompt.head(n).to(DEVICE), loops=1, grad=1, keep=1)
        slope = passes.gradients(outputs.square().sum())[place]
        assert slope[: 2 * n - 1].any(-1).all()
        assert not slope[2 * n :].any()


def test_bfloat16_is_as_close_as_the_plain_model_in_bfloat16(monkeypatch):
    """Not closer than rounding allows, and no worse than 1.3 times what torch's own operations give."""
    repair(monkeypatch)
    model, prompt = model_and_prompt(1, batch=8, n=8)
    exact = model(prompt, loops=3, keep=2)
    expected = torch.autograd.grad(exact.square().sum(), list(model.parameters()))
    model = model.to(DEVICE)
    distances = []
    for kind in (Passes, FusedPasses):
        passes = kind(model, torch.bfloat16)
        passes.refresh()
        outputs = passes.finish(prompt.to(DEVICE), loops=3, grad=3, keep=2)
        gradients = passes.gradients(outputs.square().sum())
        pairs = zip(gradients, expected, strict=True)
        distances.append(sum(float((gradient.cpu() - other).norm() / other.norm()) for gradient, other in pairs))
    assert 0 < distances[1] < 1.3 * distances[0]
