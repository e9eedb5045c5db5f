"""The same seed, the same bits: threads are recorded and used again, and a check finds what differs."""

import json

import pytest
import torch
from tiny import stop_at, tiny

from looped.training import threads as module
from looped.training.determinism import check_determinism
from looped.training.stopping import Interrupted
from looped.training.threads import at_threads, recorded
from looped.training.trainer import train

EXPERIMENT = tiny("twice", steps=6)

RECIPE = '''
from dataclasses import dataclass, replace
import itertools
from test_determinism import EXPERIMENT
from looped.tasks.regression import LinearRegression

clock = itertools.count()

@dataclass(frozen=True, kw_only=True)
class Drifting(LinearRegression):
    def sample(self, **options):
        """Labels that depend on how often this was called: no seed brings them back."""
        prompt = super().sample(**options)
        return replace(prompt, ys=prompt.ys + 1e-3 * next(clock))

def steady():
    return EXPERIMENT

def drifting():
    return replace(EXPERIMENT, task=Drifting(d=2))
'''


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "twice_recipes.py"
    file.write_text(RECIPE)
    return file


def test_the_same_seed_twice_is_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_determinism(EXPERIMENT) is None
    assert check_determinism(EXPERIMENT, seeds=[1, 2]) is None
    assert list(tmp_path.iterdir()) == []


def test_what_depends_on_more_than_the_seed_is_found(recipes, call):
    code, out, _ = call("train", f"{recipes}:drifting", "--check-determinism", "--device", "cpu")
    assert code == 1
    assert "the first is `positions`" in out
    code, out, _ = call("train", f"{recipes}:drifting", "--check-determinism", "--device", "cpu", "--json")
    found = json.loads(out)
    assert code == 1
    assert not found["equal"]
    assert found["first"] == "positions"
    assert 1e-6 < found["size"] < 1


def test_the_command_says_equal_and_trains_nothing(recipes, call, tmp_path):
    options = ("--check-determinism", "--device", "cpu", "--threads", "1", "--out", tmp_path / "runs")
    code, out, _ = call("train", f"{recipes}:steady", *options)
    assert code == 0
    assert out.startswith("equal: ")
    assert "cpu, 1 threads" in out
    assert not (tmp_path / "runs").exists()


def test_a_run_records_its_threads_and_goes_on_with_them(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(module.os, "cpu_count", lambda: 3)
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=tmp_path, threads=3, progress=stop_at(3))
    assert torch.get_num_threads() == 1
    run = train(EXPERIMENT, out=tmp_path, progress=lambda *_: heard.append(torch.get_num_threads()))
    assert heard == [3, 3, 3]
    assert run.provenance()["threads"] == 3
    assert torch.get_num_threads() == 1


def test_the_threads_of_a_larger_machine_or_of_other_ranks_are_not_forced_on_this_one(tmp_path, monkeypatch, caplog):
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=tmp_path, threads=3, progress=stop_at(3))
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    run = train(EXPERIMENT, out=tmp_path)
    assert "was trained with 3 threads, this machine has 2 cores" in caplog.text
    assert run.provenance()["threads"] == 1
    assert recorded(run) == 1
    assert recorded(run, ranks=2) is None


@pytest.mark.parametrize("count", [0, -1, 10**12])
def test_no_threads_and_too_many_are_refused(recipes, call, count, tmp_path):
    code, _, err = call("train", f"{recipes}:steady", "--threads", count, "--out", tmp_path / "runs")
    assert code == 2
    assert err == f"looped: `threads` must be from 1 to 1024; got {count}.\n"
    assert not list(tmp_path.glob("runs/*"))
    with pytest.raises(ValueError, match="from 1 to 1024"), at_threads(count):
        pass
