"""chen24's figure: the measured curves are gradient descent's, and rounding is not taken for convergence."""

import mpmath
import numpy as np
import pytest

from looped.functional.precise_descent import log_distances
from looped.papers import chen24
from looped.papers.chen24 import BOUND, DRAWN, FIG1, FLOAT64, PRECISE, Descent
from looped.studies import Context
from looped.theorems.chen24.vector_prompts import draw_prompts

MEASURE = Descent(trials=12)
"""As at paper scale, with fewer trials."""


def measured(measure=MEASURE, cells=None):
    return measure(FIG1.cells("paper") if cells is None else cells, Context(scale="paper"))


def verdicts(table):
    return {claim.id.removeprefix("chen24.fig1."): claim.verdict for claim in FIG1.judge(table, "paper")}


@pytest.fixture(scope="module")
def table():
    return measured()


def series(table, quantity, model, n=16):
    return table.where(quantity, n=n, model=model).series


def test_curves_start_at_q_0_and_are_gradient_descent():
    """The prompts again in plain steps from theta = 0."""
    table, prompts = measured(Descent(trials=3, loops=8)), draw_prompts(3, 16, 4, 0)
    logs = np.zeros((3, 9))
    for trial, (xs, ys, target) in enumerate(zip(prompts.xs, prompts.ys, prompts.theta, strict=True)):
        theta = 0 * target
        for t in range(9):
            logs[trial, t] = np.log(float((theta - target).square().sum()))
            theta = theta - xs.T @ (xs @ theta - ys) / prompts.highest[trial]
    for model in (FLOAT64, PRECISE):
        assert series(table, "log_error", model)[0].value == pytest.approx((logs - logs[:, :1]).mean(0), abs=1e-8)
    kappa = [np.linalg.cond(xs) ** 2 for xs in prompts.xs.numpy()]
    assert [entry.value[0] for entry in series(table, "kappa", FLOAT64)] == pytest.approx(kappa)
    assert [entry.value[0] for entry in series(table, "decay_rate", BOUND)] == pytest.approx([1 / k for k in kappa])
    assert series(table, "log_error", DRAWN)[0].value[-1] == pytest.approx(np.mean([-4 / k for k in kappa]))


def test_descent_in_many_digits_is_that_of_mpmath():
    """All of it again in 150 digits by the eigenvalues: sum_i c_i^2 (1 - rate lambda_i)^(2t)."""
    prompts, steps = draw_prompts(1, 128, 4, 3), 120
    logs = log_distances(prompts.xs, prompts.theta, 1 / prompts.highest, steps=steps, digits=150)[0]
    with mpmath.workdps(150):
        xs, theta = mpmath.matrix(prompts.xs[0].tolist()), mpmath.matrix(prompts.theta[0].tolist())
        values, vectors = mpmath.eigsy(xs.T * xs)
        parts, rate = vectors.T * theta, mpmath.mpf(1 / float(prompts.highest[0]))
        for t in (0, 1, 5, 40, steps):
            square = sum(part**2 * (1 - rate * value) ** (2 * t) for part, value in zip(parts, values, strict=True))
            assert logs[t] == pytest.approx(float(mpmath.log(square)), abs=1e-9)
    assert logs[-1] < -200
    few = log_distances(prompts.xs, prompts.theta, 1 / prompts.highest, steps=steps, digits=16)[0]
    assert -80 < few[-1] < -60, "with the digits of float64 it ends at their rounding"


def test_the_gap_narrows_by_the_floor_of_float64_alone(table):
    assert verdicts(table).items() >= {"below_bound": "holds", "faster": "holds", "gap": "fails"}.items()
    assert chen24.gap(FLOAT64).value(table).high < 1 < chen24.gap(PRECISE).value(table).low
    ends = [[entry.value[-1] for entry in series(table, "log_error", model, n=128)] for model in (FLOAT64, PRECISE)]
    assert -75 < np.mean(ends[0]) < -70
    assert np.mean(ends[1]) < -300


def test_planted_steps_that_are_too_small_break_the_bound(monkeypatch):
    monkeypatch.setattr(
        chen24, "log_distances", lambda xs, theta, rates, **size: log_distances(xs, theta, rates / 4, **size)
    )
    assert verdicts(measured())["below_bound"] == "fails"


def test_planted_columns_of_different_length_change_kappa(monkeypatch):
    monkeypatch.setattr(chen24, "draw_prompts", lambda *size: draw_prompts(*size, spread=2.0))
    assert verdicts(measured())["kappa"] == "fails"


def test_planted_prompts_that_get_worse_with_n_are_not_faster():
    cells = FIG1.cells("paper")
    backwards = dict(zip(cells, reversed(cells.values()), strict=True))
    assert verdicts(measured(MEASURE, backwards))["faster"] == "fails"


def test_planted_rates_that_near_the_bound_narrow_the_gap(monkeypatch):
    """A prompt's error falls at its bound's rate plus 1/n."""

    def nearing(self, prompts):
        rates = 0.5 / prompts.kappa.numpy()[:, None] + 1 / prompts.xs.shape[1]
        return -rates * np.arange(self.loops + 1)

    monkeypatch.setattr(Descent, "precise_logs", nearing)
    assert verdicts(measured())["gap"] == "holds"
