import json

import pytest
import torch

from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.tasks.shifts import EqualQuery, Shifted
from looped.training.run import save_model


def save(path, task, loops=2):
    torch.manual_seed(0)
    model = DecoderConfig(d=3, width=8, heads=2, loops=loops, positions=20).build()
    return save_model(path, model, task, name="small").path


@pytest.fixture
def run(tmp_path):
    """A run folder with a small untrained decoder."""
    return save(tmp_path / "run", LinearRegression(d=3))


def test_diagnose_prints_and_saves(run, call):
    code, out, _ = call("diagnose", run, "--prompts", 8, "--json")
    assert code == 0
    printed = json.loads(out)
    assert json.loads((run / "diagnose.json").read_text()) == printed
    assert printed["loops"] == 8
    assert len(printed["error"]["mean"]) == 8
    assert printed["kind"] == "not learned"
    assert printed["verdict"].startswith("Not learned.")
    assert sum(share["mean"] for share in printed["shares"].values()) == pytest.approx(1)
    assert (run / "diagnose.png").read_bytes().startswith(b"\x89PNG")
    code, out, error = call("diagnose", run, "--prompts", 8, "--loops", 5)
    assert code == 0
    assert "Not learned." in out
    assert "diagnose.png" in error
    assert call("diagnose", run, "--prompts", 8, "--quiet") == (0, "", "")


def test_errors_are_one_line(run, tmp_path, refused):
    assert "is not a run folder" in refused("diagnose", tmp_path / "nothing")
    assert "`loops` must be above the trained loops=2" in refused("diagnose", run, "--loops", 2)
    once = save(tmp_path / "once", LinearRegression(d=3), loops=1)
    assert "share no weights" in refused("diagnose", once, "--loops", 5)


def test_the_report_holds_diagnosis_and_identification(run, call, tmp_path, refused):
    page = tmp_path / "page.html"
    assert call("diagnose", run, "--prompts", 8, "--quiet")[0] == 0
    assert call("identify", run, "--prompts", 8, "--points", 5, "--loops", 1, "--max-steps", 1, "--quiet")[0] == 0
    assert call("report", run, "--out", page, "--quiet")[0] == 0
    text = page.read_text()
    assert json.loads((run / "diagnose.json").read_text())["verdict"].partition(":")[0] in text
    assert "keeps moving" in text
    assert json.loads((run / "identify.json").read_text())["loops"][0]["name"] in text
    (run / "identify.json").write_text('{"loops": 3}')
    assert "identify.json is damaged" in refused("report", run, "--out", page)


def test_an_unlooped_model_is_diagnosed_as_one(tmp_path, call):
    code, out, _ = call("diagnose", save(tmp_path / "once", LinearRegression(d=3), loops=1), "--prompts", 8)
    assert code == 0
    assert "Not learned, and unlooped." in out


def test_evaluate_under_shifts(run, call, refused):
    sizes = ["--prompts", 20, "--points", 5, "--json"]
    printed = json.loads(call("evaluate", run, "--shift", "skewed", "--shift", "noisy", *sizes)[1])
    assert "SkewedCovariance(), NoisyOutputs(std=1.0" in printed["task"]
    assert printed["name"] == "skewed, noisy, 5 points, 20 prompts"
    printed = json.loads(call("evaluate", run, "--shift", "orthogonal", *sizes)[1])
    assert printed["by_examples"][0]["x"] == [0, 1, 2]
    assert "may be scaled-x or scaled-labels" in refused("evaluate", run, "--shift", "scaled", *sizes)


def test_a_run_on_a_shifted_task_is_evaluated_by_its_definition(tmp_path, call):
    shifted = save(tmp_path / "shifted", Shifted(task=LinearRegression(d=3), shifts=(EqualQuery(),)))
    printed = json.loads(call("evaluate", shifted, "--prompts", 20, "--points", 5, "--json")[1])
    assert printed["name"] == "as trained, 5 points, 20 prompts"
    errors = {curve["label"]: curve["mean"] for curve in printed["by_examples"]}["least squares"]
    assert max(errors[1:]) < 1e-6, "every query is an example"
