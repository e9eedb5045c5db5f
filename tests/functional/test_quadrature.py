"""Gauss's rules keep moments, and the best polynomials are those of least squares."""

import numpy as np
import pytest
import scipy.optimize
import torch

from looped.functional import quadrature


def test_best_rates_against_least_squares():
    """The optimum over all polynomials with p(0) = 1, by NumPy, and over one rate, by SciPy."""
    points, weights = nodes = quadrature.interval(1, 8, nodes=20)
    x, root = points.numpy(), weights.numpy() ** 0.5
    for layers in (1, 3, 5):
        powers = np.stack([x**k for k in range(1, layers + 1)], 1) * root[:, None]
        solution = np.linalg.lstsq(powers, -root, rcond=None)[0]
        expected = float(((root + powers @ solution) ** 2).sum())
        assert quadrature.loss_of(quadrature.best_rates(nodes, layers), nodes) == pytest.approx(expected, rel=1e-6)

        def one_rate(a: float, power: int = 2 * layers) -> float:
            return float((root**2 * (1 - a * x) ** power).sum())

        optimum = scipy.optimize.minimize_scalar(one_rate, bounds=(0, 1))
        rate = quadrature.best_rate(nodes, layers)
        assert quadrature.loss_of(torch.full((layers,), rate, dtype=torch.float64), nodes) == pytest.approx(
            optimum.fun, rel=1e-6
        )
    few = (torch.tensor([1.0, 8.0]).double(), torch.tensor([0.5, 0.5]).double())
    assert quadrature.loss_of(quadrature.best_rates(few, 4), few) < 1e-25


def test_interpolation_is_exact_for_polynomials():
    nodes = quadrature.chebyshev_nodes(5, 1, 8)
    at = torch.tensor([[1.0, 3.3, 8.0, float(nodes[2])]], dtype=torch.float64)
    torch.testing.assert_close(quadrature.interpolate(nodes, (nodes**4 - 2 * nodes)[None], at), at**4 - 2 * at)
