"""Folders in the hub's format: what is written comes back, a card says where it is from, a download names no code."""

import json
import shutil
import sys
from unittest.mock import create_autospec

import huggingface_hub
import pytest
import torch

import looped
from looped.files import read_json, write_json
from looped.hub import FILES
from looped.keeping import read_record
from looped.papers import yang24
from looped.training.kept import store
from looped.training.run import Run

KEPT = "explorer.curves"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A kept model as a folder; tests that change it take a copy."""
    return looped.save_pretrained(KEPT, tmp_path_factory.mktemp("hub") / "curves")


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "curves")


@pytest.fixture
def no_network(monkeypatch):
    """Every way into the hub is an error."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    monkeypatch.setattr(huggingface_hub, "HfApi", None)


@pytest.mark.usefixtures("no_network")
def test_a_folder_is_the_model(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    model, loaded = looped.load(KEPT), looped.from_pretrained(folder)
    xs, ys = torch.randn(2, 9, 1), torch.randn(2, 9)
    assert torch.equal(loaded.predict(xs, ys), model.predict(xs, ys))
    assert (loaded.config, loaded.training) == (model.config, False)
    assert Run.open(folder).points == Run.open(KEPT).points


def test_its_weights_are_plain_safetensors(folder):
    from safetensors.torch import load_file

    weights, own = load_file(folder / "model.safetensors"), looped.load(KEPT).state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name].float(), own[name]) for name in own)


def test_commands_read_it_like_a_run(folder, call):
    few = ("--prompts", 4, "--points", 3, "--max-loops", 12, "--no-baselines", "--json")
    (code, out, error), expected = call("evaluate", folder, *few), call("evaluate", KEPT, *few)[1]
    assert code == 0, error
    assert json.loads(out)["by_loops"] == json.loads(expected)["by_loops"]


def test_its_training_cannot_go_on(copied, call):
    code, _, error = call("train", "--resume", copied, "--device", "cpu")
    assert code == 2
    assert "without its optimiser, so it cannot be resumed" in error
    assert not (copied / "checkpoints").exists()


def test_the_card_says_task_error_training_provenance_and_licence(folder):
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.license) == ("looped", "apache-2.0")
    run = Run.open(KEPT)
    record, last = read_record(store() / KEPT), -1
    error = record["by_examples"][str(record["trained_loops"])]
    row = (record["trained_loops"], error["x"][last], f"{error['mean'][last]:.3g}")
    assert "| {} | {} | {} |".format(*row) in card.text
    assert f"Mean over {record['prompts']:,} fresh prompts" in card.text
    for fact in (repr(run.setup.task), f"{run.setup.train.steps:,} steps", str(run.provenance()["commit"])):
        assert fact in card.text
    assert 'looped.from_pretrained("curves")' in card.text


def test_the_error_of_a_run_is_measured_and_its_licence_is_its_owners(tmp_path):
    task = looped.LinearRegression(d=2)
    torch.manual_seed(0)
    model = looped.DecoderConfig(d=2, width=8, heads=2, loops=2, positions=20).build()
    run = looped.save(model, task, tmp_path / "mine", points=5)
    text = (looped.save_pretrained(run, tmp_path / "out") / "README.md").read_text()
    assert "license:" not in text
    assert "Not stated." in text
    assert "None here: the weights were imported" in text
    assert "| 2 | 4 | " in text
    assert "license: mit" in (looped.save_pretrained(run, tmp_path / "out", license="mit") / "README.md").read_text()
    assert looped.from_pretrained(tmp_path / "out").config == model.config


def test_nothing_in_a_card_can_end_its_cell(tmp_path):
    run = looped.save(yang24.linear("smoke").model.build(), yang24.linear("smoke").task, tmp_path / "run", points=3)
    write_json(run.path / "provenance.json", {**run.provenance(), "points": 3, "command": "a | b\n`# c"})
    text = (looped.save_pretrained(run, tmp_path / "out") / "README.md").read_text()
    assert "| command | `a \\| b '# c` |" in text


def test_another_folder_is_not_written_into(tmp_path, folder):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds something else than a model\. Name a new folder"):
        looped.save_pretrained(KEPT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_download_is_refused_and_names_no_code(copied):
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: its checksum does not match. Get it again"):
        looped.from_pretrained(copied)
    config = read_json(copied / "config.json")
    write_json(copied / "config.json", {**config, "task": {"type": "os:system"}})
    with pytest.raises(ValueError, match="names code outside looped"):
        looped.from_pretrained(copied)
    weights.unlink()
    write_json(copied / "config.json", config)
    with pytest.raises(ValueError, match="has no checkpoint"):
        looped.from_pretrained(copied)


def test_a_repository_is_downloaded_by_its_name(copied, monkeypatch):
    download = create_autospec(huggingface_hub.snapshot_download, return_value=str(copied))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert looped.from_pretrained("someone/curves", revision="main").config == looped.load(KEPT).config
    download.assert_called_once_with("someone/curves", revision="main", allow_patterns=FILES)
    download.side_effect = huggingface_hub.errors.LocalEntryNotFoundError("no network\nand more")
    with pytest.raises(ValueError, match=r"no folder someone/curves here, and the hub did not give it: no network$"):
        looped.from_pretrained("someone/curves")


@pytest.mark.usefixtures("no_network")
def test_a_name_that_is_no_repository_never_asks_the_hub(folder):
    assert looped.from_pretrained(KEPT).config == looped.load(KEPT).config
    with pytest.raises(ValueError, match="is not a run folder"):
        looped.from_pretrained("no/such/folder")
    with pytest.raises(ValueError, match="`revision` is of a repository on the hub"):
        looped.from_pretrained(folder, revision="main")


def test_push_uploads_what_was_written(tmp_path, monkeypatch):
    api = create_autospec(huggingface_hub.HfApi, instance=True)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    folder = looped.save_pretrained(KEPT, tmp_path / "out", push_to_hub="someone/curves")
    api.create_repo.assert_called_once_with("someone/curves", exist_ok=True)
    api.upload_folder.assert_called_once_with(repo_id="someone/curves", folder_path=folder, allow_patterns=FILES)
    assert 'looped.from_pretrained("someone/curves")' in (folder / "README.md").read_text()


def test_without_huggingface_hub_one_line_says_what_to_install(tmp_path, monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert looped.from_pretrained(folder).config.loops == 12
    with pytest.raises(ValueError, match=r"no such folder here: someone/curves .*pip install 'looped\[hub\]'"):
        looped.from_pretrained("someone/curves")
    with pytest.raises(ValueError, match=r"pip install 'looped\[hub\]'"):
        looped.save_pretrained(KEPT, tmp_path / "out", push_to_hub="someone/curves")
    assert not (tmp_path / "out").exists()
