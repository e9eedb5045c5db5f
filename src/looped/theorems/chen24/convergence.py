"""How fast the error falls: Lemma 4.3, Theorems 4.4 and 5.8, and the earlier bound, Theorem 4.5."""

from collections.abc import Iterator

import torch
from torch import Tensor

from looped.functional.descent import gradient_descent
from looped.functional.streams import generator_of
from looped.theorems.check import Finding, Plot, bound_plot, bounded, exact, theorem, worst
from looped.theorems.chen24.vector_prompts import draw_prompts
from looped.theorems.sampling import normal

FLOOR = 1e-22
"""Squared errors below this are rounding, so no bound is checked there."""


@theorem("chen24.lem4.3", "|<TF, theta*> - alpha| <= |alpha| |theta^(T) - theta*|.")
def lem4_3() -> Iterator[Finding]:
    """Realizable labels and a unit theta*; the worst ratio over prompts and T."""
    loops = 40
    prompts = draw_prompts(200, 24, 6, 0, spread=3, started=True)
    rates = 1 / prompts.highest[:, None]
    measured = prompts.error(prompts.answer(rates, loops))
    bound = prompts.alpha.abs() * (prompts.descend(rates, loops)[1:] - prompts.theta).norm(dim=-1)
    plot = bound_plot("T", range(1, loops + 1), "mean error", measured.mean(-1), bound.mean(-1))
    yield bounded(measured, bound, f"d=6, n=24, T = 1..{loops}, 200 prompts (seed 0), eta = 1/L, q != 0", plot)


@theorem("chen24.thm4.4", "|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0 and eta = 1/L.")
def thm4_4() -> Iterator[Finding]:
    """The theorem names no step; Definition 3.6 allows any eta^(t) above 0, Theorem 5.8 takes 1/L."""
    loops, factors = 60, (0.1, 1.0, 1.9, 2.5)
    prompts = draw_prompts(100, 24, 4, 1, spread=2)
    kappa = prompts.kappa
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    bound = prompts.alpha.abs() * torch.exp(-steps / (2 * kappa))
    errors = {factor: prompts.error(prompts.answer(factor / prompts.highest[:, None], loops)) for factor in factors}
    setting = f"d=4, n=24, T = 1..{loops}, 100 prompts (seed 1), kappa {kappa.min():.1f} to {kappa.max():.1f}"
    printed = torch.stack([errors[factor] for factor in factors if factor != 1])
    plot = _first_prompt(bound, errors[2.5], {f"eta = {factor}/L": errors[factor] for factor in (0.1, 1.9)})
    statement = "|<TF, theta*> - alpha| <= |alpha| exp(-T / 2 kappa) with q = 0, for any eta^(t) > 0."
    yield bounded(printed, bound, f"{setting}, eta = 0.1/L, 1.9/L, 2.5/L", plot).stated("as printed", statement)
    above = bound**2 > FLOOR
    tighter = prompts.alpha.abs() * (1 - 1 / kappa) ** steps
    plot = _first_prompt(bound, errors[1.0], {"(1 - 1/kappa)^T, which also holds": tighter})
    instance = f"{setting}, eta = 1/L; where the bound is above rounding"
    yield bounded(errors[1.0][above], bound[above], instance, plot).stated("as corrected")
    largest = prompts.hardest().error(prompts.hardest().answer(1 / prompts.highest[:, None], loops))
    differences = ((largest - tighter).abs() / prompts.alpha.abs()).amax(-1)
    yield exact(differences, f"{setting}, eta = 1/L, theta* along the eigenvector of mu; over |alpha|", "T").stated(
        "as corrected",
        "The largest error over unit theta* is |alpha| (1 - 1/kappa)^T.",
        "The paper calls exp(-T / 2 kappa) tight; the largest error is below its square, exp(-T / kappa).",
    )


@theorem("chen24.thm4.5", "If 8Td^2 4^T <= sqrt(n), the best loop's regression error is <= 8Td^2 4^T / sqrt(n).")
def thm4_5() -> Iterator[Finding]:
    """The earlier bound at the fewest examples it allows, then its values where Theorem 4.4 applies."""
    measured, bounds, cases = [], [], [(1, 1), (1, 2), (2, 1)]
    for seed, (d, loops) in enumerate(cases):
        n = (8 * loops * d**2 * 4**loops) ** 2
        generator = generator_of(seed)
        xs = normal(64, n, d, generator=generator)
        w, query = normal(2, 64, d, generator=generator)
        ys = torch.einsum("bnd,bd->bn", xs, w)
        learned = gradient_descent(xs, ys, steps=loops, rate=1 / n)[-1]
        squares = ((learned - w) * query).sum(-1).square()
        measured.append(squares.mean() + 3 * squares.std() / len(squares) ** 0.5)
        bounds.append(8 * loops * d**2 * 4**loops / n**0.5)
    instance = (
        f"(d, T) in {cases} with the smallest n allowed, 1024 to 65536; x, w ~ N(0, I); the loop with A = I (gradient "
        "descent: gatmiry24.thm5), which is no better than the best loop; mean of 64 prompts plus 3 standard errors"
    )
    plot = bound_plot("case", range(1, 4), "squared error", torch.stack(measured), bounds)
    remark = "The bound is 1 at these n, and predicting 0 costs d: only a loop that learns next to nothing would fail."
    yield bounded(torch.stack(measured), torch.tensor(bounds), instance, plot).stated("as stated", remark=remark)
    loops, n, d = 20, 128, 4
    prompts = draw_prompts(100, n, d, 5)
    errors = prompts.error(prompts.answer(1 / prompts.highest[:, None], loops))
    steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
    earlier = 8 * steps * d**2 * 4**steps / n**0.5
    new = prompts.alpha.abs() * torch.exp(-steps / (2 * prompts.kappa))
    yield bounded(
        errors[1:] / errors[:-1],
        torch.exp(-1 / (2 * prompts.kappa)),
        f"d={d}, n={n}, T = 1..{loops}, 100 prompts (seed 5), eta = 1/L; Theorem 4.5 would need n >= "
        f"{int((8 * d**2 * 4) ** 2)} at T = 1 and {(8.0 * loops * d**2 * 4**loops) ** 2:.0e} at T = {loops}",
        _first_prompt(new, errors, {"bound of Theorem 4.5": earlier}),
    ).stated(
        "as stated",
        "One more loop multiplies the error, like Theorem 4.4's bound, by at most exp(-1 / 2 kappa); it multiplies "
        "the bound of Theorem 4.5 by more than 4.",
    )


@theorem("chen24.thm5.8", "|theta^(T) - theta*|^2 <= exp(-T / kappa) R^2 with eta = 1/L, R = |theta^(0) - theta*|.")
def thm5_8() -> Iterator[Finding]:
    """The setting of Figure 1, from random starts; theta is read off the transformer by Theorem 4.2."""
    loops, trials, worst_pairs, kappas, plot = 200, 10, [], [], None
    for seed, n in enumerate((16, 32, 64, 128)):
        prompts = draw_prompts(trials, n, 4, 10 + seed, started=True)
        kappa = prompts.kappa
        thetas = prompts.answer(1 / prompts.highest[:, None], loops) / prompts.alpha[:, None]
        radius = (-prompts.query / prompts.alpha[:, None] - prompts.theta).square().sum(-1)
        squares = (thetas - prompts.theta).square().sum(-1) / radius
        steps = torch.arange(1, loops + 1, dtype=torch.float64)[:, None]
        bound = torch.exp(-steps / kappa)
        above = bound > FLOOR
        worst_pairs.append(worst(squares[above], bound[above]))
        kappas.append(f"{kappa.mean():.2f}")
        if plot is None:
            plot = _first_prompt(bound, squares, {"(1 - 1/kappa)^2T": (1 - 1 / kappa) ** (2 * steps)})
    instance = (
        f"d=4, n = 16, 32, 64, 128, T = 1..{loops} while the bound is above {FLOOR:g}, {trials} trials each "
        f"(seeds 10-13), in units of R^2; mean kappa {', '.join(kappas)} (paper: 4.57, 3.13, 2.07, 1.62)"
    )
    measured, bounds = torch.tensor(worst_pairs).T
    remark = "The largest distance is (1 - 1/kappa)^T R, whose square is below exp(-2 T / kappa) R^2: chen24.lem5.6."
    yield bounded(measured, bounds, instance, plot).stated("as stated", remark=remark)


def _first_prompt(bound: Tensor, measured: Tensor, others: dict[str, Tensor]) -> Plot:
    """The first prompt's error over T."""
    lines = {name: line[:, 0] for name, line in others.items()}
    return bound_plot("T", range(1, len(bound) + 1), "error", measured[:, 0], bound[:, 0], lines)
