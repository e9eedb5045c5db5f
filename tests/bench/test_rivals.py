"""The rival is the same mathematics: outputs, gradients and whole training steps agree with ours in float64."""

import builtins
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped.bench.rivals import LoopedGPT2, PublishedTrainer, RivalTrainer
from looped.experiment import Adam, Experiment, TrainConfig
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.importer import renamed
from looped.training.run import Run
from looped.training.trainer import Trainer

CONFIG = DecoderConfig(d=3, width=16, heads=2, layers=2, loops=5, positions=20)
TRAIN = TrainConfig(
    steps=10,
    batch=6,
    points=7,
    window=2,
    grad=2,
    dtype="float64",
    optimizer=Adam(learning_rate=1e-2, clip=0.3),
)
EXPERIMENT = Experiment(name="rival", task=LinearRegression(d=3), model=CONFIG, train=TRAIN)


def pair():
    """Our decoder, with weights that are far from its start, and the rival with the same ones."""
    torch.manual_seed(0)
    ours = CONFIG.build().double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    rival = LoopedGPT2(CONFIG).double()
    rival.load(ours)
    return ours, rival


@pytest.mark.parametrize(("loops", "window"), [(5, 2), (3, 3), (4, 1)])
def test_outputs_and_gradients_agree(loops, window, generator):
    ours, rival = pair()
    task = LinearRegression(d=3)
    prompt = task.sample(batch=4, n=7, generator=generator).to(torch.float64)
    expected = ours(prompt, loops=loops, grad=window, keep=window)
    answers = rival(prompt, loops=loops, window=window)
    assert answers.shape == (window, 4, 7)
    torch.testing.assert_close(answers, expected, atol=1e-9, rtol=1e-9)
    for outputs in (expected, answers):
        task.error(outputs, prompt).mean().backward()
    gradients = renamed({name: parameter.grad for name, parameter in rival.trained().items()}, flipped=True)
    assert gradients.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, name
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("seeds", [[0], [3, 4]])
def test_training_steps_agree(seeds):
    runs = [Run(Path("rival"), replace(EXPERIMENT, train=replace(TRAIN, seed=seed))) for seed in seeds]
    trainer = Trainer(runs, torch.device("cpu"))
    rival = RivalTrainer(EXPERIMENT, seeds, torch.device("cpu"))
    for step in range(4):
        trainer.sums.zero_()
        trainer.step(step)
        rival.step(step)
        torch.testing.assert_close(rival.loss, trainer.sums[0].to(rival.loss), atol=1e-6, rtol=1e-6)
    expected = [trainer.optimizers.tensors()[f"{name}/exp_avg"] for name, _ in trainer.model.named_parameters()]
    for index, moments in enumerate(rival.moments()):
        for (name, _), value in zip(trainer.model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(moments[name], value[index] if len(seeds) > 1 else value, atol=1e-9, rtol=1e-9)
    weights = trainer.weights()
    for index, model in enumerate(rival.models):
        copy = LoopedGPT2(CONFIG).double()
        ours = CONFIG.build().double()
        ours.load_state_dict({name: value[index] if len(seeds) > 1 else value for name, value in weights.items()})
        copy.load(ours)
        for name, parameter in model.trained().items():
            torch.testing.assert_close(parameter, copy.trained()[name], atol=1e-9, rtol=1e-9)


def test_the_published_step_is_the_same_without_clipping_and_reads_every_norm():
    optimizer = replace(TRAIN.optimizer, clip=None)
    experiment = replace(EXPERIMENT, train=replace(TRAIN, optimizer=optimizer))
    published = PublishedTrainer(experiment, [0, 1], torch.device("cpu"))
    rival = RivalTrainer(experiment, [0, 1], torch.device("cpu"))
    for step in range(3):
        published.step(step)
        rival.step(step)
        torch.testing.assert_close(published.loss, rival.loss, atol=1e-9, rtol=1e-9)
    weights = published.models[-1].trained()
    assert published.norms == {name: float(weight.grad.norm()) for name, weight in weights.items()}


def test_the_compiled_rival_is_the_same_model(monkeypatch):
    calls = []

    def compile(module, **options):
        calls.append(options)
        return lambda **inputs: module(**inputs)

    monkeypatch.setattr(torch, "compile", compile)
    eager, compiled = (RivalTrainer(EXPERIMENT, [0], torch.device("cpu"), compiled=flag) for flag in (False, True))
    for trainer in (eager, compiled):
        trainer.step(0)
    assert calls == [{"dynamic": False}]
    assert torch.equal(eager.loss, compiled.loss)
    assert eager.moments()[0].keys() == compiled.moments()[0].keys()


def test_what_the_rival_cannot_do_is_one_line(monkeypatch):
    with pytest.raises(ValueError, match="inject='add'"):
        LoopedGPT2(replace(CONFIG, inject="multiply"))
    with pytest.raises(ValueError, match="`grad` and `window` must agree"):
        RivalTrainer(replace(EXPERIMENT, train=replace(TRAIN, grad=1)), [0], torch.device("cpu"))
    real = builtins.__import__

    def absent(name, *arguments, **options):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ValueError, match=r"pip install 'looped\[bench\]'"):
        LoopedGPT2(CONFIG)
