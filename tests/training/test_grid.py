"""A grid of runs: reused, in order, stopped and continued, equal to each run alone."""

import re
import signal
from dataclasses import replace

import pytest
import torch
from tiny import tiny

from looped.files import Busy
from looped.training import grid
from looped.training.grid import train_grid
from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import Diverged, train
from looped.training.trials import Standing

BASE = tiny("cell", loops=3, steps=6, batch=3, points=4, window=2, grad=2, log_every=50, checkpoint_every=2)


def cell(loops=3, **fields):
    return replace(BASE, model=replace(BASE.model, loops=loops), train=replace(BASE.train, **fields))


def weights(run):
    return run.latest().part("model")


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_runs_come_in_the_order_asked_whatever_is_stacked(tmp_path):
    asked = [cell(2, seed=1), cell(3, seed=0), cell(2, seed=0), cell(3, seed=1), cell(2, seed=1)]
    found = train_grid(asked, out=tmp_path)
    assert [run.experiment for run in found] == asked
    assert [run.path.name for run in found] == [one.folder for one in asked]
    assert all(run.latest().finished and run.latest().step == 6 for run in found)
    assert len(list(tmp_path.iterdir())) == 4  # the repeated experiment is one run
    assert [run.provenance()["models_in_one_batch"] for run in found] == [2] * 5


def test_each_equals_training_it_alone(tmp_path):
    # float64, since Adam turns the rounding of a gradient that is zero in truth into a step
    asked = [cell(seed=0, dtype="float64"), cell(seed=1, dtype="float64"), cell(2, dtype="float64")]
    found = train_grid(asked, out=tmp_path / "grid")
    for one, run in zip(asked, found, strict=True):
        alone = weights(train(one, out=tmp_path / "alone"))
        for name, value in weights(run).items():
            torch.testing.assert_close(value, alone[name], rtol=1e-6, atol=1e-9)


def test_what_is_finished_is_not_touched(tmp_path, monkeypatch):
    train_grid([cell(seed=0), cell(seed=1)], out=tmp_path)
    before = stamps(tmp_path)
    seen = []
    found = train_grid([cell(seed=1), cell(2)], out=tmp_path, progress=lambda what, share: seen.append((what, share)))
    after = stamps(tmp_path)
    assert {path: after[path] for path in before} == before
    assert len(found) == 2
    assert len(after) > len(before)
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert {what for what, _ in seen} == {f"cell ({done} of 2 runs done)" for done in (1, 2)}


def test_a_stopped_grid_goes_on_and_ends_as_an_unbroken_one(tmp_path):
    asked = [cell(2), cell(3, seed=0), cell(3, seed=1)]

    def stop(what, share):
        if what == "cell (1 of 3 runs done)" and 0.5 < share < 0.7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train_grid(asked, out=tmp_path / "stopped", progress=stop)
    stood = [Run.open(config.parent).latest() for config in sorted(tmp_path.rglob("config.json"))]
    assert sorted((found.step, found.finished) for found in stood) == [(3, False), (3, False), (6, True)]
    continued = train_grid(asked, out=tmp_path / "stopped")
    unbroken = train_grid(asked, out=tmp_path / "unbroken")
    for one, other in zip(continued, unbroken, strict=True):
        for name, value in weights(one).items():
            assert torch.equal(value, weights(other)[name]), name


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        ("failed", ValueError, "2 of 3 runs failed. why"),
        ("diverged", Diverged, "2 of 3 runs diverged. why"),
        ("busy", Busy, "all is trained but what another process trains. why Then run this again."),
    ],
)
def test_what_is_not_trained_in_the_end_is_one_error(tmp_path, monkeypatch, status, error, message):
    stands = [Standing(status="finished"), *[Standing(status=status, message="why")] * 2]
    monkeypatch.setattr(grid, "sweep", lambda trials, executor, tell: stands)
    with pytest.raises(error, match=re.escape(message)):
        train_grid([cell(seed=0), cell(seed=1), cell(2)], out=tmp_path)


def test_no_experiments_are_no_runs(tmp_path):
    assert train_grid([], out=tmp_path) == []
