"""`looped list figures`: what each claims, and what has been run."""

import json

import pytest

from looped.cli import main
from looped.files import write_json
from looped.reproduce import figures, settings_hash


@pytest.fixture
def listed(capsys, tmp_path):
    """The lines of the figures, with `tmp_path` as the folder of results."""

    def run():
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["list", "figures", "--results", str(tmp_path), "--json"])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)["figures"]

    return run


def test_a_figure_says_what_it_claims_and_at_which_scales_it_was_run(listed, tmp_path):
    before = listed()
    assert before["yang24.fig3"].endswith("(2 claims; results: none)")
    assert before["yang24.fig5"].endswith("(1 claim; results: none)")
    verdicts = {"smoke": ["not judged"] * 2, "cpu": ["holds", "fails"]}
    for scale, found in verdicts.items():
        names = ("yang24.fig3.injection_flat", "yang24.fig3.tying_diverges")
        claims = [{"id": name, "verdict": one} for name, one in zip(names, found, strict=True)]
        key = settings_hash(figures()["yang24.fig3"], scale)
        write_json(tmp_path / f"yang24.fig3.{scale}.json", {"claims": claims, "settings_hash": key})
    after = listed()
    assert after["yang24.fig3"].endswith("(2 claims; results: smoke, cpu 1/2)")
    assert {name: line for name, line in after.items() if name != "yang24.fig3"} == {
        name: line for name, line in before.items() if name != "yang24.fig3"
    }


def test_a_result_of_other_settings_is_listed_as_such(listed, tmp_path):
    claims = [{"id": "yang24.fig3.tying_diverges", "verdict": "holds"}]
    write_json(tmp_path / "yang24.fig3.cpu.json", {"claims": claims, "settings_hash": "another"})
    assert listed()["yang24.fig3"].endswith("results: cpu 1/1 with other settings)")


def test_where_there_are_no_results_those_of_looped_are_listed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["list", "claims", "--json"])
    assert "paper: holds" in json.loads(capsys.readouterr().out)["claims"]["yang24.fig2.fixed_point"]


def test_results_here_come_before_those_of_looped_and_hide_no_others(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    claims = [{"id": "yang24.fig2.fixed_point", "verdict": "fails"}]
    write_json(tmp_path / "results" / "yang24.fig2.paper.json", {"claims": claims})
    with pytest.raises(SystemExit):
        main(["list", "claims", "--json"])
    lines = json.loads(capsys.readouterr().out)["claims"]
    assert lines["yang24.fig2.fixed_point"].endswith("paper: fails]")
    assert "cpu: " in lines["yang24.fig2.fixed_point"]
    assert "paper: " in lines["yang24.fig10a.outperforms"]


def test_a_claim_says_at_which_scales_it_holds(capsys, tmp_path):
    claims = [{"id": "yang24.fig3.tying_diverges", "verdict": "fails"}]
    write_json(tmp_path / "yang24.fig3.cpu.json", {"claims": claims})
    with pytest.raises(SystemExit) as ended:
        main(["list", "claims", "--results", str(tmp_path), "--json"])
    assert ended.value.code == 0
    lines = json.loads(capsys.readouterr().out)["claims"]
    assert lines["yang24.fig3.tying_diverges"].endswith("[cpu: fails]")
    assert lines["yang24.fig3.injection_flat"].endswith("[no result kept]")


@pytest.mark.parametrize("text", ["{", "[1]", '{"claims": [{"verdict": "holds"}]}', '{"claims": 3}'])
def test_a_damaged_result_is_one_line(capsys, tmp_path, text):
    (tmp_path / "yang24.fig3.cpu.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["list", "figures", "--results", str(tmp_path)])
    assert ended.value.code == 2
    assert "yang24.fig3.cpu.json" in capsys.readouterr().err
