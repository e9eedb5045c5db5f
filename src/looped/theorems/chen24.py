"""chen24: linear looped transformers run many steps of gradient descent, with no exponential number of examples.

A prompt is (x_i, y_i) and the query (q, alpha); y = X theta*, |theta*| = 1, unless a check says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from looped.constructions.gradient_descent import vector_descent
from looped.functional.descent import gradient_descent
from looped.prompt import Prompt
from looped.theorems.check import Finding, Plot, theorem, worst

EXACT = 1e-10
FLOOR = 1e-22
"""Squared errors below this are rounding, and so are compared with no bound."""


class Instances(NamedTuple):
    """Prompts of vector generation, each with what its bounds need."""

    xs: Tensor
    ys: Tensor
    theta: Tensor
    query: Tensor
    alpha: Tensor
    highest: Tensor
    lowest: Tensor

    @property
    def kappa(self) -> Tensor:
        """The condition number of X'X."""
        return self.highest / self.lowest

    def answer(self, rates: Tensor, loops: int) -> Tensor:
        """Every answer of the transformer with these rates, (loops, count, d)."""
        xs = torch.cat([self.xs, self.query[:, None]], 1)
        prompt = Prompt(xs[:, None], torch.cat([self.ys, self.alpha[:, None]], 1)[:, None])
        model = vector_descent(d=xs.shape[-1], rates=rates, loops=loops)
        with torch.no_grad():
            return model(prompt, keep=loops)[:, :, 0]

    def descend(self, rates: Tensor, loops: int) -> Tensor:
        """Every iterate theta^(0) .. theta^(loops), theta^(0) = -q / alpha, (1 + loops, count, d)."""
        steps = rates.expand(-1, loops).T
        return gradient_descent(self.xs, self.ys, steps=loops, rate=steps, start=-self.query / self.alpha[:, None])

    def error(self, answers: Tensor) -> Tensor:
        """|<answer, theta*> - alpha|."""
        return ((answers * self.theta).sum(-1) - self.alpha).abs()


def draw(count: int, n: int, d: int, seed: int, *, spread: float = 1.0, started: bool = False) -> Instances:
    """Gaussian X, its columns scaled from 1 to `spread`; theta* on the sphere; q = 0 unless `started`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    xs = normal(count, n, d) * torch.logspace(0, math.log10(spread), d, dtype=torch.float64)
    theta = normal(count, d)
    theta = theta / theta.norm(dim=-1, keepdim=True)
    query, alpha = normal(count, d) * started, normal(count)
    eigenvalues = torch.linalg.eigvalsh(xs.mT @ xs)
    return Instances(
        xs, torch.einsum("bnd,bd->bn", xs, theta), theta, query, alpha, eigenvalues[:, -1], eigenvalues[:, 0]
    )


@theorem("chen24.lem4.1", "Attn(Z; I, diag(I, 0)) = (0, 0; q'X'X + alpha y'X, 0).")
def lem4_1() -> Iterator[Finding]:
    """One step of rate 1 from any q and for any y, all rows and columns compared."""
    errors, sizes = [], [(2, 1), (5, 3), (20, 5), (50, 8), (9, 12)]
    for seed, (n, d) in enumerate(sizes):
        made = draw(20, n, d, seed, started=True)
        ys = torch.randn(20, n, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + seed))
        model = vector_descent(d=d, rates=[1.0])
        prompt = Prompt(torch.cat([made.xs, made.query[:, None]], 1), torch.cat([ys, made.alpha[:, None]], 1))
        start = model.embed(prompt).rows
        attention = start - model.states(prompt)[-1]
        expected = torch.zeros_like(start)
        pulled = torch.einsum("bn,bnd->bd", ys, made.xs) * made.alpha[:, None]
        expected[:, -1, :d] = torch.einsum("bd,bnd,bne->be", made.query, made.xs, made.xs) + pulled
        errors.append(_relative(attention, expected))
    measured = torch.tensor(errors)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        instance=f"(n, d) in {sizes}, 20 prompts each (seeds 0-4), any y, q != 0; largest relative difference",
        plot=_plot("n", [n for n, _ in sizes], measured, EXACT, "relative difference", log_x=True),
    )


@theorem("chen24.thm4.2", "TF(Z; Q, P) = alpha theta^(T), theta by gradient descent from -q / alpha.")
def thm4_2() -> Iterator[Finding]:
    """Own rates for every loop, q != 0, realizable labels or not (the identity needs no realizability)."""
    errors, sizes, loops = [], [(5, 3), (20, 5), (50, 8), (6, 10)], 40
    for seed, (n, d) in enumerate(sizes):
        made = draw(10, n, d, seed, started=True)
        generator = torch.Generator().manual_seed(50 + seed)
        made = made._replace(ys=made.ys + torch.randn(10, n, dtype=torch.float64, generator=generator))
        rates = (0.5 + torch.rand(10, loops, dtype=torch.float64, generator=generator)) / made.highest[:, None]
        expected = made.alpha[:, None] * made.descend(rates, loops)[1:]
        difference = (made.answer(rates, loops) - expected).norm(dim=-1) / expected.norm(dim=-1)
        errors.append(difference.amax(-1))
    measured = torch.stack(errors).amax(0)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        instance=f"(n, d) in {sizes}, T = 1..{loops}, 10 prompts each (seeds 0-3), eta^(t) in [0.5, 1.5]/L, noisy y",
        plot=_plot("T", range(1, loops + 1), measured, EXACT, "relative difference"),
    )


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
        plot=_plot("T", range(1, loops + 1), measured.mean(-1), bound.mean(-1), "mean error"),
    )


@theorem("chen24.thm4.4", "|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0 and eta = 1/L.")
def thm4_4() -> Iterator[Finding]:
    """The theorem names no step; Definition 3.6 lets eta^(t) be any number above 0, Theorem 5.8 takes 1/L."""
    loops, factors = 60, (0.1, 1.0, 1.9, 2.5)
    made = draw(100, 24, 4, 1, spread=2)
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    bound = made.alpha.abs() * torch.exp(-steps / (2 * made.kappa))
    errors = {one: made.error(made.answer(one / made.highest[:, None], loops)) for one in factors}
    setting = f"d=4, n=24, T = 1..{loops}, 100 prompts (seed 1), kappa {_range(made.kappa)}"
    found, limit = worst(torch.stack([errors[one] for one in factors if one != 1]), bound)
    yield Finding(
        measured=found,
        bound=limit,
        form="as printed",
        statement="|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0, for any eta^(t) > 0.",
        instance=f"{setting}, eta = 0.1/L, 1.9/L, 2.5/L",
        plot=_lines(steps, bound, {f"eta = {one}/L": errors[one] for one in factors if one != 1}),
    )
    found, limit = worst(errors[1.0][bound**2 > FLOOR], bound[bound**2 > FLOOR])
    tighter = made.alpha.abs() * (1 - 1 / made.kappa) ** steps
    yield Finding(
        measured=found,
        bound=limit,
        form="as corrected",
        instance=f"{setting}, eta = 1/L; where the bound is above rounding",
        plot=_lines(steps, bound, {"measured": errors[1.0], "(1 - 1/kappa)^T, which also holds": tighter}),
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
        plot=_plot("case", range(1, 4), torch.stack(measured), torch.tensor(bounds), "squared error"),
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
        statement="One loop more multiplies the error by exp(-1 / 2 kappa) or less, as the bound of Theorem 4.4 is; the "
        "bound of Theorem 4.5 is multiplied by more than 4.",
        instance=f"d={d}, n={n}, T = 1..{loops}, 100 prompts (seed 5), eta = 1/L; Theorem 4.5 would need n >= "
        f"{int((8 * d**2 * 4) ** 2)} at T = 1 and {(8.0 * loops * d**2 * 4**loops) ** 2:.0e} at T = {loops}",
        plot=_lines(steps, new, {"measured": errors, "bound of Theorem 4.5": earlier}),
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
        plot=_plot("pair", range(1, rounds + 1), measured.amax(-1), 1.0, "ratio over L", log_y=False, log_x=True),
    )


@theorem("chen24.lem5.5", "1/2 |y - X theta|^2 is strongly convex with constant mu = lambda_min(X'X), and no more.")
def lem5_5() -> Iterator[Finding]:
    """The convexity gap of pairs and weights, random and along the lowest singular vector; it must never be below mu."""
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
        plot=_plot("pair", range(1, pairs + 1), measured.amin(-1), 1.0, "gap over mu", log_y=True),
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
            plot = _lines(steps, bound, {"measured": squares / radius, "(1 - 1/kappa)^2T": (1 - 1 / made.kappa) ** (2 * steps)})
    measured, limit = worst(torch.tensor([one for one, _ in found]), torch.tensor([limit for _, limit in found]))
    yield Finding(
        measured=measured,
        bound=limit,
        instance=f"d=4, n = 16, 32, 64, 128, T = 1..{loops} while the bound is above {FLOOR:g}, {trials} trials each "
        f"(seeds 10-13), R = 1; mean kappa {', '.join(kappas)} (paper: 4.57, 3.13, 2.07, 1.62)",
        plot=plot,
    )


def _loss(made: Instances):
    return lambda theta: 0.5 * (made.ys - torch.einsum("bnd,bd->bn", made.xs, theta)).square().sum(-1)


def _gradient(loss, theta: Tensor) -> Tensor:
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(loss(theta).sum(), theta)[0]


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _range(values: Tensor) -> str:
    return f"{float(values.min()):.1f} to {float(values.max()):.1f}"


def _plot(name: str, x, measured: Tensor, bound: Tensor | float, label: str, **scales: bool) -> Plot:
    bounds = torch.as_tensor(bound, dtype=torch.float64).expand(len(measured))
    lines = {"measured": measured.tolist(), "bound": bounds.tolist()}
    return Plot(x_label=name, y_label=label, x=list(x), lines=lines, **scales)


def _lines(steps: Tensor, bound: Tensor, others: dict[str, Tensor]) -> Plot:
    """The first prompt's lines over T."""
    lines = {name: line[:, 0].tolist() for name, line in (others | {"bound": bound}).items()}
    return Plot(x_label="T", y_label="error", x=steps[:, 0].tolist(), lines=lines)
