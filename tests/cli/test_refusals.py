"""What is refused says why in one line, leaves nothing behind and stops nothing else."""

import importlib
import json

import pytest
import torch

from looped import DecoderConfig, LinearRegression
from looped.tasks.trees import DecisionTree
from looped.training import sweep
from looped.training.run import save_model

verify = importlib.import_module("looped.cli.verify")  # `looped.cli.verify` is the command of that name
SMOKE = ("yang24.linear", "--scale", "smoke", "--set", "train.steps=1", "--device", "cpu")
ZEROS = """
from dataclasses import dataclass
from looped import LinearRegression, Prompt

@dataclass(frozen=True, kw_only=True)
class Zeros(LinearRegression):
    def sample(self, *, batch, n, generator, dims=None):
        given = super().sample(batch=batch, n=n, generator=generator)
        return Prompt(given.xs * 0, given.ys)
"""


def small(path, task):
    torch.manual_seed(0)
    return save_model(path, DecoderConfig(d=2, width=8, heads=2, positions=12, loops=2).build(), task, name="small")


def test_slow_baselines_cannot_go_with_a_shift_of_the_query(call, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    tree = small(tmp_path / "tree", DecisionTree(d=2))
    common = ("--prompts", 2, "--points", 3, "--device", "cpu")
    error = refused("evaluate", tree.path, "--all-baselines", "--shift", "equal", *common)
    assert "shift of the query" in error
    assert "greedy tree" in error
    # a task that has no slow baselines has nothing to refuse
    linear = small(tmp_path / "linear", LinearRegression(d=2))
    assert call("evaluate", linear.path, "--all-baselines", "--shift", "equal", "--quiet", *common)[0] == 0


def test_all_baselines_and_none_are_not_asked_for_at_once(refused, tmp_path):
    run = small(tmp_path / "linear", LinearRegression(d=2))
    assert "Leave one of the two out" in refused("evaluate", run.path, "--all-baselines", "--no-baselines")


@pytest.mark.parametrize("command", ["report", "list"])
def test_a_folder_of_results_that_is_not_there_is_said(command, refused, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no folder missing" in refused(command, "--results", "missing")
    assert not list(tmp_path.iterdir())
    # the folder that nobody named need not be there
    assert call("list", "figures")[0] == 0


@pytest.mark.parametrize("seeds", [(), ("--seeds", 2)])
def test_refused_training_leaves_no_run_folder(seeds, refused, tmp_path):
    error = refused("train", *SMOKE, "--start", tmp_path / "missing", "--out", tmp_path / "runs", *seeds)
    assert "missing" in error
    assert not (tmp_path / "runs").exists()


def test_seeds_without_end_are_refused(refused, tmp_path):
    assert "at most 1,000" in refused("train", *SMOKE, "--seeds", 10**15, "--out", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_training_without_its_data_leaves_no_run_folder(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("LOOPED_DATA", raising=False)
    (tmp_path / "own.py").write_text(
        "from looped import DecoderConfig, Experiment, TrainConfig\n"
        "from looped.tasks.tables import Tables\n"
        "def tables():\n"
        "    model = DecoderConfig(d=3, width=8, heads=2)\n"
        "    return Experiment(name='own', task=Tables(d=3, names=('t',)), model=model, train=TrainConfig(steps=1))\n"
    )
    assert "LOOPED_DATA" in refused("train", f"{tmp_path / 'own.py'}:tables", "--out", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_figure_without_its_data_leaves_no_folder(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("LOOPED_DATA", raising=False)
    (tmp_path / "there").mkdir()
    for out, runs in (("new/results", "new/runs"), ("there", "there")):
        where = ("--scale", "smoke", "--device", "cpu", "--out", tmp_path / out, "--runs", tmp_path / runs)
        assert "LOOPED_DATA" in refused("reproduce", "yang24.table2", *where, "--quiet")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["there"]


def test_a_run_that_was_there_before_stays(call, refused, tmp_path):
    assert call("train", *SMOKE, "--out", tmp_path / "runs", "--quiet")[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    (checkpoint,) = (run / "checkpoints").iterdir()
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    before = sorted(run.rglob("*"))
    refused("train", *SMOKE, "--out", tmp_path / "runs", "--quiet")
    assert set(before) <= set(run.rglob("*"))


def test_identify_refuses_prompts_without_any_x(refused, tmp_path):
    (tmp_path / "zeros.py").write_text(ZEROS)
    run = small(tmp_path / "run", LinearRegression(d=2))
    config = json.loads((run.path / "config.json").read_text())
    config["task"]["type"] = "zeros:Zeros"
    (run.path / "config.json").write_text(json.dumps(config))
    error = refused("identify", run.path, "--prompts", 8, "--loops", 1, "--code", tmp_path / "zeros.py")
    assert "all zero" in error


def test_an_evaluation_at_a_single_position_is_drawn(call, tmp_path):
    run = small(tmp_path / "run", LinearRegression(d=2))
    assert call("evaluate", run.path, "--points", 1, "--prompts", 4, "--device", "cpu", "--quiet")[0] == 0
    assert call("report", run.path, "--out", tmp_path / "page.html", "--quiet")[0] == 0


@pytest.mark.parametrize("names", [("yang24.table2", "chen24.fig1"), ("chen24.fig1", "yang24.table2")])
def test_a_figure_that_cannot_be_made_stops_no_other(names, call, tmp_path, monkeypatch):
    monkeypatch.delenv("LOOPED_DATA", raising=False)
    where = ("--scale", "smoke", "--device", "cpu", "--out", tmp_path / "results", "--runs", tmp_path / "runs")
    code, out, error = call("reproduce", *names, *where, "--json")
    assert code == 2
    assert {claim["id"].rpartition(".")[0] for claim in json.loads(out)} == {"chen24.fig1"}
    assert error.startswith("looped: 1 of 2 figures could not be made. yang24.table2: ")
    assert "LOOPED_DATA is not set." in error
    assert error.count("\n") == 1
    assert (tmp_path / "results" / "figures" / "chen24.fig1.smoke.png").is_file()


@pytest.mark.parametrize(
    "content", ["3", "{}", '{"format": 2, "settings_hash": HASH, "table": {}, "provenance": {"seconds": 1}}']
)
def test_a_damaged_result_is_not_drawn(content, call, refused, tmp_path):
    where = ("--scale", "smoke", "--device", "cpu", "--out", tmp_path, "--quiet")
    assert call("reproduce", "chen24.fig1", *where)[0] == 0
    file = tmp_path / "chen24.fig1.smoke.json"
    key = json.dumps(json.loads(file.read_text())["settings_hash"])
    file.write_text(content.replace("HASH", key))
    if content == "{}":  # of other settings, and so measured
        assert call("reproduce", "chen24.fig1", *where)[0] == 0
    else:
        assert "is damaged" in refused("reproduce", "chen24.fig1", *where)
        assert call("reproduce", "chen24.fig1", *where, "--again")[0] == 0


def test_a_sweep_whose_executor_is_refused_leaves_nothing(refused, tmp_path, monkeypatch):
    def refuse(executor):
        raise ValueError("no node has 1 CPUs and 1 GPUs for a run. Ask for less.")

    monkeypatch.setattr(sweep, "_pool", refuse)
    fields = ("model.loops=7", "--scale", "smoke", "--executor", "processes", "--device", "cpu", "--quiet")
    assert "no node" in refused("sweep", "yang24.linear", *fields, "--out", tmp_path / "runs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("train", *SMOKE),
        ("demo",),
        ("construct", "gao24.thm4.1"),
        ("sweep", "yang24.linear", "--scale", "smoke", "--device", "cpu"),
        ("verify", "gatmiry24.lem3"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line_before_the_work(words, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "check", lambda *arguments, **options: pytest.fail("the work was begun"))
    (tmp_path / "file").write_text("")
    error = refused(*words, "--out", tmp_path / "file", "--quiet")
    assert "(Not a directory). " in error or "(File exists). " in error
    assert "Errno" not in error
    assert error.endswith("Name another folder with --out.\n")
    assert (tmp_path / "file").read_text() == ""


def test_verify_that_is_refused_leaves_no_folder(call, refused, tmp_path):
    assert "gatmiry24.thm22" in refused("verify", "gatmiry24.thm22", "--out", tmp_path / "new")
    assert not list(tmp_path.iterdir())
    assert call("verify", "gatmiry24.lem3", "--out", tmp_path / "new" / "deep", "--quiet")[0] == 0
    assert {file.name for file in (tmp_path / "new" / "deep").iterdir()} == {"verify.json", "verify.html"}
