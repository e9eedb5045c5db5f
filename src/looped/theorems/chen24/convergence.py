"""How fast the error falls: Lemmas 4.3, 5.3 and 5.5, Theorems 4.4 and 5.8, and the earlier bound, Theorem 4.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from looped.functional.descent import gradient_descent
from looped.theorems.check import Finding, Plot, curve, theorem, worst
from looped.theorems.chen24.instances import Instances, draw

EXACT = 1e-10
"""Largest relative difference of two float64 computations of one number."""
FLOOR = 1e-22
"""Squared errors below this are rounding, and so are compared with no bound."""


@theorem("chen24.lem4.3", "|<TF, theta*> - alpha| <= |alpha| |theta^(T) - theta*|.")
def lem4_3() -> Iterator[Finding]:
    """Realizable labels and unit theta*; the worst ratio over prompts and T."""
    loops = 40
    made = draw(200, 24, 6, 0, spread=3, started=True)
    rates = 1 / made.highest[:, None]
    measured = made.error(made.answer(rates, loops))
    bound = made.alpha.abs() * (made.descend(rates, loops)[1:] - made.theta).norm(dim=-1)
    found, limit = worst(measured, bound)
    yield Finding(
        measured=found,
        bound=limit,
        instance=f"d=6, n=24, T = 1..{loops}, 200 prompts (seed 0), eta = 1/L, q != 0",
        plot=curve("T", range(1, loops + 1), "mean error", measured.mean(-1), bound.mean(-1)),
    )


@theorem("chen24.thm4.4", "|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0 and eta = 1/L.")
def thm4_4() -> Iterator[Finding]:
    """The theorem names no step; Definition 3.6 lets eta^(t) be any number above 0, Theorem 5.8 takes 1/L."""
    loops, factors = 60, (0.1, 1.0, 1.9, 2.5)
    made = draw(100, 24, 4, 1, spread=2)
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    bound = made.alpha.abs() * torch.exp(-steps / (2 * made.kappa))
    errors = {one: made.error(made.answer(one / made.highest[:, None], loops)) for one in factors}
    setting = f"d=4, n=24, T = 1..{loops}, 100 prompts (seed 1), kappa {made.kappa.min():.1f} to {made.kappa.max():.1f}"
    found, limit = worst(torch.stack([errors[one] for one in factors if one != 1]), bound)
    yield Finding(
        measured=found,
        bound=limit,
        form="as printed",
        statement="|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0, for any eta^(t) > 0.",
        instance=f"{setting}, eta = 0.1/L, 1.9/L, 2.5/L",
        plot=_first(bound, errors[2.5], {f"eta = {one}/L": errors[one] for one in (0.1, 1.9)}),
    )
    found, limit = worst(errors[1.0][bound**2 > FLOOR], bound[bound**2 > FLOOR])
    tighter = made.alpha.abs() * (1 - 1 / made.kappa) ** steps
    yield Finding(
        measured=found,
        bound=limit,
        form="as corrected",
        instance=f"{setting}, eta = 1/L; where the bound is above rounding",
        plot=_first(bound, errors[1.0], {"(1 - 1/kappa)^T, which also holds": tighter}),
    )


@theorem("chen24.thm4.5", "If 8Td^2 4^T <= sqrt(n), the best loop's regression error is <= 8Td^2 4^T / sqrt(n).")
def thm4_5() -> Iterator[Finding]:
    """The earlier bound at the fewest examples it allows, then what it says where Theorem 4.4 applies."""
    measured, bounds, cases = [], [], [(1, 1), (1, 2), (2, 1)]
    for seed, (d, loops) in enumerate(cases):
        n = (8 * loops * d**2 * 4**loops) ** 2
        generator = torch.Generator().manual_seed(seed)
        xs = torch.randn(64, n, d, dtype=torch.float64, generator=generator)
        w, query = torch.randn(2, 64, d, dtype=torch.float64, generator=generator)
        ys = torch.einsum("bnd,bd->bn", xs, w)
        learned = gradient_descent(xs, ys, steps=loops, rate=1 / n)[-1]
        squares = ((learned - w) * query).sum(-1).square()
        measured.append(squares.mean() + 3 * squares.std() / len(squares) ** 0.5)
        bounds.append(8 * loops * d**2 * 4**loops / n**0.5)
    found, limit = worst(torch.stack(measured), torch.tensor(bounds))
    yield Finding(
        measured=found,
        bound=limit,
        instance=f"(d, T) in {cases} at the least n allowed, 1024 to 65536; x, w ~ N(0, I); the loop with A = I (as "
        "gradient descent: gatmiry24.thm5), no better than the best one; mean of 64 prompts plus 3 standard errors",
        plot=curve("case", range(1, 4), "squared error", torch.stack(measured), bounds),
    )
    loops, n, d = 20, 128, 4
    made = draw(100, n, d, 5)
    errors = made.error(made.answer(1 / made.highest[:, None], loops))
    found, limit = worst(errors[1:] / errors[:-1], torch.exp(-1 / (2 * made.kappa)))
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    earlier = 8 * steps * d**2 * 4**steps / n**0.5
    new = made.alpha.abs() * torch.exp(-steps / (2 * made.kappa))
    yield Finding(
        measured=found,
        bound=limit,
        statement="One loop more multiplies the error by exp(-1 / 2 kappa) or less, as it does Theorem 4.4's bound, "
        "and multiplies the bound of Theorem 4.5 by more than 4.",
        instance=f"d={d}, n={n}, T = 1..{loops}, 100 prompts (seed 5), eta = 1/L; Theorem 4.5 would need n >= "
        f"{int((8 * d**2 * 4) ** 2)} at T = 1 and {(8.0 * loops * d**2 * 4**loops) ** 2:.0e} at T = {loops}",
        plot=_first(new, errors, {"bound of Theorem 4.5": earlier}),
    )


@theorem("chen24.lem5.3", "The Lipschitz constant of the gradient of 1/2 |y - X theta|^2 is L = |X'X|.")
def lem5_3() -> Iterator[Finding]:
    """Pairs of points, random at first and then driven to the worst direction; gradients by autograd."""
    made, rounds = draw(20, 24, 5, 2), 400
    loss = _loss(made)
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(20, 5, dtype=torch.float64, generator=generator)
    apart = torch.randn(20, 5, dtype=torch.float64, generator=generator)
    ratios = []
    for _ in range(rounds):
        change = _gradient(loss, base + apart) - _gradient(loss, base)
        ratios.append(change.norm(dim=-1) / apart.norm(dim=-1) / made.highest)
        apart = change / change.norm(dim=-1, keepdim=True)
    measured = torch.stack(ratios)
    yield Finding(
        measured=float((measured.amax(0) - 1).abs().max()),
        bound=EXACT,
        tolerance=True,
        instance=f"d=5, n=24, 20 losses (seed 2), {rounds} pairs each by power iteration: |largest ratio / L - 1|",
        plot=curve("pair", range(1, rounds + 1), "ratio over L", measured.amax(-1), 1.0, log_x=True, log_y=False),
    )


@theorem("chen24.lem5.5", "1/2 |y - X theta|^2 is strongly convex with constant mu = lambda_min(X'X), and no more.")
def lem5_5() -> Iterator[Finding]:
    """The convexity gap of pairs and weights, random and along the lowest singular vector: never below mu."""
    made, pairs = draw(20, 24, 5, 4), 300
    loss = _loss(made)
    generator = torch.Generator().manual_seed(5)
    lowest = torch.linalg.svd(made.xs).Vh[:, -1]
    gaps = []
    for k in range(pairs):
        left, right = torch.randn(2, 20, 5, dtype=torch.float64, generator=generator)
        if k >= pairs // 2:
            right = left + lowest + (right - left) * 0.8 ** (k - pairs // 2)
        weight = 0.1 + 0.8 * torch.rand(20, dtype=torch.float64, generator=generator)
        middle = weight[:, None] * left + (1 - weight)[:, None] * right
        above = weight * loss(left) + (1 - weight) * loss(right) - loss(middle)
        gaps.append(2 * above / (weight * (1 - weight) * (left - right).square().sum(-1)) / made.lowest)
    measured = torch.stack(gaps)
    yield Finding(
        measured=float((measured.amin(0) - 1).abs().max()),
        bound=EXACT,
        tolerance=True,
        instance=f"d=5, n=24, 20 losses (seed 4), {pairs} pairs and weights each: |smallest gap / mu - 1|",
        plot=curve("pair", range(1, pairs + 1), "gap over mu", measured.amin(-1), 1.0),
    )


@theorem("chen24.thm5.8", "|theta^(T) - theta*|^2 <= exp(-T / kappa) R^2 with eta = 1/L, R = |theta^(0) - theta*|.")
def thm5_8() -> Iterator[Finding]:
    """The setting of Figure 1, from random starts, read off the transformer by Theorem 4.2."""
    loops, trials, found, kappas, plot = 200, 10, [], [], None
    for seed, n in enumerate((16, 32, 64, 128)):
        made = draw(trials, n, 4, 10 + seed, started=True)
        thetas = made.answer(1 / made.highest[:, None], loops) / made.alpha[:, None]
        squares = (thetas - made.theta).square().sum(-1)
        radius = (-made.query / made.alpha[:, None] - made.theta).square().sum(-1)
        steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
        bound = torch.exp(-steps / made.kappa)
        seen = bound > FLOOR
        found.append(worst((squares / radius)[seen], bound[seen]))
        kappas.append(f"{made.kappa.mean():.2f}")
        if plot is None:
            plot = _first(bound, squares / radius, {"(1 - 1/kappa)^2T": (1 - 1 / made.kappa) ** (2 * steps)})
    measured, limit = worst(torch.tensor([one for one, _ in found]), torch.tensor([limit for _, limit in found]))
    yield Finding(
        measured=measured,
        bound=limit,
        instance=f"d=4, n = 16, 32, 64, 128, T = 1..{loops} while the bound is above {FLOOR:g}, {trials} trials each "
        f"(seeds 10-13), in units of R^2; mean kappa {', '.join(kappas)} (paper: 4.57, 3.13, 2.07, 1.62)",
        plot=plot,
    )


def _first(bound: Tensor, measured: Tensor, others: dict[str, Tensor]) -> Plot:
    """The first prompt's error over T."""
    lines = {name: line[:, 0] for name, line in others.items()}
    return curve("T", range(1, len(bound) + 1), "error", measured[:, 0], bound[:, 0], lines)


def _loss(made: Instances) -> Callable[[Tensor], Tensor]:
    return lambda theta: 0.5 * (made.ys - torch.einsum("bnd,bd->bn", made.xs, theta)).square().sum(-1)


def _gradient(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(loss(theta).sum(), theta)[0]
