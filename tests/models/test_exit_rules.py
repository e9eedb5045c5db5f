import numpy as np
import pytest
import torch

from looped.constructions.gradient_descent import looped_descent, preconditioned
from looped.constructions.newton import newton_loop
from looped.models.exit_rules import ResidualCertificate
from looped.models.kernel_transformer import Rows
from looped.prompt import Prompt


def realizable(values, n, rng, noise=0.0):
    """NumPy's own instances: xs with eigenvalues `values` of XX', unit w and query."""
    batch, d = values.shape
    left = np.linalg.qr(rng.normal(size=(batch, n, d)))[0]
    right = np.linalg.qr(rng.normal(size=(batch, d, d)))[0]
    examples = left * np.sqrt(values)[:, None] @ right.transpose(0, 2, 1)
    w, query = rng.normal(size=(batch, d)), rng.normal(size=(batch, d))
    w, query = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (w, query))
    xs = np.concatenate([examples, query[:, None]], 1)
    ys = np.einsum("bnd,bd->bn", xs, w)
    return Prompt(torch.tensor(xs), torch.tensor(ys + noise * rng.normal(size=ys.shape))), ys[:, -1]


def bounds(model, prompt, rule, loops):
    context = model.embed(prompt)
    return torch.stack([rule.bound(state, context) for state in model.states(prompt, loops)]).numpy()


@pytest.mark.parametrize("seed", range(4))
def test_a_certificate_is_never_wrong_on_ten_thousand_instances(seed):
    rng = np.random.default_rng(seed)
    d, n = [(1, 2), (3, 5), (5, 9), (8, 8)][seed]
    prompt, answer = realizable(10 ** rng.uniform(-3, 3, size=(2500, d)), n, rng)
    rule = ResidualCertificate(d=d, tolerance=1e-3)
    models = [
        (looped_descent(d=d, n=n, loops=12, rate=1e-3), 12),
        (preconditioned(torch.tensor(1e-3 * rng.normal(size=(6, d, d))), n=n), 6),
    ]
    for model, loops in models:
        error = np.abs(model(prompt, loops=loops, keep=loops).detach().numpy()[..., 0] - answer)
        bound = bounds(model, prompt, rule, loops)
        assert np.isfinite(bound).all()
        assert (error <= bound).all()
        settled = model.settle(prompt, rule, max_loops=loops)
        done = settled.finished.numpy()
        assert np.all(np.abs(settled.predictions.numpy()[done, 0] - answer[done]) <= 1e-3)


def test_the_exact_norm_is_tight_and_a_lower_eigenvalue_is_looser_but_true():
    rng = np.random.default_rng(5)
    prompt, answer = realizable(rng.uniform(2, 9, size=(500, 4)), 6, rng)
    model = looped_descent(d=4, n=6, loops=9, rate=0.1)
    error = np.abs(model(prompt, keep=9).detach().numpy()[..., 0] - answer)
    exact = bounds(model, prompt, ResidualCertificate(d=4, tolerance=1), 9)
    loose = bounds(model, prompt, ResidualCertificate(d=4, tolerance=1, lowest=2.0), 9)
    assert (error <= exact).all()
    assert (exact <= loose * (1 + 1e-9)).all()
    assert (error / exact).max() > 0.95
    xs = prompt.xs.numpy()
    dual = [np.sqrt(x[-1] @ np.linalg.inv(x[:-1].T @ x[:-1]) @ x[-1]) for x in xs]
    residual = np.stack([state[:, :-1, 4].numpy() for state in model.states(prompt)])
    np.testing.assert_allclose(exact, np.linalg.norm(residual, axis=-1) * dual, rtol=1e-6)


def test_exits_save_a_fifth_of_the_worst_case_budget_and_an_oracle_more():
    rng = np.random.default_rng(6)
    prompt, answer = realizable(rng.uniform(1, 8, size=(1000, 10)), 20, rng)
    budget = int(np.ceil(np.log(1e-3) / np.log(7 / 9)))
    assert budget == 28
    model = looped_descent(d=10, n=20, loops=budget, rate=2 / 9)
    settled = model.settle(prompt, ResidualCertificate(d=10, tolerance=1e-3), max_loops=budget)
    error = np.abs(model(prompt, keep=budget).detach().numpy()[..., 0] - answer)
    oracle = (error <= 1e-3).argmax(0) + 1
    loops = settled.loops.double().mean().item()
    assert oracle.mean() < loops <= 0.8 * budget
    assert settled.finished.all()
    assert np.abs(settled.predictions.numpy()[:, 0] - answer).max() <= 1e-3


def test_noise_keeps_the_bound_up_but_true_for_least_squares():
    rng = np.random.default_rng(7)
    prompt, answer = realizable(rng.uniform(1, 8, size=(300, 4)), 12, rng, noise=0.1)
    model = looped_descent(d=4, n=12, loops=60, rate=2 / 9)
    rule = ResidualCertificate(d=4, tolerance=1e-3)
    bound = bounds(model, prompt, rule, 60)
    got = model(prompt, keep=60).detach().numpy()[..., 0]
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    fits = [np.linalg.lstsq(x[:-1], y[:-1]) for x, y in zip(xs, ys, strict=True)]
    least = np.array([x[-1] @ fit[0] for x, fit in zip(xs, fits, strict=True)])
    floor = [
        np.sqrt(fit[1][0]) * np.sqrt(x[-1] @ np.linalg.inv(x[:-1].T @ x[:-1]) @ x[-1])
        for x, fit in zip(xs, fits, strict=True)
    ]
    assert (np.abs(got - least) <= bound).all()
    assert (bound >= np.array(floor) * (1 - 1e-9)).all()
    assert not model.settle(prompt, rule, max_loops=60).finished.any()
    assert (np.abs(got[-1] - answer) > bound[-1]).any()  # the truth is another matter


def test_too_few_examples_give_no_certificate():
    rng = np.random.default_rng(9)
    rows = torch.tensor(rng.normal(size=(20, 4, 6)))
    rule = ResidualCertificate(d=5, tolerance=1.0)
    assert torch.isinf(rule.bound(rows, Rows(rows))).all()


def test_it_serves_newtons_loop_too():
    rng = np.random.default_rng(10)
    prompt, answer = realizable(rng.uniform(1, 8, size=(200, 3)), 6, rng)
    settled = newton_loop(d=3, n=6, loops=20, alpha=1 / 64).settle(
        prompt, ResidualCertificate(d=3, tolerance=1e-6), max_loops=20
    )
    assert settled.finished.all()
    assert np.abs(settled.predictions.numpy()[:, 0] - answer).max() <= 1e-6
