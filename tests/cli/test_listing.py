"""`looped list figures` and `looped list claims`: what each claims, and what has been run."""

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from looped.files import write_json
from looped.reproduce import studies

NUMBERS = {"value": 1.0, "low": 0.5, "high": 1.5, "seeds": 3, "bound": 2.0, "asked": "below 2"}
NOTE = "a model predicts worse than zero: that one; more"


ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("unchecked")  # lists make hundreds of configs and no tensor: ten times as fast


def result(name, *verdicts, scale=None, trainings=None):
    """The content of a result file with the verdicts on the study's first claims, of today's settings at a scale."""
    claims = zip(studies()[name].claims, verdicts, strict=False)
    numbers = {**NUMBERS, "note": NOTE}
    return {
        "settings_hash": studies()[name].settings_hash(scale) if scale else "another",
        "claims": [{"id": f"{name}.{claim.name}", "verdict": verdict, **numbers} for claim, verdict in claims],
        "provenance": {"seeds": [3, 4, 5]} | ({} if trainings is None else {"trainings": trainings}),
    }


@pytest.fixture
def listed(call, tmp_path, monkeypatch):
    """What a list has, in a folder without results."""
    monkeypatch.chdir(tmp_path)

    def run(kind, *arguments):
        code, out, _ = call("list", kind, *arguments, "--json")
        assert code == 0
        return json.loads(out)[kind]

    return run


def test_a_figure_says_its_best_result_and_what_became_of_its_claims(listed, tmp_path):
    before = listed("figures", "--results", tmp_path)
    num_claims = {name: len(study.claims) for name, study in studies().items()}
    for name, fact in before.items():
        assert (fact["scale"], fact["seeds"], fact["other_settings"]) == (None, 0, [])
        assert {verdict: count for verdict, count in fact["verdicts"].items() if count} == (
            {"not run": num_claims[name]} if num_claims[name] else {}
        )
    for scale, verdict in {"smoke": "not judged", "cpu": "fails"}.items():
        write_json(tmp_path / f"yang24.fig3.{scale}.json", result("yang24.fig3", verdict, scale=scale))
    write_json(tmp_path / "yang24.fig5.paper.json", result("yang24.fig5", "fails"))
    write_json(tmp_path / "yang24.fig2.paper.json", result("yang24.fig2", "holds", "undecided", scale="paper"))
    after = listed("figures", "--results", tmp_path)
    changed = {name for name in after if {**after[name], "needs": 0} != {**before[name], "needs": 0}}
    assert changed == {"yang24.fig3", "yang24.fig5", "yang24.fig2"}
    assert after["yang24.fig3"]["scale"] == "cpu"
    assert Counter(after["yang24.fig3"]["verdicts"]) == Counter(fails=1) + Counter({"not run": 1})
    assert (after["yang24.fig5"]["scale"], after["yang24.fig5"]["other_settings"]) == (None, ["paper"])
    assert after["yang24.fig5"]["verdicts"]["fails"] == 0
    linear = after["yang24.fig2"]
    assert (linear["scale"], linear["needs"], linear["seeds"]) == ("paper", None, 3)
    assert (linear["verdicts"]["holds"], linear["verdicts"]["undecided"]) == (1, 1)


def test_the_papers_have_34_figures_and_tables_and_what_is_not_in_print_comes_last(listed, tmp_path, monkeypatch):
    monkeypatch.setattr("looped.figure_facts._needs", lambda asked, lacking: {})
    facts = listed("figures", "--results", tmp_path)
    in_print = [fact["in_print"] for fact in facts.values()]
    counts = Counter(name.partition(".")[0] for name, fact in facts.items() if fact["in_print"])
    assert counts == {"chen24": 1, "cheng24": 6, "gatmiry24": 3, "yang24": 19, "gao24": 5}
    assert in_print == sorted(in_print, reverse=True)
    assert facts.keys() == studies().keys()
    yang = [name.partition(".")[2] for name in facts if name.startswith("yang24.")]
    assert yang[:10] == ["fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10a", "fig10b"]
    assert yang[-4:] == ["table2", "large_window", "published", "published_end"]


def test_minutes_of_training_are_those_of_the_device_and_a_shared_one_counts_in_part(listed, tmp_path, monkeypatch):
    monkeypatch.setattr("looped.figure_facts._needs", lambda asked, lacking: {})
    trainings = [
        {"run": "a", "device": "a GPU", "train_seconds": 120.0},
        {"run": "b", "device": "a GPU", "train_seconds": 240.0, "side_by_side": 4},
        {"run": "c", "device": "a GPU", "train_seconds": 360.0, "models_in_one_batch": 3, "side_by_side": 2},
        {"run": "d", "device": "one of 2 cores", "train_seconds": 30.0},
    ]
    for name, known in {"yang24.fig3": trainings, "yang24.fig5": None, "chen24.fig1": None}.items():
        write_json(tmp_path / f"{name}.paper.json", result(name, scale="paper", trainings=known))
    facts = listed("figures", "--results", tmp_path)
    assert facts["yang24.fig3"]["minutes"] == pytest.approx({"a GPU": 2 + 1 + 1, "one of 2 cores": 0.5})
    assert facts["yang24.fig5"]["minutes"] is None  # the result does not say
    assert facts["chen24.fig1"]["minutes"] == {}  # nothing is trained


def test_what_a_figure_needs_is_what_the_queue_has_for_it(listed, call, tmp_path, monkeypatch):
    monkeypatch.setattr("looped.queue.missing.own_results", lambda: None)  # as if no figure was measured
    facts = listed("figures", "--results", tmp_path)
    entries = json.loads(call("queue", "--out", tmp_path, "--json")[1])["entries"]
    for name in ("yang24.fig12", "yang24.fig5", "gao24.fig2"):
        rows = [row for row in entries if name in row["figures"] and row["steps"]]
        [measurement] = [row for row in entries if row["name"] == f"looped reproduce {name}"]
        needs = facts[name]["needs"]
        assert needs["what"] == measurement["message"]
        assert needs["minutes"] == pytest.approx(sum(row["seconds"] or 0 for row in rows) / 60)
        assert needs["unknown"] == sum(row["seconds"] is None for row in rows)
    assert facts["yang24.fig12"]["needs"]["what"] == "30 to train"


def test_numbers_in_print_stand_beside_those_of_the_kept_results(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = json.loads(call("list", "figures", "--json")[1])
    measured = 0
    for name, fact in data["figures"].items():
        if fact["scale"] is not None and fact["published"]:
            content = json.loads((ROOT / "results" / f"{name}.{fact['scale']}.json").read_text())
            notes = "; ".join(claim["note"] for claim in content["claims"])
            for entry in (entry for entry in fact["published"] if entry["ours"]):  # a scale may lack a model
                assert f"{entry['what']}: published {entry['number']}, here {entry['ours']}" in notes
                measured += 1
    assert measured >= 20
    at_scale = sum(fact["scale"] == "paper" and fact["in_print"] for fact in data["figures"].values())
    assert data["at_paper_scale"] == {"count": at_scale, "of": 34}
    monkeypatch.setenv("COLUMNS", "80")
    narrow = call("list", "figures")[1]
    assert narrow.splitlines()[-1] == f"{at_scale} of 34 at the paper's scale"
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.count("…") == 0
    assert len(call("list", "figures", "--quiet")[1].split()) == len(studies()) + 1


def test_the_page_of_all_figures_is_that_of_the_kept_results(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("figures_page", ROOT / "tools" / "figures_page.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    facts = tool.facts_of(ROOT / "results")
    current = tool.page(facts)
    assert tool.PAGE.read_text() == current, "run `python tools/figures_page.py`"
    readme = tool.README.read_text()
    assert readme == tool.readme(readme, facts), "run `python tools/figures_page.py`"
    predictors = tool.PREDICTORS.read_text()
    assert predictors == tool.predictors(predictors, ROOT / "results"), "run `python tools/figures_page.py`"
    assert predictors.count("| looped transformer | ") == 4
    pages = {page: page.read_text() for page in (ROOT / "docs").rglob("*.md")}
    for page, text in pages.items():
        assert text == tool.tables(text, facts, ROOT / "results"), f"run `python tools/figures_page.py` ({page.name})"
    assert sum(text.count("<!-- table: ") for text in pages.values()) == 7
    assert "| [yang24](docs/papers/yang24.md) | " in readme
    assert all(f"| {name} |" in current or f"| [{name}](" in current for name in studies())


def test_results_here_come_before_those_of_looped_and_hide_no_others(listed, tmp_path, monkeypatch):
    own = tmp_path / "own"
    monkeypatch.setattr("looped.cli.listing.results_with_claims", lambda: own)
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
    _, header, *lines, counts = out.splitlines()
    assert header.split()[:4] == ["claim", "verdict", "value", "asked"]
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


def test_a_kept_model_is_a_line_with_task_size_error_and_training(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    _, header, *lines = call("list", "models")[1].splitlines()
    assert header.split() == ["model", "task", "parameters", "weights", "loops", "error", "training"]
    cells = {line.split()[0]: re.split(r"\s{2,}", line.strip())[1:] for line in lines}
    models = json.loads(call("list", "models", "--json")[1])["models"]
    assert cells.keys() == models.keys()
    facts = models["yang24.linear"]
    [mean] = (error["mean"] for error in facts["errors"] if (error["loops"], error["x"]) == (20, 40))
    assert cells["yang24.linear"][:4] == ["LinearRegression", f"{facts['parameters']:,}", "1.7 MB", "20"]
    assert cells["yang24.linear"][4].startswith(f"{mean:.3g} [")
    assert cells["yang24.linear"][5] == f"{facts['seconds'] / 60:.1f} min, {facts['device']}"


@pytest.mark.parametrize("text", ["{", "[1]", '{"claims": [{"verdict": "holds"}]}', '{"claims": 3}'])
@pytest.mark.parametrize("kind", ["figures", "claims"])
def test_a_damaged_result_is_one_line(refused, tmp_path, kind, text):
    key = studies()["yang24.fig3"].settings_hash("paper")
    (tmp_path / "yang24.fig3.paper.json").write_text(text.replace('"claims"', f'"settings_hash": "{key}", "claims"'))
    assert "yang24.fig3.paper.json" in refused("list", kind, "--results", tmp_path)


@pytest.mark.parametrize("trainings", [3, [3], [{}], [{"run": 3, "device": "a GPU"}], [{"run": "a", "device": 3}]])
def test_a_damaged_record_of_trainings_is_one_line(refused, tmp_path, trainings):
    content = result("yang24.fig3", scale="paper", trainings=trainings)
    write_json(tmp_path / "yang24.fig3.paper.json", content)
    assert "yang24.fig3.paper.json" in refused("list", "figures", "--results", tmp_path)


def test_without_a_kind_it_says_what_there_is_to_list(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("list")
    everything = json.loads(call("list", "--json")[1])
    lines = dict(reversed(line.split(maxsplit=1)) for line in re.findall(r"(\d+\s+\w+)  +looped list", out))
    assert code == 0
    assert {kind: int(count) for kind, count in lines.items()} == {
        kind: len(entries) for kind, entries in everything.items() if kind not in ("at_paper_scale", "verdicts")
    }
