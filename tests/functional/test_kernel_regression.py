"""Kernel regressions against scikit-learn, each example left out in a loop; Newton's iteration against LAPACK."""

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from looped.functional import kernel_regression
from looped.functional.kernel_regression import NUM_REGRESSIONS, inverted, regressions


def table(m=12, queries=3, d=4, seed=0):
    draw = np.random.default_rng(seed)
    xs = draw.normal(size=(m + queries, d))
    xs[:, 2] = 0.0  # a feature that there is not
    return xs[:m], xs[:m, 0] - np.sin(2 * xs[:m, 1]) + 0.1 * draw.normal(size=m), xs[m:]


def models(d, strength):
    """A kernel and a noise for every regression; `d` features, which count by `strength` in two of them."""

    def linear(weights=1 / d):
        return lambda left, right: left * weights @ right.T

    def smooth(width, weights=1 / d):
        return lambda left, right: rbf_kernel(left * np.sqrt(weights), right * np.sqrt(weights), gamma=0.5 / width**2)

    def additive(left, right):
        columns = [rbf_kernel(left[:, [j]], right[:, [j]], gamma=0.5) for j in (0, 1, 3)]
        return sum(columns) / d

    return [
        *((linear(), noise) for noise in (0.01, 0.2, 4.0)),
        (linear(strength), 0.1),
        (smooth(2.0), 0.02),
        *((smooth(1.0), noise) for noise in (0.05, 0.5)),
        (smooth(0.5), 0.2),
        (smooth(1.0, strength), 0.1),
        (smooth(0.5, strength), 0.1),
        (additive, 0.1),
        (lambda left, right: linear()(left, right) + smooth(1.0)(left, right), 0.1),
    ]


def test_equal_those_of_scikit_learn_with_each_example_left_out():
    xs, ys, queries = table()
    strength = (xs * ys[:, None]).sum(0) ** 2
    chosen = models(3, strength / strength.sum())
    assert len(chosen) == NUM_REGRESSIONS
    at_examples, at_queries = regressions(*map(torch.from_numpy, (xs, ys, queries)))
    for index, (kernel, noise) in enumerate(chosen):
        fitted = KernelRidge(alpha=noise, kernel="precomputed").fit(kernel(xs, xs), ys)
        np.testing.assert_allclose(at_queries[:, index], fitted.predict(kernel(queries, xs)), rtol=1e-8, atol=1e-10)
        for row in range(len(ys)):
            others = np.arange(len(ys)) != row
            fitted = KernelRidge(alpha=noise, kernel="precomputed").fit(kernel(xs[others], xs[others]), ys[others])
            answer = fitted.predict(kernel(xs[[row]], xs[others]))[0]
            assert at_examples[row, index] == pytest.approx(answer, rel=1e-8, abs=1e-10)


def test_batches_are_tables_of_their_own_and_few_examples_are_answered():
    tables = [[torch.from_numpy(part) for part in table(seed=seed)] for seed in range(2)]
    together = regressions(*map(torch.stack, zip(*tables, strict=True)))
    for index, alone in enumerate(tables):
        for expected, batch in zip(regressions(*alone), together, strict=True):
            torch.testing.assert_close(batch[index], expected)
    xs, ys, queries = tables[0]
    for m in (0, 1):
        at_examples, at_queries = regressions(xs[:m], ys[:m], queries)
        assert at_examples.shape == (m, NUM_REGRESSIONS)
        assert at_queries.isfinite().all()
        assert not at_examples.count_nonzero(), "nothing is known of the only example without itself"


def test_newtons_iteration_inverts_as_lapack_does(monkeypatch):
    xs, ys, queries = map(torch.from_numpy, table(m=60))
    expected = regressions(xs, ys, queries)
    monkeypatch.setattr(kernel_regression.torch.compiler, "is_exporting", lambda: True)
    for by_newton, by_lapack in zip(regressions(xs, ys, queries), expected, strict=True):
        torch.testing.assert_close(by_newton, by_lapack, rtol=1e-9, atol=1e-9)
    # a linear kernel of one column and 400 rows, with the least noise
    steep = torch.ones(400, 400, dtype=torch.float64) + 0.01 * torch.eye(400)
    torch.testing.assert_close(steep @ inverted(steep), torch.eye(400, dtype=torch.float64), rtol=0, atol=1e-8)
