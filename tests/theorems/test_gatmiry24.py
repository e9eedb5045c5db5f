import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import wasserstein_distance

from looped.functional import kernels
from looped.functional.polynomials import extremal_size
from looped.functional.streams import generator_of
from looped.prompt import Prompt
from looped.theorems.gatmiry24 import closed_forms, lower_bounds, overfitting, robustness, upper_bounds, weight_sets
from looped.theorems.gatmiry24.realizable_prompts import population_loss, realizable


def test_lemma_4_by_numpy_with_matrices_that_are_not_symmetric():
    prompts = realizable(torch.tensor([[0.5, 1.0, 2.0]]).double(), n=5, generator=generator_of(0))
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
    exact = population_loss(model, covariance, loops=2, generator=generator_of(0))[-1].item()
    rng, scores = np.random.default_rng(0), closed_forms.layer_scores(model).numpy()
    product = np.eye(3)
    for a in scores:
        product = product @ (np.eye(3) - covariance[0].numpy() @ a / 5)
    w = rng.normal(size=(200_000, 3)) / np.sqrt([0.5, 1, 2])
    x = rng.normal(size=(200_000, 3)) * np.sqrt([0.5, 1, 2])
    errors = np.einsum("bi,ij,bj->b", w, product, x) ** 2
    assert exact == pytest.approx(errors.mean(), abs=5 * errors.std() / math.sqrt(200_000))


def test_lemma_2_by_hand_for_one_layer():
    prompts = realizable(torch.ones(1, 2).double(), n=4, generator=generator_of(1))
    matrix = torch.tensor([[[0.3, -1.0], [0.7, 0.2]]]).double()
    examples, printed, query = closed_forms.lemma_2(prompts, matrix, kernels.relu)
    xs, ys = prompts.prompt.xs[0].numpy(), prompts.prompt.ys[0].numpy()
    a = matrix[0].numpy()
    reach = np.maximum(xs[:-1] @ a @ xs[-1], 0)
    assert query.item() == pytest.approx(-(ys[:-1] @ reach) / 4)
    assert printed.item() == pytest.approx(ys[:-1] @ reach)
    np.testing.assert_allclose(examples[0].numpy(), ys[:-1] - ys[:-1] @ np.maximum(xs[:-1] @ a @ xs[:-1].T, 0) / 4)


def test_the_looped_minimiser_is_one_and_stays_in_its_region():
    generator = generator_of(3)
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
    model, support = overfitting.overfitted(4, 1.0, 20.0)
    assert population_loss(model, support, loops=4, generator=generator_of(0))[-1].max() < 1e-12


def test_equal_layers_are_monotone_where_unequal_ones_are_not():
    base = torch.diag(torch.tensor([1.0, 1.3, 1.6]).double())
    assert robustness.unevenness(base.expand(4, 3, 3), generator_of(0)) < 1e-9
    unequal = torch.stack([base, base, 1.1 * base, base])
    assert robustness.unevenness(unequal, generator_of(0)) > 1e-3


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


@pytest.mark.parametrize(("layers", "lowest"), [(1, 7 / 9), (2, 0.49174)])
def test_lemma_1b_as_printed_is_true_for_one_and_two_layers(layers, lowest):
    gammas = np.geomspace(1, 2**layers, 500)[:, None]
    powers = gammas ** np.arange(3, 3**layers + 1, 2) / 2.0 ** (layers * np.arange(3, 3**layers + 1, 2))
    ones = np.ones_like(gammas)
    limits = np.block([[powers, -ones], [-powers, -ones]])
    best = linprog([0] * powers.shape[1] + [1], limits, np.concatenate([ones, -ones])[:, 0], bounds=(None, None))
    assert best.fun == pytest.approx(lowest, abs=1e-3)
    assert lower_bounds.whole_prompt_error(layers) >= best.fun - 1e-3


def test_normalising_weights_by_numpy():
    layers, gamma = 4, 5.3
    model = weight_sets.normalising(layers)
    value, score = (model.heads[0].get_parameter(name).detach().numpy() for name in ("value", "score"))
    z = gamma * np.array([[0.6, 0.0, 0.8, 1.5], [0.6, 0.0, 0.8, 0.0]])
    prompt = Prompt(torch.tensor(z[0])[None, :, None], torch.tensor(z[1])[None])
    for p, q in zip(value, score, strict=True):
        z = z - p @ z @ np.diag([1.0, 1, 1, 0]) @ z.T @ q @ z / 3
    assert model.predict(prompt).item() == pytest.approx(-z[1, 3], rel=1e-12)
    assert abs(z[1, 3] + 1.5) < 0.48 * 1.5


def test_the_constants_of_the_corrected_lower_bounds():
    """One more layer, or the printed error, would be too much."""
    for k in (4, 10, 100):
        assert 0.25 <= extremal_size(k, 1, k**2) < 0.27
        assert extremal_size(k + 1, 1, k**2) < 0.25 or k > 10
        assert 0.5 <= extremal_size(k, 1, (k / 0.65) ** 2) < 0.51


def test_the_shift_in_one_dimension_has_this_wasserstein_distance_and_loss_one():
    layers, high = 4, 10.0
    _, support = overfitting.overfitted(layers, 1.0, high, 1)
    points = np.append(support.flatten().numpy(), 8.0)
    loss = np.prod((1 - points[:, None] / support.flatten().numpy()) ** 2, axis=1)
    moved = 1 / loss[-1]
    test = np.append(np.full(layers, 1 / layers), 0)
    test[-2:] += [-moved, moved]
    train = np.append(np.full(layers, 1 / layers), 0)
    assert test @ loss == pytest.approx(1)
    distance = wasserstein_distance(points, points, train, test)
    assert overfitting.distance_to_loss_one(layers, 1, high) == pytest.approx(distance)


def test_no_depth_makes_the_loss_of_a_turning_weight_monotone():
    power, losses = np.eye(2), []
    for _ in range(6):
        power = power @ np.array([[0, 2], [0.5, 0]])
        losses.append(np.trace(power @ power.T))
    assert losses == [4.25, 2] * 3
