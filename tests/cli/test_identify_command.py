import json

import pytest

from looped.cli import main
from looped.constructions.gradient_descent import looped_descent
from looped.experiment import Setup
from looped.tasks.regression import LinearRegression
from looped.training.run import Checkpoint, Run


@pytest.fixture
def run(tmp_path):
    """A run folder whose weights are gradient descent's."""
    model = looped_descent(d=3, n=6, loops=2, rate=0.05)
    experiment = Setup(name="descent", task=LinearRegression(d=3), model=model.config)
    opened = Run.create(tmp_path / "run", experiment)
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    opened.save(Checkpoint(0, True, tensors))
    return opened.path


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return ended.value.code


def test_identify_prints_and_saves(run, capsys):
    assert call("identify", run, "--points", 7, "--prompts", 16, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((run / "identify.json").read_text()) == printed
    best = [loop["best"] for loop in printed["loops"]]
    assert [(one["algorithm"], one["steps"]) for one in best] == [("gradient descent", 1), ("gradient descent", 2)]
    assert all(one["distance"] < 1e-6 for one in best)
    assert call("identify", run, "--points", 7, "--prompts", 16, "--loops", 1) == 0
    shown = capsys.readouterr().out
    assert "gradient descent" in shown
    assert "steps searched: 1 to 1 " in shown


def test_steps_beyond_the_first_are_found_and_the_table_says_which_were_searched(run, capsys, monkeypatch):
    monkeypatch.setattr("looped.evaluation.identify.FIRST", 1)
    assert call("identify", run, "--points", 7, "--prompts", 16) == 0
    assert "steps searched: 1 to 1, and from 4 below the loop's number up to it" in capsys.readouterr().out
    loops = json.loads((run / "identify.json").read_text())["loops"]
    assert [(loop["searched"], loop["best"]["steps"]) for loop in loops] == [([1], 1), ([1, 2], 2)]


def test_a_construction_is_identified_on_as_many_examples_as_it_was_made_for(tmp_path, capsys):
    made = tmp_path / "made"
    assert call("construct", "gatmiry24.thm5", "--out", made, "--d", 2, "--examples", 7, "--loops", 1, "--quiet") == 0
    assert call("identify", made, "--prompts", 16, "--json") == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 7


def test_errors_are_one_line(run, tmp_path, capsys):
    assert call("identify", tmp_path / "nothing") == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert call("identify", run, "--points", 2) == 2
    assert "`points` must be at least 3" in capsys.readouterr().err
    assert call("identify", run, "--loops", 0) == 2
    assert "`loops` must be at least 1; got 0" in capsys.readouterr().err
