"""A tiny experiment, a progress that stops it, and what two equal runs have in common."""

import signal

import torch

from looped.experiment import Adam, Experiment, TrainConfig
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression


def tiny(name, *, loops=2, positions=8, **fields):
    train = {"batch": 2, "points": 3, "optimizer": Adam(learning_rate=0.01), "log_every": 3, **fields}
    model = DecoderConfig(d=2, width=8, heads=2, loops=loops, positions=positions)
    return Experiment(name=name, task=LinearRegression(d=2), model=model, train=TrainConfig(**train))


def stop_at(step, number=signal.SIGINT):
    """Progress that asks the run to stop: the signal comes after `step - 1` steps, the stop one step later."""
    return lambda done, line: signal.raise_signal(number) if done == step - 1 else None


def metrics(run):
    return (run.path / "metrics.jsonl").read_bytes()


def assert_same_run(run, other):
    """All that the last checkpoint holds (weights, average, optimiser, random state, sums), and the metrics."""
    left, right = run.latest(), other.latest()
    assert (left.step, left.finished) == (right.step, right.finished)
    assert left.tensors.keys() == right.tensors.keys()
    for name, value in left.tensors.items():
        assert torch.equal(value, right.tensors[name]), name
    assert metrics(run) == metrics(other)
