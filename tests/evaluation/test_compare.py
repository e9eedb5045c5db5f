import numpy as np
import pytest
import torch

import looped
from evaluation.planted_models import AffineConfig
from looped.baselines.linear import least_squares
from looped.evaluation.compare import compare
from looped.tasks.regression import LinearRegression

TASK = LinearRegression(d=3)
SIZES = {"points": 6, "prompts": 60}


def affine(loops, rate=0.5):
    return AffineConfig(loops=loops, rate=rate).build().double()


def last_squares(seed=0):
    """y^2 / E y^2 of every prompt, which the errors of an affine model are proportional to."""
    prompt = TASK.sample(batch=60, n=6, generator=torch.Generator().manual_seed(seed))
    return (prompt.ys[:, -1] ** 2 / 3).double().numpy()


def test_errors_and_paired_differences_are_those_computed_by_hand():
    comparison = compare({"four": affine(4), "three": affine(3)}, TASK, **SIZES)
    squares = last_squares()
    four, three = comparison.entries
    assert (four.loops, four.max_loops, three.loops, three.max_loops) == (4, 16, 3, 12)
    assert four.error.mean == pytest.approx(np.mean(squares) / 2**8, rel=1e-5)
    assert three.difference.mean == pytest.approx(np.mean(squares) * (2**-6 - 2**-8), rel=1e-5)
    assert (four.difference, four.verdict, three.verdict) == (None, "reference", "worse")
    draws = np.random.default_rng(0).integers(0, 60, (4000, 60))
    low, high = np.quantile(squares[draws].mean(1), [0.05, 0.95]) * (2**-6 - 2**-8)
    assert three.difference.low == pytest.approx(low, rel=0.05)
    assert three.difference.high == pytest.approx(high, rel=0.05)


def test_pairing_decides_what_unpaired_intervals_leave_open():
    comparison = compare({"slow": affine(2, 0.50), "slower": affine(2, 0.47)}, TASK, **SIZES)
    slow, slower = comparison.entries
    assert slow.error.high > slower.error.low, "their intervals overlap"
    assert slower.verdict == "worse"
    again = compare({"slower": affine(2, 0.47), "slow": affine(2, 0.50)}, TASK, **SIZES)
    assert again.entries[1].verdict == "better"
    equal = compare({"one": affine(2), "other": affine(2)}, TASK, **SIZES)
    assert equal.entries[1].verdict == "undecided"


def test_a_baseline_has_one_error_and_no_loops():
    comparison = looped.compare({"affine": affine(2), "least squares": least_squares}, TASK, **SIZES)
    baseline = comparison.entries[1]
    assert (baseline.loops, baseline.max_loops, baseline.by_loops.x) == (0, 0, [1])
    assert baseline.error == baseline.late
    assert baseline.error.mean == pytest.approx(0, abs=1e-6)


def test_the_table_for_a_paper_and_the_rows_have_every_number():
    comparison = compare({"a_b": affine(2), "c": affine(1)}, TASK, **SIZES)
    latex = comparison.latex()
    assert latex.startswith("% 60 prompts of LinearRegression(d=3")
    assert r"a\_b & 2 & " in latex
    assert r"\bottomrule" in latex
    assert f"{comparison.entries[1].difference.mean:.3g} [" in latex
    rows = comparison.rows()
    assert {(row["model"], row["axis"]) for row in rows} == {
        (m, a) for m in ("a_b", "c") for a in ("examples", "loops")
    }
    assert [row["error"] for row in rows if row["model"] == "c" and row["axis"] == "loops"] == (
        comparison.entries[1].by_loops.mean
    )


def test_one_model_is_no_comparison():
    with pytest.raises(ValueError, match="needs at least 2 models; got 1"):
        compare({"a": affine(2)}, TASK, **SIZES)
    with pytest.raises(ValueError, match="`max_loops` must be at least loops=5"):
        compare({"a": affine(2), "b": affine(2)}, TASK, **SIZES, loops=5, max_loops=3)
