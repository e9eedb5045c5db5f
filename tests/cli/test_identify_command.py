import json

import pytest

from looped.constructions.gradient_descent import looped_descent
from looped.tasks.regression import LinearRegression
from looped.training.run import save_model


@pytest.fixture
def run(tmp_path):
    """A run folder whose weights are gradient descent's."""
    model = looped_descent(d=3, n=6, loops=2, rate=0.05)
    return save_model(tmp_path / "run", model, LinearRegression(d=3), name="descent").path


def test_identify_prints_and_saves(run, call):
    code, out, _ = call("identify", run, "--points", 7, "--prompts", 16, "--json")
    assert code == 0
    printed = json.loads(out)
    assert json.loads((run / "identify.json").read_text()) == printed
    best = [loop["best"] for loop in printed["loops"]]
    assert [(match["algorithm"], match["steps"]) for match in best] == [
        ("gradient descent", 1),
        ("gradient descent", 2),
    ]
    assert all(match["distance"] < 1e-6 for match in best)
    shown = call("identify", run, "--points", 7, "--prompts", 16, "--loops", 1)[1]
    assert "gradient descent" in shown
    assert "steps searched: 1 to 1 " in shown


def test_steps_beyond_the_first_are_found_and_the_table_says_which_were_searched(run, call, monkeypatch):
    monkeypatch.setattr("looped.evaluation.identify.FIRST", 1)
    shown = call("identify", run, "--points", 7, "--prompts", 16)[1]
    assert "steps searched: 1 to 1, and from 4 below the loop's number up to it" in shown
    loops = json.loads((run / "identify.json").read_text())["loops"]
    assert [(loop["searched"], loop["best"]["steps"]) for loop in loops] == [([1], 1), ([1, 2], 2)]


def test_a_construction_is_identified_on_as_many_examples_as_it_was_made_for(tmp_path, call):
    path, sizes = tmp_path / "run", ("--d", 2, "--examples", 7, "--loops", 1)
    assert call("construct", "gatmiry24.thm5", "--out", path, *sizes, "--quiet")[0] == 0
    assert json.loads(call("identify", path, "--prompts", 16, "--json")[1])["examples"] == 7


def test_errors_are_one_line(run, tmp_path, refused):
    assert "is not a run folder" in refused("identify", tmp_path / "nothing")
    assert "`points` must be at least 3" in refused("identify", run, "--points", 2)
    assert "`loops` must be at least 1; got 0" in refused("identify", run, "--loops", 0)
