"""The demo's machinery, with a handful of steps; the real one is the README's and CI's to run."""

import functools
import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from looped.cli import main
from looped.papers import yang24
from looped.training.run import Run

demo = importlib.import_module("looped.cli.demo")  # `looped.cli.demo` is the command of that name
KEYS = {"error_k2d", "error_k2d_4x_loops", "least_squares_k2d", "train_seconds", "parameters", "report"}


def _few(judge, *given, **options):
    return judge(*given, **{**options, "prompts": 16})


@pytest.fixture
def short(monkeypatch):
    """Six steps for each of the two runs, judged on few prompts."""
    real = demo.experiments

    def experiments(seed, out):
        clean, noisy = real(seed, out)
        clean = replace(clean, train=replace(clean.train, steps=6, batch=4))
        start = str(Path(out) / clean.folder)
        return clean, replace(noisy, train=replace(noisy.train, steps=6, batch=4, start=start))

    monkeypatch.setattr(demo, "experiments", experiments)
    monkeypatch.setattr(demo, "evaluate", functools.partial(_few, demo.evaluate))
    monkeypatch.setattr(demo.webbrowser, "open", lambda page: pytest.fail("no browser was asked for"))


def test_the_demos_runs_are_the_recipes(tmp_path):
    clean, noisy = demo.experiments(3, str(tmp_path))
    assert clean == replace(yang24.linear("cpu"), name="demo", train=replace(yang24.linear("cpu").train, seed=3))
    assert noisy.train.start == str(tmp_path / f"demo-{clean.hash}")
    assert (noisy.train.seed, noisy.task.noise) == (3, 1.0)


@pytest.mark.usefixtures("short")
def test_json_has_the_figures_and_the_report_exists(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--seed", "1", "--out", str(tmp_path), "--json"])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.err) == (0, "")
    told = json.loads(printed.out)
    assert told.keys() >= KEYS
    assert all(math.isfinite(told[key]) for key in KEYS - {"report"})
    assert told["least_squares_k2d"] < 1e-6
    assert told["parameters"] > 10_000
    kept = told["kept_error"]
    assert (kept["model"], kept["k"], kept["loops"]) == ("yang24.linear", 40, 20)
    assert kept["error"] < 0.002  # published 7.8e-4; 16 prompts here
    page = Path(told["report"])
    assert page.is_file()
    assert page.parent == tmp_path
    names = sorted(folder.name.rpartition("-")[0] for folder in tmp_path.iterdir() if folder.is_dir())
    assert names == ["demo", "demo-noisy"]
    (noisy,) = tmp_path.glob("demo-noisy-*")
    assert Run.open(noisy).latest().step == 6

    with pytest.raises(SystemExit) as ended:
        main(["demo", "--seed", "1", "--out", str(tmp_path), "--no-open"])
    printed = capsys.readouterr()
    assert ended.value.code == 0
    assert "Noiseless labels" in printed.out
    assert f"{told['error_k2d']:.3g}" in printed.out
    assert f"{kept['error']:.3g} at k=40 after 20" in printed.out
