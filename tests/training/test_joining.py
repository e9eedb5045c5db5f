"""Models of a user's own as one stack, by torch.func; and one after another where no stack can hold them."""

import logging
from dataclasses import dataclass, replace

import pytest
import torch
from outside_model import GatedConfig, gated
from tiny import assert_same_run, stop_at, tiny
from torch import nn

from looped.evaluation.curves import evaluate
from looped.experiment import Adam, training
from looped.models.base import LoopedModel, ModelConfig
from looped.models.decoder import LoopedDecoder
from looped.prompt import join
from looped.training.joining import NotStackable, join_models
from looped.training.mapped import MappedStack
from looped.training.stopping import Interrupted
from looped.training.trainer import train, train_seeds


def quiet(**model):
    """The experiment of a user's own without random numbers."""
    return replace(gated(), model=GatedConfig(loops=3, noise=0.0, **model))


def built(experiment, count=3, dtype=torch.float64):
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        models.append(experiment.model.build().to(dtype))
    return models


def sampled(experiment, count=3):
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    return [experiment.task.sample(batch=5, n=4, generator=source).to(torch.float64) for source in generators]


@pytest.mark.parametrize("grad", [None, 2])
def test_a_mapped_stack_gives_the_outputs_and_gradients_of_each_model(grad):
    """All that the file has: attention with a mask, a GRU cell, a tied layer, a lone number, a buffer, None."""
    experiment = quiet()
    models, prompts = built(experiment), sampled(experiment)
    stacked = MappedStack(models)
    outputs = stacked(join(prompts), loops=4, keep=2, grad=grad)
    gradients = torch.autograd.grad(outputs.square().sum(), [*stacked.parameters()])
    assert [*stacked.state_dict()] == [*models[0].state_dict()]
    for index, (model, prompt) in enumerate(zip(models, prompts, strict=True)):
        alone = model(prompt, loops=4, keep=2, grad=grad)
        torch.testing.assert_close(outputs[:, index], alone, rtol=1e-11, atol=1e-12)
        wanted = torch.autograd.grad(alone.square().sum(), [*model.parameters()])
        for gradient, slope in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient[index], slope, rtol=1e-9, atol=1e-11)


@dataclass(frozen=True, kw_only=True)
class OddConfig(ModelConfig):
    """A model in one of several styles."""

    style: str

    def build(self):
        return Odd(self)


class Odd(LoopedModel):
    def __init__(self, config):
        super().__init__(config)
        self.rate = nn.Parameter(torch.randn(4, 2))

    def embed(self, prompt):
        return (prompt.xs,)

    def start(self, context):
        return context[0] @ self.rate.mT

    def step(self, state, context, t):
        if self.config.style == "branches" and state.sum() > 0:
            return state / 2
        if self.config.style == "changes its input":
            context[0].copy_(state[..., :2])
        if self.config.style == "draws":
            return state + torch.randn_like(state)
        return state.tanh()

    def readout(self, state, context):
        return state.sum(-1)


def odd(style):
    return replace(gated(), model=OddConfig(loops=2, style=style))


def test_the_kind_of_stack_is_measured():
    decoders = tiny("ours")
    assert type(join_models(built(decoders, dtype=torch.float32), decoders)) is LoopedDecoder
    assert type(join_models(built(quiet()), quiet())) is MappedStack
    # with four models a weight of shape (4, 4, 2) would be taken for one of the four positions: no error, other numbers
    assert type(join_models(built(odd("plain"), 4), odd("plain"))) is MappedStack


@pytest.mark.parametrize(
    ("style", "reason"),
    [("branches", "data-dependent control flow"), ("draws", "they draw random numbers")],
)
def test_what_no_stack_can_hold_says_why(style, reason):
    with pytest.raises(NotStackable, match=reason):
        join_models(built(odd(style)), odd(style))


def test_a_stack_that_gives_other_numbers_is_refused(monkeypatch):
    """A planted failure: a stack in which all models read the first one's weights."""
    monkeypatch.setattr(MappedStack, "embed", lambda self, prompt: self._mapped("embed", prompt.rows(slice(None))))
    assert type(join_models(built(quiet()), quiet())) is MappedStack
    monkeypatch.setattr(MappedStack, "readout", lambda self, *x: self._mapped("readout", *x)[:1].expand(2, -1, -1))
    with pytest.raises(NotStackable, match="as a stack they give other losses or gradients"):
        join_models(built(quiet()), quiet())


def test_a_stack_of_own_models_trains_as_each_alone(tmp_path):
    experiment = training(quiet(), dtype="float64", average=0.9, steps=4)
    together = train_seeds(experiment, [0, 1], out=tmp_path / "together")
    assert together[0].provenance()["models_in_one_batch"] == 2
    for seed, run in enumerate(together):
        alone = train(training(experiment, seed=seed), out=tmp_path / "alone")
        torch.testing.assert_close(run.latest().tensors, alone.latest().tensors, rtol=1e-6, atol=1e-9)


def test_a_stack_of_own_models_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole = train_seeds(quiet(), [0, 1], out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train_seeds(quiet(), [0, 1], out=tmp_path / "parts", progress=stop_at(4))
    for run, other in zip(train_seeds(quiet(), [0, 1], out=tmp_path / "parts"), whole, strict=True):
        assert_same_run(run, other)


def test_models_that_draw_train_one_after_another_and_one_line_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "looped"):
        runs = train_seeds(gated(), [0, 1], out=tmp_path / "seeds")
    (line,) = caplog.messages
    assert line == (
        "looped: these 2 models are trained one after another, not as a stack: they draw random numbers, and each must "
        "draw its own."
    )
    for seed, run in enumerate(runs):
        assert_same_run(run, train(training(gated(), seed=seed), out=tmp_path / "alone"))
    assert runs[0].metrics() != runs[1].metrics()


RANDOM = {"random start": {}, "dropout": {"noise": 0.0, "dropout": 0.5}}


@pytest.mark.parametrize("variant", RANDOM)
def test_a_random_model_is_exact(tmp_path, variant):
    """The same numbers at the same seed whatever was drawn before, and after a stop; other draws at every step."""
    experiment = replace(gated(), model=GatedConfig(loops=3, **RANDOM[variant]))
    torch.manual_seed(1)
    whole = train(experiment, out=tmp_path / "whole")
    before = torch.get_rng_state()
    with pytest.raises(Interrupted):
        train(experiment, out=tmp_path / "parts", progress=lambda *now: (torch.rand(3), stop_at(4)(*now)))
    torch.rand(7)
    parts = train(experiment, out=tmp_path / "parts")
    assert_same_run(parts, whole)
    assert "random/cpu" in whole.latest().tensors
    torch.set_rng_state(before)
    train(training(experiment, seed=1), out=tmp_path / "parts")
    assert torch.equal(torch.get_rng_state(), before)  # the user's own generator is left alone


def test_a_random_model_draws_anew_at_every_step(tmp_path):
    """On one fixed prompt and hardly learning, the loss still changes."""
    fields = {"pool": 1, "steps": 4, "log_every": 1, "optimizer": Adam(learning_rate=1e-30)}
    run = train(training(gated(), **fields), out=tmp_path)
    assert len({line["loss"] for line in run.metrics()}) == 4


def test_a_model_that_draws_nothing_has_no_random_state_in_its_checkpoints(tmp_path):
    run = train(training(quiet(), steps=2), out=tmp_path)
    assert "random/cpu" not in run.latest().tensors


def test_an_evaluation_of_a_random_model_gives_the_same_digits_twice():
    (model,) = built(gated(), 1, torch.float32)
    torch.manual_seed(0)
    first = evaluate(model.eval(), gated().task, points=4, prompts=300)
    torch.rand(5)
    assert evaluate(model, gated().task, points=4, prompts=300) == first
    assert evaluate(model, gated().task, points=4, prompts=300, seed=1) != first


def test_sizes_that_torchs_layers_refuse_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"GatedConfig\(.*width=5.* cannot be built: embed_dim must be divisible"):
        train(replace(gated(), model=GatedConfig(loops=3, width=5)), out=tmp_path)
