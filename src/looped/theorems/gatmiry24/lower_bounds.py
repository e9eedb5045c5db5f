"""What no weights can do: Lemma 3 (polynomials), Lemma 1 (scalings), Theorem 1 (depth).

A lower bound is checked from both sides: weights are made as good as can be found, by closed form, by search and by
training, beside random ones; and for each the worst scaling is searched. Reported is the best of these worst cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.functional import kernels
from looped.functional.polynomials import chebyshev_roots, extremal_size
from looped.theorems.check import Finding, Plot, theorem, worst
from looped.theorems.gatmiry24.instances import normal, seeded
from looped.theorems.gatmiry24.weight_sets import best_unrestricted, fit, relative_errors, restricted_sets, scaled

RATIOS = [36.0, 144.0, 900.0]
"""lambda_max / lambda_min, the squares of 6k for k = 1, 2, 5."""
POINTS = 2001


@theorem(
    "gatmiry24.lem3",
    "A polynomial P of degree k <= sqrt(lambda_max/lambda_min) / 6 with P(0) = 0 has |P - alpha| / |alpha| >= 1/4 "
    "somewhere on [lambda_min, lambda_max], for every alpha.",
)
def lem3() -> Iterator[Finding]:
    """The largest deviation of the best polynomial, of others near it and of random ones."""
    largest = [float(deviations(ratio).abs().amax(1).min()) for ratio in RATIOS]
    yield Finding(
        measured=min(largest),
        bound=0.25,
        at_least=True,
        instance=f"lambda_max/lambda_min in {RATIOS}, k = sqrt of it / 6; 1 - P/alpha with the Chebyshev roots, 100 "
        "sets "
        "of roots near them and 100 random ones (seed 0); the least of the largest deviations",
        plot=Plot(
            x_label="k",
            y_label="largest deviation of the best P",
            x=[math.sqrt(ratio) / 6 for ratio in RATIOS],
            lines={"measured": largest, "bound": [0.25] * len(RATIOS)},
            log_y=False,
        ),
    )


@theorem(
    "gatmiry24.lem3b",
    "For the same P there is an interval of length (lambda_max - lambda_min) / (64 k^2) on which |P - alpha| / |alpha| "
    ">= 1/8.",
)
def lem3b() -> Iterator[Finding]:
    """The longest run of grid points with deviation 1/8, less one grid step, for the same polynomials."""
    lengths, bounds = [], []
    for ratio in RATIOS:
        above = deviations(ratio).abs() >= 1 / 8
        runs = torch.zeros(len(above), dtype=torch.int64)
        longest = runs.clone()
        for column in above.T:
            runs = torch.where(column, runs + 1, 0)
            longest = torch.maximum(longest, runs)
        lengths.append(float(longest.min() - 1) * (ratio - 1) / (POINTS - 1))
        bounds.append((ratio - 1) / (64 * (math.sqrt(ratio) / 6) ** 2))
    found, bound = worst(torch.tensor(lengths), torch.tensor(bounds), at_least=True)
    yield Finding(
        measured=found,
        bound=bound,
        at_least=True,
        instance=f"lambda_max/lambda_min in {RATIOS}, k = sqrt of it / 6; the polynomials of lem3 on {POINTS} "
        "points; the "
        "least of the longest intervals",
        plot=Plot(
            x_label="k",
            y_label="length of the longest interval",
            x=[math.sqrt(ratio) / 6 for ratio in RATIOS],
            lines={"measured": lengths, "bound": bounds},
        ),
    )


@theorem(
    "gatmiry24.lem1a",
    "For any restricted L-layer weights, linear or ReLU, and any realizable instance, some scaling 1 <= gamma <= 36 "
    "L^2 "
    "of X and y makes the relative error at least 1/4.",
)
def lem1a() -> Iterator[Finding]:
    """Random, Chebyshev and trained weights against every scaling of a grid."""
    depths, least, lengths = [1, 2, 4], [], []
    for layers in depths:
        gammas = torch.logspace(0, math.log10(36 * layers**2), 250, dtype=torch.float64)
        found = []
        for kernel in (kernels.linear, kernels.relu):
            for d in (1, 3):
                prompt, answer = scaled(d, gammas, seed=layers)
                model = restricted_sets(d, layers, kernel, top=float(gammas[-1]) ** 2)
                found.append(relative_errors(model, prompt, answer))
                if d == 1:
                    found.append(relative_errors(fit(model, *scaled(d, gammas[::8], seed=layers)), prompt, answer))
        error = torch.cat(found)
        least.append(float(error.amax(1).min()))
        lengths.append(float(((error[:, :-1] >= 0.25) * gammas.diff()).sum(1).min()))
    yield Finding(
        measured=min(least),
        bound=0.25,
        at_least=True,
        instance=f"L in {depths}, d in 1 and 3, linear and ReLU, 16 weight sets each: random of four scales, "
        "Chebyshev for "
        "the whole range and near it, and the same after training on the scalings; 250 scalings; the least of the "
        "largest "
        f"errors; the error is >= 1/4 on scalings of total length >= {min(lengths):.1f} for all",
        plot=Plot(
            x_label="layers L",
            y_label="largest relative error of the best weights",
            x=depths,
            lines={"measured": least, "bound": [0.25] * len(depths)},
            log_y=False,
        ),
    )


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
        f"L in {depths}, d=1, linear; 16 random weight sets of four scales, and P = diag(a, 1), Q = diag(q, 0) found "
        "by "
        "differential evolution, before and after training all of P and Q on the scalings; 300 scalings; the least "
        "of the "
        "largest errors"
    )
    yield Finding(
        measured=min(printed),
        bound=0.25,
        at_least=True,
        form="as printed",
        statement="For any L-layer weights without restriction some scaling 1 <= gamma <= 2^L of X and y makes the "
        "relative error at least 1/4.",
        instance=instance,
        plot=_over_layers(depths, printed, {"no weights below": limits}),
    )
    corrected = [best_unrestricted(layers, 3.0 * (3**layers - 1)) for layers in depths]
    yield Finding(
        measured=min(corrected),
        bound=0.25,
        at_least=True,
        form="as corrected",
        instance=instance,
        plot=_over_layers(depths, corrected, {}),
    )


@theorem(
    "gatmiry24.thm1a",
    "For L <= sqrt(beta/alpha) / 6 and any restricted L-layer weights some instance of S_{alpha,beta} has relative "
    "error "
    "at least 1/4.",
)
def thm1a() -> Iterator[Finding]:
    """The best weights for d = 1, at the printed and at the corrected depth."""
    for form, layers, bound in (("as printed", [4, 10], 0.5), ("as corrected", [1, 2, 3], 0.25)):
        ratios = [float((count if bound == 0.5 else 6 * count) ** 2) for count in layers]
        least = []
        for count, ratio in zip(layers, ratios, strict=True):
            gammas = torch.linspace(1, ratio, 300, dtype=torch.float64).sqrt()
            prompt, answer = scaled(1, gammas, seed=count)
            found = []
            for kernel in (kernels.linear, kernels.relu):
                model = restricted_sets(1, count, kernel, top=ratio)
                found += [relative_errors(model, prompt, answer)]
                if count <= 4:
                    found += [relative_errors(fit(model, *scaled(1, gammas[::10], seed=count)), prompt, answer)]
            least.append(float(torch.cat(found).amax(1).min()))
        printed = form == "as printed"
        yield Finding(
            measured=min(least),
            bound=bound,
            at_least=True,
            form="as printed" if printed else "as corrected",
            statement="For L <= sqrt(beta/alpha) and any restricted L-layer weights some instance of S_{alpha,beta} "
            "has "
            "relative error at least 1/2."
            if printed
            else "",
            instance=f"(L, beta/alpha) in {list(zip(layers, ratios, strict=True))}, d=1 (for d >= 2 a w orthogonal "
            "to x_q "
            "makes any error infinite), linear and ReLU, 16 weight sets each as in lem1a; 300 covariances; the least "
            "of "
            "the largest errors",
            plot=_over_layers(layers, least, {}, bound),
        )


@theorem(
    "gatmiry24.thm1b",
    "For L <= log_3(1 + sqrt(beta/alpha) / 3) and any L-layer weights without restriction some instance of "
    "S_{alpha,beta} "
    "has relative error at least 1/4; this is the constant of L = O(log(beta/alpha)).",
)
def thm1b() -> Iterator[Finding]:
    """Searched, trained and random weights at the largest depth the statement allows."""
    depths = [1, 2, 3]
    ratios = [(3.0 * (3**layers - 1)) ** 2 for layers in depths]
    least = [best_unrestricted(layers, math.sqrt(ratio), d=2) for layers, ratio in zip(depths, ratios, strict=True)]
    yield Finding(
        measured=min(least),
        bound=0.25,
        at_least=True,
        instance=f"(L, beta/alpha) in {list(zip(depths, ratios, strict=True))}, covariances lambda I, d=2, n=4; "
        "weight sets "
        "as in lem1b; 300 values of lambda; the least of the largest errors",
        plot=_over_layers(depths, least, {}),
    )


def deviations(ratio: float) -> Tensor:
    """1 - P/alpha on a grid of [1, ratio], a row each, for P of degree k = sqrt(ratio) / 6 with P(0) = 0."""
    degree, generator = round(math.sqrt(ratio) / 6), seeded(0)
    roots = chebyshev_roots(degree, 1, ratio)
    near = roots * (0.2 * normal(100, degree, generator=generator)).exp()
    random = 1 + (ratio - 1) * torch.rand(100, degree, generator=generator, dtype=torch.float64)
    grid = torch.linspace(1, ratio, POINTS, dtype=torch.float64)
    return torch.cat([(1 - grid / one[:, None]).prod(0)[None] for one in [roots, *near, *random]])


def _over_layers(layers: list[int], measured: list[float], more: dict[str, list[float]], bound: float = 0.25) -> Plot:
    lines = {"measured": measured, "bound": [bound] * len(layers)} | more
    return Plot(
        x_label="layers L", y_label="largest relative error of the best weights", x=layers, lines=lines, log_y=False
    )
