"""Nothing that is read is executed, nothing that is read decides where is written, and nobody is listened to."""

import ast
import json
import os
import pickle
import re
import shutil
import socket
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import looped
from looped import DecoderConfig, LinearRegression, Run, Setup, evaluate, load
from looped.evaluation.saved import save_evaluation
from looped.files import write_json
from looped.report.page import write_report
from looped.tasks.tables import Tables
from looped.tasks.translation import Translation
from looped.training.run import save_model

SOURCE = Path(looped.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


CALLS = {
    path: [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for path, tree in TREES.items()
}
"""Every call in a file, as (dotted name, call)."""


def imports(tree):
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return names + [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def importers(*banned):
    return [path.name for path, tree in TREES.items() if set(imports(tree)) & set(banned)]


def files(calls):
    return [call.partition(":")[0] for call in calls]


def calls_where(test):
    """Where in the sources a call passes `test`, as file:call."""
    return [
        f"{path.relative_to(SOURCE)}: {ast.unparse(call)}"
        for path, calls in CALLS.items()
        for name, call in calls
        if test(name, call)
    ]


def keyword(call, name):
    return next((ast.unparse(given.value) for given in call.keywords if given.arg == name), None)


# what the sources may not do


def test_only_the_importer_opens_pt_files_and_weights_only():
    assert len(TREES) > 80
    assert calls_where(lambda name, call: name == "json.loads")
    loads = calls_where(lambda name, call: name in ("torch.load", "load") and "torch" in name)
    assert files(loads) == ["training/importer.py"]
    assert "weights_only=True" in loads[0]


def test_nothing_unpickles_unpacks_or_runs_what_it_reads():
    assert not importers("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml")
    assert not importers("code", "zipfile")
    # one place unpacks an archive, and nothing in it can be written elsewhere
    assert importers("tarfile") == ["parcels.py"]
    unpacked = calls_where(lambda name, call: name.endswith("extractall"))
    assert [call.partition("filter=")[2] for call in unpacked] == ["'data')"]
    plain = ("eval", "exec", "compile", "__import__", "os.system", "os.popen")
    loaders = ("np.load", "numpy.load", "torch.hub.load")
    endings = (".exec", "runpy.run_path", "unpack_archive")
    assert not calls_where(lambda name, call: name in plain + loaders or name.endswith(endings))
    for option in ("allow_pickle", "shell"):
        assert not calls_where(lambda name, call, option=option: keyword(call, option) not in (None, "False"))
    # one place runs a file: the one that the user names on the command line
    assert files(calls_where(lambda name, call: name.endswith("exec_module"))) in (["recipes.py"], ["config.py"])
    # processes are started from lists
    texts = (ast.Constant, ast.JoinedStr, ast.BinOp)
    started = [call for calls in CALLS.values() for name, call in calls if name.startswith("subprocess.")]
    assert not [ast.unparse(call) for call in started if call.args and isinstance(call.args[0], texts)]


def test_nobody_is_listened_to():
    assert not importers("socketserver", "http.server", "flask", "fastapi", "uvicorn", "wsgiref", "xmlrpc.server")
    assert not importers("asyncio")
    for path, tree in TREES.items():
        if "socket" in imports(tree):  # a free port may be asked for, on this machine alone
            text = path.read_text()
            assert "0.0.0.0" not in text, path
            assert re.search(r"127\.0\.0\.1|localhost", text), path
    # a cluster that is started here, not one that the user names, stays on this machine and shows no dashboard
    for path in {path for path, calls in CALLS.items() if any(name == "ray.init" for name, _ in calls)}:
        text = path.read_text()
        assert '"_node_ip_address": "127.0.0.1"' in text, path
        assert '"include_dashboard": False' in text, path


def test_the_commands_open_no_socket(run, tmp_path, monkeypatch, call):
    def refuse(*args, **options):
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "create_server"):
        monkeypatch.setattr(socket, name, refuse)
    trained = ["train", "yang24.linear", "--scale", "smoke", "--set", "train.steps=1", "--device", "cpu"]
    for arguments in (
        [*trained, "--out", tmp_path / "new"],
        ["evaluate", run.path, "--prompts", 4, "--device", "cpu"],
        ["diagnose", run.path, "--prompts", 4, "--device", "cpu", "--starts", 1],
        ["report", tmp_path / "runs", "--out", tmp_path / "page.html"],
        ["list"],
    ):
        code, _, error = call(*arguments)
        assert code == 0, error


def test_templates_escape():
    text = "".join(path.read_text() for path in (SOURCE / "report" / "templates").rglob("*.*") if path.is_file())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "|safe" not in text.replace(" ", "")
    assert "autoescape false" not in text
    environments = calls_where(lambda name, call: name.endswith("Environment"))
    assert environments
    assert all("autoescape=True" in call for call in environments)
    # what counts as safe is what this library drew itself
    assert set(files(calls_where(lambda name, call: name == "Markup"))) == {"report/drawing.py"}


# what files may not do


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def run(tmp_path):
    torch.manual_seed(0)
    config = DecoderConfig(d=2, width=8, heads=2, positions=12, loops=2)
    return save_model(tmp_path / "runs" / "small", config.build(), LinearRegression(d=2), name="small")


@pytest.fixture
def refused(call):
    def run_it(*arguments):
        code, _, error = call(*arguments)
        assert code == 2, error
        assert error.startswith("looped: ")
        assert error.count("\n") == 1
        return error

    return run_it


@pytest.mark.parametrize("kind", ["pickle", "zip", "legacy"])
def test_a_hostile_pickle_is_run_nowhere(kind, run, tmp_path, refused):
    trap = tmp_path / "trap"
    hostile = tmp_path / "state.pt"
    if kind == "pickle":
        hostile.write_bytes(pickle.dumps(Trap(trap)))
    else:
        torch.save(Trap(trap), hostile, _use_new_zipfile_serialization=kind == "zip")
    refused("import", hostile, "--out", tmp_path / "in", "--heads", 2)
    (checkpoint,) = (run.path / "checkpoints").glob("*.safetensors")
    shutil.copy(hostile, checkpoint)
    for arguments in (["evaluate", run.path], ["train", "--resume", run.path], ["identify", run.path]):
        refused(*arguments)
    shutil.copy(hostile, run.path / "config.json")
    refused("evaluate", run.path)
    refused("report", tmp_path / "runs", "--out", tmp_path / "page.html")
    assert not trap.exists()


@pytest.mark.parametrize("pack", ["zip", "tar"])
def test_an_archive_is_no_run_and_is_not_opened(pack, run, tmp_path, refused):
    archive = tmp_path / f"run.{pack}"
    if pack == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("../../escaped", "x")
    else:
        with tarfile.open(archive, "w") as file:
            file.add(run.path / "config.json", "../../escaped")
    refused("evaluate", archive)
    refused("import", archive, "--out", tmp_path / "in", "--heads", 2)
    assert not list(tmp_path.parent.rglob("escaped"))


ESCAPES = ["../../x", "/tmp/x", "..", ".", "a/b", "a\\b", "a\0b", "", " ", "~", "C:x", "a\nb"]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_in_a_config_cannot_leave_its_folder(name, run, tmp_path, refused):
    with pytest.raises(ValueError, match="`name` names a folder"):
        Setup(name=name, task=LinearRegression(d=2), model=DecoderConfig(d=2))
    config = json.loads((run.path / "config.json").read_text())
    write_json(run.path / "config.json", {**config, "name": name})
    before = sorted(tmp_path.rglob("*"))
    assert "names a folder" in refused("evaluate", run.path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("title", ["../../escaped", "/tmp/escaped", "a/../../escaped", "\0", ".."])
def test_an_evaluations_title_cannot_leave_the_run(title, run):
    result = evaluate(run.model(), run.setup.task, points=3, prompts=4)
    file = save_evaluation(run, title, result)
    assert file.resolve().parent == (run.path / "evaluations").resolve()


def test_a_result_that_names_another_place_is_drawn_nowhere_else(tmp_path, call):
    write_json(tmp_path / "evil.json", {"figure": "../../escaped", "scale": "/tmp/escaped", "data": {}, "claims": []})
    assert call("report", "--results", tmp_path, "--out", tmp_path / "page.html", "--quiet")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.json", "page.html"]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "a/../../secret"])
def test_a_table_is_read_from_its_folder_only(name, tmp_path, monkeypatch, generator):
    (tmp_path / "openml").mkdir()
    (tmp_path / "secret.csv").write_text("x,label\n1,0\n2,1\n3,0\n4,1\n")
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="there is no table"):
        Tables(d=2, names=(name,)).sample(batch=1, n=1, generator=generator)


@pytest.mark.parametrize("name", ["../secret", "/etc", "..", ".", "a/../../secret", ""])
def test_a_corpus_is_read_from_its_folder_only(name, tmp_path, monkeypatch, generator):
    (tmp_path / "translation" / "multi30k").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="has no corpus"):
        Translation(corpus=name).sample(batch=1, n=9, generator=generator)


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "subprocess:run", "looped.files:os.system", "looped:os"]
)
def test_a_config_names_no_other_code(name, run):
    config = json.loads((run.path / "config.json").read_text())
    for part in ("task", "model"):
        write_json(run.path / "config.json", {**config, part: {**config[part], "type": name}})
        with pytest.raises(ValueError, match=r"outside looped|does not have|must name"):
            load(run.path)


# what a page may not do


def test_markup_in_names_labels_and_notes_is_text_on_the_page(run, tmp_path):
    result = evaluate(run.model(), run.setup.task, points=4, prompts=4)
    curves = [replace(curve, label=EVIL) for curve in result.by_examples]
    save_evaluation(run, EVIL, replace(result, task=EVIL, by_examples=curves))
    facts = json.loads((run.path / "provenance.json").read_text())
    write_json(run.path / "provenance.json", {**facts, "command": EVIL, EVIL: EVIL})
    row = {"name": EVIL, "paper": EVIL, "statement": EVIL, "measured": 1.0, "bound": 2.0, "verdict": EVIL, "seconds": 1}
    plot = {"x": [1, 2], "lines": {EVIL: [1, 2]}, "x_label": EVIL, "y_label": EVIL}
    rows = [{**row, "form": EVIL, "instance": EVIL, "plot": plot}]
    page = write_report(tmp_path, runs=[Run.open(run.path)], theorems=rows, title=EVIL, lead=EVIL).read_text()
    assert page.count("&lt;script&gt;") > 10
    assert "<script" not in page.lower()
    assert "<img" not in page.lower()
    assert not re.search(r"<[^>]*\sonerror\s*=", page)
    assert "default-src 'none'" in page
