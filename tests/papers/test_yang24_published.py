"""The paper's own training as a figure: both checkpoints, and claims that hold and fail."""

from dataclasses import replace

import pytest

from looped.experiment import Adam, training
from looped.keeping import keep
from looped.papers.yang24 import linear_published
from looped.papers.yang24.published import AGAIN, BEST, CLIPPED, END, EXACT, PUBLISHED, PUBLISHED_END
from looped.reproduce import reproduce
from looped.studies import Cell, Table
from looped.training import kept
from looped.training.run import Run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return reproduce(PUBLISHED, "smoke", out=folder, runs=folder / "runs"), folder


def test_at_smoke_scale_both_checkpoints_are_evaluated(smoke):
    result, folder = smoke
    [path] = (folder / "runs").iterdir()
    run, table = Run.open(path), result.table
    steps = [table.where("step", weights=weights).series[0].value[0] for weights in (BEST, END)]
    assert steps == [run.best().step, run.latest().step]
    far, near = (table.where("by_loops", weights=weights).series[0].x[-1] for weights in (BEST, END))
    assert (far, near) == (PUBLISHED.measure("smoke").loops, run.experiment.model.loops)
    [log] = table.where("logged_error")
    assert 1000 * log.x[-1] == pytest.approx(run.metrics()[-1]["step"])
    # numbers of another scale are not held against the published ones
    assert "not measured at smoke scale" in result.claims[0].note


def test_a_kept_model_does_not_stand_for_two_checkpoints(smoke, tmp_path, monkeypatch):
    [path] = (smoke[1] / "runs").iterdir()
    run = Run.open(path)
    keep(run, out=tmp_path / "models", points=run.experiment.train.points, prompts=8)
    monkeypatch.setattr(kept, "store", lambda: tmp_path / "models")
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has one checkpoint"):
        reproduce(PUBLISHED, "smoke", out=tmp_path / "out", runs=tmp_path / "none")


def test_at_paper_scale_it_is_the_papers_training():
    [experiment] = PUBLISHED.cells("paper").values()
    assert experiment == training(linear_published("paper"), dtype="bfloat16")
    assert (experiment.train.steps, experiment.train.batch) == (500_000, 64)
    assert isinstance(experiment.train.optimizer, Adam)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "holds"), (1.4, "holds"), (1.6, "fails"), (0.7, "holds"), (0.6, "fails")]
)
@pytest.mark.parametrize("weights", [BEST, END])
def test_a_published_number_is_met_from_both_sides(factor, verdict, weights):
    """Weights that are off fail their own claim and not the other's; the fixed point is that of the best ones."""
    table = Table()
    for name in (BEST, END):
        many = 7.8e-4 * (factor if name == weights else 1.0)
        table.add(Cell(weights=name), "by_examples", [1.0, 0.0242, many], x=[0, 20, 40], seed=0)
        table.add(
            Cell(weights=name), "by_loops", [0.01, 0.01 * (factor if name == weights else 1.0)], x=[20, 500], seed=0
        )
        table.add(Cell(weights=name), "trained_loops", 20, seed=0)
    end, best, fixed = PUBLISHED.judge(table, "paper")
    hit, other = (best, end) if weights == BEST else (end, best)
    assert (hit.verdict, hit.value, other.verdict) == (verdict, pytest.approx(factor), "holds")
    assert fixed.verdict == ("fails" if weights == BEST and factor > 1.5 else "holds")


@pytest.mark.parametrize(("best_error", "verdicts"), [(7.8e-4, {"fails", "holds"}), (0.7, {"not judged"})])
def test_a_training_that_loses_what_it_learned_fails_and_one_that_never_learned_is_not_judged(best_error, verdicts):
    table = Table()
    for name, error in ((BEST, best_error), (END, 0.7)):
        table.add(Cell(weights=name), "by_examples", [1.0, 0.0242, error], x=[0, 20, 40], seed=0)
        table.add(Cell(weights=name), "by_loops", [0.01, 0.01], x=[20, 500], seed=0)
        table.add(Cell(weights=name), "trained_loops", 20, seed=0)
    assert {claim.verdict for claim in PUBLISHED.judge(table, "paper")} == verdicts


def test_the_last_steps_start_from_the_kept_weights_and_differ_in_one_thing():
    cells = {cell["kind"]: experiment for cell, experiment in PUBLISHED_END.cells("paper").items()}
    again = cells[AGAIN].train
    assert (again.start, again.steps, again.dtype) == ("yang24.linear_published", 30_000, "bfloat16")
    assert again.optimizer == linear_published("paper").train.optimizer
    assert (again.depth, again.dims, again.active_points) == (None, None, None)
    assert cells[EXACT].train == replace(again, dtype="float32")
    assert cells[CLIPPED].train == replace(again, optimizer=replace(again.optimizer, clip=1.0))
    # by the step of the kept weights every schedule of the whole training has ended
    whole = linear_published("paper")
    kept_step = whole.train.steps - again.steps
    assert whole.loops_at(kept_step) == whole.model.loops
    assert whole.train.dims(kept_step, whole.train.steps) == whole.task.d
    assert whole.train.active_points(kept_step, whole.train.steps) == whole.train.points
