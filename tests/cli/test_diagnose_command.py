import json

import pytest
import torch

from looped.cli import main
from looped.experiment import Setup
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.tasks.shifts import EqualQuery, Shifted
from looped.training.run import Checkpoint, Run


def save(path, config, task):
    torch.manual_seed(0)
    opened = Run.create(path, Setup(name="small", task=task, model=config))
    tensors = {f"model/{name}": value for name, value in config.build().state_dict().items()}
    opened.save(Checkpoint(0, True, tensors))
    return opened.path


CONFIG = DecoderConfig(d=3, width=8, heads=2, loops=2, positions=20)


@pytest.fixture
def run(tmp_path):
    """A run folder with a small untrained decoder."""
    return save(tmp_path / "run", CONFIG, LinearRegression(d=3))


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return ended.value.code


def test_diagnose_prints_and_saves(run, capsys):
    assert call("diagnose", run, "--prompts", 8, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((run / "diagnose.json").read_text()) == printed
    assert printed["loops"] == 8
    assert len(printed["error"]["mean"]) == 8
    assert printed["verdict"].startswith(("Stable", "Drifts", "Unstable"))
    assert printed["radius"]["median"] > 0
    assert (run / "diagnose.png").read_bytes().startswith(b"\x89PNG")
    assert call("diagnose", run, "--prompts", 8, "--loops", 5) == 0
    out, error = capsys.readouterr()
    assert "spectral radius" in out
    assert "diagnose.png" in error
    assert call("diagnose", run, "--prompts", 8, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_errors_are_one_line(run, tmp_path, capsys):
    assert call("diagnose", tmp_path / "nothing") == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert call("diagnose", run, "--loops", 2) == 2
    assert "`loops` must be above the trained loops=2" in capsys.readouterr().err
    once = save(tmp_path / "once", DecoderConfig(d=3, width=8, heads=2, positions=20), LinearRegression(d=3))
    assert call("diagnose", once) == 2
    error = capsys.readouterr().err
    assert "one loop" in error
    assert error.count("\n") == 1


def test_evaluate_under_shifts(run, capsys):
    sizes = ["--prompts", 20, "--points", 5, "--json"]
    assert call("evaluate", run, "--shift", "skewed", "--shift", "noisy", *sizes) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "SkewedCovariance(), NoisyOutputs(std=1.0" in printed["task"]
    assert printed["name"] == "skewed, noisy, 5 points, 20 prompts"
    assert call("evaluate", run, "--shift", "orthogonal", *sizes) == 0
    assert json.loads(capsys.readouterr().out)["by_examples"][0]["x"] == [0, 1, 2]
    assert call("evaluate", run, "--shift", "scaled", *sizes) == 2
    assert "may be scaled-x or scaled-labels" in capsys.readouterr().err


def test_a_run_on_a_shifted_task_is_evaluated_by_its_definition(tmp_path, capsys):
    shifted = save(tmp_path / "shifted", CONFIG, Shifted(task=LinearRegression(d=3), shifts=(EqualQuery(),)))
    assert call("evaluate", shifted, "--prompts", 20, "--points", 5, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["name"] == "as trained, 5 points, 20 prompts"
    curve = {one["label"]: one["mean"] for one in printed["by_examples"]}["least squares"]
    assert max(curve[1:]) < 1e-6, "every query is an example"
