"""Eigenvalues of sample covariances: exact moments, their rule, and draws whose weights restore the distribution."""

from fractions import Fraction

import pytest
import torch

from looped.papers.gatmiry24 import spectra

D, N = 4, 7


def test_moments_are_those_of_the_wishart_distribution():
    """E tr W^2 / d and E tr W^3 / d in closed form; all moments of one dimension; the rest by sampling."""
    moments = spectra.moments(D, N, 8)
    assert moments[:3] == [1, 1, Fraction(D + N + 1, N)]
    assert moments[3] == Fraction(N**2 + D**2 + 3 * N * D + 3 * N + 3 * D + 4, N**2)
    # one dimension: chi^2 with N degrees of freedom
    assert spectra.moments(1, N, 5)[4] == Fraction(N * (N + 2) * (N + 4) * (N + 6), N**4)
    values = torch.linalg.eigvalsh(spectra.wishart(200_000, N, D, torch.Generator().manual_seed(0)).double())
    for power in (4, 5, 6):
        assert float(values.pow(power).mean()) == pytest.approx(float(moments[power]), rel=0.05)


def test_the_rule_has_all_moments_below_twice_its_nodes():
    points, weights = spectra.eigenvalue_rule(D, N, 6)
    assert float(points.min()) > 0
    for power, moment in enumerate(spectra.moments(D, N, 13)):
        mean = float((weights * points**power).sum())
        if power < 12:
            assert mean == pytest.approx(float(moment), rel=1e-9)
        else:
            assert mean < (1 - 1e-4) * float(moment)  # one more than it can have


def test_weighted_draws_have_the_tail_that_samples_lack():
    """Moment 28 of d=10, n=20: 20,000 covariances give a part of it, as many stretched ones all of it."""
    pool = spectra.spectra(10, 20, 20_000, "tests", torch.device("cpu"))
    values, weights = spectra.draw_spectra(pool, 20, 20_000, torch.Generator().manual_seed(0))
    assert bool((values.diff() > 0).all())
    assert float(weights.mean()) == pytest.approx(1, abs=0.03)
    moments = spectra.moments(10, 20, 29)
    for power in (1, 4, 12, 20, 28):
        mean = float((weights[:, None] * values**power).mean())
        assert mean == pytest.approx(float(moments[power]), rel=0.03 if power < 20 else 0.1)
    assert float(pool.pow(28).mean()) < 0.75 * float(moments[28])
