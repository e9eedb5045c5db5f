"""The examples run, at smoke size."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Imports an example by name, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_train_and_plot(example, tmp_path):
    example("train_and_plot").main("smoke")
    assert (tmp_path / "train_and_plot.png").stat().st_size > 10_000


@pytest.mark.parametrize("recipe", ["own_task.py:halfspace", "own_model.py:gated"])
def test_own_task_and_own_model_train_and_are_evaluated(call, tmp_path, recipe):
    path = EXAMPLES / recipe
    where = ("--out", tmp_path, "--device", "cpu", "--json")
    code, out, error = call("train", path, "--scale", "smoke", *where)
    assert code == 0, error
    run = json.loads(out)["run"]
    code, out, error = call("evaluate", run, "--code", str(path).partition(":")[0], "--prompts", 8, "--json")
    assert code == 0, error
    assert json.loads(out)["by_loops"]


def test_import_and_diagnose(example, capsys, tmp_path):
    module = example("import_and_diagnose")
    module.main(loops=25, prompts=8, identified_loops=1)
    assert "loop 1:" in capsys.readouterr().out
    state = {"_read_in.weight": torch.zeros(256, 20)}
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(ValueError, match="does not hold a decoder"):
        module.main(tmp_path / "state.pt")


def test_scikit_learn(example, capsys):
    pytest.importorskip("sklearn")
    example("scikit_learn").main(splits=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["in context", "ridge"]
    assert float(lines[0].rpartition(" ")[2]) > 0.3
