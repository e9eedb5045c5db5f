import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremal import extremal
from looped.functional import descent, kernels, polynomials

SIZES = {"batch": st.integers(1, 3), "n": st.integers(4, 9), "d": st.integers(1, 4), "seed": st.integers(0, 99)}


def regression(batch, n, d, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, n, d)), rng.normal(size=(batch, n)), rng


@settings(max_examples=15, deadline=None)
@given(**SIZES, steps=st.integers(1, 6))
def test_gradient_descent_by_hand(batch, n, d, seed, steps):
    xs, ys, rng = regression(batch, n, d, seed)
    rates = rng.uniform(0, 0.1, size=(steps, batch))
    got = descent.gradient_descent(torch.tensor(xs), torch.tensor(ys), steps=steps, rate=torch.tensor(rates))
    assert got.shape == (steps + 1, batch, d)
    for b in range(batch):
        w = np.zeros(d)
        for t in range(steps):
            w = w - rates[t, b] * xs[b].T @ (xs[b] @ w - ys[b])
            np.testing.assert_allclose(got[t + 1, b].numpy(), w, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(**SIZES)
def test_preconditioners_are_not_transposed(batch, n, d, seed):
    xs, ys, rng = regression(batch, n, d, seed)
    matrices = 0.05 * rng.normal(size=(3, d, d))
    got = descent.preconditioned_descent(torch.tensor(xs), torch.tensor(ys), preconditioners=torch.tensor(matrices))
    for b in range(batch):
        w = np.zeros(d)
        for matrix in matrices:
            w = w - matrix @ xs[b].T @ (xs[b] @ w - ys[b])
        np.testing.assert_allclose(got[-1, b].numpy(), w, atol=1e-12)


def test_functional_descent_in_the_linear_kernel_is_gradient_descent():
    xs, ys, rng = regression(3, 8, 4, 0)
    queries = rng.normal(size=(3, 2, 4))
    xs, ys, queries = torch.tensor(xs), torch.tensor(ys), torch.tensor(queries)
    got = descent.functional_descent(xs, ys, queries, kernel=kernels.linear, steps=7, rate=0.03)
    w = descent.gradient_descent(xs, ys, steps=7, rate=0.03)
    torch.testing.assert_close(got, torch.einsum("kbd,bmd->kbm", w, queries))


def test_functional_descent_tends_to_kernel_regression():
    xs, ys, rng = regression(1, 5, 3, 1)
    xs = 2 * xs / np.linalg.norm(xs, axis=-1, keepdims=True)  # a large diagonal: well conditioned
    query = rng.normal(size=(1, 2, 3))
    gram = np.exp(xs[0] @ xs[0].T)
    expected = np.exp(query[0] @ xs[0].T) @ np.linalg.solve(gram, ys[0])
    args = [torch.tensor(a) for a in (xs, ys, query)]
    rate = 1 / np.linalg.norm(gram, 2)
    got = descent.functional_descent(*args, kernel=kernels.exp, steps=1500, rate=float(rate))[-1, 0]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_chebyshev_iterates_have_the_extremal_error():
    rng = np.random.default_rng(4)
    low, high, steps = 0.5, 20.0, 15
    values = np.linspace(low, high, 5)
    basis = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    xs = np.diag(np.sqrt(values)) @ basis.T
    w = rng.normal(size=5)
    got = descent.chebyshev_iteration(
        torch.tensor(xs)[None], torch.tensor(xs @ w)[None], steps=steps, low=low, high=high
    )
    for t in range(1, steps + 1):
        factor = extremal(t, low, high, values)
        expected = w - basis @ np.diag(factor) @ basis.T @ w
        np.testing.assert_allclose(got[t, 0].numpy(), expected, atol=1e-11)
    rates = 1 / polynomials.chebyshev_roots(steps, low, high)[:, None]
    by_roots = descent.gradient_descent(torch.tensor(xs)[None], torch.tensor(xs @ w)[None], steps=steps, rate=rates)
    torch.testing.assert_close(by_roots[-1], got[-1], atol=1e-11, rtol=0)


def test_newton_converges_to_the_inverse_with_squared_residuals():
    rng = np.random.default_rng(5)
    half = rng.normal(size=(2, 6, 4))
    matrix = torch.tensor(half.transpose(0, 2, 1) @ half)
    alpha = 1 / torch.linalg.matrix_norm(matrix, 2) ** 2
    got = descent.newton_inverse(matrix, steps=30, alpha=alpha)
    np.testing.assert_allclose(got[-1].numpy(), np.linalg.inv(matrix.numpy()), rtol=1e-7)
    residual = torch.eye(4).double() - got @ matrix
    torch.testing.assert_close(residual[1], residual[0] @ residual[0])
