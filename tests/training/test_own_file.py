"""A file outside the repository, with a recurrent-depth model, a task and a loss of its own, from the command line."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

import looped
from looped.training.folder import Folder
from training.test_kill import command, server, steps_told  # noqa: F401

pytestmark = pytest.mark.xdist_group("kill")  # one server for all
RECIPE = "outside.py:gated"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the file, as the current one."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "outside.py").write_text(Path(__file__).with_name("outside_model.py").read_text())
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)
    sys.modules.pop("outside", None)
    sys.path[:] = [name for name in sys.path if name != str(folder)]


def tensors_of(folder):
    """The last checkpoint and the metrics of every run in a folder, by the run's name."""
    runs = {path.parent.name: Folder(path.parent, "") for path in folder.glob("*/config.json")}
    return {name: (run.latest().tensors, (run.path / "metrics.jsonl").read_bytes()) for name, run in runs.items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, (tensors, lines) in left.items():
        assert tensors.keys() == right[name][0].keys()
        assert all(torch.equal(value, right[name][0][key]) for key, value in tensors.items()), name
        assert lines == right[name][1]


def test_three_seeds_train_and_evaluate_to_the_same_digits_twice(place, call):
    code, out, error = call("train", RECIPE, "--seeds", 3, "--out", "seeds", "--json")
    assert code == 0, error
    runs = json.loads(out)
    assert len({run["loss"] for run in runs}) == 3
    evaluate = ["evaluate", runs[0]["run"], "--code", "outside.py", "--prompts", 64, "--json"]
    first, second = call(*evaluate), call(*evaluate)
    assert first[0] == 0
    assert first[1] == second[1]


def test_a_sweep_of_two_fields_gives_the_same_bits_as_stack_and_as_processes(place, call):
    sweep = ["sweep", RECIPE, "model.width=4,8", "train.window=1,2", "--seeds", 1, "--threads", 1, "--json"]
    for kind, more in (("stack", []), ("processes", ["--workers", 1])):
        code, out, error = call(*sweep, "--executor", kind, *more, "--out", kind)
        assert code == 0, error
        assert [row["status"] for row in json.loads(out)] == ["finished"] * 4
    assert_same(tensors_of(place / "stack"), tensors_of(place / "processes"))


def test_killed_and_resumed_it_is_the_run_that_nobody_killed(place, call, server):  # noqa: F811
    train = ["train", RECIPE, "--set", "train.steps=30", "--threads", "1", "--quiet", "--device", "cpu", "--out"]
    parent, end = server.Pipe()
    process = server.Process(target=command, args=([*train, "killed"], str(place / "stderr"), end))
    process.start()
    end.close()
    assert len(steps_told(parent, 12)) == 12, (place / "stderr").read_text()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (killed,) = (place / "killed").glob("gated-*")
    assert not Folder(killed, "").latest().finished
    assert call(*train, "killed")[0] == 0
    assert call(*train, "whole")[0] == 0
    assert_same(tensors_of(place / "killed"), tensors_of(place / "whole"))


def test_every_other_command_takes_it_too(place, call):
    (run, *_), (other,) = (
        [found["run"] for found in [json.loads(call("train", name, *more, "--json")[1])] for found in as_list(found)]
        for name, more in ((RECIPE, ["--seeds", 3, "--out", "seeds"]), ("outside.py:plain", ["--out", "plain"]))
    )
    few = ["--code", "outside.py", "--prompts", 16, "--json"]
    code, out, error = call("check", RECIPE, "--json")
    assert code == 0, (out, error)
    diagnosed, identified = (json.loads(call(command, run, *few)[1]) for command in ("diagnose", "identify"))
    assert diagnosed["verdict"]
    assert identified
    code, out, error = call("compare", run, other, *few)
    assert code == 0, error
    assert [entry["label"] for entry in json.loads(out)["entries"]] == ["gated", "plain"]
    code, _, error = call("report", "seeds", "plain", "--code", "outside.py", "--out", "page.html", "--quiet")
    assert code == 0, error
    page = Path("page.html").read_text()
    assert all(Path(name).name in page for name in (run, other))
    outside = sys.modules["outside"]
    model, prompt = (
        looped.load(run, code=[outside]),
        outside.gated().task.sample(batch=4, n=4, generator=torch.Generator().manual_seed(0)),
    )
    settled = model.settle(prompt, outside.calm, max_loops=40)
    assert settled.predictions.shape == (4, 4)
    assert int(settled.loops.max()) <= 40


def as_list(found):
    return found if isinstance(found, list) else [found]
