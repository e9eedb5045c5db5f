"""chen24's figure: the measured curves are gradient descent's, and every judge can hold and fail."""

import json

import pytest
import torch
from looped.evaluation.claims import Settings
from matplotlib.figure import Figure

from looped.papers.chen24 import FLOOR, PAPER_KAPPA, decay_rates, fig1


@pytest.fixture(scope="module")
def data():
    return json.loads(json.dumps(fig1.measure(fig1.settings["smoke"], Settings(scale="smoke"))))


def synthetic(rates=(0.5, 0.7, 1.0, 1.4), bounds=(0.25, 0.3, 0.4, 0.5), kappas=None):
    """Errors and bounds that fall exponentially, two trials alike."""
    steps = torch.arange(101, dtype=torch.float64)
    return {
        "n": [16, 32, 64, 128],
        "kappa": [[kappa] * 2 for kappa in (kappas or PAPER_KAPPA.values())],
        "error": [[(-rate * steps).exp().tolist()] * 2 for rate in rates],
        "bound": [[(-rate * steps).exp().tolist()] * 2 for rate in bounds],
    }


def verdicts(data):
    return {claim.id.removeprefix("chen24.fig1."): claim.verdict for claim in fig1.judge(data, "cpu")}


def test_measured_curves_are_gradient_descent(data):
    """The first prompt again in plain NumPy-like steps, from the numbers that name it."""
    from looped.theorems.chen24.vector_prompts import draw_prompts

    made = draw_prompts(fig1.settings["smoke"]["trials"], 16, 4, 0, started=True)
    theta = -made.query[0] / made.alpha[0]
    first = float((theta - made.theta[0]).square().sum())
    for t in range(6):
        assert data["error"][0][0][t] == pytest.approx(float((theta - made.theta[0]).square().sum()) / first, rel=1e-8)
        theta = theta - made.xs[0].T @ (made.xs[0] @ theta - made.ys[0]) / made.highest[0]
    spectrum = torch.linalg.eigvalsh(made.xs[0].T @ made.xs[0])
    assert data["kappa"][0][0] == pytest.approx(float(spectrum[-1] / spectrum[0]))
    assert data["bound"][0][0][5] == pytest.approx(float(torch.exp(-5 * spectrum[0] / spectrum[-1])))


def test_decay_rate_ignores_rounding():
    made = synthetic(rates=(0.5, 0.7, 1.0, 1.4))
    for curve in made["error"][3]:
        curve[:] = [max(value, 1e-33) for value in curve]
    assert decay_rates(made).mean(1).tolist() == pytest.approx([0.5, 0.7, 1.0, 1.4])


def test_judges_can_hold_and_fail():
    held = verdicts(synthetic(rates=(0.5, 0.7, 0.9, 1.1)))
    assert held == {"below_bound": "holds", "faster": "holds", "kappa": "holds", "gap": "holds"}
    assert verdicts(synthetic(rates=(0.5, 0.7, 0.39, 1.1)))["below_bound"] == "fails"
    assert verdicts(synthetic(rates=(0.5, 0.7, 0.6, 1.1)))["faster"] == "fails"
    assert verdicts(synthetic(kappas=(4.57, 3.13, 2.07, 2.2)))["kappa"] == "fails"
    assert verdicts(synthetic(rates=(0.3, 0.7, 1.0, 1.4)))["gap"] == "fails"


def test_bound_counts_only_above_the_floor():
    """Below the floor an error of pure rounding is far above the bound, and says nothing."""
    made = synthetic()
    made["bound"][3][0][100] = FLOOR / 2
    made["error"][3][0][100] = 1e-20
    assert verdicts(made)["below_bound"] == "holds"
    made["bound"][3][0][100] = FLOOR * 2
    assert verdicts(made)["below_bound"] == "fails"


def test_drawn_like_the_paper(data):
    canvas = Figure(layout="constrained")
    fig1.draw(canvas, data)
    (ax,) = canvas.axes
    assert ax.get_xlabel() == "loops T"
    assert ax.get_ylabel() == "log(error / first error)"
    assert len(canvas.legends[0].get_texts()) == 5
