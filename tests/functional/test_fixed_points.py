"""Anderson's and Broyden's methods against linear algebra, and against scipy's on each row alone."""

import numpy as np
import pytest
import scipy.optimize
import torch

from looped.functional.fixed_points import Anderson, Broyden, Repeat

SOLVERS = [Repeat(), Anderson(), Broyden()]


def linear_problem(rows=4, size=6, radius=0.9, seed=0):
    """f(z) = A z + b with a matrix of its own for every row, of this spectral radius; and its fixed point."""
    rng = np.random.default_rng(seed)
    matrices = rng.normal(size=(rows, size, size))
    matrices *= radius / np.abs(np.linalg.eigvals(matrices)).max(-1)[:, None, None]
    shifts = rng.normal(size=(rows, size))
    wanted = np.linalg.solve(np.eye(size) - matrices, shifts[..., None])[..., 0]
    matrix, shift = torch.tensor(matrices), torch.tensor(shifts)
    return lambda z: (matrix @ z[..., None])[..., 0] + shift, torch.tensor(wanted)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_the_fixed_point_is_that_of_the_linear_system(solver):
    function, wanted = linear_problem()
    got = solver.solve(function, torch.zeros_like(wanted), calls=400)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_broyden_solves_a_linear_system_in_twice_its_size_and_anderson_is_ahead_of_repeating():
    """Gay 1979: exact arithmetic needs at most 2n steps."""
    function, wanted = linear_problem(radius=0.97)
    error = {
        type(solver).__name__: float((solver.solve(function, torch.zeros_like(wanted), calls=15) - wanted).norm())
        for solver in (*SOLVERS[:2], Broyden(memory=20))
    }
    assert error["Broyden"] < 1e-8
    assert error["Anderson"] < 0.1 * error["Repeat"]


def test_methods_find_fixed_points_that_repeating_runs_away_from():
    function, wanted = linear_problem(radius=1.6)
    start = torch.zeros_like(wanted)
    assert (Repeat().solve(function, start, calls=60) - wanted).norm() > 1
    for solver in (Anderson(memory=8), Broyden(memory=20)):
        torch.testing.assert_close(solver.solve(function, start, calls=60), wanted, rtol=1e-7, atol=1e-7)


def test_a_curved_problem_has_scipys_solution():
    rng = np.random.default_rng(1)
    weight, shift = 0.6 * rng.normal(size=(5, 5)), rng.normal(size=(3, 5))
    wanted = [scipy.optimize.root(lambda z, b=b: np.tanh(weight @ z + b) - z, np.zeros(5), tol=1e-13).x for b in shift]
    matrix, bias = torch.tensor(weight), torch.tensor(shift)
    for solver in (Anderson(), Broyden()):
        got = solver.solve(lambda z: torch.tanh(z @ matrix.T + bias), torch.zeros(3, 5, dtype=torch.float64), calls=60)
        torch.testing.assert_close(got, torch.tensor(np.array(wanted)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_rows_are_problems_of_their_own(solver):
    function, wanted = linear_problem(radius=0.8)
    start = torch.zeros_like(wanted)
    together = solver.solve(function, start, calls=12)

    def alone(z):
        return function(torch.cat([z, start[1:]]))[:1]

    torch.testing.assert_close(solver.solve(alone, start[:1], calls=12), together[:1], rtol=1e-9, atol=1e-9)


def test_anderson_with_one_iterate_repeats():
    function, wanted = linear_problem()
    start = torch.zeros_like(wanted)
    got, same = (solver.solve(function, start, calls=7) for solver in (Anderson(memory=1), Repeat()))
    torch.testing.assert_close(got, same, rtol=1e-12, atol=1e-12)


def test_a_row_that_leaves_the_finite_numbers_keeps_its_best_iterate():
    got = Repeat().solve(lambda z: torch.where(z > 3, torch.inf, z + 1), torch.zeros(1, 2), calls=20)
    assert got.isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Anderson(memory=0), "`memory` must be at least 1; got 0"),
        (lambda: Anderson(mixing=0.0), "`mixing` must be above 0 and at most 1; got 0.0"),
        (lambda: Anderson(ridge=-1.0), "`ridge` must be at least 0; got -1.0"),
        (lambda: Broyden(memory=0), "`memory` must be at least 1; got 0"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
