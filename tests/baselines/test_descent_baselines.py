import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.baselines import descent
from looped.baselines.descent import gradient_descent, newton
from looped.baselines.linear import least_squares
from looped.prompt import Prompt


def prompts(batch=4, n=9, d=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(batch, n, d, generator=generator, dtype=torch.float64)
    return Prompt(xs, torch.randn(batch, n, generator=generator, dtype=torch.float64))


def by_numpy(prompt, fit):
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    answers = np.zeros_like(ys)
    for b in range(len(xs)):
        for i in range(1, xs.shape[1]):
            answers[b, i] = xs[b, i] @ fit(xs[b, :i], ys[b, :i])
    return answers


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("rate", [None, 0.02])
@pytest.mark.parametrize(("n", "d"), [(9, 5), (4, 8), (1, 2)])
def test_gradient_descent_is_numpys_on_every_prefix(steps, rate, n, d):
    def fit(xs, ys):
        w = np.zeros(d)
        for _ in range(steps):
            w = w - (rate or 1 / np.linalg.norm(xs, 2) ** 2) * xs.T @ (xs @ w - ys)
        return w

    prompt = prompts(n=n, d=d, seed=n)
    np.testing.assert_allclose(gradient_descent(prompt, steps, rate), by_numpy(prompt, fit), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize(("n", "d"), [(9, 5), (4, 8), (1, 2)])
def test_newton_is_numpys_on_every_prefix(steps, n, d):
    def fit(xs, ys):
        squares = xs.T @ xs
        inverse = squares / np.linalg.norm(squares, 2) ** 2
        for _ in range(steps):
            inverse = 2 * inverse - inverse @ squares @ inverse
        return inverse @ xs.T @ ys

    prompt = prompts(n=n, d=d, seed=n)
    np.testing.assert_allclose(newton(prompt, steps), by_numpy(prompt, fit), rtol=1e-8, atol=1e-12)


def test_both_tend_to_least_squares_and_newton_much_sooner():
    prompt = prompts(n=12, d=3)
    exact = least_squares(prompt)[:, 6:]
    torch.testing.assert_close(newton(prompt, 25), least_squares(prompt), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient_descent(prompt, 400)[:, 6:], exact, rtol=1e-6, atol=1e-6)
    gaps = [(method(prompt, 8)[:, 6:] - exact).abs().max() for method in (newton, gradient_descent)]
    assert gaps[0] < 0.1 * gaps[1]


def test_chunks_change_nothing(monkeypatch):
    prompt = prompts(batch=7)
    whole = gradient_descent(prompt, 4), newton(prompt, 4)
    monkeypatch.setattr(descent, "CHUNK", 3000)
    torch.testing.assert_close(gradient_descent(prompt, 4), whole[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(newton(prompt, 4), whole[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", [gradient_descent, newton])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-60, 60), factor=st.floats(-1e50, 1e50))
def test_units_of_x_do_not_matter_and_labels_carry_theirs(method, seed, exponent, factor):
    prompt = prompts(batch=2, n=5, d=3, seed=seed)
    other = method(Prompt(prompt.xs * 2.0**exponent, prompt.ys * factor), 5)
    torch.testing.assert_close(other, method(prompt, 5) * factor, rtol=1e-8, atol=1e-8 * abs(factor) + 1e-300)


@pytest.mark.parametrize("method", [gradient_descent, newton])
def test_zero_and_alike_examples_are_finite(method):
    assert not method(Prompt(torch.zeros(2, 5, 3), torch.ones(2, 5)), 4).any()
    assert method(Prompt(torch.ones(2, 5, 3), torch.ones(2, 5)), 4).isfinite().all()


@pytest.mark.parametrize("method", [gradient_descent, newton])
def test_negative_steps_are_refused(method):
    with pytest.raises(ValueError, match="`steps` must be at least 0; got -1"):
        method(prompts(), -1)
