"""Constructions are ordinary runs: built, listed, loaded, evaluated and drawn by the same commands as trained ones."""

import json

import pytest
import torch

import looped
from looped.constructions.ready import READY, spectrum
from looped.tasks.regression import LinearRegression

SAVED = [name for name, build in READY.items() if build(3, 12, 1).task is not None]
EXACT = 1e-13
"""Kernel transformers do what their theorems say but for rounding; softmax heads do so in a limit."""


@pytest.mark.parametrize("name", SAVED)
def test_each_run_learns_its_task_loop_by_loop(name, tmp_path, call):
    out = tmp_path / "run"
    assert call("construct", name, "--out", out, "--d", 3, "--examples", 12, "--loops", 12, "--quiet")[0] == 0
    code, text, _ = call("evaluate", out, "--prompts", 64, "--max-loops", 12, "--json")
    assert code == 0
    by_loops = json.loads(text)["by_loops"]["mean"]
    # Newton's method ends at least squares; the others are on the way
    assert by_loops[-1] < {"gatmiry24.thm4": 1e-3, "gao24.thm4.1": 1e-3}.get(name, 0.5) * by_loops[0]


@pytest.mark.parametrize("name", READY)
def test_every_construction_is_compared_with_its_algorithm_loop_by_loop(name, call):
    code, text, _ = call("construct", name, "--d", 3, "--examples", 7, "--loops", 4, "--json")
    data = json.loads(text)
    assert (code, data["name"], data["run"], len(data["errors"])) == (0, name, None, 4)
    assert name.split(".")[0] in data["statement"]
    assert max(data["errors"]) < (1e-6 if name.startswith("gao24") else EXACT)
    assert data["last_number"]["transformer"] == pytest.approx(data["last_number"]["algorithm"], rel=1e-3)


def test_the_table_names_construction_and_algorithm(call):
    code, out, _ = call("construct", "chen24.thm4.2", "--loops", 3)
    assert code == 0
    first, second, head, *rows = out.splitlines()
    assert (
        first
        == "chen24.thm4.2: Gradient descent from any start as a causal loop of linear attention (chen24, Thm. 4.2)."
    )
    assert second.startswith("algorithm: alpha theta, theta <- theta - ")
    assert head.split() == ["loop", "transformer", "algorithm", "largest", "difference"]
    assert [row.split()[0] for row in rows[:3]] == ["1", "2", "3"]


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
        (["gao24.lemA.2", "--examples", "0"], "`examples` must be at least 1"),
        (["gao24.lemA.4", "--examples", "5"], "must be above d=5"),
        (["gao24.lemA.2"], "no task samples what `gao24.lemA.2` reads"),
        (["cheng24.propD.1", "--d", "1"], "`d` must be at least 2"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, refused):
    assert said in refused("construct", *arguments, "--out", tmp_path / "run")


def test_the_spectrum_holds_almost_every_prompt():
    xs = torch.randn(2000, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(xs.mT @ xs)
    low, high = spectrum(5, 20)
    assert ((values > low) & (values < high)).all(1).double().mean() > 0.95
