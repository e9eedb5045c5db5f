"""Blocks by our kernels against the plain model in float64, on a GPU or in triton's interpreter."""

import copy
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton comes with torch for GPUs; the CPU wheel has none")

from looped.experiment import TrainConfig
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.blocks import relu, stack
from looped.models.decoder import DecoderConfig
from looped.prompt import Prompt, join
from looped.training import engine
from looped.training.fused_blocks import FusedBlocks
from looped.training.passes import Passes
from models.interpreter import DEVICE, repair

DECODER = DecoderConfig(d=4, width=32, heads=2, positions=12)
PART = Part(heads=2, hidden=48)
ALGOFORMER = AlgoFormerConfig(d=4, width=32, positions=12, pre=PART, loop=PART, post=PART)


def model_and_prompt(config, *, models: int = 1, batch: int = 2, n: int = 4):
    """Weights far from their start, so that every term of every gradient counts."""
    torch.manual_seed(0)
    singles = [config.build() for _ in range(models)]
    for single in singles:
        for parameter in single.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    prompts = [Prompt(torch.randn(batch, n, 4), torch.randn(batch, n)) for _ in singles]
    return stack(singles) if models > 1 else singles[0], join(prompts)


def compare(model, prompt, *, loops: int, keep: int = 1, grad: int | None = None, ahead: int = 0) -> FusedBlocks:
    """Answers and gradients of `FusedBlocks` in float32 against the model's in float64."""
    exact, window = copy.deepcopy(model).double(), {"loops": loops, "grad": grad, "keep": keep}
    through = loops if grad is None else grad
    plain = exact(prompt.to(torch.float64), loops=ahead + loops, grad=through if ahead else grad, keep=keep)
    up = torch.randn(plain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad((plain * up).sum(), list(exact.parameters()), allow_unused=True)
    passes = FusedBlocks(model.to(DEVICE), torch.float32)
    outputs = passes.whole(prompt.to(DEVICE), ahead=ahead, **window)
    torch.testing.assert_close(outputs.cpu().double(), plain, rtol=2e-5, atol=2e-5)
    gradients = passes.gradients((outputs * up.to(outputs)).sum())
    for name, gradient, other in zip(dict(model.named_parameters()), gradients, expected, strict=True):
        assert (gradient is None) == (other is None), name
        if other is not None:
            error = (gradient.cpu().double() - other).norm() / other.norm()
            assert error < 2e-5, (name, error)
    assert not any(fused.tape for fused in passes.blocks.values())
    return passes


@pytest.mark.parametrize("models", [1, 2])
def test_a_decoder_of_three_layers(models):
    passes = compare(*model_and_prompt(replace(DECODER, layers=3), models=models), loops=1)
    assert len(passes.blocks) == 3
    assert all("forward" not in vars(block) for block in passes.model.modules())  # the model itself stays as it was


def test_weight_tying_takes_one_product_over_all_loops(monkeypatch):
    shapes = []
    from looped.models.gpu import block

    plain = block.over_tokens
    monkeypatch.setattr(block, "over_tokens", lambda up, x: shapes.append(len(up)) or plain(up, x))
    compare(*model_and_prompt(replace(DECODER, inject="none")), loops=3, keep=2)
    assert shapes == [3] * 4


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"inject": "add", "loop_norm": True}, {"loops": 2, "grad": 2, "keep": 2, "ahead": 1}),
        ({"norm": False}, {"loops": 2, "keep": 2}),
        ({}, {"loops": 2, "grad": 1}),  # the state's graph ends before the last loop, and pre receives nothing
    ],
)
def test_an_algoformer(changes, windows):
    passes = compare(*model_and_prompt(replace(ALGOFORMER, **changes)), **windows)
    assert list(passes.blocks) == ["pre.0", "loop.0", "post.0"]


def test_a_stack_of_algoformers_reads_all_kept_loops_out_at_once():
    compare(*model_and_prompt(replace(ALGOFORMER, inject="add"), models=2, n=3), loops=2, keep=2)


def test_a_block_without_kernels_stays_as_it_is():
    model, prompt = model_and_prompt(ALGOFORMER)
    model.pre[0].mlp.activation = relu
    model.post[0].attention.causal = False
    assert list(compare(model, prompt, loops=2).blocks) == ["loop.0"]


def test_the_engine_fused_runs_block_by_block_where_the_loops_have_no_kernels(monkeypatch):
    monkeypatch.setattr(engine.Graphs, "__init__", lambda self, trainer: None)
    model, _ = model_and_prompt(replace(DECODER, layers=2))
    trainer = SimpleNamespace(
        model=model, config=TrainConfig(), device=torch.device("cuda"), team=SimpleNamespace(joined=False)
    )
    assert type(engine.choose(trainer, "fused")[1]) is FusedBlocks
    assert type(engine.choose(trainer, "auto")[1]) is FusedBlocks
    assert type(engine.choose(trainer, "graph")[1]) is Passes


def test_a_pass_forgets_the_one_before_it_and_its_longer_prompt():
    model, prompt = model_and_prompt(replace(DECODER, layers=1, inject="none"))
    passes = FusedBlocks(model.to(DEVICE), torch.float32)
    window = {"loops": 2, "grad": None, "keep": 1}

    def slopes(n: int):
        return passes.gradients(passes.finish(prompt.head(n).to(DEVICE), **window).square().sum())

    first = slopes(3)
    passes.finish(prompt.to(DEVICE), **window)  # whose gradients nobody asks for
    for before, now in zip(first, slopes(3), strict=True):
        assert torch.equal(before, now)


def test_bfloat16_is_as_close_as_the_plain_model_in_bfloat16(monkeypatch):
    """Not closer than rounding allows, and no worse than 1.3 times what torch's own operations give."""
    repair(monkeypatch)
    model, prompt = model_and_prompt(replace(ALGOFORMER, inject="add", loop_norm=True), batch=4, n=5)
    exact = model(prompt, loops=2, keep=2)
    expected = torch.autograd.grad(exact.square().sum(), list(model.parameters()))
    model = model.to(DEVICE)
    distances = []
    for kind in (Passes, FusedBlocks):
        passes = kind(model, torch.bfloat16)
        passes.refresh()
        outputs = passes.finish(prompt.to(DEVICE), loops=2, grad=2, keep=2)
        gradients = passes.gradients(outputs.square().sum())
        assert all(gradient.dtype is torch.float32 for gradient in gradients)
        pairs = zip(gradients, expected, strict=True)
        distances.append(sum(float((gradient.cpu() - other).norm() / other.norm()) for gradient, other in pairs))
    assert 0 < distances[1] < 1.3 * distances[0]
