import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.constructions.gradient_descent import vector_descent
from looped.prompt import Prompt
from looped.theorems.check import select
from looped.theorems.chen24 import identities, vector_prompts


def descend(xs, ys, theta, rates):
    """Gradient descent on 1/2 |y - X theta|^2, one example at a time."""
    for rate in rates:
        slope = np.zeros_like(theta)
        for x, y in zip(xs, ys, strict=True):
            slope += x * (x @ theta - y)
        theta = theta - rate * slope
    return theta


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 9), d=st.integers(1, 6), loops=st.integers(1, 12), seed=st.integers(0, 9999))
def test_theorem_4_2_to_rounding_for_any_size_start_rates_and_labels(n, d, loops, seed):
    rng = np.random.default_rng(seed)
    xs, ys, query, alpha = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=d), rng.normal() + 3
    rates = rng.uniform(0.1, 1.9, loops) / np.linalg.norm(xs, 2) ** 2
    expected = alpha * descend(xs, ys, -query / alpha, rates)
    model = vector_descent(d=d, rates=rates.tolist())
    prompt = Prompt(torch.tensor(np.vstack([xs, query]))[None], torch.tensor(np.append(ys, alpha))[None])
    np.testing.assert_allclose(model.predict(prompt)[0].numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transposed", [False, True])
def test_other_weights_run_the_same_descent_and_transposed_ones_do_not(transposed):
    # Q = diag(C^-1, 1), P = diag(C', 0): the answer is alpha C theta^(T); C is not symmetric
    rng = np.random.default_rng(3)
    n, d, alpha = 7, 4, 1.7
    xs, ys, c = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=(d, d))
    rates = [0.4 / np.linalg.norm(xs, 2) ** 2] * 6
    expected = alpha * c @ descend(xs, ys, np.zeros(d), rates)
    model = vector_descent(d=d, rates=rates)
    score, value = np.eye(d + 1), np.zeros((d + 1, d + 1))
    score[:d, :d], value[:d, :d] = np.linalg.inv(c), c.T if transposed else c
    model.put(score=torch.tensor(score), value=torch.tensor(rates)[:, None, None] * torch.tensor(value))
    prompt = Prompt(torch.tensor(np.vstack([xs, np.zeros(d)]))[None], torch.tensor(np.append(ys, alpha))[None])
    error = np.abs(model.predict(prompt)[0].numpy() - expected).max()
    assert (error > 1e-3) == transposed
    assert transposed or error < 1e-10


def sign_flipped(value, score):
    return -value, score


def unscaled(value, score):
    return (value != 0).double(), score


def label_kept(value, score):
    return value + value[..., :1, :1] * torch.diag(torch.eye(value.shape[-1]).double()[-1]), score


def score_turned(value, score):
    return value, score.roll(1, -1)


@pytest.mark.parametrize(
    ("mutate", "caught_by"),
    [
        (sign_flipped, {"chen24.lem4.1", "chen24.thm4.2"}),
        (unscaled, {"chen24.thm4.2"}),  # lem4.1 has no rate
        (label_kept, {"chen24.lem4.1", "chen24.thm4.2"}),
        (score_turned, {"chen24.lem4.1", "chen24.thm4.2"}),
    ],
)
def test_a_wrong_weight_fails_the_exact_checks(mutate, caught_by, monkeypatch):
    def mutated(**fields):
        model = vector_descent(**fields)
        weights = [model.heads[0].get_parameter(name).detach() for name in ("value", "score")]
        value, score = mutate(*weights)
        model.put(value=value, score=score)
        return model

    for module in (identities, vector_prompts):
        monkeypatch.setattr(module, "vector_descent", mutated)
    for name in caught_by:
        assert {row.verdict for row in select([name])[0]()} == {"fails"}


def test_drawn_prompts_are_what_they_say():
    prompts = vector_prompts.draw_prompts(5, 20, 4, 0, spread=3, started=True)
    for i in range(5):
        values = np.linalg.svd(prompts.xs[i].numpy(), compute_uv=False) ** 2
        np.testing.assert_allclose([prompts.highest[i], prompts.lowest[i]], [values[0], values[-1]])
        np.testing.assert_allclose(prompts.ys[i], prompts.xs[i].numpy() @ prompts.theta[i].numpy())
    assert prompts.theta.norm(dim=-1).allclose(torch.ones(5).double())
    assert not vector_prompts.draw_prompts(5, 20, 4, 0).query.any()


def test_theorem_4_4_against_numpy_at_one_prompt():
    prompts, loops = vector_prompts.draw_prompts(1, 12, 3, 8), 15
    xs, ys, theta, alpha = (part[0].numpy() for part in (prompts.xs, prompts.ys, prompts.theta, prompts.alpha))
    values = np.linalg.eigvalsh(xs.T @ xs)
    error = prompts.error(prompts.answer(1 / prompts.highest[:, None], loops))[:, 0].numpy()
    for t in range(1, loops + 1):
        reached = alpha * descend(xs, ys, np.zeros(3), [1 / values[-1]] * t)
        assert error[t - 1] == pytest.approx(abs(reached @ theta - alpha), abs=1e-12)
        assert error[t - 1] <= abs(alpha) * np.exp(-t * values[0] / values[-1] / 2)


def test_noisy_labels_break_theorem_4_4_which_needs_them_realizable():
    prompts = vector_prompts.draw_prompts(50, 12, 3, 9)
    noisy = prompts._replace(
        ys=prompts.ys + 0.3 * torch.randn(50, 12, generator=torch.Generator().manual_seed(0)).double()
    )
    steps = torch.arange(1, 61).double()[:, None]
    bound = prompts.alpha.abs() * torch.exp(-steps / (2 * prompts.kappa))
    rates = 1 / prompts.highest[:, None]
    assert (prompts.error(prompts.answer(rates, 60)) <= bound + 1e-12).all()
    assert (noisy.error(noisy.answer(rates, 60)) > bound + 1e-3).any()
