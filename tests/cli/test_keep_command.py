"""`looped keep`, `looped list models`, and the commands that take a kept model by its name."""

import json
import shutil

import pytest

import looped
from looped import keeping
from looped.cli import main
from looped.training import kept
from looped.training.run import Run

SMOKE = ["yang24.linear", "--scale", "smoke", "--set", "train.steps=3", "--device", "cpu"]
FEW = ["--prompts", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder of the smallest recipe, and a folder of kept models with it."""
    out = tmp_path_factory.mktemp("kept")
    with pytest.raises(SystemExit) as ended:
        main(["train", *SMOKE, "--out", str(out / "runs"), "--quiet"])
    assert ended.value.code == 0
    (folder,) = (out / "runs").iterdir()
    with pytest.raises(SystemExit) as ended:
        main(["keep", str(folder), "--out", str(out / "models"), "--quiet", *FEW])
    assert ended.value.code == 0
    return folder, out / "models"


@pytest.fixture
def run(trained):
    return trained[0]


@pytest.fixture
def store(trained, tmp_path, monkeypatch):
    """The kept model `yang24.linear`, from a folder where no such path is."""
    folder = shutil.copytree(trained[1], tmp_path / "models")
    monkeypatch.setattr(kept, "store", lambda: folder)
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keep_prints_what_it_recorded(call, run, tmp_path):
    sizes = ("--loops", 9, "--seed", 5, "--check-prompts", 20)
    code, out, error = call("keep", run, "--name", "mine", "--out", tmp_path, *FEW, *sizes, "--json")
    assert (code, error) == (0, "")
    told = json.loads(out)
    assert (told["kept"], told["name"]) == (str(tmp_path / "mine"), "mine")
    assert (told["prompts"], told["seed"], told["by_loops"]["x"][-1], told["check"]["prompts"]) == (8, 5, 9, 20)
    assert {key: told[key] for key in ("check", "by_examples")} == {
        key: json.loads((tmp_path / "mine" / "kept.json").read_text())[key] for key in ("check", "by_examples")
    }
    code, out, error = call("keep", run, "--out", tmp_path, *FEW)
    assert code == 0
    assert out.startswith(f"{tmp_path / 'yang24.linear'}: LinearRegression(d=3")
    assert call("keep", run, "--out", tmp_path, *FEW, "--again", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", ".."], "a kept model's name has letters"),
        (["--name", ""], "a kept model's name has letters"),
        (["--name", "a/b"], "a kept model's name has letters"),
        (["--prompts", "1"], "`prompts` must be at least 2"),
        (["--check-prompts", "1"], "`prompts` must be at least 2"),
        (["--loops", "1"], "`loops` must be at least the trained 4; got 1."),
        (["--loops", "1000000000"], "`loops` must be at most"),
        (["--points", "0"], "`--points` must be at least 1"),
        (["--points", "100"], "at most 8 examples"),
        (["--device", "tpu"], "`--device` must be"),
    ],
)
def test_keep_refuses(refused, run, tmp_path, arguments, message):
    assert message in refused("keep", run, "--out", tmp_path / "new" / "models", *FEW, *arguments)
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir()
    refused("keep", run, "--out", tmp_path / "there", *FEW, *arguments)
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_keep_that_is_stopped_leaves_no_folder(call, run, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(keeping, "record", stop)
    assert call("keep", run, "--out", tmp_path / "models", *FEW) == (1, "", f"looped: {looped.signals.STOPPED}\n")
    assert not list(tmp_path.iterdir())


def test_keep_refuses_what_is_there_and_what_is_no_run(refused, run, store):
    before = files(store)
    assert "yang24.linear already exists" in refused("keep", run, "--out", store, *FEW)
    assert "is not a run folder" in refused("keep", "nowhere", "--out", store, *FEW)
    assert files(store) == before


def test_list_shows_the_kept_models(call, store, monkeypatch):
    code, out, _ = call("list", "models", "--json")
    assert code == 0
    [(name, facts)] = json.loads(out)["models"].items()
    assert (name, facts["parameters"], facts["loops"]) == ("yang24.linear", Run.open(name).model().num_parameters, 4)
    assert [(one["loops"], one["x"]) for one in facts["errors"]] == [(4, 3), (4, 6), (8, 3), (8, 6)]
    assert all(one["low"] <= one["mean"] <= one["high"] for one in facts["errors"])
    assert facts["seconds"] == Run.open(name).provenance()["train_seconds"]
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call("list", "models")
    shown = " ".join(out.split())
    assert "model task parameters weights loops error training yang24.linear LinearRegression" in shown
    assert "at k=6" in shown
    assert call("list", "models", "--quiet")[1].split() == ["models", "yang24.linear"]
    (store / "yang24.linear" / "kept.json").write_text("{")
    code, out, error = call("list", "models")
    assert (code, out) == (2, "")
    assert "kept.json cannot be read" in error


def test_list_of_no_models_says_so(call, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "store", lambda: tmp_path)
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    assert json.loads(call("list", "models", "--json")[1]) == {"models": {}}
    assert "none yet" in call("list", "models")[1]
    assert "DecoderConfig" in call("list", "architectures")[1]


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", *FEW],
        ["evaluate", *FEW, "--shift", "skewed"],
        ["diagnose", *FEW, "--starts", "1"],
        ["identify", "--prompts", "8", "--loops", "1", "--max-steps", "1"],
    ],
)
def test_commands_take_the_name_and_write_nothing_there(call, store, words):
    before = files(store)
    code, out, error = call(words[0], "yang24.linear", *words[1:])
    assert code == 0
    assert out
    assert "Not saved: nothing is written into a kept model's folder." in error
    code, out, _ = call(words[0], "yang24.linear", *words[1:], "--json")
    assert json.loads(out)["run"] == "yang24.linear"
    assert json.loads(out).get("saved") is None
    assert files(store) == before
    assert files(store.parent / "here") == {}


def test_a_report_shows_a_kept_model(call, store):
    before = files(store)
    code, out, _ = call("report", "yang24.linear", "--out", "page.html", "--json")
    assert code == 0
    assert json.loads(out)["runs"] == [str(store / "yang24.linear")]
    assert files(store) == before


def test_training_starts_from_the_name_and_does_not_resume_it(call, refused, store):
    before = files(store)
    said = refused("train", "--resume", "yang24.linear", "--device", "cpu")
    assert "is kept without its optimiser" in said
    assert "train.start=yang24.linear" in said
    code, out, error = call("train", *SMOKE, "--set", "train.start=yang24.linear", "--out", "runs", "--json")
    assert code == 0, error
    assert Run.open(json.loads(out)["run"]).experiment.train.start == "yang24.linear"
    assert files(store) == before


@pytest.mark.parametrize("name", ["yang24.liner", "../models/nothing", "yang24.linear/checkpoints"])
def test_a_wrong_name_is_one_line_with_the_nearest(refused, store, name):
    for words in (["evaluate"], ["diagnose"], ["identify"], ["report"], ["train", "--resume"], ["keep"]):
        said = refused(*words, name)
        assert "is not a run folder" in said
        assert "yang24.linear" in said


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_path_is_no_name(refused, store, name):
    for words in (["evaluate"], ["train", "--resume"], ["keep"]):
        assert "is not a run folder" in refused(*words, name)
