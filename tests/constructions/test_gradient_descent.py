import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extremal import extremal
from looped.constructions.gradient_descent import chebyshev_descent, looped_descent, preconditioned
from looped.prompt import Prompt

SIZES = {"n": st.integers(2, 9), "d": st.integers(1, 5), "layers": st.integers(1, 5), "seed": st.integers(0, 999)}


def regression(n, d, seed, batch=3):
    rng = np.random.default_rng(seed)
    xs, w = rng.normal(size=(batch, n + 1, d)), rng.normal(size=(batch, d))
    ys = np.einsum("bnd,bd->bn", xs, w)
    return Prompt(torch.tensor(xs), torch.tensor(ys)), xs, ys, w, rng


@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_each_layer_is_one_preconditioned_step(n, d, layers, seed):
    prompt, xs, ys, _, rng = regression(n, d, seed)
    matrices = 0.1 * rng.normal(size=(layers, d, d))
    got = preconditioned(torch.tensor(matrices), n=n)(prompt, keep=layers).detach().numpy()
    for b in range(len(xs)):
        examples, labels, weights = xs[b, :-1], ys[b, :-1], np.zeros(d)
        for t in range(layers):
            weights = weights - matrices[t].T @ examples.T @ (examples @ weights - labels)  # A', as y'X'A x_q has it
            assert got[t, b, 0] == pytest.approx(xs[b, -1] @ weights, rel=1e-10, abs=1e-10)


@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_a_loop_of_one_rate_is_gradient_descent(n, d, layers, seed):
    prompt, xs, ys, _, _ = regression(n, d, seed)
    got = looped_descent(d=d, n=n, loops=layers, rate=0.02)(prompt, keep=layers).detach().numpy()
    for b in range(len(xs)):
        weights = np.zeros(d)
        for t in range(layers):
            weights = weights - 0.02 * xs[b, :-1].T @ (xs[b, :-1] @ weights - ys[b, :-1])
            assert got[t, b, 0] == pytest.approx(xs[b, -1] @ weights, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("loops", [1, 3, 8, 25])
def test_chebyshev_layers_leave_the_extremal_polynomial(loops):
    rng = np.random.default_rng(loops)
    values, low, high = np.array([1.0, 2.5, 7.0, 30.0]), 1.0, 30.0
    left, right = np.linalg.qr(rng.normal(size=(6, 4)))[0], np.linalg.qr(rng.normal(size=(4, 4)))[0]
    examples, w, query = left @ np.diag(np.sqrt(values)) @ right.T, rng.normal(size=4), rng.normal(size=4)
    xs = np.vstack([examples, query])
    got = chebyshev_descent(d=4, n=6, loops=loops, low=low, high=high).predict(
        Prompt(torch.tensor(xs)[None], torch.tensor(xs @ w)[None])
    )
    left_over = extremal(loops, low, high, values)
    assert got.item() == pytest.approx(query @ w - w @ right @ np.diag(left_over) @ right.T @ query, abs=1e-11)
