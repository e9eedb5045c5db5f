"""How smooth and how convex the loss is, and what gradient descent makes of it: Lemmas 5.3, 5.5 and 5.6."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from looped.functional.streams import generator_of
from looped.theorems.check import EXACT, Finding, bound_plot, bounded, exact, theorem
from looped.theorems.chen24.vector_prompts import VectorPrompts, draw_prompts
from looped.theorems.sampling import normal, uniform


@theorem("chen24.lem5.3", "The Lipschitz constant of the gradient of 1/2 |y - X theta|^2 is L = |X'X|.")
def lem5_3() -> Iterator[Finding]:
    """Pairs of points, random at first and then driven towards the worst direction; gradients by autograd."""
    prompts, rounds, generator = draw_prompts(20, 24, 5, 2), 400, generator_of(3)
    loss = squares_loss(prompts)
    base, offset = normal(20, 5, generator=generator), normal(20, 5, generator=generator)
    ratios = []
    for _ in range(rounds):
        change = _gradient(loss, base + offset) - _gradient(loss, base)
        ratios.append(change.norm(dim=-1) / offset.norm(dim=-1) / prompts.highest)
        offset = change / change.norm(dim=-1, keepdim=True)
    measured = torch.stack(ratios)
    instance = f"d=5, n=24, 20 losses (seed 2), {rounds} pairs each by power iteration: |largest ratio / L - 1|"
    plot = bound_plot("pair", range(1, rounds + 1), "ratio over L", measured.amax(-1), 1.0, log_x=True, log_y=False)
    yield Finding(float((measured.amax(0) - 1).abs().max()), EXACT, instance, plot, tolerance=True)


@theorem("chen24.lem5.5", "1/2 |y - X theta|^2 is strongly convex with constant mu = lambda_min(X'X), and no more.")
def lem5_5() -> Iterator[Finding]:
    """The convexity gap of pairs and weights, random and along the lowest singular vector, is never below mu."""
    prompts, num_pairs, generator = draw_prompts(20, 24, 5, 4), 300, generator_of(5)
    loss = squares_loss(prompts)
    lowest = torch.linalg.svd(prompts.xs).Vh[:, -1]
    gaps = []
    for k in range(num_pairs):
        left, right = normal(2, 20, 5, generator=generator)
        if k >= num_pairs // 2:
            right = left + lowest + (right - left) * 0.8 ** (k - num_pairs // 2)
        weight = 0.1 + 0.8 * uniform(20, generator=generator)
        middle = weight[:, None] * left + (1 - weight)[:, None] * right
        above = weight * loss(left) + (1 - weight) * loss(right) - loss(middle)
        gaps.append(2 * above / (weight * (1 - weight) * (left - right).square().sum(-1)) / prompts.lowest)
    measured = torch.stack(gaps)
    instance = f"d=5, n=24, 20 losses (seed 4), {num_pairs} pairs and weights each: |smallest gap / mu - 1|"
    plot = bound_plot("pair", range(1, num_pairs + 1), "gap over mu", measured.amin(-1), 1.0)
    yield Finding(float((measured.amin(0) - 1).abs().max()), EXACT, instance, plot, tolerance=True)


@theorem("chen24.lem5.6", "|theta^(t) - theta*|^2 <= (1 - eta mu)^t |theta^(0) - theta*|^2 for 0 < eta <= 1/L.")
def lem5_6() -> Iterator[Finding]:
    """Least squares through the transformer, then a loss that is no quadratic; steps from 0.05/L to 1/L."""
    loops, factors = 60, (0.05, 0.25, 0.5, 0.75, 1.0)
    prompts = draw_prompts(100, 24, 4, 20, spread=2, started=True)
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    ratios, bounds, sharp = [], [], []
    hardest = prompts.hardest()
    for factor in factors:
        rates = factor / prompts.highest[:, None]
        ratios.append(_shrinkage(prompts, rates, loops))
        bounds.append((1 - factor / prompts.kappa) ** steps)
        differences = _shrinkage(hardest, rates, loops) - (1 - factor / prompts.kappa) ** (2 * steps)
        sharp.append(differences.abs().amax(-1))
    setting = f"d=4, n=24, t = 1..{loops}, 100 prompts (seed 20), eta = {', '.join(map(str, factors))} over L"
    plot = bound_plot("t", range(1, loops + 1), "squared distance, eta = 0.25/L", ratios[1][:, 0], bounds[1][:, 0])
    yield bounded(torch.stack(ratios), torch.stack(bounds), f"least squares: {setting}, q != 0", plot)
    curved = [_bent_descent(factor, loops) for factor in factors]
    bent_bounds = [(1 - factor * LEAST_CURVATURE) ** steps for factor in factors]
    yield bounded(
        torch.stack(curved),
        torch.stack(bent_bounds),
        f"d=4, 100 starts (seed 21) up to 40 from theta*, t = 1..{loops}, eta as before; l(theta) = mu/2 |theta|^2 + "
        f"(L - mu) sum log cosh theta_i with mu = {LEAST_CURVATURE}, L = 1",
        bound_plot("t", range(1, loops + 1), "squared distance, eta = 0.25/L", curved[1][:, 0], bent_bounds[1][:, 0]),
    ).stated(
        "as stated", "|theta^(t) - theta*|^2 <= (1 - eta mu)^t |theta^(0) - theta*|^2 for a loss with any Hessian."
    )
    yield exact(torch.stack(sharp).amax(0), f"{setting}, theta* - theta^(0) along the eigenvector of mu", "t").stated(
        "as stated",
        "For least squares the largest |theta^(t) - theta*|^2 is (1 - eta mu)^(2t) |theta^(0) - theta*|^2.",
        "So the lemma's exponent, and with it that of Theorems 4.4 and 5.8, can be doubled.",
    )


LEAST_CURVATURE = 0.1
"""mu of the loss that is no quadratic, whose L is 1."""


def _shrinkage(prompts: VectorPrompts, rates: Tensor, loops: int) -> Tensor:
    """|theta^(t) - theta*|^2 / |theta^(0) - theta*|^2 of every loop and prompt; theta is the answer over alpha."""
    alpha = prompts.alpha[:, None]
    first = (-prompts.query / alpha - prompts.theta).square().sum(-1)
    return (prompts.answer(rates, loops) / alpha - prompts.theta).square().sum(-1) / first


def bent_loss(theta: Tensor) -> Tensor:
    """mu/2 |theta|^2 + (1 - mu) sum log cosh theta_i: its Hessian lies between mu and 1, its least value is at 0."""
    magnitude = theta.abs()
    log_cosh = magnitude + torch.log1p(torch.exp(-2 * magnitude)) - torch.log(torch.tensor(2.0, dtype=theta.dtype))
    return 0.5 * LEAST_CURVATURE * theta.square().sum(-1) + (1 - LEAST_CURVATURE) * log_cosh.sum(-1)


def _bent_descent(rate: float, loops: int) -> Tensor:
    """Squared distances to the minimum over the first ones, by gradient descent with autograd."""
    generator = generator_of(21)
    theta = normal(100, 4, generator=generator) * (0.1 + 10 * uniform(100, 1, generator=generator))
    distances = [theta.square().sum(-1)]
    for _ in range(loops):
        theta = theta - rate * _gradient(bent_loss, theta)
        distances.append(theta.square().sum(-1))
    return torch.stack(distances[1:]) / distances[0]


def squares_loss(prompts: VectorPrompts) -> Callable[[Tensor], Tensor]:
    """theta -> 1/2 |y - X theta|^2 of every prompt."""
    return lambda theta: 0.5 * (prompts.ys - torch.einsum("bnd,bd->bn", prompts.xs, theta)).square().sum(-1)


def _gradient(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(loss(theta).sum(), theta)[0]
