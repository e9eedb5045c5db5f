import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from looped.baselines import lasso as module
from looped.baselines.lasso import lasso, lasso_weights
from looped.baselines.linear import least_squares
from looped.prompt import Prompt
from looped.tasks.regression import SparseRegression


def prompts(batch=6, n=14, d=8, seed=0, nonzero=3, noise=0.0):
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(batch, n, d))
    w = rng.normal(size=(batch, d)) * (np.arange(d) < nonzero)
    return Prompt(torch.tensor(xs), torch.tensor(np.einsum("bnd,bd->bn", xs, w) + noise * rng.normal(size=(batch, n))))


def missed_conditions(xs, ys, w, alpha):
    """How far w is from optimal, in NumPy: X'r / n must be alpha sign(w), or within alpha where w is 0."""
    slope = xs.T @ (ys - xs @ w) / len(ys)
    return np.where(w == 0, np.maximum(np.abs(slope) - alpha, 0), np.abs(slope - alpha * np.sign(w))).max()


def duality_gap(xs, ys, w, alpha):
    """Of |y - Xw|^2 / 2n + alpha |w|_1, by scaling the residual into the dual's bounds."""
    n = len(ys)
    residual = ys - xs @ w
    dual = residual * min(1, alpha * n / max(np.abs(xs.T @ residual).max(), 1e-300))
    primal = residual @ residual / (2 * n) + alpha * np.abs(w).sum()
    return primal - (ys @ ys - (ys - dual) @ (ys - dual)) / (2 * n)


@pytest.mark.parametrize("alpha", [1e-3, 1e-2, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize(("n", "d"), [(14, 8), (6, 12), (3, 1), (1, 4)])
def test_it_is_scikit_learns_on_every_prefix(alpha, noise, n, d):
    """To 1e-8 where scikit-learn's coordinate descent ended at the optimum, and never above its loss elsewhere."""
    prompt = prompts(batch=3, n=n, d=d, noise=noise, seed=n + d)
    got, weights = lasso(prompt, alpha).numpy(), lasso_weights(prompt, alpha).numpy()
    assert (got[:, 0] == 0).all()
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    ended = []
    for b in range(3):
        for i in range(1, n):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fit = Lasso(alpha=alpha, fit_intercept=False, tol=1e-15, max_iter=10_000).fit(xs[b, :i], ys[b, :i])
            ended.append(missed_conditions(xs[b, :i], ys[b, :i], fit.coef_, alpha) < 1e-13)
            if ended[-1]:
                assert got[b, i] == pytest.approx(fit.predict(xs[b, i : i + 1])[0], rel=1e-8, abs=1e-8)
            ours, theirs = (
                np.square(ys[b, :i] - xs[b, :i] @ w).sum() / (2 * i) + alpha * np.abs(w).sum()
                for w in (weights[b, i], fit.coef_)
            )
            assert ours <= theirs + 1e-13
    if alpha >= 0.01:
        assert np.mean([*ended, True]) > 0.5, "most fits were compared"


@pytest.mark.parametrize("alpha", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("n", "d", "noise"), [(41, 20, 0.0), (41, 20, 1.0), (15, 30, 0.1)])
def test_the_optimality_conditions_hold_and_the_duality_gap_closes(alpha, n, d, noise):
    prompt = prompts(batch=4, n=n, d=d, noise=noise, seed=1)
    weights = lasso_weights(prompt, alpha).numpy()
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    for b in range(4):
        for i in range(1, n, 1 + n // 20):
            w, size = weights[b, i], np.abs(xs[b, :i].T @ ys[b, :i] / i).max()
            assert missed_conditions(xs[b, :i], ys[b, :i], w, alpha) < 1e-10 * max(size, alpha)
            assert duality_gap(xs[b, :i], ys[b, :i], w, alpha) < 1e-12 * (ys[b, :i] @ ys[b, :i]) / i + 1e-15


def test_collinear_constant_and_zero_columns():
    prompt = prompts(batch=4, n=12, d=6, seed=2)
    xs = prompt.xs.clone()
    xs[..., 1] = xs[..., 0]
    xs[..., 2] = 0
    xs[..., 3] = 1
    xs[..., 4] = xs[..., 0] - 2 * xs[..., 5]
    weights = lasso_weights(Prompt(xs, prompt.ys), 0.01)
    assert weights.isfinite().all()
    assert not weights[..., 2].any()
    for b in range(4):
        for i in range(1, 12):
            args = xs[b, :i].numpy(), prompt.ys[b, :i].numpy(), weights[b, i].numpy(), 0.01
            assert missed_conditions(*args) < 1e-9


def test_repeated_examples_and_zero_labels():
    prompt = prompts(batch=3, n=9, d=4, seed=3)
    xs, ys = prompt.xs.clone(), prompt.ys.clone()
    xs[:, 1:5], ys[:, 1:3] = xs[:, :1], ys[:, :1]
    assert lasso(Prompt(xs, ys), 1e-3).isfinite().all()
    assert not lasso(Prompt(xs, torch.zeros_like(ys))).any()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-40, 40))
def test_labels_and_penalty_in_another_unit_give_answers_in_that_unit(seed, exponent):
    prompt, unit = prompts(batch=2, n=7, d=4, seed=seed, noise=0.3), 2.0**exponent
    other = lasso(Prompt(prompt.xs, prompt.ys * unit), 0.05 * unit)
    torch.testing.assert_close(other, lasso(prompt, 0.05) * unit, rtol=1e-9, atol=1e-9 * unit)


def test_a_large_penalty_gives_zero_and_a_small_one_least_squares():
    prompt = prompts(n=14, d=4, noise=0.2)
    assert not lasso(prompt, 1e3).any()
    torch.testing.assert_close(lasso(prompt, 1e-9)[:, 8:], least_squares(prompt)[:, 8:], rtol=1e-5, atol=1e-6)


def test_the_papers_penalty_beats_a_large_one_and_least_squares(generator):
    task = SparseRegression(d=10, nonzero=2)
    prompt = task.sample(batch=40, n=10, generator=generator)
    small, large = (task.error(lasso(prompt, alpha), prompt) for alpha in (0.01, 1.0))
    assert small.mean() < large.mean()
    assert small[:, 6].mean() < task.error(least_squares(prompt), prompt)[:, 6].mean() / 2


@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_no_penalty_is_refused(alpha):
    with pytest.raises(ValueError, match="`alpha` must be above 0"):
        lasso(prompts(), alpha)


def test_a_fit_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 1)
    with pytest.raises(ValueError, match=r"did not converge in 1 rounds.*Raise `alpha`"):
        lasso(prompts(n=12, d=8, noise=0.5), 1e-4)
