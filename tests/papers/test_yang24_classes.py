"""yang24's Figure 10: the runs that it asks for, and the prompts of its baselines."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped.baselines.linear import least_squares
from looped.functional.schedules import RandomDepth, Trapezoid
from looped.papers import yang24
from looped.papers.yang24.classes import FIG10A, FIG10B, FIG10C
from looped.papers.yang24.trainings import PAPER
from looped.papers.yang24.variants import LOOPED, UNLOOPED
from looped.queue.missing import Figures, missing
from looped.studies import Cell, Context, Table
from looped.training.grid import kept_by_hash
from looped.training.kept import kept_models

ROOT = Path(__file__).parents[2]


def test_figure_10b_takes_the_runs_that_are_finished():
    """By their hash; the second part starts from the first, and its weights are kept."""
    looped = FIG10B.cells("paper")[Cell(model=LOOPED)]
    parts = {looped.folder, looped.train.start}
    assert parts == {path.name for path in (ROOT / "results" / "paper_runs").glob("yang24.tree*")}
    assert kept_by_hash({looped.hash}) == {looped.hash: kept_models()["yang24.tree_longer"]}


def test_the_queue_asks_for_the_12_layers_alone(tmp_path):
    """The looped model is kept, so its first part is not trained again either."""
    asked = Figures(studies=[FIG10B], scale="paper", runs=tmp_path, results=tmp_path)
    first, longer = yang24.tree_12_layers_first("paper"), yang24.tree_12_layers_longer("paper")
    assert [entry.name for entry in missing(asked)] == [first.folder, longer.folder, "yang24.fig10b"]


def test_both_models_of_figure_10b_are_trained_alike():
    """The 12 layers have the steps, batches, weights on pairs and rates of the looped model in each of two parts."""
    for looped, unlooped in (
        (yang24.tree_first("paper"), yang24.tree_12_layers_first("paper")),
        (yang24.tree_longer("paper"), yang24.tree_12_layers_longer("paper")),
    ):
        loops = {"window": 15, "grad": 15, "depth": looped.train.depth, "start": looped.train.start}
        assert replace(unlooped.train, **loops) == looped.train
        assert (unlooped.model.layers, unlooped.model.loops, unlooped.task) == (12, 1, looped.task)
        assert (looped.train.emphasis, looped.train.points) == (1.0, 101)
    assert unlooped.train.start == yang24.tree_12_layers_first("paper").folder
    rates = {"learning_rate": 1.5e-3, "muon_learning_rate": 5e-3, "schedule": Trapezoid(warmup=0.02, decay=0.9)}
    assert looped.train.optimizer == replace(PAPER.optimizer, **rates)
    assert (looped.model.loops, looped.train.depth) == (70, RandomDepth(low=-54, high=54))
    assert [cell.name for cell in FIG10B.cells("cpu").values()] == [looped.name, unlooped.name]
    assert list(FIG10B.cells("cpu")) == [Cell(model=LOOPED), Cell(model=UNLOOPED)]


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_models_and_baselines_that_a_claim_compares_answer_the_same_prompts(scale):
    for study in (FIG10A, FIG10B):
        measure = study.measure(scale)
        assert measure.baseline_prompts == measure.prompts
    read = {leaf.labels["model"] for claim in FIG10C.claims for leaf in claim.check.leaves()}
    assert read == {LOOPED, UNLOOPED}  # its network has prompts of its own


def test_answers_of_baselines_are_kept_beside_the_runs(tmp_path):
    table, task = Table(), yang24.sparse("smoke").task
    measure = replace(FIG10A.measure("smoke"), baseline_prompts=5)
    measure.add_baselines(table, FIG10A.cells("smoke"), Context(scale="smoke", runs=tmp_path))
    prompt = task.sample(batch=5, n=7, generator=torch.Generator().manual_seed(1)).to(torch.float64)
    [series] = table.where("by_examples", model="least squares")
    assert series.value == pytest.approx(task.error(least_squares(prompt), prompt).mean(0).tolist())
    assert len(list((tmp_path / "baselines").iterdir())) == 3
