"""`looped reproduce`: figures measured once, drawn, judged; bad names are one line and exit 2."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from looped.cli.reproduce import KEYS
from looped.reproduce import kept

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_a_figure_is_measured_drawn_and_judged(call, tmp_path):
    where = ("--out", tmp_path, "--device", "cpu")
    code, out, error = call("reproduce", "chen24.fig1", "--scale", "cpu", *where, "--again")
    assert code == 0  # one of its claims fails, which is a result
    assert out == ""
    assert re.search(r"4 claims, \d hold", error)
    written = json.loads((tmp_path / "chen24.fig1.cpu.json").read_text())
    assert {claim["verdict"] for claim in written["claims"]} == {"holds", "fails"}
    assert written["provenance"]["seconds"] > 0
    assert (tmp_path / "figures" / "chen24.fig1.cpu.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "figures" / "chen24.fig1.cpu.svg").read_text()
    ElementTree.fromstring(drawing)
    assert "loops T" in drawing
    assert "#0b5fa5" in drawing  # the house's colours


def test_json_has_the_claims_and_a_kept_result_is_not_measured_again(call, tmp_path):
    where = ("--scale", "smoke", "--out", tmp_path, "--device", "cpu", "--json")
    code, out, error = call("reproduce", "chen24", "gatmiry24.fig1a", *where, "--runs", tmp_path / "runs")
    assert code == 0
    assert error == ""
    claims = json.loads(out)
    assert [set(claim) for claim in claims] == [{*KEYS, "source"}] * len(claims)
    assert {claim["source"] for claim in claims} == {"measured"}
    assert {claim["verdict"] for claim in claims} == {"not judged"}
    assert {claim["id"].split(".")[0] for claim in claims} == {"chen24", "gatmiry24"}
    file = tmp_path / "chen24.fig1.smoke.json"
    first = json.loads(file.read_text())
    first["data"]["kappa"][0][0] = 123.0
    file.write_text(json.dumps(first))
    code, out, _ = call("reproduce", "chen24", *where)
    assert {claim["source"] for claim in json.loads(out)} == {"kept"}
    assert json.loads(file.read_text())["data"]["kappa"][0][0] == 123.0
    call("reproduce", "chen24", *where, "--again")
    assert json.loads(file.read_text())["data"]["kappa"][0][0] != 123.0


def test_a_result_kept_with_looped_is_taken_and_said_so(call, tmp_path, monkeypatch):
    own, out = tmp_path / "own", tmp_path / "out"
    monkeypatch.setattr("looped.training.kept.own_results", lambda *_: own)
    ask = ("reproduce", "chen24.fig1", "--scale", "smoke", "--device", "cpu")
    assert call(*ask, "--out", own, "--quiet")[0] == 0
    ours = json.loads((own / "chen24.fig1.smoke.json").read_text())
    ours["data"]["kappa"][0][0] = 123.0
    ours["provenance"]["device"] = "the one it was measured on"
    (own / "chen24.fig1.smoke.json").write_text(json.dumps(ours))
    code, _, error = call(*ask, "--out", out)
    assert code == 0
    assert "chen24.fig1 at scale smoke: taken from the results kept with looped." in error
    taken = json.loads((out / "chen24.fig1.smoke.json").read_text())
    assert taken["data"] == ours["data"]
    assert taken["provenance"] == ours["provenance"]
    assert (out / "figures" / "chen24.fig1.smoke.png").exists()
    assert "taken from" not in call(*ask, "--out", out)[2]  # it lies there now
    code, _, error = call(*ask, "--out", out, "--again")
    assert code == 0
    assert "taken from" not in error
    assert json.loads((out / "chen24.fig1.smoke.json").read_text())["data"]["kappa"][0][0] != 123.0


def test_a_result_of_other_settings_is_not_taken(call, tmp_path, monkeypatch):
    own = tmp_path / "own"
    monkeypatch.setattr("looped.training.kept.own_results", lambda *_: own)
    ask = ("reproduce", "chen24.fig1", "--scale", "smoke", "--device", "cpu", "--out")
    assert call(*ask, own, "--quiet")[0] == 0
    ours = json.loads((own / "chen24.fig1.smoke.json").read_text())
    (own / "chen24.fig1.smoke.json").write_text(json.dumps({**ours, "settings_hash": "another"}))
    assert "taken from" not in call(*ask, tmp_path / "out")[2]
    (own / "chen24.fig1.smoke.json").write_text(json.dumps({**ours, "data": {}}))
    code, out, error = call(*ask, tmp_path / "third")
    assert (code, out) == (2, "")
    assert "is damaged" in error
    assert error.count("\n") == 1


def test_quiet_says_nothing(call, tmp_path):
    assert call("reproduce", "chen24", "--scale", "smoke", "--out", tmp_path, "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("chen24.fig2",), "no figure is called `chen24.fig2`"),
        (("chen25",), "no figure is called `chen25`"),
        (("chen24", "--scale", "large"), "has no scale `large`"),
        (("chen24", "--device", "tpu"), "`--device` must be"),
    ],
)
def test_bad_input_is_one_line(call, tmp_path, arguments, expected):
    code, out, error = call("reproduce", *arguments, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert error.startswith("looped: ")
    assert error.count("\n") == 1
    assert expected in error
    assert not (tmp_path / "figures").exists()


def test_the_results_of_this_repository_are_of_todays_settings_and_judged_as_they_say():
    found = kept(RESULTS)
    assert len(found) > 40
    for result in found:
        assert not result.outdated, result.path
        written = {claim["id"]: claim["verdict"] for claim in json.loads(result.path.read_text())["claims"]}
        assert written == {claim.id: claim.verdict for claim in result.claims}, result.path


def test_every_drawing_of_this_repository_has_its_numbers_and_the_other_way_round():
    drawn = {path.stem for path in (RESULTS / "figures").iterdir()}
    assert drawn == {path.stem for path in RESULTS.glob("*.json")}


def test_a_result_says_where_its_models_were_trained(call, tmp_path):
    out, page = tmp_path / "results", tmp_path / "page.html"
    ask = ("reproduce", "yang24.fig2", "--scale", "smoke", "--device", "cpu", "--runs", tmp_path / "runs", "--out", out)
    assert call(*ask, "--quiet")[0] == 0
    used = json.loads((out / "yang24.fig2.smoke.json").read_text())["provenance"]["trainings"]
    assert {one["run"] for one in used} == {path.name for path in (tmp_path / "runs").iterdir()}
    assert all(one["device"] and one["train_seconds"] > 0 for one in used)
    assert call("report", "--results", out, "--out", page)[0] == 0
    assert f"2 models trained on {used[0]['device']}, commit {used[0]['commit']}" in page.read_text()


def test_a_result_of_other_settings_is_reported_as_such(call, tmp_path):
    out, page = tmp_path / "results", tmp_path / "page.html"
    assert call("reproduce", "chen24", "--scale", "smoke", "--out", out, "--quiet")[0] == 0
    ask = ("report", "--results", out, "--out", page)
    assert call(*ask)[0] == 0
    assert "no longer has" not in page.read_text()
    file = out / "chen24.fig1.smoke.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "settings_hash": "another"}))
    assert call(*ask)[0] == 0
    assert "measured with settings that this figure no longer has" in page.read_text()
