"""gao24's figures: every one at smoke scale, the algorithms against NumPy, and judges that can fail."""

import copy
import json
import math

import numpy as np
import pytest
import torch

from looped.evaluation.claims import Settings
from looped.models.algoformer import AlgoFormerConfig
from looped.papers import gao24
from looped.papers.gao24 import algorithms, comparison, hyperparameters, table
from looped.papers.gao24.variants import MODELS, as_printed, layers_applied, read, three, with_loops
from looped.reproduce import figures, reproduce
from looped.tasks.regression import LinearRegression
from tasks.tiny_text import write

FIGURES = {f"gao24.{name}": figures()[f"gao24.{name}"] for name in ("fig2", "fig3", "fig4", "fig5", "table")}


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data" / "translation" / "multi30k")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_runs_draws_and_is_kept(name, tmp_path, text):
    from matplotlib.figure import Figure

    figure, heard = FIGURES[name], []
    where = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
    result = reproduce(figure, "smoke", **where, progress=lambda what, share: heard.append(share))
    assert {claim.verdict for claim in result.claims} == {"not judged"}
    assert len(result.claims) == len(figure.claims) > 0
    assert heard == sorted(heard)
    assert 0 <= heard[0] <= heard[-1] <= 1
    canvas = Figure(layout="constrained")
    figure.draw(canvas, result.data)
    assert canvas.axes
    # finished runs are used again, and the numbers are the same
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    assert trained
    again = reproduce(figure, "smoke", **where, again=True)
    assert json.dumps(again.data) == json.dumps(result.data)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")} == trained


@pytest.mark.parametrize("name", FIGURES)
def test_every_scale_is_there_and_its_experiments_can_be_read(name):
    figure = FIGURES[name]
    assert set(figure.settings) == {"smoke", "cpu", "paper"}
    for sizes in figure.settings.values():
        assert json.loads(json.dumps(sizes)) == sizes
        made = read(sizes["experiments"])
        assert all(one.train is not None for one in made.values())
    paper = read(figure.settings["paper"]["experiments"])
    assert {one.train.steps for one in paper.values()} == {500_000}
    assert {one.model.width for one in paper.values()} == {256}
    assert figure.settings["cpu"]["seeds"] == (1 if name == "gao24.table" else 3)


def test_the_three_models_differ_in_their_parts_alone():
    """Same task, prompts, steps and optimiser; parameters and layers applied as the paper counts them."""
    made = three(gao24.regression("paper"), 12)
    assert tuple(made) == MODELS
    assert len({one.task for one in made.values()}) == 1
    assert len({(one.train.steps, one.train.batch, one.train.seed, one.train.optimizer) for one in made.values()}) == 1
    assert {label: layers_applied(one) for label, one in made.items()} == {
        "AlgoFormer": 22,
        "looped": 20,
        "standard": 12,
    }
    count = {label: one.model.build().num_parameters for label, one in made.items()}
    block = 12 * 256**2 + 13 * 256
    assert count["AlgoFormer"] - count["looped"] == 2 * block + 2 * 256  # pre, post, and a norm after post
    assert count["standard"] - count["looped"] == 11 * block
    assert made["looped"].model.inject == "add"
    assert made["standard"].model.loops == 1


def test_printed_carries_gradient_through_all_loops():
    printed = as_printed(gao24.regression("paper"))
    assert (printed.model.inject, printed.train.grad, printed.train.window) == ("none", None, 15)
    assert with_loops(printed, 10, 5).train.grad is None
    assert with_loops(gao24.regression("paper"), 10, 5).train.grad == 5


def test_iterates_are_the_algorithms():
    prompt = LinearRegression(d=3, noise=0.5).sample(batch=4, n=8, generator=torch.Generator().manual_seed(0))
    prompt = prompt.to(torch.float64)
    found = algorithms.iterates(prompt, 30)
    for row in range(4):
        xs, ys, query = prompt.xs[row, :-1].numpy(), prompt.ys[row, :-1].numpy(), prompt.xs[row, -1].numpy()
        s = xs.T @ xs
        top = np.linalg.norm(s, 2)
        w, m = np.zeros(3), s / top**2
        for step in range(30):
            w = w - xs.T @ (xs @ w - ys) / top
            m = 2 * m - m @ s @ m
            assert float(found["gradient descent"][step, row]) == pytest.approx(w @ query, rel=1e-8)
            assert float(found["Newton's method"][step, row]) == pytest.approx(m @ xs.T @ ys @ query, rel=1e-8)
        fitted = np.linalg.lstsq(xs, ys, rcond=None)[0] @ query
        assert float(found["Newton's method"][-1, row]) == pytest.approx(fitted, rel=1e-6)


def model_data(errors, loops=(1.0, 0.5, 0.4, 0.8)):
    """What `judged` gives, with `errors` one number a seed."""
    return {
        "parameters": 10,
        "layers_applied": 3,
        "loops": 3,
        "by_points": {"x": [0, 1], "mean": [[one, one] for one in errors]},
        "by_loops": {"x": [1, 2, 3, 4], "mean": [list(loops) for _ in errors]},
    }


def claim(figure, name):
    return next(one for one in FIGURES[figure].claims if one.id == f"{figure}.{name}")


def test_figure_2_judges_by_the_mean_over_seeds():
    data = {panel: {label: model_data([0.5, 0.5]) for label in MODELS} for panel in comparison.PANELS}
    data["autoregression"]["looped"] = model_data([1.0, 0.8])
    found = claim("gao24.fig2", "autoregression.beats_looped").judge(data)
    assert (found.holds, found.low, found.high) == (True, 0.5, 0.625)
    assert not claim("gao24.fig2", "autoregression.beats_standard").judge(data).holds
    data["autoregression"]["AlgoFormer"]["by_points"]["mean"][0][1] = None
    assert not claim("gao24.fig2", "autoregression.beats_looped").judge(data).holds


def test_figure_3_judges_growth_beyond_the_trained_loops():
    grid = [[1, 3], [2, 3]]
    models = {"dT=1, T=3": model_data([1.0], (1, 0.5, 0.4, 0.8)), "dT=2, T=3": model_data([1.0], (1, 0.5, 0.4, 0.4))}
    data = {"grid": grid, "models": models}
    assert hyperparameters.growth(data, "dT=1, T=3") == pytest.approx(2)
    assert hyperparameters.steadier(data).value == pytest.approx(2)
    assert hyperparameters.steadier(data).holds
    swapped = {"grid": grid, "models": dict(zip(models, reversed(models.values()), strict=True))}
    assert not hyperparameters.steadier(swapped).holds
    broken = copy.deepcopy(data)
    broken["models"]["dT=2, T=3"]["by_loops"]["mean"][0][-1] = None
    assert math.isinf(hyperparameters.growth(broken, "dT=2, T=3"))
    assert not hyperparameters.steadier(broken).holds


def test_figure_4_judges_each_step_up():
    grid = [[1, 1], [1, 4], [2, 4]]
    models = {"L=1, h=1": model_data([0.5]), "L=1, h=4": model_data([0.4]), "L=2, h=4": model_data([0.44])}
    data = {"grid": grid, "models": models}
    assert hyperparameters.lower("heads")(data).value == pytest.approx(0.8)
    assert hyperparameters.lower("heads")(data).holds
    assert not hyperparameters.lower("layers")(data).holds


def test_figure_5_judges_at_equal_iterations():
    panel = {
        "models": {"T=3, dT=2": model_data([1.0, 1.0])},
        "algorithms": {
            "x": [1, 2, 3, 4],
            "gradient descent": [1, 0.6, 0.5, 0.4],
            "Newton's method": [1, 0.4, 0.1, 1e-9],
        },
    }
    data = {"noises": [0, 1], "panels": {"0": panel, "1": panel}}
    assert claim("gao24.fig5", "early_beats_gradient").judge(data).holds
    assert not claim("gao24.fig5", "early_beats_newton").judge(data).holds
    assert claim("gao24.fig5", "noisy_beats_gradient").judge(data).value == pytest.approx(0.8)
    assert claim("gao24.fig5", "newton_ends_at_zero").judge(data).holds
    panel["algorithms"]["Newton's method"][-1] = 0.01
    assert not claim("gao24.fig5", "newton_ends_at_zero").judge(data).holds


def test_the_table_judges_the_whole_interval():
    one = {"cross_entropy": [2.0, 1.9, 2.1], "bleu": [20.0, 19.0, 21.0], "parameters": 5, "layers_applied": 3}
    data = {"models": dict.fromkeys(MODELS, one), "differences": {"AlgoFormer - looped": [-0.1, -0.15, -0.05]}}
    assert claim("gao24.table", "algoformer_beats_looped").judge(data).holds
    data["differences"]["AlgoFormer - looped"] = [-0.1, -0.21, 0.01]
    assert not claim("gao24.table", "algoformer_beats_looped").judge(data).holds


def test_the_table_needs_its_data_and_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("LOOPED_DATA", raising=False)
    settings = Settings(scale="smoke", runs=tmp_path)
    with pytest.raises(ValueError, match="LOOPED_DATA is not set"):
        table.measure(FIGURES["gao24.table"].settings["smoke"], settings)


def test_recipes_have_the_papers_sizes():
    for recipe in (gao24.regression, gao24.autoregression, gao24.chain_of_thought, gao24.linear):
        made = recipe("paper")
        assert isinstance(made.model, AlgoFormerConfig)
        assert (made.task.d, made.model.width, made.model.loop.heads) == (20, 256, 8)
        assert (made.model.loops, made.train.window, made.train.optimizer.learning_rate) == (20, 15, 1e-4)
    text = gao24.translation("paper")
    assert (text.model.loops, text.train.window, text.train.optimizer.learning_rate) == (12, 10, 5e-5)
