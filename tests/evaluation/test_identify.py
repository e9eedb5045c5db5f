import pytest
import torch

from looped.constructions.gradient_descent import (
    chebyshev_descent,
    functional_descent,
    looped_descent,
    preconditioned,
    vector_descent,
)
from looped.constructions.newton import NUM_BEFORE, newton_loop
from looped.evaluation.identify import NAMED, _searched, answers_of, identify, levenberg
from looped.functional import kernels
from looped.models.decoder import DecoderConfig
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.regression import LinearRegression

D, N = 3, 8
TASK = LinearRegression(d=D)


def loops_of(model, task=TASK, **options):
    return identify(model, task, points=N + 1, **{"prompts": 16, "max_steps": 3, **options}).loops


def test_gradient_descent_is_found_with_its_step_count_and_rate():
    for loop in loops_of(looped_descent(d=D, n=N, loops=3, rate=0.06)):
        assert (loop.name, loop.best.algorithm, loop.best.steps) == ("gradient descent",) * 2 + (loop.loop,)
        assert loop.best.distance < 1e-6
        assert loop.best.low <= loop.best.distance <= loop.best.high
        assert loop.best.parameters["rate"] == pytest.approx(0.06, rel=1e-6)
        newton = next(match for match in loop.others if match.algorithm == "Newton")
        assert newton.distance > 0.05


def test_chebyshev_is_found_with_its_interval():
    last = loops_of(chebyshev_descent(d=D, n=N, loops=3, low=2.0, high=18.0))[-1]
    assert (last.best.algorithm, last.best.steps) == ("Chebyshev", 3)
    assert last.best.distance < 1e-6
    assert last.best.parameters == pytest.approx({"low": 2.0, "spread": 16.0}, rel=1e-5)
    assert next(match for match in last.others if match.algorithm == "gradient descent").distance > 0.05


def test_newton_is_found_with_its_step_count():
    loops = loops_of(newton_loop(d=D, n=N, loops=NUM_BEFORE + 2, alpha=0.004), max_steps=3)
    assert loops[0].best is None  # the first layer writes registers only: the answer is still 0
    for loop in loops[NUM_BEFORE:]:
        assert (loop.best.algorithm, loop.best.steps) == ("Newton", loop.loop - NUM_BEFORE)
        assert loop.best.distance < 1e-6


def test_steps_are_searched_from_one_and_near_the_loop():
    assert _searched(2, 3, None) == [1, 2, 3]
    assert _searched(2, 30, None) == [*range(1, 9)]
    assert _searched(10, 30, None) == [*range(1, 11)]
    assert _searched(30, 30, None) == [*range(1, 9), *range(26, 31)]
    assert _searched(30, 30, 12) == [*range(1, 13)]


def test_functional_and_preconditioned_descent_are_found():
    process = GaussianProcess(d=D, eigenvalues=(1.0,) * D)
    last = loops_of(functional_descent(d=D, rates=[0.05] * 2, kernel=kernels.exp), process)[-1]
    assert (last.best.algorithm, last.best.steps) == ("functional descent, exp", 2)
    assert last.best.distance < 1e-6
    matrix = torch.tensor([[0.03, 0.01, 0.0], [0.0, 0.003, 0.005], [0.0, 0.0, 0.01]], dtype=torch.float64)
    last = loops_of(preconditioned(matrix[None], n=N, loops=2), max_steps=2)[-1]
    assert (last.best.algorithm, last.best.steps) == ("preconditioned descent", 2)
    assert last.best.distance < 1e-4


def test_an_untrained_decoder_is_near_nothing():
    torch.manual_seed(0)
    model = DecoderConfig(d=D, width=16, heads=2, layers=1, loops=2, positions=2 * N + 2).build()
    loops = loops_of(model, max_steps=2)
    assert len(loops) == 2
    assert all(loop.best.distance > NAMED and loop.name == "none of these" for loop in loops)


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    model = DecoderConfig(d=2, width=8, heads=2, layers=1, loops=2, positions=8).build().double()
    prompt = Prompt(torch.randn(3, 4, 2).double(), torch.randn(3, 4).double())
    answers = answers_of(model, prompt, 2)[-1]
    moved = prompt.xs.clone()
    moved[:, -1, 0] += 1e-6
    change = (answers_of(model, Prompt(moved, prompt.ys), 2)[-1].predictions - answers.predictions) / 1e-6
    torch.testing.assert_close(answers.gradients[:, 0], change, atol=1e-5, rtol=1e-4)


def test_levenberg_solves_a_curved_valley_and_gives_up_on_nothing_finite():
    def residuals(v):
        return torch.stack([10 * (v[1] - v[0] ** 2), 1 - v[0]])

    found_at = levenberg(residuals, torch.tensor([[-1.2, 1.0], [3.0, 3.0]], dtype=torch.float64))
    torch.testing.assert_close(found_at, torch.ones(2, dtype=torch.float64))
    assert levenberg(lambda v: v / 0, torch.ones(2, 1).double()) is None


def test_errors():
    with pytest.raises(ValueError, match="answers a vector"):
        loops_of(vector_descent(d=D, rates=[0.1]))
    for name, value in {"points": 2, "loops": 0, "prompts": 4, "max_steps": 0}.items():
        options = {"points": 9, "prompts": 32, name: value}
        with pytest.raises(ValueError, match=f"`{name}` must be at least"):
            identify(looped_descent(d=D, n=N, loops=1, rate=0.1), TASK, **options)
