"""A signal ends training with everything saved, whatever was compiled meanwhile."""

import importlib
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from looped.papers.yang24 import linear
from looped.training import trainer
from looped.training.executors import Executor, run_stacks
from looped.training.run import Run
from looped.training.stopping import Interrupted, stop_signals
from looped.training.trials import trials

SCRIPT = """
import ctypes, os, signal, sys
from looped.papers.yang24 import linear
from looped.training.stopping import Interrupted
from looped.training.trainer import train
from dataclasses import replace

base = linear("smoke")
made = replace(base, train=replace(base.train, steps=20, log_every=20))

def meddle(step, line):
    if step == 1:  # what a compiler's signal handling does, behind Python's back
        ctypes.CDLL(None).signal(int(sys.argv[2]), 0)
    if step == 4:
        os.kill(os.getpid(), int(sys.argv[2]))

try:
    train(made, folder=sys.argv[1], progress=meddle)
except Interrupted as error:
    print(error)
"""


def test_a_handler_that_was_put_in_front_of_ours_is_replaced(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(signal.SIGTERM.value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stopped at step 5 of 20" in done.stdout
    assert Run.open(tmp_path / "run").steps == [5]


def small():
    base = linear("smoke")
    return replace(base, train=replace(base.train, steps=20, log_every=20))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_models_are_built_does_not_wait_for_the_others(number, tmp_path, monkeypatch):
    built = []

    def build(trainer, seed):
        signal.raise_signal(number)
        built.append(seed)

    monkeypatch.setattr(trainer.Trainer, "_build", build)
    reason = "stopped while the model was built; it has no checkpoint yet. Go on with the same command"
    with pytest.raises(Interrupted, match=reason):
        trainer.train_seeds(small(), range(1000), out=tmp_path)
    assert built == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_first_step_does_not_wait_for_its_end(number, tmp_path, monkeypatch):
    done = []

    def step(trainer, now):
        if now == first:
            signal.raise_signal(number)
        take_step(trainer, now)
        done.append(now)

    take_step, first = trainer.Trainer.step, 0
    monkeypatch.setattr(trainer.Trainer, "step", step)
    with pytest.raises(Interrupted, match="stopped before the first of 20 steps; nothing was trained"):
        trainer.train(small(), folder=tmp_path / "run")
    assert (done, Run.open(tmp_path / "run").steps) == ([], [])
    first = 3  # a later step is waited for, and saved
    with pytest.raises(Interrupted, match="stopped at step 4 of 20; saved in"):
        trainer.train(small(), folder=tmp_path / "run")
    first = 4  # of a training that goes on the first step is not
    with pytest.raises(Interrupted, match="stopped at step 4 of 20; saved in"):
        trainer.train(small(), folder=tmp_path / "run")
    assert (done, Run.open(tmp_path / "run").steps) == ([0, 1, 2, 3], [4])


def test_a_signal_is_not_raised_into_an_import(tmp_path, monkeypatch):
    (tmp_path / "imported_in_a_step.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def step(trainer, now):
        assert importlib.import_module("imported_in_a_step").whole
        take_step(trainer, now)

    take_step = trainer.Trainer.step
    monkeypatch.setattr(trainer.Trainer, "step", step)
    with pytest.raises(Interrupted, match="stopped at step 1 of 20; saved in"):
        trainer.train(small(), folder=tmp_path / "run")


def test_a_sweep_that_was_asked_to_stop_before_trains_no_more_than_one_step(tmp_path):
    asked = trials(small(), {"model.loops": [3, 4]}, out=tmp_path)

    def train_all():
        with stop_signals():
            signal.raise_signal(signal.SIGINT)
            run_stacks(asked, range(len(asked)), Executor(), lambda index, standing: None)

    with pytest.raises(Interrupted):
        train_all()
    assert all(step <= 1 for trial in asked if trial.path.exists() for step in Run.open(trial.path).steps)


def stopped_by(number):
    with stop_signals():
        signal.raise_signal(number)
        raise Interrupted("it says so itself")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_training_outlives_is_handed_on_and_the_next_one_begins_unset(number):
    handed_on = []
    before = signal.signal(number, lambda number, frame: handed_on.append(number))
    try:
        with stop_signals():
            with stop_signals() as inner:  # in its last step
                signal.raise_signal(number)
                assert inner.is_set()
            assert handed_on == []
        assert handed_on == [number]
        with stop_signals() as stopping:
            assert not stopping.is_set()
        with pytest.raises(Interrupted):
            stopped_by(number)
        assert handed_on == [number]
    finally:
        signal.signal(number, before)
