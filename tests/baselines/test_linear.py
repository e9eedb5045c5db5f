import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from looped.baselines.linear import averaging, least_squares, ridge, ridge_path
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression


def numbers(batch, n, d, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(batch, n, d))
    return xs, np.einsum("bnd,bd->bn", xs, rng.normal(size=(batch, d))) + noise * rng.normal(size=(batch, n))


def prompt_of(xs, ys):
    return Prompt(torch.tensor(xs), torch.tensor(ys))


def by_lstsq(xs, ys):
    """Prompt by prompt and prefix by prefix, with the condition number of each prefix."""
    predictions, conditions = np.zeros_like(ys), np.ones_like(ys)
    for b in range(len(xs)):
        for i in range(1, xs.shape[1]):
            w, _, rank, singular = np.linalg.lstsq(xs[b, :i], ys[b, :i], rcond=1e-12)
            predictions[b, i] = xs[b, i] @ w
            conditions[b, i] = singular[0] / singular[rank - 1] if rank else 1
    return predictions, conditions


def agree(got, wanted, conditions):
    """1e-8 where no prefix so far was near-singular, 1e-6 where one was, relative to the prompt's largest number."""
    scale = np.maximum(1, np.abs(wanted).max(axis=1, keepdims=True))
    error = np.abs(got.numpy() - wanted) / scale
    well = conditions < 1e4
    assert error[well].max() < 1e-8
    assert error.max() < 1e-6


@pytest.mark.parametrize(("n", "d"), [(11, 5), (41, 20), (6, 10), (3, 1), (1, 4), (15, 15)])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_least_squares_equals_lstsq_on_every_prefix(n, d, noise):
    xs, ys = numbers(20, n, d, seed=n + d, noise=noise)
    agree(least_squares(prompt_of(xs, ys)), *by_lstsq(xs, ys))


def test_least_squares_is_the_least_norm_fit_before_d_examples():
    xs, ys = numbers(5, 8, 20)
    wanted = [[xs[b, i] @ np.linalg.pinv(xs[b, :i]) @ ys[b, :i] if i else 0 for i in range(8)] for b in range(5)]
    np.testing.assert_allclose(least_squares(prompt_of(xs, ys)).numpy(), wanted, rtol=1e-9, atol=1e-10)


def test_least_squares_is_exact_without_noise_from_d_examples_on():
    xs, ys = numbers(50, 41, 20, noise=0.0)
    error = np.abs(least_squares(prompt_of(xs, ys)).numpy() - ys)
    assert error[:, 20:].max() < 1e-8
    assert error[:, :20].max() > 0.1


@pytest.mark.parametrize("zero", [False, True])
def test_least_squares_with_repeated_zero_and_dependent_examples(zero):
    """The same x again, with another label: the fit takes the mean, and the rank does not grow."""
    xs, ys = numbers(10, 12, 4, seed=1)
    if zero:
        xs[:, [0, 7]], xs[:, 3] = 0, 2 * xs[:, 1] - xs[:, 2]
    else:
        xs[:, 1], xs[:, [5, 6]] = xs[:, 0], xs[:, [2]]
    agree(least_squares(prompt_of(xs, ys)), *by_lstsq(xs, ys))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_least_squares_with_examples_in_a_subspace(rank):
    rng = np.random.default_rng(rank)
    xs, ys = numbers(10, 12, 6, seed=2)
    basis = np.linalg.qr(rng.normal(size=(6, rank)))[0]
    xs = xs @ basis @ basis.T
    agree(least_squares(prompt_of(xs, ys)), *by_lstsq(xs, ys))


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_least_squares_recovers_from_a_near_duplicate(distance, noise):
    """Two x nearly alike make one prefix near-singular; those after it, well-conditioned again, must not suffer."""
    rng = np.random.default_rng(11)
    xs, ys = numbers(20, 12, 4, seed=11, noise=noise)
    xs[:, 1] = xs[:, 0] + distance * rng.normal(size=(20, 4))
    wanted, conditions = by_lstsq(xs, ys)
    well = conditions < 1e4
    assert well[:, -1].all()
    error = np.abs(least_squares(prompt_of(xs, ys)).numpy() - wanted) / np.maximum(1, np.abs(wanted))
    assert error[well].max() < 1e-8
    assert (error / conditions).max() < 1e-12, "and elsewhere it errs as the conditioning allows"


def test_least_squares_of_masked_dimensions():
    """A curriculum's zero columns change nothing."""
    xs, ys = numbers(10, 12, 4, seed=4)
    wide = np.concatenate((xs, np.zeros((10, 12, 3))), axis=2)
    torch.testing.assert_close(
        least_squares(prompt_of(wide, ys)), least_squares(prompt_of(xs, ys)), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("penalty", [1e-8, 1e-4, 1e-3, 0.25, 1.0, 30.0])
@pytest.mark.parametrize(("n", "d"), [(12, 5), (6, 10)])
def test_ridge_equals_scikit_learn_on_every_prefix(penalty, n, d):
    """With hardly any penalty, from d + 2 examples on: before, the problem itself is too badly conditioned."""
    xs, ys = numbers(5, n, d, seed=6)
    got = ridge(prompt_of(xs, ys), penalty).numpy()
    for b in range(5):
        for i in range(1 if penalty >= 1e-3 else d + 2, n):
            fit = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(xs[b, :i], ys[b, :i])
            assert got[b, i] == pytest.approx(float(xs[b, i] @ fit.coef_), rel=1e-8, abs=1e-9)


def test_ridge_tends_to_least_squares():
    """Not too near zero: the running inverse starts at I / penalty and loses as many digits."""
    xs, ys = numbers(5, 12, 5, seed=7)
    exact = least_squares(prompt_of(xs, ys)).numpy()[:, 8:]
    gaps = [np.abs(ridge(prompt_of(xs, ys), penalty).numpy()[:, 8:] - exact).max() for penalty in (1e-1, 1e-2, 1e-3)]
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]


@pytest.mark.parametrize("penalty", [0.0, -1.0])
def test_ridge_needs_a_penalty(penalty):
    with pytest.raises(ValueError, match=rf"`penalty` must be above 0; got {penalty}. For no penalty"):
        ridge(prompt_of(*numbers(2, 3, 2)), penalty)


def test_ridge_with_the_noise_as_penalty_is_the_bayes_estimator():
    """Better than any other penalty, and than least squares where that explodes, k = d."""
    task = LinearRegression(d=5, noise=1.0)
    prompt = task.sample(batch=4000, n=11, generator=torch.Generator().manual_seed(0))
    errors = {penalty: task.error(ridge(prompt, penalty), prompt).mean(0) for penalty in (0.2, 1.0, 5.0)}
    for other in (0.2, 5.0):
        assert (errors[1.0][1:] < errors[other][1:]).all()
    assert task.error(least_squares(prompt), prompt).mean(0)[5] > 3 * errors[1.0][5]


@pytest.mark.parametrize(("n", "d"), [(9, 4), (1, 3)])
def test_averaging_is_the_mean_of_x_y(n, d):
    xs, ys = numbers(5, n, d, seed=8)
    got = averaging(prompt_of(xs, ys)).numpy()
    for b in range(5):
        for i in range(n):
            w = np.mean([xs[b, j] * ys[b, j] for j in range(i)], axis=0) if i else np.zeros(d)
            assert got[b, i] == pytest.approx(w @ xs[b, i], abs=1e-12)


@pytest.mark.parametrize("as_double", [False, True])
def test_least_squares_of_float32_examples_in_a_subspace(as_double):
    """Their rounding is no new direction, also once they are float64: the fit is that of the subspace's coordinates."""
    rng = np.random.default_rng(12)
    basis = np.linalg.qr(rng.normal(size=(20, 10)))[0]
    inside, ys = numbers(30, 41, 10, seed=12, noise=0.5)
    single = prompt_of(inside @ basis.T, ys).to(torch.float32)
    got = least_squares(single.to(torch.float64) if as_double else single).numpy()
    wanted, conditions = by_lstsq(inside, ys)
    error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
    # what float32 lost, times the condition number
    assert (error / conditions).max() < 1e-5
    assert error[:, 15:].max() < 1e-4


def test_least_squares_still_tells_float32_examples_apart_that_differ_by_more_than_rounding():
    xs, ys = numbers(20, 8, 4, seed=13)
    xs[:, 1] = xs[:, 0] + 1e-2 * xs[:, 1]
    single = prompt_of(xs, ys).to(torch.float32)
    wanted, conditions = by_lstsq(single.xs.double().numpy(), single.ys.double().numpy())
    error = np.abs(least_squares(single).numpy() - wanted) / np.maximum(1, np.abs(wanted))
    assert (error / conditions).max() < 1e-12


def test_a_ridge_path_is_ridge_for_each_penalty():
    prompt = prompt_of(*numbers(5, 9, 4, seed=14))
    path = ridge_path(prompt, [1e-3, 0.5, 20.0])
    assert path.shape == (3, 5, 9)
    for answers, penalty in zip(path, [1e-3, 0.5, 20.0], strict=True):
        torch.testing.assert_close(answers, ridge(prompt, penalty), rtol=1e-13, atol=1e-14)
    for bad in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="`penalty` must be above 0"):
            ridge_path(prompt, bad)


@pytest.mark.parametrize("baseline", [least_squares, averaging])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-30, 30), factor=st.floats(-1e30, 1e30))
def test_labels_carry_their_unit_and_least_squares_none_of_x(baseline, seed, exponent, factor):
    xs, ys = numbers(2, 6, 3, seed=seed)
    unit = 1.0 if baseline is least_squares else 4.0**exponent
    got = baseline(prompt_of(xs * 2.0**exponent, ys * factor))
    wanted = baseline(prompt_of(xs, ys)) * unit * factor
    size = float(wanted.abs().max())
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9 * size + 1e-300)


@pytest.mark.parametrize("baseline", [least_squares, lambda prompt: ridge(prompt, 0.3), averaging])
@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_huge_and_tiny_numbers_stay_finite(baseline, scale):
    xs, ys = numbers(3, 9, 4, seed=16)
    assert baseline(prompt_of(xs * scale, ys)).isfinite().all()
    assert baseline(prompt_of(xs, ys * scale)).isfinite().all()
