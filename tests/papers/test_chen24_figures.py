"""chen24's figure: the measured curves are gradient descent's, and rounding is not taken for convergence."""

import math

import pytest
import torch

from looped.papers.chen24 import BOUND, FIG1, FLOOR, LOOPED, Descent, decay_rates
from looped.studies import Context
from looped.theorems.chen24.vector_prompts import draw_prompts


@pytest.fixture(scope="module")
def table():
    return FIG1.measure("smoke")(FIG1.cells("smoke"), Context(scale="smoke"))


def first_trial(table, quantity, model):
    return table.where(quantity, n=16, model=model).series[0].value


def test_measured_curves_are_gradient_descent(table):
    """The first prompt again in plain steps, from the numbers that name it."""
    prompts = draw_prompts(3, 16, 4, 0, started=True)
    theta, errors = -prompts.query[0] / prompts.alpha[0], []
    for _ in range(6):
        errors.append(float((theta - prompts.theta[0]).square().sum()))
        theta = theta - prompts.xs[0].T @ (prompts.xs[0] @ theta - prompts.ys[0]) / prompts.highest[0]
    expected = [error / errors[0] for error in errors]
    assert first_trial(table, "error", LOOPED)[:6] == pytest.approx(expected, rel=1e-8)
    spectrum = torch.linalg.eigvalsh(prompts.xs[0].T @ prompts.xs[0])
    kappa = float(spectrum[-1] / spectrum[0])
    assert first_trial(table, "kappa", LOOPED) == pytest.approx((kappa,))
    assert first_trial(table, "decay_rate", BOUND) == pytest.approx((1 / kappa,))
    assert first_trial(table, "error", BOUND)[5] == pytest.approx(math.exp(-5 / kappa))


def test_decay_rate_ends_at_the_rounding_floor():
    steps = torch.arange(101, dtype=torch.float64)
    errors = torch.stack([(-rate * steps).exp() for rate in (0.5, 1.4)]).clamp_min(1e-33)
    assert decay_rates(errors).tolist() == pytest.approx([0.5, 1.4])


def test_the_bound_never_asks_for_less_than_rounding():
    table = Descent(trials=1, loops=150)(FIG1.cells("paper"), Context(scale="paper"))
    assert table.where("error", n=128, model=BOUND).series[0].value[-1] == FLOOR
    assert {claim.id: claim.verdict for claim in FIG1.judge(table, "paper")}["chen24.fig1.below_bound"] == "holds"
