"""`looped reproduce`: figures measured once, drawn, judged; bad names are one line and exit 2."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from looped.cli.reproduce import KEYS
from looped.reproduce import kept_results, studies
from looped.studies.study import training_facts

RESULTS = Path(__file__).resolve().parents[2] / "results"
FILE = "chen24.fig1.smoke.json"
SMOKE = ("reproduce", "chen24.fig1", "--scale", "smoke", "--device", "cpu")


def rewrite(file, **changes):
    """Mark a kept result, so that one which is measured again can be told from it."""
    content = json.loads(file.read_text())
    content["table"][-1]["value"] = [123.0]
    file.write_text(json.dumps({**content, **changes}))
    return {**content, **changes}


def marked(file):
    return json.loads(file.read_text())["table"][-1]["value"] == [123.0]


def test_a_figure_is_measured_drawn_and_judged(call, tmp_path):
    code, out, _ = call("reproduce", "chen24.fig1", "--scale", "cpu", "--out", tmp_path, "--device", "cpu", "--again")
    assert code == 0
    assert re.search(r"4 claims: ", out)
    written = json.loads((tmp_path / "chen24.fig1.cpu.json").read_text())
    assert len(written["claims"]) == 4
    assert written["provenance"]["seconds"] > 0
    assert (tmp_path / "figures" / "chen24.fig1.cpu.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "figures" / "chen24.fig1.cpu.svg").read_text()
    ElementTree.fromstring(drawing)
    assert "#0b5fa5" in drawing  # the house's colours


def test_json_has_the_claims_and_a_kept_result_is_not_measured_again(call, tmp_path):
    where = (*SMOKE, "--out", tmp_path, "--json")
    code, out, error = call(*where)
    assert (code, error) == (0, "")
    claims = json.loads(out)
    assert [set(claim) for claim in claims] == [{*KEYS, "source"}] * len(claims)
    assert {(claim["source"], claim["verdict"]) for claim in claims} == {("measured", "not judged")}
    rewrite(tmp_path / FILE)
    assert {claim["source"] for claim in json.loads(call(*where)[1])} == {"kept"}
    assert marked(tmp_path / FILE)
    assert call(*where, "--again")[0] == 0
    assert not marked(tmp_path / FILE)
    assert call(*SMOKE, "--out", tmp_path, "--quiet") == (0, "", "")


def test_a_result_kept_with_looped_is_taken_and_said_so(call, tmp_path, monkeypatch):
    own, out = tmp_path / "own", tmp_path / "out"
    monkeypatch.setattr("looped.training.kept.own_results", lambda *_: own)
    assert call(*SMOKE, "--out", own, "--quiet")[0] == 0
    origin = {"device": "the one it was measured on", "seconds": 1.5}
    ours = rewrite(own / FILE, provenance=origin)
    code, _, error = call(*SMOKE, "--out", out)
    assert code == 0
    assert "chen24.fig1 at scale smoke: taken from the results that come with looped." in error
    taken = json.loads((out / FILE).read_text())
    assert (taken["table"], taken["provenance"]) == (ours["table"], origin)
    assert (out / "figures" / "chen24.fig1.smoke.png").exists()
    assert "taken from" not in call(*SMOKE, "--out", out)[2]  # it lies there now
    code, _, error = call(*SMOKE, "--out", out, "--again")
    assert (code, "taken from" in error, marked(out / FILE)) == (0, False, False)


def test_a_result_of_other_settings_is_not_taken_and_a_damaged_one_refused(call, tmp_path, monkeypatch, refused):
    own = tmp_path / "own"
    monkeypatch.setattr("looped.training.kept.own_results", lambda *_: own)
    assert call(*SMOKE, "--out", own, "--quiet")[0] == 0
    ours = json.loads((own / FILE).read_text())
    (own / FILE).write_text(json.dumps({**ours, "settings_hash": "another"}))
    assert "taken from" not in call(*SMOKE, "--out", tmp_path / "out")[2]
    (own / FILE).write_text(json.dumps({**ours, "table": {}}))
    assert "is damaged" in refused(*SMOKE, "--out", tmp_path / "third")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("chen24.fig2",), "no figure is called `chen24.fig2`"),
        (("chen25",), "no figure is called `chen25`"),
        (("chen24", "--scale", "large"), "has no scale `large`"),
        (("chen24", "--device", "tpu"), "`--device` must be"),
    ],
)
def test_bad_input_is_one_line(refused, tmp_path, arguments, expected):
    assert expected in refused("reproduce", *arguments, "--out", tmp_path)
    assert not (tmp_path / "figures").exists()


@pytest.mark.usefixtures("unchecked")  # thousands of readings and no tensor
def test_the_results_of_this_repository_are_of_todays_settings_and_judged_and_traced_as_they_say():
    """Also seconds, seeds and commit; a result that took no time says where its models were trained."""
    results = kept_results(RESULTS)
    assert len(results) > 40
    for result in results:
        assert not result.outdated, result.path
        written = {claim["id"]: claim["verdict"] for claim in json.loads(result.path.read_text())["claims"]}
        assert written == {claim.id: claim.verdict for claim in result.claims}, result.path
        origin = result.provenance
        assert origin["commit"], result.path
        assert origin["seeds"] == result.table.seeds(), result.path
        if "trainings" in origin:
            assert origin["training_seconds"] > 0, result.path
            assert origin["training_commits"], result.path
        elif result.study.learned is not None and origin["seconds"] < 1:
            assert origin["trained_by"]["seconds"] > 1, result.path
            assert {"result", "command", "commit", "device"} <= origin["trained_by"].keys(), result.path
    assert {path.stem for path in (RESULTS / "figures").iterdir()} == {path.stem for path in RESULTS.glob("*.json")}


def test_trainings_count_once_and_for_their_part_of_a_batch():
    whole = {"run": "a", "commit": "abc", "train_seconds": 8.0}
    parts = [{"run": run, "commit": "def", "train_seconds": 6.0, "models_in_one_batch": 3} for run in "bc"]
    resumed = {"run": "d", "commit": "def", "earlier_commits": ["123"], "train_seconds": None}
    beside = {"run": "e", "commit": "abc", "train_seconds": 10.0, "side_by_side": 4}
    facts = training_facts([whole, *parts, resumed, beside])
    assert facts["training_seconds"] == 8 + 6 * 2 / 3 + 10 / 4
    assert facts["training_commits"] == ["abc", "def", "123"]
    assert training_facts([]) == {}


def test_a_result_says_where_its_models_were_trained(call, tmp_path):
    out, page = tmp_path / "results", tmp_path / "page.html"
    ask = ("reproduce", "yang24.fig2", "--scale", "smoke", "--device", "cpu", "--runs", tmp_path / "runs", "--out", out)
    assert call(*ask, "--quiet")[0] == 0
    origin = json.loads((out / "yang24.fig2.smoke.json").read_text())["provenance"]
    used = origin["trainings"]
    folders = {path.parent.name for path in (tmp_path / "runs").glob("*/config.json")}
    assert {training["run"] for training in used} == folders
    # who measures again, with the trainings there, names them and their seconds all the same
    assert call(*ask, "--quiet", "--again")[0] == 0
    again = json.loads((out / "yang24.fig2.smoke.json").read_text())["provenance"]
    assert {**again, "command": "", "seconds": 0} == {**origin, "command": "", "seconds": 0}
    assert again["training_seconds"] == pytest.approx(sum(training["train_seconds"] for training in used), abs=0.01)
    assert all(training["device"] and training["train_seconds"] > 0 for training in used)
    assert call("report", "--results", out, "--out", page)[0] == 0
    assert f"{len(used)} models trained on {used[0]['device']}, commit {used[0]['commit']}" in page.read_text()


def test_a_result_of_other_settings_is_reported_as_such(call, tmp_path):
    out, page = tmp_path / "results", tmp_path / "page.html"
    assert call(*SMOKE, "--out", out, "--quiet")[0] == 0
    for changes, outdated in (({}, False), ({"settings_hash": "another"}, True)):
        rewrite(out / FILE, **changes)
        assert call("report", "--results", out, "--out", page)[0] == 0
        assert ("measured with settings that this study no longer has" in page.read_text()) is outdated


def test_without_a_gpu_a_papers_unmeasured_figures_are_named_and_not_trained(call, refused, tmp_path, monkeypatch):
    where = ("--scale", "paper", "--device", "cpu", "--out", tmp_path, "--runs", tmp_path / "runs")
    module, known = sys.modules["looped.cli.reproduce"], studies()
    monkeypatch.setattr(module, "select", lambda names: [known["yang24.fig2"], known["yang24.fig14"]])
    monkeypatch.setattr("looped.queue.missing.Figures.result", lambda asked, study: study.name == "yang24.fig2")
    code, out, told = call("reproduce", "yang24", *where)
    assert code == 0
    assert "yang24.fig2.matches_12_layers" in out
    assert "Not measured at scale paper, and not trained without a GPU: yang24.fig14." in told
    monkeypatch.setattr(module, "select", lambda names: [known["yang24.fig14"]])
    assert "name one to train it here" in refused("reproduce", "yang24", *where)
    assert not (tmp_path / "runs").exists()
