"""yang24's figures: every one at smoke scale, what they ask for at paper scale, and judges that can hold and fail."""

import copy
import json
import re
from dataclasses import replace

import pytest

from looped.cli.reproduce import draw
from looped.evaluation.claims import Settings
from looped.experiment import Adam, Experiment
from looped.functional.schedules import Staircase, Trapezoid
from looped.papers.yang24 import (
    grids,
    linear,
    linear_12_layers,
    linear_published,
    measuring,
    prompts,
    relu_network,
    shifts,
    sparse,
    tree,
)
from looped.papers.yang24.classes import LOOPED, UNLOOPED
from looped.papers.yang24.fixed_point import TIED
from looped.papers.yang24.judges import drift, largest_gap, loops_to
from looped.papers.yang24.measuring import shown_loops, trained_loops, with_loops
from looped.papers.yang24.schedule import AT_ONCE, CLASSES, SCHEDULED
from looped.papers.yang24.trainings import PAPER, as_published, training
from looped.recipes import recipes
from looped.reproduce import figures, reproduce, select
from looped.training import grid
from looped.training.run import Run

FIGURES = {name: figure for name, figure in figures().items() if re.fullmatch(r"yang24\.fig\d+[a-z]?", name)}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """One folder of runs for all figures, which share many."""
    return tmp_path_factory.mktemp("yang24-runs")


def test_every_figure_of_the_paper_is_there():
    numbers = [2, 3, 4, 5, 6, 7, 8, 9, "10a", "10b", "10c", 11, 12, 13, 14, 15, 16, 17]
    assert set(FIGURES) == {f"yang24.fig{number}" for number in numbers}
    assert all(set(figure.settings) == {"smoke", "cpu", "paper"} for figure in FIGURES.values())
    assert all(figure.claims for figure in FIGURES.values())
    ids = [claim.id for figure in FIGURES.values() for claim in figure.claims]
    assert len(set(ids)) == len(ids)
    assert all(claim.id.startswith(f"{name}.") for name, figure in FIGURES.items() for claim in figure.claims)
    assert [figure.name for figure in select(["yang24.fig10b"])] == ["yang24.fig10b"]
    assert [figure.name for figure in select(["yang24.fig10"])] == [f"yang24.fig10{letter}" for letter in "abc"]
    assert [figure.name for figure in select(["yang24.fig2"])] == ["yang24.fig2"]


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_figure_runs_at_smoke_scale(name, runs, tmp_path):
    result = reproduce(FIGURES[name], "smoke", out=tmp_path, runs=runs)
    assert {claim.verdict for claim in result.claims} == {"not judged"}
    assert all(path.stat().st_size > 1000 for path in draw(result, tmp_path))
    # whatever a tiny model gives, its claims can be judged: a number or none, never an exception
    for claim in result.figure.judge(result.data, "cpu"):
        assert claim.verdict in ("holds", "fails") or "no model has learned" in claim.note
    # models that answer zero have learned nothing, and no claim about them is judged
    unlearned = result.figure.judge(answering_zero(result.data), "cpu")
    assert {claim.verdict for claim in unlearned} == {"not judged"}
    assert all("no model has learned" in claim.note for claim in unlearned)
    text = json.dumps(result.figure.settings["smoke"], sort_keys=True)
    assert json.loads(result.path.read_text())["settings"] == json.loads(text)


def answering_zero(data):
    """A figure's data as if every model answered zero; baselines stay as they are."""
    if not isinstance(data, dict):
        return data
    if {"x", "mean"} <= set(data):
        level = data.get("zero", 1.0)
        return {**data, **{key: [[level for _ in one] for one in data[key]] for key in ("mean", "low", "high")}}
    baselines = ("baselines", "least_squares", "least squares")
    return {key: value if key in baselines else answering_zero(value) for key, value in data.items()}


class Asked(Exception):
    """Raised in place of training."""


def asked_for(figure, scale, monkeypatch):
    """The experiments that a figure would train."""

    def caught(experiments, **options):
        raise Asked(list(experiments))

    monkeypatch.setattr(grid, "train_grid", caught)
    with pytest.raises(Asked) as found:
        figure.measure(figure.settings[scale], Settings(scale=scale))
    return found.value.args[0]


COUNTS = {
    "fig2": 2, "fig3": 2, "fig4": 15, "fig5": 28, "fig6": 5, "fig7": 17, "fig8": 2, "fig9": 19, "fig10a": 2,
    "fig10b": 2, "fig10c": 2, "fig11": 10, "fig12": 30, "fig13": 27, "fig14": 84, "fig15": 8, "fig16": 8, "fig17": 8,
}  # fmt: skip


WINDOWS = {
    "yang24.linear": 15,
    "yang24.tied": 15,
    "yang24.sparse": 10,
    "yang24.sparse_longer": 10,
    "yang24.tree": 15,
    "yang24.relu_network": 5,
}
"""T of each function class."""
LONGER = {
    "yang24.sparse_longer": ("yang24.sparse", 1.0),
    "yang24.sparse_12_layers_longer": ("yang24.sparse_12_layers-9a94b44b73", 0.3),
}
"""Recipes that go on from a kept model or from another run, at lower rates: that, and at what gradients are clipped."""
GRIDS = {"fig4": [5, 10, 15], "fig9": [10], "fig11": [15], "fig12": [5, 10, 15], "fig13": [5, 10, 15]}
"""T where the figure says it."""


@pytest.mark.parametrize("name", list(FIGURES))
def test_paper_scale_asks_for_the_papers_models(name, monkeypatch):
    grid = asked_for(FIGURES[name], "paper", monkeypatch)
    assert len(grid) == COUNTS[name.partition(".")[2]]
    assert len({one.hash for one in grid}) == len(grid)
    for one in grid:
        windows = [1] if one.model.loops == 1 else GRIDS.get(name.partition(".")[2], [WINDOWS.get(one.name)])
        assert one.train.window in {min(window, one.model.loops) for window in windows}
        if name in ("yang24.fig5", "yang24.fig14"):  # where rates of Adam are part of the figure
            assert (one.train.steps, one.train.batch, type(one.train.optimizer)) == (500_000, 64, Adam)
            assert one.train.optimizer.clip is None
        else:
            start, clip = LONGER.get(one.name, (None, 1.0))
            rates = {"learning_rate": 1.2e-3, "muon_learning_rate": 4e-3, "schedule": Trapezoid(warmup=0.02, decay=0.8)}
            optimizer = replace(PAPER.optimizer, clip=clip, **rates if start else {})
            assert (one.task.d, one.train.optimizer, one.train.dtype) == (20, optimizer, "bfloat16")
            assert (one.train.start, one.train.emphasis) == (start, 2.0 if start else 0.0)
    sizes = FIGURES[name].settings["paper"]
    assert (sizes["prompts"], sizes["level"]) == (1280, 0.9)


def test_the_papers_own_training():
    one = linear_published("paper")
    assert one.model == linear("paper").model
    assert (one.train.steps, one.train.batch, one.train.points) == (500_000, 64, 41)
    assert one.train.optimizer == Adam(learning_rate=1e-4)
    assert (one.train.window, one.train.grad, one.train.dtype, one.train.average) == (15, 15, "float32", None)
    assert one.train.depth == Staircase(start=-5, stop=0, by=2, every=500)
    assert one.train.dims == Staircase(start=5, stop=20, by=1, every=5000)
    assert one.train.active_points == Staircase(start=11, stop=41, by=2, every=5000)
    long = as_published(tree("paper")).train
    assert long.active_points == Staircase(start=26, stop=101, by=5, every=5000)
    assert long.depth == Staircase(start=-55, stop=0, by=2, every=500)
    layers = as_published(linear_12_layers("paper")).train
    assert (layers.window, layers.grad, layers.depth) == (1, None, None)


def test_figures_share_their_runs(monkeypatch):
    hashes = {name: {one.hash for one in asked_for(FIGURES[name], "paper", monkeypatch)} for name in FIGURES}
    assert hashes["yang24.fig4"] <= hashes["yang24.fig12"]
    assert hashes["yang24.fig6"] <= hashes["yang24.fig15"] == hashes["yang24.fig16"]
    assert hashes["yang24.fig5"] <= hashes["yang24.fig14"]
    assert hashes["yang24.fig2"] <= hashes["yang24.fig7"]


def test_prompts_are_fixed_where_they_are_counted(monkeypatch):
    for one in asked_for(FIGURES["yang24.fig5"], "paper", monkeypatch):
        assert one.train.pool in prompts.PAPER_POOLS
        assert (one.train.dims, one.train.active_points, one.train.depth) == (None, None, None)
        assert (one.task.d, one.train.points) == (10, 21)
        assert (one.model.loops, one.train.window) in ((30, 15), (1, 1))


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_experiments_survive_being_settings(scale):
    for name, recipe in recipes().items():
        if name.startswith("yang24."):
            experiment = recipe(scale)
            assert Experiment.from_brief(json.loads(json.dumps(experiment.brief()))) == experiment
            assert experiment.brief()["type"].endswith(":Experiment")
            assert "keep_checkpoints" not in experiment.brief()["train"]


def test_longer_recipes_have_the_papers_loops_and_windows():
    for recipe, loops, window, points in ((tree, 70, 15, 101), (relu_network, 12, 5, 101), (sparse, 20, 10, 41)):
        one = recipe("paper")
        assert (one.model.loops, one.train.window, one.train.grad, one.train.points) == (loops, window, window, points)
        depths = [one.loops_at(step) for step in range(2000)]
        assert min(depths) == window + 1
        assert sum(depths) / len(depths) == pytest.approx(loops, rel=0.05)
        assert trained_loops(one) == max(depths)
        assert one.train.active_points(0, 1) == (11 if points == 41 else 26)
        assert one.train.active_points(10**6, 1) == points


def test_loops_and_window_of_a_variant():
    one = with_loops(linear("paper"), 12, 15, every=500)
    assert (one.model.loops, one.train.window, one.train.grad, one.train.depth) == (12, 12, 12, None)
    climbing = with_loops(linear("paper"), 30, 15, every=500)
    assert climbing.train.depth == Staircase(start=-15, stop=0, by=2, every=500)
    assert with_loops(linear("paper"), 30, 15, every=None).train.depth is None
    assert trained_loops(linear("cpu")) == 12


def test_numbers_behind_the_judges():
    model = {"trained_loops": 2, "by_loops": curve([1, 2, 8], [1.0, 0.2, 0.3], [1.0, 0.4, None])}
    assert drift(model) == pytest.approx([1.5, float("inf")])
    assert loops_to(curve([1, 2, 8], [1.0, 0.2, 0.1]), 0.2) == 2
    assert loops_to(curve([1, 2], [1.0, 0.5]), 0.2) == float("inf")
    assert largest_gap(curve([0, 1], [1.0, 0.5]), curve([0, 1, 2], [0.9, 0.0, 7.0])) == pytest.approx([0.5])
    assert shown_loops(8, 20) == list(range(1, 9))
    assert shown_loops(500, 33)[:50] == list(range(1, 51))
    assert shown_loops(500, 33)[-1] == 500
    assert 72 in shown_loops(500, 72)


def test_only_runs_of_this_library_are_behind_the_curves(tmp_path, monkeypatch):
    """The curves of a run are those of `evaluate` on its model after the loops asked."""
    experiment = training(linear("smoke"), steps=2)
    sizes = {"seeds": 2, "prompts": 4, "prompt_seed": 3, "loops": 5, "level": 0.9}
    found = measuring.trained({"one": experiment}, sizes, Settings(scale="smoke", runs=tmp_path))
    assert [run.experiment.train.seed for run in found["one"]] == [0, 1]
    data = measuring.judged(found, sizes, Settings(scale="smoke"))["one"]
    assert data["by_loops"]["x"] == [1, 2, 3, 4, 5]
    assert data["trained_loops"] == 6
    run = Run.open(found["one"][1].path)
    own = measuring.evaluate(
        run.model(), experiment.task, points=7, loops=5, max_loops=5, prompts=4, seed=3, baselines={}
    )
    assert data["by_examples"]["mean"][1] == own.by_examples[0].mean
    assert data["by_loops"]["mean"][1] == own.by_loops.mean
    # a fixed point of the axis: the last place by examples after the last loop is the last place by loops
    assert data["by_examples"]["mean"][1][-1] == pytest.approx(data["by_loops"]["mean"][1][-1], rel=1e-6)


def curve(x, *values):
    return {key: copy.deepcopy(x if key == "x" else list(values)) for key in ("x", "mean", "low", "high")}


def model(by_loops, by_examples=(1.0, 0.5, 0.1), *, trained=4, **more):
    loops = [1, 2, 4, 8][: len(by_loops)]
    found = {"trained_loops": trained, "parameters": 10, "layers": 1, **more}
    return {
        **found,
        "by_loops": curve(loops, list(by_loops), list(by_loops)),
        "by_examples": curve(list(range(len(by_examples))), list(by_examples), list(by_examples)),
    }


FLAT, RISING = (0.9, 0.5, 0.1, 0.1), (0.9, 0.5, 0.1, 0.6)


def good_2():
    models = {LOOPED: model(FLAT), UNLOOPED: model((0.1,), trained=1, parameters=120, layers=12)}
    return {"models": models, "least_squares": curve([0, 1, 2], [1.0, 0.45, 0.05])}


def good_3():
    return {"models": {LOOPED: model(FLAT), TIED: model(RISING)}, "least_squares": curve([0, 1, 2], [1.0, 0.4, 0.0])}


def good_grid(tasks, windows):
    def cell(task, window, b):
        flat = b == 8 or task in (grids.SPARSE, grids.RELU)
        by_loops = {2: [0.9, 0.5, 0.55], 4: [0.9, 0.4, 0.3], 8: [0.9, 0.2, 0.1, 0.1]}[b]
        if not flat:
            by_loops = [0.9, 0.3, 2.0]
        found = model(by_loops, (1.0, 0.5, 0.1 + 0.01 * (8 - window)), trained=b)
        return {**found, "trained_loops": b}

    shapes = {task: {str(w): {str(b): cell(task, w, b) for b in (2, 4, 8)} for w in windows} for task in tasks}
    for rows in shapes.values():
        for row in rows.values():
            for b, one in row.items():
                one["by_loops"]["x"] = [1, 2, 4, 8][: len(one["by_loops"]["mean"][0])]
                one["trained_loops"] = min(int(b), one["by_loops"]["x"][-1] // 2)
    return {"tasks": list(tasks), "windows": list(windows), "cells": shapes}


def good_prompts(dims):
    panel = {"looped": curve([10, 100], [0.4, 0.1], [0.5, 0.1]), "unlooped": curve([10, 100], [0.9, 0.3], [0.9, 0.2])}
    return {"panels": {d: {"k": 4, **copy.deepcopy(panel)} for d in dims}}


def good_7():
    def looped(by_loops):
        return model(by_loops, trained=4)

    models = {
        "looped.1": looped((0.9, 0.5, 0.1, 0.1)),
        "looped.2": looped((0.6, 0.15, 0.1, 0.1)),
        "unlooped.1": model((0.5,), (1.0, 0.9, 0.8), trained=1, layers=1),
        "unlooped.2": model((0.5,), (1.0, 0.6, 0.1), trained=1, layers=2),
        "width.8": looped((0.9, 0.5, 0.3, 0.3)),
        "width.64": looped((0.9, 0.5, 0.1, 0.09)),
        "heads.1": looped((0.9, 0.5, 0.2, 0.2)),
        "heads.16": looped((0.9, 0.5, 0.2, 0.15)),
    }
    return {"models": models, "width": 32, "heads": 4, "reference_layers": 2}


def good_8():
    looped, unlooped = curve([1, 2, 3], [0.5, 0.2, 0.1]), curve([1, 2, 3], [0.4, 0.1, 0.3])
    both = {LOOPED: {**looped, "control": 0.8, "zero": 1.0}, UNLOOPED: {**unlooped, "control": 0.7, "zero": 1.0}}
    return {"targets": {name: copy.deepcopy(both) for name in ("X'y", "w_ols")}}


def good_panel(kind):
    names = {"sparse": ("least squares", "averaging", "Lasso"), "tree": ("XGBoost",), "relu": ("least squares",)}[kind]
    models = {LOOPED: model(FLAT, (1.0, 0.4, 0.1)), UNLOOPED: model((0.1,), (1.0, 0.5, 0.2), trained=1)}
    return {"models": models, "baselines": {name: curve([0, 1, 2], [1.0, 0.8, 0.1]) for name in names}}


def good_shifts(names):
    def one(shift):
        worse = shift == "x scaled by 3"
        looped, deep = ([1.0, 0.7, 0.5], [1.0, 0.6, 0.4]) if worse else ([1.0, 0.5, 0.3], [1.0, 0.6, 0.4])
        return {
            "unlooped.1": curve([1, 2, 3], [1.0, 0.9, 0.8], [1.0, 0.9, 0.8]),
            "unlooped.4": curve([1, 2, 3], deep, deep),
            "looped.8": curve([1, 2, 3], looped, looped),
            "least squares": curve([1, 2, 3], [1.0, 0.5, 0.0]),
        }

    return {"d": 2, "shifts": {name: one(name) for name in names}}


def good_sparsity():
    return {"levels": {s: {LOOPED: curve([0, 1], [1.0, 0.2]), UNLOOPED: curve([0, 1], [1.0, 0.3])} for s in "13"}}


def good_schedule():
    pair = {SCHEDULED: curve([0, 1], [1.0, 0.20]), AT_ONCE: curve([0, 1], [1.0, 0.22])}
    return {"classes": {label: copy.deepcopy(pair) for label in CLASSES}}


GOOD = {
    "fig2": good_2(),
    "fig3": good_3(),
    "fig4": good_grid([grids.LINEAR], [2, 4]),
    "fig5": good_prompts(["10"]),
    "fig6": good_shifts(shifts.SIX),
    "fig7": good_7(),
    "fig8": good_8(),
    "fig9": good_grid([grids.LINEAR, grids.SPARSE, grids.TREE, grids.RELU], [4]),
    "fig10a": good_panel("sparse"),
    "fig10b": good_panel("tree"),
    "fig10c": good_panel("relu"),
    "fig11": good_sparsity(),
    "fig12": good_grid([grids.LINEAR, grids.SPARSE], [2, 4]),
    "fig13": good_grid([grids.TREE, grids.RELU], [2, 4]),
    "fig14": good_prompts(["5", "10", "20"]),
    "fig15": good_shifts(shifts.DISTRIBUTIONS),
    "fig16": good_shifts(shifts.SCALES),
    "fig17": good_schedule(),
}


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_claim_holds_on_numbers_that_bear_it_out(name, tmp_path):
    figure = FIGURES[name]
    for claim in figure.judge(GOOD[name.partition(".")[2]], "cpu"):
        assert claim.verdict == "holds", (claim.id, claim.value, claim.note)


def scaled(found, factor, *, last=None):
    """All numbers of a curve, or those from place `last` on, times a factor."""
    for key in ("mean", "low", "high"):
        for values in found[key]:
            values[slice(last, None)] = [value * factor for value in values[slice(last, None)]]


def spoil(path, factor, *, last=None):
    def act(data):
        found = data
        for key in path:
            found = found[key]
        scaled(found, factor, last=last)

    return act


def several(*acts):
    def act(data):
        for one in acts:
            one(data)

    return act


def parameters(data):
    data["models"][LOOPED]["parameters"] = 100


def every_cell(task, factor, *, b=None, last=-1, windows=None):
    def act(data):
        for window, row in data["cells"][task].items():
            for loops, cell in row.items():
                if (b is None or loops == b) and (windows is None or window in windows):
                    scaled(cell["by_loops"], factor, last=last)

    return act


def examples_of(task, window, factor):
    return spoil(("cells", task, window, "8", "by_examples"), factor)


def shift_models(shift, names, factor):
    return several(*(spoil(("shifts", shift, name), factor) for name in names))


MODEL = ("models", LOOPED)
BAD = {
    "fig2.fixed_point": spoil((*MODEL, "by_loops"), 3, last=-1),
    "fig2.matches_12_layers": spoil((*MODEL, "by_examples"), 1.5),
    "fig2.near_least_squares": spoil((*MODEL, "by_examples"), 1.5),
    "fig2.parameters": parameters,
    "fig3.injection_flat": spoil((*MODEL, "by_loops"), 3, last=-1),
    "fig3.tying_diverges": spoil(("models", TIED, "by_loops"), 1 / 6, last=-1),
    "fig4.linear.fixed_point": every_cell(grids.LINEAR, 5, b="8"),
    "fig4.low_b_diverges": every_cell(grids.LINEAR, 0.1, b="2"),
    "fig4.saturates": every_cell(grids.LINEAR, 0.001, b="8"),
    "fig5.fewer_prompts": spoil(("panels", "10", "looped"), 3),
    "fig6.skewed_better": shift_models(shifts.SKEWED, ["looped.8"], 2),
    "fig6.noisy_peak": shift_models(shifts.NOISY, ["looped.8"], 2),
    "fig6.scaled_worse": shift_models("x scaled by 3", ["looped.8"], 0.5),
    "fig7.layers_converge_faster": spoil(("models", "looped.2", "by_loops"), 20),
    "fig7.more_loops_than_layers": spoil(("models", "unlooped.2", "by_examples"), 1e-3),
    "fig7.width_saturates": spoil(("models", "width.8", "by_loops"), 0.1),
    "fig7.middle_heads_best": spoil(("models", "heads.16", "by_loops"), 0.1),
    "fig8.gradient.refined": spoil(("targets", "X'y", LOOPED), 9, last=-1),
    "fig8.least_squares.refined": spoil(("targets", "w_ols", LOOPED), 9, last=-1),
    "fig8.gradient.unlooped_turns": spoil(("targets", "X'y", UNLOOPED), 0.1, last=-1),
    "fig8.least_squares.unlooped_turns": spoil(("targets", "w_ols", UNLOOPED), 0.1, last=-1),
    "fig8.control": spoil(("targets", "w_ols", UNLOOPED), 9),
    "fig9.sparse_easier": every_cell(grids.SPARSE, 50, b="4"),
    "fig9.relu_needs_few": every_cell(grids.RELU, 50, b="2"),
    "fig10a.outperforms": spoil((*MODEL, "by_examples"), 2),
    "fig10a.beats_lasso_early": spoil((*MODEL, "by_examples"), 3),
    "fig10b.matches": spoil((*MODEL, "by_examples"), 2),
    "fig10c.matches": spoil((*MODEL, "by_examples"), 2),
    "fig11.every_sparsity": spoil(("levels", "3", LOOPED), 2),
    "fig12.linear.fixed_point": every_cell(grids.LINEAR, 5, b="8"),
    "fig12.sparse.fixed_point": every_cell(grids.SPARSE, 5, b="8"),
    "fig12.linear.window": examples_of(grids.LINEAR, "2", 0.5),
    "fig12.sparse.window": examples_of(grids.SPARSE, "2", 0.5),
    "fig13.tree.fixed_point": every_cell(grids.TREE, 5, b="8"),
    "fig13.relu.fixed_point": every_cell(grids.RELU, 5, b="8"),
    "fig13.tree.window": examples_of(grids.TREE, "2", 0.5),
    "fig13.relu.window": examples_of(grids.RELU, "2", 0.5),
    "fig13.tree_needs_more": every_cell(grids.TREE, 0.01, b="2"),
    "fig14.fewer_prompts": spoil(("panels", "20", "looped"), 3),
    "fig15.skewed.deeper_better": shift_models(shifts.SKEWED, ["unlooped.4"], 3),
    "fig15.subspace.deeper_better": shift_models(shifts.HALF, ["unlooped.4"], 3),
    "fig15.orthants.deeper_better": shift_models(shifts.ORTHANTS, ["unlooped.4"], 3),
    "fig15.skewed.looped_matches": shift_models(shifts.SKEWED, ["looped.8"], 3),
    "fig15.subspace.looped_matches": shift_models(shifts.HALF, ["looped.8"], 3),
    "fig15.orthants.looped_matches": shift_models(shifts.ORTHANTS, ["looped.8"], 3),
    "fig15.orthogonal.alike": shift_models(shifts.ORTHOGONAL, ["looped.8"], 3),
    "fig15.equal.alike": shift_models(shifts.EQUAL, ["looped.8"], 0.1),
    "fig16.scaled_by_2": shift_models("x scaled by 2", ["looped.8"], 3),
    "fig17.no_difference": spoil(("classes", "linear regression", AT_ONCE), 3),
    "fig17.tree_gains": spoil(("classes", "decision tree", SCHEDULED), 3),
}


@pytest.mark.parametrize("claim", [claim.id for figure in FIGURES.values() for claim in figure.claims])
def test_every_claim_fails_on_numbers_that_do_not(claim):
    _, number, rest = claim.split(".", 2)
    data = copy.deepcopy(GOOD[number])
    BAD[f"{number}.{rest}"](data)
    verdicts = {found.id: found.verdict for found in FIGURES[f"yang24.{number}"].judge(data, "cpu")}
    assert verdicts[claim] == "fails"


@pytest.mark.parametrize("name", ["yang24.fig2", "yang24.fig6", "yang24.fig10a"])
def test_a_model_that_gave_no_numbers_bears_nothing_out(name):
    data = copy.deepcopy(GOOD[name.partition(".")[2]])

    def blank(found):
        for key, value in found.items():
            if key == "mean":
                found[key] = [[None] * len(one) for one in value]
            elif isinstance(value, dict):
                blank(value)

    blank(data)
    verdicts = {claim.id: claim.verdict for claim in FIGURES[name].judge(data, "cpu")}
    verdicts.pop("yang24.fig2.parameters", None)
    assert set(verdicts.values()) == {"fails"}


def test_the_unlooped_judge_reads_the_experiment_class():
    assert isinstance(
        Experiment.from_brief(FIGURES["yang24.fig2"].settings["paper"]["experiments"][UNLOOPED]), Experiment
    )
