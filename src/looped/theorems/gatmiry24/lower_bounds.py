"""What no weights can do: Lemma 3 (polynomials), Lemma 1 (scalings), Theorem 1 (depth).

A lower bound is checked from both sides. The weights are the best that closed form, search and training give, beside
random ones. For each of them the worst scaling is searched. The smallest of these worst errors is reported.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.functional.polynomials import chebyshev_roots, extremal_size
from looped.theorems.check import Finding, Form, bound_plot, bounded, theorem
from looped.theorems.gatmiry24.weight_sets import best_unrestricted, restricted_errors
from looped.theorems.sampling import normal, seeded, uniform

RATIOS = [36.0, 144.0, 900.0]
"""lambda_max / lambda_min, the squares of 6k for k = 1, 2, 5."""
DEGREES = [math.sqrt(ratio) / 6 for ratio in RATIOS]
GRID = 2001
"""Number of points at which a polynomial is evaluated."""


@theorem(
    "gatmiry24.lem3",
    "A polynomial P of degree k <= sqrt(lambda_max/lambda_min) / 6 with P(0) = 0 has |P - alpha| / |alpha| >= 1/4 "
    "somewhere on [lambda_min, lambda_max], for every alpha.",
)
def lem3() -> Iterator[Finding]:
    """The largest deviation of the best polynomial, of others near it and of random ones."""
    largest = [float(deviations(ratio).abs().amax(1).min()) for ratio in RATIOS]
    instance = (
        f"lambda_max/lambda_min in {RATIOS}, k = its square root / 6; 1 - P/alpha with the Chebyshev roots, 100 sets "
        "of roots near them and 100 random sets (seed 0); the smallest of the largest deviations"
    )
    plot = bound_plot("k", DEGREES, "largest deviation of the best P", largest, 0.25, log_y=False)
    yield Finding(min(largest), 0.25, instance, plot, at_least=True)


@theorem(
    "gatmiry24.lem3b",
    "For the same P there is an interval of length (lambda_max - lambda_min) / (64 k^2) on which |P - alpha| / |alpha| "
    ">= 1/8.",
)
def lem3b() -> Iterator[Finding]:
    """The longest run of grid points with deviation 1/8, less one grid step, for the same polynomials."""
    lengths, bounds = [], []
    for ratio, degree in zip(RATIOS, DEGREES, strict=True):
        above = deviations(ratio).abs() >= 1 / 8
        runs = torch.zeros(len(above), dtype=torch.int64)
        longest = runs.clone()
        for column in above.T:
            runs = torch.where(column, runs + 1, 0)
            longest = torch.maximum(longest, runs)
        lengths.append(float(longest.min() - 1) * (ratio - 1) / (GRID - 1))
        bounds.append((ratio - 1) / (64 * degree**2))
    instance = (
        f"lambda_max/lambda_min in {RATIOS}, k = its square root / 6; the polynomials of lem3 on {GRID} points; the "
        "shortest of the longest intervals"
    )
    plot = bound_plot("k", DEGREES, "length of the longest interval", lengths, bounds)
    yield bounded(torch.tensor(lengths), torch.tensor(bounds), instance, plot, at_least=True)


@theorem(
    "gatmiry24.lem1a",
    "For any restricted L-layer weights, linear or ReLU, and any realizable instance, some scaling 1 <= gamma <= 36 "
    "L^2 of X and y makes the relative error at least 1/4.",
)
def lem1a() -> Iterator[Finding]:
    """Random, Chebyshev and trained weights against every scaling of a grid."""
    depths, least, lengths = [1, 2, 4], [], []
    for layers in depths:
        gammas = torch.logspace(0, math.log10(36 * layers**2), 250, dtype=torch.float64)
        top = float(gammas[-1]) ** 2
        errors = [restricted_errors(d, layers, gammas, top=top, stride=8 if d == 1 else None) for d in (1, 3)]
        error = torch.cat(errors)
        least.append(float(error.amax(1).min()))
        lengths.append(float(((error[:, :-1] >= 0.25) * gammas.diff()).sum(1).min()))
    instance = (
        f"L in {depths}, d in 1 and 3, linear and ReLU, 16 weight sets each: random of four sizes, Chebyshev for the "
        "whole range and near it, and the same after training on the scalings; 250 scalings; the smallest of the "
        f"largest errors; for all weights the error is >= 1/4 on scalings of total length >= {min(lengths):.1f}"
    )
    yield _least_error(depths, least, instance)


@theorem(
    "gatmiry24.lem1b",
    "For any L-layer weights without restriction some scaling 1 <= gamma <= 3 (3^L - 1) of X and y makes the relative "
    "error at least 1/4: the output is a polynomial of degree (3^L - 1)/2 in gamma^2.",
)
def lem1b() -> Iterator[Finding]:
    """Searched, trained and random weights for the printed and for the corrected range of scalings."""
    depths = [1, 2, 3]
    printed = [best_unrestricted(layers, 2.0**layers) for layers in depths]
    limits = [extremal_size((3**layers - 1) // 2, 1, 4.0**layers) for layers in depths]
    instance = (
        f"L in {depths}, d=1, linear; 16 random weight sets of four sizes, and P = diag(a, 1), Q = diag(q, 0) found "
        "by differential evolution, before and after training all of P and Q on the scalings; 300 scalings; the "
        "smallest of the largest errors"
    )
    statement = (
        "For any L-layer weights without restriction some scaling 1 <= gamma <= 2^L of X and y makes the relative "
        "error at least 1/4."
    )
    yield _least_error(depths, printed, instance, others={"no weights below": limits}).stated("as printed", statement)
    corrected = [best_unrestricted(layers, 3.0 * (3**layers - 1)) for layers in depths]
    yield _least_error(depths, corrected, instance).stated("as corrected")


@theorem(
    "gatmiry24.thm1a",
    "For L <= sqrt(beta/alpha) / 6 and any restricted L-layer weights some instance of S_{alpha,beta} has relative "
    "error at least 1/4.",
)
def thm1a() -> Iterator[Finding]:
    """The best weights for d = 1, at the printed and at the corrected depth."""
    printed = (
        "For L <= sqrt(beta/alpha) and any restricted L-layer weights some instance of S_{alpha,beta} has relative "
        "error at least 1/2."
    )
    forms: list[tuple[Form, str, list[int], int, float]] = [
        ("as printed", printed, [4, 10], 1, 0.5),
        ("as corrected", "", [1, 2, 3], 6, 0.25),
    ]
    for form, statement, depths, factor, bound in forms:
        ratios = [float((factor * layers) ** 2) for layers in depths]
        least = []
        for layers, ratio in zip(depths, ratios, strict=True):
            gammas = torch.linspace(1, ratio, 300, dtype=torch.float64).sqrt()
            errors = restricted_errors(1, layers, gammas, top=ratio, stride=10 if layers <= 4 else None)
            least.append(float(errors.amax(1).min()))
        instance = (
            f"(L, beta/alpha) in {list(zip(depths, ratios, strict=True))}, d=1 (for d >= 2 a w orthogonal to x_q makes "
            "any relative error infinite), linear and ReLU, 16 weight sets each as in lem1a; 300 covariances; the "
            "smallest of the largest errors"
        )
        yield _least_error(depths, least, instance, bound).stated(form, statement)


@theorem(
    "gatmiry24.thm1b",
    "For L <= log_3(1 + sqrt(beta/alpha) / 3) and any L-layer weights without restriction some instance of "
    "S_{alpha,beta} has relative error at least 1/4; this is the constant of L = O(log(beta/alpha)).",
)
def thm1b() -> Iterator[Finding]:
    """Searched, trained and random weights at the largest depth the statement allows."""
    depths = [1, 2, 3]
    ratios = [(3.0 * (3**layers - 1)) ** 2 for layers in depths]
    least = [best_unrestricted(layers, math.sqrt(ratio), d=2) for layers, ratio in zip(depths, ratios, strict=True)]
    instance = (
        f"(L, beta/alpha) in {list(zip(depths, ratios, strict=True))}, covariances lambda I, d=2, n=4; weight sets as "
        "in lem1b; 300 values of lambda; the smallest of the largest errors"
    )
    yield _least_error(depths, least, instance)


def deviations(ratio: float) -> Tensor:
    """1 - P/alpha on a grid of [1, ratio], one row for each P of degree k = sqrt(ratio) / 6 with P(0) = 0."""
    degree, generator = round(math.sqrt(ratio) / 6), seeded(0)
    best = chebyshev_roots(degree, 1, ratio)
    near = best * (0.2 * normal(100, degree, generator=generator)).exp()
    random = 1 + (ratio - 1) * uniform(100, degree, generator=generator)
    grid = torch.linspace(1, ratio, GRID, dtype=torch.float64)
    return torch.cat([(1 - grid / roots[:, None]).prod(0)[None] for roots in [best, *near, *random]])


def _least_error(
    depths: list[int],
    least: list[float],
    instance: str,
    bound: float = 0.25,
    others: dict[str, list[float]] | None = None,
) -> Finding:
    """The finding that the `least` largest errors at these depths are at least `bound`."""
    y_label = "largest relative error of the best weights"
    plot = bound_plot("layers L", depths, y_label, least, bound, others, log_y=False)
    return Finding(min(least), bound, instance, plot, at_least=True)
