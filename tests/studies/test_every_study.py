"""The contract of every study of every paper: it measures, draws and judges, and each claim can have every verdict."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from looped.reproduce import reproduce, studies
from studies.claim_plants import HOLDING, PLANTS
from studies.planted import by_two_seeds, guarded, holding, readable, verdict, with_errors, with_one_diverged
from tasks import tiny_tables, tiny_text

STUDIES = studies()


# the tests of a study are a group, so that it is measured by one worker alone
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in STUDIES])
def measured(request, tmp_path_factory):
    """A study with its result at smoke scale, on small text and small tables where it reads some."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(folder / "cache"))
        patch.setenv("LOOPED_DATA", str(folder / "data"))
        tiny_text.write(folder / "data" / "translation" / "multi30k")
        tiny_tables.write(folder / "data" / "openml")
        study, shares = STUDIES[request.param], []
        where = {"out": folder / "out", "runs": folder / "runs"}
        result = reproduce(study, "smoke", **where, progress=lambda what, share: shares.append(share))
        assert all(0 <= share <= 1 for share in shares)
        yield study, result, where


def test_it_measures_draws_and_judges_and_finished_trainings_are_used_again(measured):
    study, result, where = measured
    assert {claim.verdict for claim in result.claims} <= {"not judged"}
    assert [claim.id for claim in result.claims] == [f"{study.name}.{claim.name}" for claim in study.claims]
    canvas = Figure(layout="constrained")
    study.draw(canvas, result.table)
    assert canvas.axes
    trained = {path: path.stat().st_mtime_ns for path in where["runs"].rglob("*.safetensors")}
    again = reproduce(study, "smoke", **where, again=True)
    assert again.table.to_data() == result.table.to_data()
    assert {path: path.stat().st_mtime_ns for path in where["runs"].rglob("*.safetensors")} == trained
    origins = [{**run.provenance, "seconds": None} for run in (result, again)]
    assert origins[0] == origins[1]  # trainings count, whoever has done them


def test_every_claim_has_a_planted_failure():
    claims = [f"{study.name}.{claim.name}" for study in STUDIES.values() for claim in study.claims]
    assert sorted(PLANTS) == sorted(claims), "claim_plants.py has one line for every claim"


def test_each_claim_holds_fails_as_planted_and_is_undecided_where_seeds_disagree(measured):
    study, result, _ = measured
    for claim in study.claims:
        name = f"{study.name}.{claim.name}"
        good = holding(claim, readable(claim, study, result.table), HOLDING.get(name, {}))
        planted = PLANTS[name](good)
        assert verdict(claim, planted) == "fails", f"{name} with a table in which {PLANTS[name]}"
        assert verdict(claim, by_two_seeds(good, planted)) == "undecided", name


def test_no_claim_is_judged_by_models_that_have_not_learned(measured):
    study, result, _ = measured
    assert (study.learned is not None) == ("trainings" in result.provenance)
    if study.learned is None:
        return
    guard = study.learned
    for claim in study.claims:
        table = readable(claim, study, result.table)
        # the best known predictor may be worse than zero at smoke scale
        learned = with_errors(study, table, lambda *cell: min(guard.needed(*cell), guard.zero_error(*cell)))
        assert guarded(claim, learned, study) != "not judged", claim.name
        untrained = with_errors(study, table, lambda *cell: max(guard.zero_error(*cell), 1.01 * guard.needed(*cell)))
        for other in (untrained, with_one_diverged(claim, study, learned)):
            assert guarded(claim, other, study) == "not judged", claim.name


@pytest.mark.parametrize("name", STUDIES)
def test_its_settings_are_data_at_every_scale(name):
    study = STUDIES[name]
    for scale in study.scales:
        settings = study.settings(scale)
        assert json.loads(json.dumps(settings)) == settings
        assert study.settings_hash(scale) == replace(study, title="another").settings_hash(scale)
    assert len({claim.name for claim in study.claims}) == len(study.claims)
