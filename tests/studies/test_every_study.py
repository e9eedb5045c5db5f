"""The contract of every study of every paper: it measures, draws and judges, and each claim can hold and can fail."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from looped.reproduce import reproduce, studies
from studies.planted import verdicts
from tasks import tiny_tables, tiny_text

STUDIES = studies()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Small text and small tables, for the studies that read some."""
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path / "data"))
    tiny_text.write(tmp_path / "data" / "translation" / "multi30k")
    tiny_tables.write(tmp_path / "data" / "openml")


@pytest.mark.parametrize("name", STUDIES)
def test_it_measures_draws_and_judges_and_finished_trainings_are_used_again(name, tmp_path, data):
    study, shares = STUDIES[name], []
    where = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    result = reproduce(study, "smoke", **where, progress=lambda what, share: shares.append(share))
    assert {claim.verdict for claim in result.claims} <= {"not judged"}
    assert [claim.id for claim in result.claims] == [f"{name}.{claim.name}" for claim in study.claims]
    assert all(0 <= share <= 1 for share in shares)
    canvas = Figure(layout="constrained")
    study.draw(canvas, result.table)
    assert canvas.axes
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    again = reproduce(study, "smoke", **where, again=True)
    assert again.table.to_data() == result.table.to_data()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")} == trained
    for claim, judged in zip(study.claims, result.claims, strict=True):
        if "not measured at smoke scale" not in judged.note:  # the tests of its paper have a table with its numbers
            assert verdicts(claim, result.table) == {"holds", "fails"}, claim.name


@pytest.mark.parametrize("name", STUDIES)
def test_its_settings_are_data_at_every_scale(name):
    study = STUDIES[name]
    for scale in study.scales:
        settings = study.settings(scale)
        assert json.loads(json.dumps(settings)) == settings
        assert study.settings_hash(scale) == replace(study, title="another").settings_hash(scale)
    assert len({claim.name for claim in study.claims}) == len(study.claims)
