import numpy as np
import pytest
import torch

from extremal import extremal
from looped.functional import polynomials


@pytest.mark.parametrize("degree", [1, 2, 7, 40])
def test_roots_are_all_the_roots_and_lie_in_the_interval(degree):
    roots = polynomials.chebyshev_roots(degree, 0.5, 9.0)
    assert len(set(roots.tolist())) == degree
    assert ((roots > 0.5) & (roots < 9)).all()
    np.testing.assert_allclose(extremal(degree, 0.5, 9.0, roots.numpy()), 0, atol=1e-12)


def test_the_order_of_the_roots_keeps_partial_products_small():
    low, high, degree = 1.0, 400.0, 60
    at = torch.linspace(low, high, 2000).double()
    roots = polynomials.chebyshev_roots(degree, low, high)
    assert (1 - at[:, None] / roots).cumprod(1).abs().max() < 1e3
    assert (1 - at[:, None] / roots.sort().values).cumprod(1).abs().max() > 1e9


@pytest.mark.parametrize(("degree", "low", "high"), [(3, 1, 8), (6, 0.1, 4), (9, 1, 100)])
def test_no_polynomial_is_smaller_than_the_extremal_one(degree, low, high):
    at = torch.linspace(low, high, 20001).double()
    size = polynomials.extremal_size(degree, low, high)
    assert np.abs(extremal(degree, low, high, at.numpy())).max() == pytest.approx(size, rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(50):  # other polynomials with value 1 at 0, by their roots near the optimal ones
        roots = polynomials.chebyshev_roots(degree, low, high) * torch.tensor(np.exp(rng.normal(0, 0.1, degree)))
        assert (1 - at[:, None] / roots).prod(1).abs().max() >= size * (1 - 1e-6)
