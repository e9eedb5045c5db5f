"""The paper's own training as a figure: both checkpoints, judges that hold and fail, and the step where it was lost."""

import copy

import pytest

from looped.cli.reproduce import draw
from looped.experiment import Adam, Experiment
from looped.keeping import keep
from looped.papers.yang24 import linear_published
from looped.papers.yang24.published import BEST, END, lost_at, published
from looped.papers.yang24.trainings import training
from looped.reproduce import reproduce
from looped.training import kept
from looped.training.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return reproduce(published, "smoke", out=folder, runs=folder / "runs"), folder


def curve(errors):
    return {"x": list(range(41)), **{key: [[errors.get(k, 1.0) for k in range(41)]] for key in ("mean", "low", "high")}}


def data_of(best, end, far=1.0, log=(1.0, 0.5, 0.01, 0.02)):
    loops = {"x": [1, 20, 500], **{key: [[1.0, 0.001, 0.001 * far]] for key in ("mean", "low", "high")}}
    weights = {
        label: {"step": step, "trained_loops": 20, "by_examples": curve(errors), "by_loops": loops}
        for label, step, errors in ((BEST, 30, best), (END, 40, end))
    }
    return {"weights": weights, "training": {"steps": [10, 20, 30, 40], "error": list(log)}}


def test_at_smoke_scale_both_checkpoints_are_judged_and_drawn(made, tmp_path):
    result, folder = made
    [path] = (folder / "runs").iterdir()
    run = Run.open(path)
    weights = result.data["weights"]
    assert (weights[BEST]["step"], weights[END]["step"]) == (run.best().step, run.latest().step)
    assert weights[BEST]["by_loops"]["x"][-1] == published.settings["smoke"]["loops"]
    assert result.data["training"]["steps"][-1] == run.metrics()[-1]["step"]
    assert all(file.stat().st_size > 1000 for file in draw(result, tmp_path))
    assert {claim.verdict for claim in result.claims} == {"not judged"}
    # numbers of another scale are not held against the published ones
    ends = {claim.id.rpartition(".")[2]: claim for claim in published.judge(result.data, "cpu")}
    assert "of paper scale" in ends["end"].note
    assert ends["end"].verdict == ends["best"].verdict == "not judged"


def test_a_kept_model_does_not_stand_for_two_checkpoints(made, tmp_path, monkeypatch):
    [path] = (made[1] / "runs").iterdir()
    run = Run.open(path)
    keep(run, out=tmp_path / "models", points=run.experiment.train.points, prompts=8)
    monkeypatch.setattr(kept, "store", lambda: tmp_path / "models")
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has one checkpoint"):
        reproduce(published, "smoke", out=tmp_path / "out", runs=tmp_path / "none")


def test_at_paper_scale_it_is_the_papers_training():
    asked = Experiment.from_brief(published.settings["paper"]["experiment"])
    assert asked == training(linear_published("paper"), dtype="bfloat16")
    assert (asked.train.steps, asked.train.batch, type(asked.train.optimizer)) == (500_000, 64, Adam)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "holds"), (1.4, "holds"), (1.6, "fails"), (0.7, "holds"), (0.6, "fails")]
)
def test_a_published_number_is_met_from_both_sides(factor, verdict):
    good, other = {20: 0.0242, 40: 7.8e-4}, {20: 0.0242, 40: 7.8e-4 * factor}
    judged = {claim.id.rpartition(".")[2]: claim for claim in published.judge(data_of(other, good), "paper")}
    assert (judged["best"].verdict, judged["end"].verdict) == (verdict, "holds")
    assert judged["best"].value == pytest.approx(factor)
    assert "weights of step 30" in judged["best"].note


def test_a_training_that_is_lost_says_when():
    good, bad = {20: 0.0242, 40: 7.8e-4}, {20: 0.9, 40: 0.7}
    data = data_of(good, bad, log=(1.0, 0.01, 0.05, 0.2))
    end, best, _ = published.judge(data, "paper")
    assert (end.verdict, best.verdict) == ("fails", "holds")
    assert end.note.endswith("lost what it had learned at step 40")
    assert "lost" not in best.note
    assert lost_at(data["training"]) == 40
    assert lost_at(data_of(good, good)["training"]) is None


@pytest.mark.parametrize(("far", "verdict"), [(1.0, "holds"), (1.49, "holds"), (1.6, "fails")])
def test_the_fixed_point_is_that_of_the_best_weights(far, verdict):
    good = {20: 0.0242, 40: 7.8e-4}
    data = data_of(good, good, far=far)
    broken = copy.deepcopy(data)
    broken["weights"][END]["by_loops"] = {**broken["weights"][END]["by_loops"], "mean": [[1.0, 1.0, 99.0]]}
    assert [published.judge(one, "paper")[2].verdict for one in (data, broken)] == [verdict, verdict]
