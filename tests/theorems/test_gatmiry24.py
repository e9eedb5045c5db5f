import math

import numpy as np
import pytest
import torch

from looped.functional import kernels
from looped.models.exit_rules import ResidualCertificate
from looped.models.patterns import CovariateScores, FullScores, UnitValue
from looped.theorems.check import select
from looped.theorems.gatmiry24 import closed_forms, robustness, upper_bounds, weight_sets
from looped.theorems.gatmiry24.realizable_prompts import population_loss, realizable
from looped.theorems.sampling import seeded

SIZES = [("lem2", 2.0), ("lem4", 2.0), ("thm2", 2.0), ("thm5", 5.0)]


def corrected(name):
    return [row.verdict for row in select([f"gatmiry24.{name}"])[0]() if row.form != "as printed"]


def turned(self, rows, weights, d):
    return rows[..., :d] @ weights["score"]


def flipped(self, rows, weights, d):
    return -rows[..., :d] @ weights["score"].mT


def unscaled(self, rows, weights, d):
    return rows[..., :d] @ weights["score"].mT * (rows.shape[-2] - 1)


@pytest.mark.parametrize("name", ["lem2", "lem4"])
@pytest.mark.parametrize("queries", [turned, flipped, unscaled])
def test_a_wrong_score_matrix_fails_the_closed_forms(monkeypatch, name, queries):
    monkeypatch.setattr(CovariateScores, "queries", queries)
    assert corrected(name) == ["fails"]


@pytest.mark.parametrize(
    ("name", "factor"),
    # at twice its rate gradient descent is still within its bound
    [(name, factor) for name, large in SIZES for factor in (-1.0, large)],
)
def test_a_value_of_the_wrong_sign_or_size_fails(monkeypatch, name, factor):
    right = UnitValue.values
    monkeypatch.setattr(UnitValue, "values", lambda *args: factor * right(*args))
    assert "fails" in corrected(name)


@pytest.mark.parametrize(
    "queries",
    [
        lambda self, rows, weights, d: rows @ weights["score"],
        lambda self, rows, weights, d: -rows @ weights["score"].mT,
        lambda self, rows, weights, d: 1.1 * rows @ weights["score"].mT,
    ],
    ids=["turned", "flipped", "unscaled"],
)
def test_a_wrong_score_matrix_fails_newton(monkeypatch, queries):
    monkeypatch.setattr(FullScores, "queries", queries)
    assert "fails" in corrected("thm4")


def test_the_wrong_norm_fails_the_certificate(monkeypatch):
    def primal(self, xs, query):
        return torch.einsum("bnd,bd->bn", xs, query).norm(dim=-1)

    monkeypatch.setattr(ResidualCertificate, "dual_norm", primal)
    assert corrected("thm3") == ["fails"]


def test_lemma_4_by_numpy_with_matrices_that_are_not_symmetric():
    prompts = realizable(torch.tensor([[0.5, 1.0, 2.0]]).double(), n=5, generator=seeded(0))
    model = closed_forms.random_model(3, 4, 1)
    scores, xs, ys, w = (
        x.numpy() for x in (closed_forms.layer_scores(model), prompts.prompt.xs[0], prompts.prompt.ys[0], prompts.w[0])
    )
    z = np.vstack([xs.T, np.append(ys[:-1], 0)])
    for a in scores:
        p, q = np.zeros((4, 4)), np.zeros((4, 4))
        p[3, 3], q[:3, :3] = 1, a
        z = z - p @ z @ np.diag([1.0] * 5 + [0.0]) @ z.T @ q @ z / 5
    product = np.eye(3)
    for a in scores:
        product = product @ (np.eye(3) - xs[:-1].T @ xs[:-1] @ a / 5)
    assert -z[3, 5] == pytest.approx(xs[-1] @ w - w @ product @ xs[-1], abs=1e-12)
    assert model.predict(prompts.prompt).item() == pytest.approx(-z[3, 5], abs=1e-12)


def test_population_loss_is_the_expectation():
    covariance = torch.diag(torch.tensor([0.5, 1.0, 2.0]).double())[None]
    model = closed_forms.random_model(3, 2, 3)
    exact = population_loss(model, covariance, loops=2, generator=seeded(0))[-1].item()
    rng, scores = np.random.default_rng(0), closed_forms.layer_scores(model).numpy()
    product = np.eye(3)
    for a in scores:
        product = product @ (np.eye(3) - covariance[0].numpy() @ a / 5)
    w = rng.normal(size=(200_000, 3)) / np.sqrt([0.5, 1, 2])
    x = rng.normal(size=(200_000, 3)) * np.sqrt([0.5, 1, 2])
    errors = np.einsum("bi,ij,bj->b", w, product, x) ** 2
    assert exact == pytest.approx(errors.mean(), abs=5 * errors.std() / math.sqrt(200_000))


def test_lemma_2_by_hand_for_one_layer():
    prompts = realizable(torch.ones(1, 2).double(), n=4, generator=seeded(1))
    matrix = torch.tensor([[[0.3, -1.0], [0.7, 0.2]]]).double()
    examples, printed, query = closed_forms.lemma_2(prompts, matrix, kernels.relu)
    xs, ys = prompts.prompt.xs[0].numpy(), prompts.prompt.ys[0].numpy()
    a = matrix[0].numpy()
    reach = np.maximum(xs[:-1] @ a @ xs[-1], 0)
    assert query.item() == pytest.approx(-(ys[:-1] @ reach) / 4)
    assert printed.item() == pytest.approx(ys[:-1] @ reach)
    np.testing.assert_allclose(examples[0].numpy(), ys[:-1] - ys[:-1] @ np.maximum(xs[:-1] @ a @ xs[:-1].T, 0) / 4)


def test_the_looped_minimiser_is_one_and_stays_in_its_region():
    generator = seeded(3)
    probabilities, support = robustness.spread_out(0.4, 8.0, 1.0, 8.0, generator)
    best = robustness.looped_minimiser(probabilities, support, 10, 1.0, 8.0)

    def loss(matrix):
        values, vectors = np.linalg.eigh(support.numpy())
        root = vectors * np.sqrt(values)[:, None] @ vectors.transpose(0, 2, 1)
        factor = np.eye(3) - root @ matrix @ root
        return float((probabilities.numpy() * np.trace(np.linalg.matrix_power(factor, 20), axis1=1, axis2=2)).sum())

    rng, lowest = np.random.default_rng(0), loss(best.numpy())
    for _ in range(200):
        step = rng.normal(size=(3, 3)) * 10 ** rng.uniform(-5, -2)
        assert loss(best.numpy() + step + step.T) >= lowest * (1 - 1e-9)


def test_the_overfitted_model_has_no_training_loss():
    model, support = robustness.overfitted(4, 1.0, 20.0)
    assert population_loss(model, support, loops=4, generator=seeded(0))[-1].max() < 1e-12


def test_equal_layers_are_monotone_where_unequal_ones_are_not():
    base = torch.diag(torch.tensor([1.0, 1.3, 1.6]).double())
    assert robustness.unevenness(base.expand(4, 3, 3), seeded(0)) < 1e-9
    unequal = torch.stack([base, base, 1.1 * base, base])
    assert robustness.unevenness(unequal, seeded(0)) > 1e-3


def test_searched_weights_are_what_the_transformer_computes():
    q, a = weight_sets.searched(3, 64.0)
    s, error = np.geomspace(1, 64, 50), 1.0
    for t in range(3):
        error = error * (1 - q[t].item() * s)
        s = s * (1 - a[t].item() * q[t].item() * s) ** 2
    assert np.abs(error).max() < 0.25
    assert weight_sets.best_unrestricted(3, 8.0) <= np.abs(error).max() * 1.05


def test_measured_depths_are_the_theory():
    assert upper_bounds.depth(16.0, 1e-3) == math.ceil(2 * math.log(2000))
    line = torch.arange(5).double()
    assert upper_bounds.slope(line, 3 * line + 1) == pytest.approx(3)
