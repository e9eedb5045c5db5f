import csv
import json
import sys

import pytest
import torch

from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.run import save_model

OWN = """
from dataclasses import dataclass

import torch

from looped.functional.descent import gradient_descent
from looped.tasks.shifts import Shift


def always_one(prompt):
    return torch.ones_like(prompt.ys)


def descent_of_mine(prompt, steps):
    weights = gradient_descent(prompt.xs[:, :-1], prompt.ys[:, :-1], steps=steps, rate=0.05)[-1]
    return (weights * prompt.xs[:, -1]).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Larger(Shift):
    factor: float = 2.0

    def __call__(self, draw):
        from dataclasses import replace

        xs = self.factor * draw.xs
        return replace(draw, xs=xs, queries=xs, variance=draw.variance * self.factor**2)


not_a_function = 3


class NoShift:
    pass
"""


@pytest.fixture
def runs(tmp_path):
    """Two run folders with small untrained decoders of the same name."""
    paths = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = DecoderConfig(d=3, width=8, heads=2, loops=2, positions=20).build()
        paths.append(save_model(tmp_path / f"run{seed}", model, LinearRegression(d=3), name="small").path)
    return paths


@pytest.fixture
def own(tmp_path):
    """The user's file, forgotten afterwards: its name is a module's."""
    file = tmp_path / "things_of_mine.py"
    file.write_text(OWN)
    yield file
    sys.modules.pop(file.stem, None)


def test_two_runs_are_compared_drawn_and_written(runs, call, tmp_path):
    files = {option: tmp_path / name for option, name in (("csv", "a.csv"), ("latex", "a.tex"), ("plot", "a.png"))}
    options = [part for option, file in files.items() for part in (f"--{option}", file)]
    code, out, error = call("compare", *runs, "--prompts", 20, "--points", 5, *options, "--json")
    assert code == 0, error
    printed = json.loads(out)
    assert [entry["label"] for entry in printed["entries"]] == ["run0", "run1"]
    assert printed["entries"][1]["difference"]["mean"] == pytest.approx(
        printed["entries"][1]["error"]["mean"] - printed["entries"][0]["error"]["mean"]
    )
    assert files["plot"].read_bytes().startswith(b"\x89PNG")
    assert r"\toprule" in files["latex"].read_text()
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(rows) == 2 * (5 + 8)
    code, out, error = call("compare", *runs, "--prompts", 20, "--points", 5)
    assert "differences paired, to run0" in out
    assert error == ""


def test_baselines_shifts_and_algorithms_of_ones_own(runs, own, call, refused):
    few = ("--prompts", 20, "--points", 5)
    code, out, _ = call("compare", runs[0], "--baseline", f"{own}:always_one", *few, "--json")
    assert code == 0
    assert json.loads(out)["entries"][1]["label"] == "always_one"
    shifted = ("--baseline", f"{own}:always_one", "--shift", f"{own}:Larger:factor=3")
    code, out, _ = call("evaluate", runs[0], *few, *shifted, "--json")
    assert code == 0
    data = json.loads(out)
    assert "Larger(factor=3.0)" in data["task"]
    assert [curve["label"] for curve in data["by_examples"]][-1] == "always_one"
    descent = (
        "identify",
        runs[0],
        "--algorithm",
        f"{own}:descent_of_mine",
        "--loops",
        1,
        "--points",
        6,
        "--prompts",
        8,
    )
    code, out, _ = call(*descent, "--json")
    assert code == 0
    assert "descent of mine" in [match["algorithm"] for match in json.loads(out)["loops"][0]["others"]]
    assert "which is none" in refused("evaluate", runs[0], "--baseline", f"{own}:not_a_function")
    assert "is a subclass of `Shift`" in refused("evaluate", runs[0], "--shift", f"{own}:NoShift")
    assert "which is none" in refused("identify", runs[0], "--algorithm", "nothing")


def test_an_algorithm_without_parameters_is_identified(call, own, tmp_path):
    path = tmp_path / "descent"
    sizes = ("--d", 3, "--examples", 8, "--loops", 2)
    assert call("construct", "gatmiry24.thm5", "--out", path, *sizes, "--quiet")[0] == 0
    code, out, _ = call("identify", path, "--algorithm", f"{own}:descent_of_mine", "--prompts", 16, "--json")
    assert code == 0
    for loop in json.loads(out)["loops"]:
        assert loop["name"] == "gradient descent"
        mine = next(match for match in loop["others"] if match["algorithm"] == "descent of mine")
        assert mine["parameters"] == {}
        assert 0 < mine["distance"] < 1.5


def test_bad_input_is_one_line(runs, tmp_path, refused):
    assert "needs at least 2 models" in refused("compare", runs[0])
    assert "is given twice" in refused("compare", runs[0], runs[0])
    assert "`--plot` must end in .png or .svg or .pdf" in refused("compare", *runs, "--plot", "a.gif")
    assert "existing folder" in refused("compare", *runs, "--csv", tmp_path / "none" / "a.csv")
    assert "Add `--task`" in refused("compare", *runs, "--scale", "smoke")
    model = DecoderConfig(d=3, width=8, heads=2, loops=2, positions=20).build()
    other = save_model(tmp_path / "other", model, LinearRegression(d=3, noise=1.0), name="noisy").path
    assert "have 2 tasks" in refused("compare", runs[0], other)
