"""Sequences go through the one trainer as pairs do: their weights, seeds in one stack, exact resuming."""

from dataclasses import replace

import pytest
import torch
from tiny import assert_same_run, stop_at

from looped.evaluation.curves import evaluate
from looped.experiment import Adam, Experiment, TrainConfig
from looped.functional.schedules import Staircase
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.papers import gao24
from looped.tasks.sequences import AutoRegression, ChainOfThought
from looped.tasks.translation import Translation
from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import Trainer, train, train_seeds
from tasks.tiny_text import write

TWO = Part(heads=2)
MODEL = AlgoFormerConfig(
    d=2, outputs=2, tokens="given", width=8, positions=24, loops=3, pre=TWO, loop=TWO, post=TWO, inject="add"
)
TRAIN = TrainConfig(
    steps=7,
    batch=3,
    points=6,
    window=2,
    grad=2,
    optimizer=Adam(learning_rate=0.01, clip=1.0),
    log_every=3,
    checkpoint_every=100,
)
SERIES = Experiment(name="series", task=AutoRegression(d=2, order=2), model=MODEL, train=TRAIN)
CHAINS = replace(SERIES, name="chains", task=ChainOfThought(d=2, layers=2), train=replace(TRAIN, points=4))
TEXT = Experiment(
    name="text",
    task=Translation(vocabulary=300),
    model=replace(MODEL, d=1, outputs=1, vocabulary=300, positions=80),
    train=replace(TRAIN, points=80),
)
EXPERIMENTS = {one.name: one for one in (SERIES, CHAINS, TEXT)}
every = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)


@pytest.fixture(autouse=True)
def _text(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "translation" / "multi30k")


def with_train(experiment, **fields):
    return replace(experiment, train=replace(experiment.train, **fields))


@every
def test_seeds_at_once_equal_each_alone(tmp_path, experiment):
    double = with_train(experiment, dtype="float64")
    for seed, run in enumerate(train_seeds(double, [0, 1], out=tmp_path / "together")):
        alone = train(with_train(double, seed=seed), out=tmp_path / "alone")
        torch.testing.assert_close(run.latest().tensors, alone.latest().tensors, rtol=1e-6, atol=1e-8)
        for one, other in zip(run.metrics(), alone.metrics(), strict=True):
            assert one == pytest.approx(other, rel=1e-6)


@every
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, experiment):
    whole = train_seeds(experiment, [0, 1], out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train_seeds(experiment, [0, 1], out=tmp_path / "parts", progress=stop_at(4))
    for one, other in zip(train_seeds(experiment, [0, 1], out=tmp_path / "parts"), whole, strict=True):
        assert_same_run(one, other)


@every
def test_the_loss_counts_scored_tokens_alone(tmp_path, experiment):
    """By hand: loss over the last two loops, error over the last, both weighed."""
    experiment = with_train(experiment, log_every=1)
    trainer, twin = (Trainer([Run.create(tmp_path / "run", experiment)], torch.device("cpu")) for _ in range(2))
    prompt = twin.batches.draw(twin.batches.now(0))
    errors = torch.stack([experiment.task.error(twin.model.predict(prompt, loops=loops), prompt) for loops in (2, 3)])
    weights = prompt.weights.expand_as(errors)
    assert 0 < weights.sum() < weights.numel()
    trainer.step(0)
    trainer.done = 1
    (line,) = trainer.metrics()
    assert line["loss"] == pytest.approx(float((errors * weights).sum() / weights.sum()), rel=1e-5)
    assert line["error"] == pytest.approx(float((errors[-1] * weights[-1]).sum() / weights[-1].sum()), rel=1e-5)


def test_active_points_are_whole_examples_of_a_chain(tmp_path):
    config = with_train(CHAINS, active_points=Staircase(start=1, stop=9, by=1, every=1))
    trainer = Trainer([Run.create(tmp_path / "run", config)], torch.device("cpu"))
    for step in range(5):
        weights = trainer.batches.draw(trainer.batches.now(step)).weights
        chains = min(4, 1 + step)
        assert torch.equal(weights, torch.tensor([1.0, 1.0, 0.0] * chains + [0.0] * (12 - 3 * chains)).expand(3, 12))


def test_a_sequence_has_no_pairs_to_emphasise():
    with pytest.raises(ValueError, match="counts the pairs of a prompt, and a sequence has none; got"):
        with_train(CHAINS, emphasis=2.0)


def test_a_pool_of_sequences_is_used(tmp_path):
    trainer = Trainer([Run.create(tmp_path / "run", with_train(SERIES, pool=4))], torch.device("cpu"))
    pool = {row.numpy().tobytes() for row in trainer.batches.pool[0].tokens}
    assert {
        row.numpy().tobytes() for step in range(9) for row in trainer.batches.draw(trainer.batches.now(step)).tokens
    } == pool


@every
def test_curves_are_by_scored_token(tmp_path, experiment):
    model = train(with_train(experiment, steps=1), out=tmp_path).model()
    points = experiment.train.points
    found = evaluate(model, experiment.task, points=points, prompts=9, max_loops=4)
    prompt = experiment.task.sample(batch=9, n=points, generator=torch.Generator().manual_seed(0))
    weights = prompt.weights.double()
    (curve,) = found.by_examples
    assert curve.x == [place for place in range(prompt.num_positions) if weights[:, place].any()]
    errors = experiment.task.error(model.predict(prompt), prompt).double()
    wanted = (errors * weights).sum(0) / weights.sum(0)
    assert curve.mean == pytest.approx(wanted[curve.x].tolist(), rel=1e-5)
    each = (errors * weights).sum(1) / weights.sum(1)
    assert found.by_loops.at(3) == pytest.approx(float(each.mean()), rel=1e-5)


def test_a_sequence_is_not_trained_with_full_attention():
    """Token t + 1 is the answer at token t."""
    base = gao24.autoregression("smoke")
    with pytest.raises(ValueError, match=r"model\.causal=true"):
        replace(base, model=replace(base.model, causal=False))
