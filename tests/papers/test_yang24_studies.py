"""yang24's figures: the paper's models at paper scale, and what their measures do beyond `Curves`."""

from dataclasses import replace

import pytest
import torch

from looped.baselines.linear import least_squares
from looped.experiment import OptimizerConfig
from looped.functional.schedules import Staircase, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.papers.yang24 import (
    architectures,
    classes,
    linear,
    linear_12_layers,
    linear_published,
    loops,
    prompts,
    relu_network,
    shifts,
    sparse,
    tree,
)
from looped.papers.yang24.trainings import PAPER, as_published, shaped, training
from looped.papers.yang24.variants import LOOPED, UNLOOPED, with_loops
from looped.studies import Cell, Context, Study, Table
from looped.studies.measures import trained_loops
from looped.tasks.shifts import ScaledX
from studies.planted import verdicts

MODULES = (architectures, classes, loops, prompts, shifts)
STUDIES = {study.name: study for module in MODULES for study in vars(module).values() if isinstance(study, Study)}
CELLS = {
    "fig2": 2, "fig3": 2, "fig4": 15, "fig5": 28, "fig6": 5, "fig7": 17, "fig8": 2, "fig9": 19, "fig10a": 2,
    "fig10b": 2, "fig10c": 2, "fig11": 10, "fig12": 30, "fig13": 27, "fig14": 84, "fig15": 8, "fig16": 8, "fig17": 8,
}  # fmt: skip
"""Models of each figure at paper scale."""
WINDOWS = {
    "yang24.linear": 15,
    "yang24.tied": 15,
    "yang24.sparse": 10,
    "yang24.sparse_longer": 10,
    "yang24.tree": 15,
    "yang24.relu_network": 5,
}
"""T of each function class."""
GRIDS = {"fig4": [5, 10, 15], "fig9": [10], "fig11": [15], "fig12": [5, 10, 15], "fig13": [5, 10, 15]}
"""T where the figure says it."""
LONGER = {
    "yang24.sparse_longer": ("yang24.sparse", 1.0),
    "yang24.sparse_12_layers_longer": ("yang24.sparse_12_layers-6d0f4ac06d", 0.3),
}
"""Recipes that go on from a kept model or from another run, at lower rates: that, and at what gradients are clipped."""


@pytest.mark.parametrize("figure", CELLS)
def test_paper_scale_asks_for_the_papers_models(figure):
    study = STUDIES[f"yang24.{figure}"]
    experiments = list(study.cells("paper").values())
    assert len({experiment.hash for experiment in experiments}) == len(experiments) == CELLS[figure]
    for experiment in experiments:
        train, b = experiment.train, experiment.model.loops
        windows = [1] if b == 1 else GRIDS.get(figure, [WINDOWS.get(experiment.name)])
        assert train.window in {min(window, b) for window in windows}
        if figure in ("fig5", "fig14"):  # where rates of Adam are part of the figure
            assert (train.steps, train.batch, train.optimizer.kind) == (500_000, 64, "adam")
            assert train.optimizer.clip is None
            continue
        start, clip = LONGER.get(experiment.name, (None, 1.0))
        rates = {"learning_rate": 1.2e-3, "muon_learning_rate": 4e-3, "schedule": Trapezoid(warmup=0.02, decay=0.8)}
        optimizer = replace(PAPER.optimizer, clip=clip, **rates if start else {})
        assert (experiment.task.d, train.optimizer, train.dtype) == (20, optimizer, "bfloat16")
        assert (train.start, train.emphasis) == (start, 2.0 if start else 0.0)
    measure = study.measure("paper")
    assert (measure.seeds, measure.prompts, measure.level) == ((0,), 1280, 0.9)


def test_every_figure_of_the_paper_is_there_and_figures_share_their_runs():
    assert set(STUDIES) == {f"yang24.{figure}" for figure in CELLS}
    hashes = {
        name: {experiment.hash for experiment in study.cells("paper").values()} for name, study in STUDIES.items()
    }
    assert hashes["yang24.fig4"] <= hashes["yang24.fig12"]
    assert hashes["yang24.fig6"] <= hashes["yang24.fig15"] == hashes["yang24.fig16"]
    assert hashes["yang24.fig5"] <= hashes["yang24.fig14"]
    assert hashes["yang24.fig2"] <= hashes["yang24.fig7"]


def test_the_papers_own_training():
    published = linear_published("paper")
    assert published.model == linear("paper").model
    train = published.train
    assert (train.steps, train.batch, train.points) == (500_000, 64, 41)
    assert train.optimizer == OptimizerConfig(kind="adam", learning_rate=1e-4)
    assert (train.window, train.grad, train.dtype, train.average) == (15, 15, "float32", None)
    assert train.depth == Staircase(start=15, stop=20, by=2, every=500)
    assert train.dims == Staircase(start=5, stop=20, by=1, every=5000)
    assert train.active_points == Staircase(start=11, stop=41, by=2, every=5000)
    long = as_published(tree("paper")).train
    assert long.active_points == Staircase(start=26, stop=101, by=5, every=5000)
    assert long.depth == Staircase(start=15, stop=70, by=2, every=500)
    layers = as_published(linear_12_layers("paper")).train
    assert (layers.window, layers.grad, layers.depth) == (1, None, None)


def test_prompts_are_fixed_where_they_are_counted():
    for cell, experiment in prompts.FIG5.cells("paper").items():
        assert (experiment.train.pool, experiment.train.optimizer.learning_rate) == (cell["n"], cell["rate"])
        assert (experiment.train.dims, experiment.train.active_points, experiment.train.depth) == (None, None, None)
        assert (experiment.task.d, experiment.train.points) == (10, 21)
        assert (experiment.model.loops, experiment.train.window) in ((30, 15), (1, 1))


def test_longer_recipes_have_the_papers_loops_and_windows():
    for recipe, b, window, points in ((tree, 70, 15, 101), (relu_network, 12, 5, 101), (sparse, 20, 10, 41)):
        experiment = recipe("paper")
        train = experiment.train
        assert (experiment.model.loops, train.window, train.grad, train.points) == (b, window, window, points)
        depths = [train.depth(step, 1) for step in range(2000)]
        assert min(depths) == window + 1
        assert sum(depths) / len(depths) == pytest.approx(b, rel=0.05)
        assert trained_loops(experiment) == max(depths)
        assert train.active_points(0, 1) == (11 if points == 41 else 26)
        assert train.active_points(10**6, 1) == points


def test_loops_and_window_of_a_variant():
    short = with_loops(linear("paper"), 12, 15, every=500)
    assert (short.model.loops, short.train.window, short.train.grad, short.train.depth) == (12, 12, 12, None)
    climbing = with_loops(linear("paper"), 30, 15, every=500)
    assert climbing.train.depth == Staircase(start=15, stop=30, by=2, every=500)
    assert with_loops(linear("paper"), 30, 15, every=None).train.depth is None
    assert trained_loops(linear("cpu")) == 12


def test_trees_are_read_after_fewer_loops():
    measure = loops.GRID_EVALUATION["paper"]
    assert [measure.far(recipe("paper")) for recipe in (linear, tree, linear_12_layers)] == [500, 200, 1]


def test_the_shown_learning_rate_is_the_best_one_over_seeds():
    """A rate that is best for one seed alone is not taken for that seed."""
    table = Table()
    for rate, errors in ((1e-4, (0.1, 0.9)), (1e-3, (0.3, 0.3))):
        for seed, error in enumerate(errors):
            ends = {"low": [1.0, error / 2], "high": [1.0, 2 * error]}
            table.add(Cell(n=8, rate=rate), "by_examples", [1.0, error], x=[0, 1], seed=seed, **ends)
    assert [series.value[-1] for series in prompts.best_rate(table)] == [0.3, 0.3]


def test_errors_under_a_shift_are_in_units_of_the_unshifted_task(tmp_path):
    """Answering nearly zero costs about 4 where x is doubled; least squares is exact after d examples under any."""
    measure = replace(shifts.evaluated_under("smoke", (("x scaled by 2", ScaledX(factor=2.0)),)), prompts=400)
    cells = {Cell(model=UNLOOPED, L=1): shaped(training(linear_12_layers("smoke"), steps=1), layers=1)}
    table = measure(cells, Context(scale="smoke", runs=tmp_path))
    [doubled], [plain] = table.where("by_examples", L=1), table.where("unshifted", L=1)
    assert doubled.value[0] / 4 == pytest.approx(plain.value[0], rel=0.3)
    [exact] = table.where("by_examples", model="least squares")
    assert exact.value[0] == pytest.approx(4, rel=0.3)
    assert exact.value[-1] == pytest.approx(0, abs=1e-12)


def test_slow_baselines_have_prompts_of_their_own(tmp_path):
    table, task = Table(), sparse("smoke").task
    measure = replace(classes.FIG10A.measure("smoke"), baseline_prompts=5)
    measure.add_baselines(table, classes.FIG10A.cells("smoke"), Context(scale="smoke", runs=tmp_path))
    prompt = task.sample(batch=5, n=7, generator=torch.Generator().manual_seed(1)).to(torch.float64)
    [series] = table.where("by_examples", model="least squares")
    assert series.value == pytest.approx(task.error(least_squares(prompt), prompt).mean(0).tolist())
    assert len(list((tmp_path / "baselines").iterdir())) == 3


def paper_table(study):
    """A table of the form that a figure's claims read at paper scale; the numbers do not matter."""
    table, measure = Table(), study.measure("paper")
    named = [{"shift": name} for name, _ in getattr(measure, "shifts", ())] or [{}]
    for cell, experiment in study.cells("paper").items():
        for labels in (Cell(cell, **more) for more in named):
            table.add(labels, "by_examples", [1.0] * 41, x=range(41), seed=0)
            table.add(labels, "by_loops", [1.0] * 500, x=range(1, 501), seed=0)
            table.add(labels, "trained_loops", trained_loops(experiment), seed=0)
    return table


@pytest.mark.parametrize(
    "name",
    ["fig6.noisy_peak", "fig7.more_loops_than_layers", "fig7.width_saturates", "fig9.sparse_easier",
     "fig16.scaled_by_2"],
)  # fmt: skip
def test_claims_about_the_papers_own_sizes_can_hold_and_can_fail(name):
    figure, _, claim_name = name.partition(".")
    study = STUDIES[f"yang24.{figure}"]
    [claim] = [claim for claim in study.claims if claim.name == claim_name]
    assert verdicts(claim, paper_table(study)) == {"holds", "fails"}


def test_unlooped_models_are_drawn_at_their_layers():
    from matplotlib.figure import Figure

    table = Table()
    for model, count in ((LOOPED, 1), (UNLOOPED, 4)):
        cell = Cell(model=model, kind="layers", L=count)
        places = [1] if model == UNLOOPED else [1, 2, 3]
        table.add(cell, "by_loops", [0.5] * len(places), x=places, seed=0)
        table.add(cell, "layers_applied", DecoderConfig(layers=count, loops=1).layers_applied, seed=0)
    canvas = Figure()
    architectures.FIG7.draw(canvas, table)
    assert [list(line.get_xdata()) for line in canvas.axes[0].get_lines()] == [[1, 2, 3], [4]]
