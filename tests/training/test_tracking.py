"""Trackers beside TensorBoard: asked for by name, without a network, and never in the way of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import stop_at, tiny

from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import train, train_seeds

EXPERIMENT = tiny("tracked", steps=6)

WANDB = '''
"""As much of Weights & Biases as a run asks for; what it hears goes to a file."""
import json, os

def heard(*what):
    with open(os.environ["HEARD"], "a") as file:
        file.write(json.dumps(what) + "\\n")

def Settings(**options):
    return options

def init(*, project, name, id, dir, config, mode, resume, reinit, settings):
    if os.environ.get("FAIL") == "init":
        raise RuntimeError("no such entity")
    heard("init", project, name, mode, os.path.basename(dir), config["train"]["steps"], settings["silent"])
    return Run(name)

class Run:
    def __init__(self, name):
        self.name = name

    def log(self, values, *, step):
        if os.environ.get("FAIL") == "log" and step > 3:
            raise ConnectionError("the server is gone")
        heard("log", self.name, step, values)

    def finish(self):
        heard("finish", self.name)
'''

MLFLOW = '''
"""As much of MLflow as a run asks for."""
from types import SimpleNamespace
from wandb import heard

class MlflowClient:
    def __init__(self, tracking_uri):
        heard("store", tracking_uri)

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name, **files):
        heard("experiment", name, files)
        return "7"

    def search_runs(self, groups, filter_string, max_results):
        heard("search", filter_string)
        return []

    def create_run(self, group, *, tags, run_name):
        heard("run", group, tags)
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_param(self, run, key, value):
        heard("param", key, value)

    def log_metric(self, run, key, value, *, step):
        heard("metric", run, key, value, step)

    def set_terminated(self, run):
        heard("end", run)
'''


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """The two packages, pretended; gives a function that reads what they heard."""
    (tmp_path / "site" / "mlflow").mkdir(parents=True)
    (tmp_path / "site" / "wandb.py").write_text(WANDB)
    (tmp_path / "site" / "mlflow" / "__init__.py").touch()
    (tmp_path / "site" / "mlflow" / "tracking.py").write_text(MLFLOW)
    file = tmp_path / "heard"
    monkeypatch.setenv("HEARD", str(file))
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def pretended(heard, tmp_path, monkeypatch):
    """The same, to be imported by this process."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield heard
    for name in ("wandb", "mlflow", "mlflow.tracking"):
        sys.modules.pop(name, None)


def test_the_command_hands_every_number_to_the_trackers_asked_for(heard, tmp_path):
    (tmp_path / "mine.py").write_text("from test_tracking import EXPERIMENT\n\ndef recipe():\n    return EXPERIMENT\n")
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    what = [f"{tmp_path}/mine.py:recipe", "--device", "cpu", "--out", str(tmp_path / "runs"), "--quiet"]
    command = [sys.executable, "-m", "looped", "train", *what, "--track", "wandb", "--track", "mlflow"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    run = Run(tmp_path / "runs" / f"tracked-{EXPERIMENT.hash}", EXPERIMENT)
    name, all_ = run.path.name, heard()
    assert ["init", "looped", name, "offline", name, 6, True] in all_
    assert ["store", f"sqlite:///{run.path}/mlflow.db"] in all_
    assert ["experiment", "looped", {"artifact_location": f"file://{run.path}/mlartifacts"}] in all_
    assert ["run", "7", {"looped": name}] in all_
    assert ["param", "train.steps", 6] in all_
    for line in run.metrics():
        for key, value in line.items():
            assert ["log", name, line["step"], {key: value}] in all_
            assert ["metric", "r1", key, value, line["step"]] in all_
    assert all_[-2:] == [["end", "r1"], ["finish", name]]


def test_tensorboard_is_always_on_and_has_the_same_numbers(tmp_path):
    run = train(EXPERIMENT, out=tmp_path)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([line["loss"] for line in run.metrics()])


def test_seeds_are_runs_side_by_side(pretended, tmp_path):
    runs = train_seeds(EXPERIMENT, [0, 1], out=tmp_path, track=["wandb"])
    names = [run.path.name for run in runs]
    assert [call[2] for call in pretended() if call[0] == "init"] == names
    assert {call[1] for call in pretended() if call[0] == "log"} == set(names)


def test_the_environment_of_the_user_comes_first(pretended, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    train(EXPERIMENT, out=tmp_path, track=["wandb", "mlflow", "wandb"])
    assert [call[:4] for call in pretended() if call[0] in ("init", "store", "experiment")] == [
        ["init", "mine", f"tracked-{EXPERIMENT.hash}", "online"],
        ["store", "http://localhost:5000"],
        ["experiment", "looped", {}],
    ]


def test_a_tracker_that_fails_on_the_way_is_one_line_and_the_run_goes_on(pretended, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FAIL", "log")
    run = train(EXPERIMENT, out=tmp_path, track=["wandb"])
    assert run.latest().finished
    assert [record.message for record in caplog.records] == [
        "looped: wandb failed (the server is gone); training goes on without it."
    ]


def test_a_tracker_that_cannot_begin_ends_the_run_before_it_wrote(pretended, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL", "init")
    with pytest.raises(ValueError, match=r"^wandb cannot follow .*: no such entity\. Leave out `--track wandb`\.$"):
        train(EXPERIMENT, out=tmp_path / "runs", track=["wandb"])
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_one_line_with_its_remedy(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"`--track {name}` needs {name}.*pip install 'looped\[{name}\]'"):
        train(EXPERIMENT, out=tmp_path, track=[name])


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`--track` takes wandb or mlflow \(TensorBoard is always on\); got `comet`"):
        train(EXPERIMENT, out=tmp_path, track=["comet"])


def test_a_stopped_run_closes_its_trackers(pretended, tmp_path):
    with pytest.raises(Interrupted):
        train(EXPERIMENT, out=tmp_path, track=["wandb"], progress=stop_at(4))
    assert pretended()[-1][0] == "finish"
