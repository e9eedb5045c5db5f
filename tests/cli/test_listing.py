"""`looped list figures` and `looped list claims`: what each claims, and what has been run."""

import json
import re

import pytest

from looped.files import write_json
from looped.reproduce import studies

NUMBERS = {"value": 1.0, "low": 0.5, "high": 1.5, "seeds": 3, "bound": 2.0, "asked": "below 2"}
NOTE = "a model predicts worse than zero: that one; more"


def result(name, *verdicts):
    """The content of a result file with the verdicts on the study's first claims."""
    claims = zip(studies()[name].claims, verdicts, strict=False)
    numbers = {**NUMBERS, "note": NOTE}
    return {"claims": [{"id": f"{name}.{claim.name}", "verdict": verdict, **numbers} for claim, verdict in claims]}


@pytest.fixture
def listed(call, tmp_path, monkeypatch):
    """What a list has, in a folder without results."""
    monkeypatch.chdir(tmp_path)

    def run(kind, *arguments):
        code, out, _ = call("list", kind, *arguments, "--json")
        assert code == 0
        return json.loads(out)[kind]

    return run


def test_a_figure_says_what_it_claims_and_at_which_scales_it_was_run(listed, tmp_path):
    before = listed("figures", "--results", tmp_path)
    study = studies()["yang24.fig3"]
    count = len(study.claims)
    assert before["yang24.fig3"].endswith(f"({count} claim{'s' * (count != 1)}; results: none)")
    for scale, verdict in {"smoke": "not judged", "cpu": "holds"}.items():
        content = {**result("yang24.fig3", *[verdict] * count), "settings_hash": study.settings_hash(scale)}
        write_json(tmp_path / f"yang24.fig3.{scale}.json", content)
    write_json(tmp_path / "yang24.fig5.cpu.json", {**result("yang24.fig5", "fails"), "settings_hash": "another"})
    after = listed("figures", "--results", tmp_path)
    assert after["yang24.fig3"].endswith(f"results: smoke, cpu {count}/{count})")
    assert after["yang24.fig5"].endswith("results: cpu 0/1 with other settings)")
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"yang24.fig3", "yang24.fig5"}


def test_results_here_come_before_those_of_looped_and_hide_no_others(listed, tmp_path, monkeypatch):
    own = tmp_path / "own"
    monkeypatch.setattr("looped.cli.listing.own_results", lambda: own)
    for folder, verdict in ((own, "holds"), (tmp_path / "results", "fails")):
        folder.mkdir()
        write_json(folder / "yang24.fig2.paper.json", result("yang24.fig2", verdict))
    write_json(own / "yang24.fig3.paper.json", result("yang24.fig3", "not judged"))
    claims = listed("claims")
    first, second = (f"{name}.{studies()[name].claims[0].name}" for name in ("yang24.fig2", "yang24.fig3"))
    assert claims[first]["verdict"] == "fails"
    assert claims[second]["verdict"] == "not judged"
    assert {claim["verdict"] for name, claim in claims.items() if name not in (first, second)} == {"not run"}


def test_a_claim_is_a_line_with_verdict_value_interval_bound_and_scale(call, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "250")
    for name, verdict in (("yang24.fig2", "fails"), ("yang24.fig3", "not judged")):
        write_json(tmp_path / f"{name}.paper.json", result(name, verdict))
    code, out, error = call("list", "claims", "--results", tmp_path)
    assert (code, error) == (0, "")
    _, *lines, counts = out.splitlines()
    total = sum(len(study.claims) for study in studies().values())
    assert len(lines) == total
    assert counts == f"{total} claims: 1 fails, 1 not judged, {total - 2} not run"
    cells = {line.split()[0]: re.split(r"\s{2,}", line.strip())[1:] for line in lines}
    first, second = studies()["yang24.fig2"].claims[0], studies()["yang24.fig3"].claims[0]
    asked = first.check.conditions[0].asked
    assert cells[f"yang24.fig2.{first.name}"] == ["fails", "1 [0.5, 1.5]", asked, "paper"]
    assert cells[f"yang24.fig3.{second.name}"][-1] == "a model predicts worse than zero"
    monkeypatch.setenv("COLUMNS", "80")
    narrow = call("list", "claims", "--results", tmp_path)[1]
    assert (narrow.count("fails"), max(map(len, narrow.splitlines())) <= 80) == (2, True)  # one is in the counts
    data = json.loads(call("list", "claims", "--results", tmp_path, "--json")[1])
    assert data["verdicts"] == {"holds": 0, "fails": 1, "undecided": 0, "not judged": 1, "not run": total - 2}
    facts = data["claims"][f"yang24.fig2.{first.name}"]
    assert {
        **NUMBERS,
        "note": NOTE,
        "verdict": "fails",
        "study": "yang24.fig2",
        "scale": "paper",
    }.items() <= facts.items()
    assert facts["statement"] == first.statement
    assert len(call("list", "claims", "--results", tmp_path, "--quiet")[1].split()) == total + 1


@pytest.mark.parametrize("text", ["{", "[1]", '{"claims": [{"verdict": "holds"}]}', '{"claims": 3}'])
def test_a_damaged_result_is_one_line(refused, tmp_path, text):
    (tmp_path / "yang24.fig3.cpu.json").write_text(text)
    assert "yang24.fig3.cpu.json" in refused("list", "figures", "--results", tmp_path)
