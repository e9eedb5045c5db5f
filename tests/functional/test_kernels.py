import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad

from looped.functional import attention, kernels

FORMULAS = {
    kernels.linear: lambda u, v: u @ v,
    kernels.relu: lambda u, v: max(u @ v, 0.0),
    kernels.exp: lambda u, v: math.exp(u @ v),
    kernels.rbf: lambda u, v: math.exp(-((u - v) @ (u - v)) / 2),
}


@pytest.mark.parametrize("kernel", FORMULAS)
def test_entries_are_the_formula(kernel):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 3))
    gram = kernel(torch.tensor(left), torch.tensor(right))
    expected = [[[FORMULAS[kernel](u, v) for v in right[b]] for u in left[b]] for b in range(2)]
    np.testing.assert_allclose(gram.numpy(), expected, rtol=1e-12)


def test_arc_cosine_is_the_expectation_over_gaussian_weights():
    u, v = np.array([1.0, 0.5]), np.array([-0.3, 2.0])

    def integrand(b, a):
        g = np.array([a, b])
        return 2 * max(g @ u, 0) * max(g @ v, 0) * math.exp(-(a * a + b * b) / 2) / (2 * math.pi)

    expected, _ = dblquad(integrand, -8, 8, -8, 8, epsabs=1e-7)
    got = kernels.arc_cosine(torch.tensor(u)[None], torch.tensor(v)[None]).item()
    assert got == pytest.approx(expected, abs=1e-5)


def test_arc_cosine_is_zero_at_a_zero_row():
    gram = kernels.arc_cosine(torch.zeros(1, 3).double(), torch.randn(4, 3).double())
    assert torch.equal(gram, torch.zeros(1, 4).double())


def test_absolute_takes_absolute_eigenvalues():
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(5, 5))
    matrix = matrix + matrix.T
    values, vectors = np.linalg.eigh(matrix)
    assert values.min() < 0
    expected = vectors @ np.diag(np.abs(values)) @ vectors.T
    np.testing.assert_allclose(kernels.absolute(torch.tensor(matrix)).numpy(), expected, atol=1e-12)


def test_attention_sums_values_by_key_then_query():
    rng = np.random.default_rng(2)
    queries, keys, values = rng.normal(size=(3, 2)), rng.normal(size=(5, 2)), rng.normal(size=(5, 4))
    args = [torch.tensor(a) for a in (queries, keys, values)]
    linear = [sum((keys[i] @ queries[j]) * values[i] for i in range(5)) for j in range(3)]
    np.testing.assert_allclose(attention.kernel_attention(*args, kernels.linear).numpy(), linear, atol=1e-12)
    weights = np.exp(keys @ queries.T)
    soft = (weights / weights.sum(0)).T @ values
    np.testing.assert_allclose(attention.kernel_attention(*args, attention.softmax).numpy(), soft, atol=1e-12)


def test_a_kernel_that_is_not_symmetric_gets_the_key_first():
    keys, queries = torch.tensor([[2.0]]).double(), torch.tensor([[3.0]]).double()
    out = attention.kernel_attention(queries, keys, torch.ones(1, 1).double(), lambda u, v: u @ v.mT.square())
    assert out.item() == 18
