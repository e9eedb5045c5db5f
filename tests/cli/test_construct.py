"""Constructions are ordinary runs: built, listed, loaded, evaluated and drawn by the same commands as trained ones."""

import json

import pytest
import torch

import looped
from looped.constructions.ready import READY, spectrum
from looped.tasks.regression import LinearRegression


@pytest.mark.parametrize("name", READY)
def test_each_construction_learns_linear_regression_loop_by_loop(name, tmp_path, call):
    out = tmp_path / "run"
    assert call("construct", name, "--out", out, "--d", 3, "--examples", 12, "--loops", 12, "--quiet")[0] == 0
    code, text, _ = call("evaluate", out, "--prompts", 64, "--max-loops", 12, "--json")
    assert code == 0
    by_loops = json.loads(text)["by_loops"]["mean"]
    # Newton's method ends at least squares; the others are on the way
    assert by_loops[-1] < {"gatmiry24.thm4": 1e-3, "gao24.thm4.1": 1e-3}.get(name, 0.5) * by_loops[0]


def test_a_construction_is_loaded_and_drawn(tmp_path, call):
    out = tmp_path / "newton"
    assert call("construct", "gao24.thm4.1", "--out", out, "--d", 2, "--examples", 6, "--json")[0] == 0
    prompt = LinearRegression(d=2).sample(batch=3, n=7, generator=torch.Generator().manual_seed(0)).to(torch.float64)
    assert looped.load(out).predict(prompt).shape == (3, 1)
    assert call("report", out, "--out", tmp_path / "report.html", "--quiet")[0] == 0
    assert "Inside the loop" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gatmiry24.thm55"], "Did you mean `gatmiry24.thm5`?"),
        (["gatmiry24.thm5", "--examples", "5"], "must be above d=5"),
        (["gatmiry24.thm5", "--loops", "0"], "`loops` must be at least 1"),
        (["gatmiry24.thm5", "--d", "0"], "`d` must be at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, refused):
    assert said in refused("construct", *arguments, "--out", tmp_path / "run")


def test_the_spectrum_holds_almost_every_prompt():
    xs = torch.randn(2000, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(xs.mT @ xs)
    low, high = spectrum(5, 20)
    assert ((values > low) & (values < high)).all(1).double().mean() > 0.95
