"""What no weights can do: Lemma 3 (polynomials), Lemma 1 (scalings), Theorem 1 (depth).

A lower bound is checked from both sides. The weights are the best that closed form, search and training give, beside
random ones. For each of them the worst scaling is searched. The smallest of these worst errors is reported. Where the
paper's constants are so loose that nothing could fail, a second row has the constants that Chebyshev's weights attain.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from looped.functional import kernels
from looped.functional.polynomials import chebyshev_roots, extremal_size
from looped.functional.streams import generator_of
from looped.prompt import Prompt
from looped.theorems.check import Finding, Form, bound_plot, bounded, theorem
from looped.theorems.gatmiry24.realizable_prompts import random_directions, with_covariance
from looped.theorems.gatmiry24.weight_sets import (
    best_unrestricted,
    normalising,
    relative_errors,
    restricted_errors,
    restricted_sets,
    scaled,
)
from looped.theorems.sampling import normal, uniform

RATIOS = [36.0, 144.0, 900.0]
"""lambda_max / lambda_min, the squares of 6k for k = 1, 2, 5."""
GRID = 2001
"""Number of points at which a polynomial is evaluated."""
ORTHOGONAL = 1e-6
"""w'x_q / |w| |x_q| where the two are nearly orthogonal."""


@theorem(
    "gatmiry24.lem3",
    "A polynomial P of degree k <= sqrt(lambda_max/lambda_min) / 6 with P(0) = 0 has |P - alpha| / |alpha| >= 1/4 "
    "somewhere on [lambda_min, lambda_max], for every alpha.",
)
def lem3() -> Iterator[Finding]:
    """The largest deviation of the best polynomial, of others near it and of random ones."""
    sharper = "The same for k <= sqrt(lambda_max/lambda_min), six times as many, if lambda_max/lambda_min >= 16."
    for factor, statement in ((6, ""), (1, sharper)):
        degrees = [round(math.sqrt(ratio)) // factor for ratio in RATIOS]
        largest = [float(deviations(*case).abs().amax(1).min()) for case in zip(RATIOS, degrees, strict=True)]
        instance = (
            f"lambda_max/lambda_min in {RATIOS}, k in {degrees}; 1 - P/alpha with the Chebyshev roots, 100 sets "
            "of roots near them and 100 random sets (seed 0); the smallest of the largest deviations"
        )
        plot = bound_plot("k", degrees, "largest deviation of the best P", largest, 0.25, log_y=False)
        finding = Finding(min(largest), 0.25, instance, plot, at_least=True)
        yield finding.stated("as stated", statement, _remark(degrees, RATIOS))


@theorem(
    "gatmiry24.lem3b",
    "For the same P there is an interval of length (lambda_max - lambda_min) / (64 k^2) on which |P - alpha| / |alpha| "
    ">= 1/8.",
)
def lem3b() -> Iterator[Finding]:
    """The longest run of grid points with deviation 1/8, less one grid step, for the same polynomials."""
    degrees = [round(math.sqrt(ratio)) // 6 for ratio in RATIOS]
    lengths = [longest_interval(*case) for case in zip(RATIOS, degrees, strict=True)]
    bounds = [(ratio - 1) / (64 * k**2) for ratio, k in zip(RATIOS, degrees, strict=True)]
    shares = [length * k / (ratio - 1) for length, k, ratio in zip(lengths, degrees, RATIOS, strict=True)]
    instance = (
        f"lambda_max/lambda_min in {RATIOS}, k in {degrees}; the polynomials of lem3 on {GRID} points; the "
        "shortest of the longest intervals"
    )
    remark = f"Loose: no interval here is shorter than {min(shares):.2f} (lambda_max - lambda_min) / k."
    plot = bound_plot("k", degrees, "length of the longest interval", lengths, bounds)
    finding = bounded(torch.tensor(lengths), torch.tensor(bounds), instance, plot, at_least=True)
    yield finding.stated("as stated", "", remark)


@theorem(
    "gatmiry24.lem1a",
    "For any restricted L-layer weights, linear or ReLU, and any realizable instance, some scaling 1 <= gamma <= 36 "
    "L^2 of X and y makes the relative error at least 1/4.",
)
def lem1a() -> Iterator[Finding]:
    """Random, Chebyshev and trained weights against every scaling of a grid."""
    sharper = "The same for 1 <= gamma <= L if L >= 4; the output is a polynomial of degree L in gamma^2."
    ranges = [([1, 4], [36.0, 576.0], ""), ([4, 6], [4.0, 6.0], sharper)]
    for depths, tops, statement in ranges:
        least, lengths = [], []
        for layers, top in zip(depths, tops, strict=True):
            gammas = torch.logspace(0, math.log10(top), 250, dtype=torch.float64)
            trained = [8 if d == 1 and layers == top == 4 else None for d in (1, 3)]
            errors = [
                restricted_errors(d, layers, gammas, top=top**2, stride=stride)
                for d, stride in zip((1, 3), trained, strict=True)
            ]
            error = torch.cat(errors)
            least.append(float(error.amax(1).min()))
            lengths.append(float(((error[:, :-1] >= 0.25) * gammas.diff()).sum(1).min()))
        instance = (
            f"L in {depths}, gamma up to {tops}, d in 1 and 3, linear and ReLU, 16 weight sets each: random of four "
            "sizes, Chebyshev for the whole range and near it, and, for gamma up to 4, the same after training on the "
            "scalings; 250 scalings; the smallest of the largest errors; for all weights the error is >= 1/4 on "
            f"scalings of total length >= {min(lengths):.2g}"
        )
        remark = _remark(depths, [top**2 for top in tops])
        yield _least_error(depths, least, instance).stated("as stated", statement, remark)


@theorem(
    "gatmiry24.lem1b",
    "For any L-layer weights without restriction, L >= 2, some scaling 1 <= gamma <= (3^L - 1)/2 of X and y makes the "
    "relative error at least 1/4: the output is a polynomial of degree (3^L - 1)/2 in gamma^2.",
)
def lem1b() -> Iterator[Finding]:
    """The printed scaling of the query too, then of X and y alone; the printed range, then the corrected one."""
    depths = [2, 3, 4, 5, 6, 7]
    least = [whole_prompt_error(layers) for layers in depths]
    instance = (
        f"L in {depths}, d=1, w=1, linear; closed-form weights that bring x_q to one size, by L - 1 cubic steps, and "
        "read it off; 300 scalings; the smallest of the largest errors"
    )
    statement = (
        "For any L-layer weights without restriction some scaling 1 <= gamma <= 2^L has |TF(gamma Z) - w'x_q| >= "
        "|w'x_q| / 4: it scales the query, but not its answer."
    )
    remark = "Polynomials of this degree leave at least .78 and .49 at L = 1 and 2: there the statement is true."
    yield _least_error(depths, least, instance).stated("as printed", statement, remark)
    depths = [1, 2, 3]
    printed = [best_unrestricted(layers, 2.0**layers) for layers in depths]
    instance = (
        "d=1, linear; 16 random weight sets of four sizes, and P = diag(a, 1), Q = diag(q, 0) found by differential "
        "evolution, before and after training all of P and Q on the scalings; 300 scalings; the smallest of the "
        "largest errors"
    )
    statement = (
        "For any L-layer weights without restriction some scaling 1 <= gamma <= 2^L of X and y makes the relative "
        "error at least 1/4: with X and y scaled as in part 1, or the query and its answer too."
    )
    limits = {"no weights below": [extremal_size(degree(layers), 1, 4.0**layers) for layers in depths]}
    yield _least_error(depths, printed, f"L in {depths}, {instance}", others=limits).stated("as printed", statement)
    depths = [2, 3]
    corrected = [best_unrestricted(layers, degree(layers)) for layers in depths]
    degrees = [degree(layers) for layers in depths]
    finding = _least_error(depths, corrected, f"L in {depths}, {instance}")
    yield finding.stated("as corrected", "", _remark(degrees, [float(k**2) for k in degrees]))


@theorem(
    "gatmiry24.thm1a",
    "For L <= sqrt(beta/alpha), beta/alpha >= 16 and any restricted L-layer weights some instance of S_{alpha,beta} "
    "has relative error at least 1/4, even for d = 1.",
)
def thm1a() -> Iterator[Finding]:
    """The best weights for d = 1 at the printed depth, with the printed and the corrected error; then d = 2."""
    printed = (
        "For L <= sqrt(beta/alpha) and any restricted L-layer weights some instance of S_{alpha,beta} has relative "
        "error at least 1/2, for d = 1."
    )
    shallower = (
        "For L <= 0.65 sqrt(beta/alpha), beta/alpha >= 30 and any restricted L-layer weights some instance of "
        "S_{alpha,beta} has relative error at least 1/2, even for d = 1."
    )
    depths = [4, 10]
    forms: dict[float, list[tuple[Form, str, float]]] = {
        1.0: [("as printed", printed, 0.5), ("as corrected", "", 0.25)],
        0.65: [("as corrected", shallower, 0.5)],
    }
    for share, statements in forms.items():
        ratios = [(layers / share) ** 2 for layers in depths]
        least = []
        for layers, ratio in zip(depths, ratios, strict=True):
            gammas = torch.linspace(1, ratio, 300, dtype=torch.float64).sqrt()
            errors = restricted_errors(1, layers, gammas, top=ratio, stride=10 if layers <= 4 else None)
            least.append(float(errors.amax(1).min()))
        instance = (
            f"L in {depths}, beta/alpha in {[round(ratio, 1) for ratio in ratios]}, d=1, linear and ReLU, 16 weight "
            "sets each as in lem1a; 300 covariances; the smallest of the largest errors"
        )
        for form, statement, bound in statements:
            yield _least_error(depths, least, instance, bound).stated(form, statement, _remark(depths, ratios))
    depths, ratio = [4, 16], 16.0
    statement = (
        "For d >= 2, L <= sqrt(beta/alpha) and any restricted L-layer weights some instance of S_{alpha,beta} has "
        "relative error at least 1/2."
    )
    remark = (
        "True but empty: it holds at every depth, as a w nearly orthogonal to x_q makes any error large beside w'x_q. "
        f"At L = 16 Chebyshev's weights err by {extremal_size(16, 1, ratio):.0e} |w| |x_q| at most."
    )
    instance = (
        f"L in {depths}, beta/alpha={ratio:g}, d=2, w'x_q = {ORTHOGONAL} |w| |x_q|, linear and ReLU, 16 weight sets "
        "each as in lem1a; 50 random covariances (seed 0); the smallest of the largest errors"
    )
    least = [orthogonal_error(layers, ratio) for layers in depths]
    yield _least_error(depths, least, instance, 0.5, log_y=True).stated("as stated", statement, remark)


@theorem(
    "gatmiry24.thm1b",
    "For L <= log_3(1 + 2 sqrt(beta/alpha)), beta/alpha >= 16 and any L-layer weights without restriction some "
    "instance of S_{alpha,beta} has relative error at least 1/4; this is the constant of L = O(log(beta/alpha)).",
)
def thm1b() -> Iterator[Finding]:
    """Searched, trained and random weights at the largest depth the statement allows."""
    depths = [2, 3]
    ratios = [float(degree(layers) ** 2) for layers in depths]
    least = [best_unrestricted(layers, degree(layers), d=2) for layers in depths]
    instance = (
        f"(L, beta/alpha) in {list(zip(depths, ratios, strict=True))}, covariances lambda I, d=2, n=4; weight sets as "
        "in lem1b; 300 values of lambda; the smallest of the largest errors"
    )
    yield _least_error(depths, least, instance).stated(
        "as stated", "", _remark([degree(layers) for layers in depths], ratios)
    )


def degree(layers: int) -> int:
    """The degree in gamma^2 of the output of this many unrestricted layers on X and y scaled by gamma."""
    return (3**layers - 1) // 2


def longest_interval(ratio: float, k: int) -> float:
    """The shortest, over the polynomials, of their longest intervals of deviation at least 1/8."""
    above = deviations(ratio, k).abs() >= 1 / 8
    runs = torch.zeros(len(above), dtype=torch.int64)
    longest = runs.clone()
    for column in above.T:
        runs = torch.where(column, runs + 1, 0)
        longest = torch.maximum(longest, runs)
    return float(longest.min() - 1) * (ratio - 1) / (GRID - 1)


def whole_prompt_error(layers: int) -> float:
    """The largest |TF(gamma Z) - w'x_q| / |w'x_q| over 1 <= gamma <= 2^L for weights that undo the scaling."""
    gammas = torch.logspace(0, layers * math.log10(2), 300, dtype=torch.float64)
    prompt, answer = scaled(1, gammas, seed=0)
    sizes = torch.ones_like(prompt.xs)
    sizes[:, -1] = gammas[:, None]
    return float(relative_errors(normalising(layers), Prompt(prompt.xs * sizes, prompt.ys), answer).max())


def orthogonal_error(layers: int, ratio: float) -> float:
    """The smallest over weight sets of the largest relative error where w is nearly orthogonal to the query, d = 2."""
    generator = generator_of(0)
    covariance = random_directions(1 + (ratio - 1) * uniform(50, 2, generator=generator), generator)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(50, 2)
    prompts = with_covariance(covariance, nearly_orthogonal(query), query, n=4, generator=generator)
    models = [restricted_sets(2, layers, kernel, top=ratio) for kernel in (kernels.linear, kernels.relu)]
    errors = torch.cat([relative_errors(model, prompts.prompt, prompts.answer[:, 0]) for model in models])
    return float(errors.amax(1).min())


def nearly_orthogonal(query: Tensor) -> Tensor:
    """A vector in the plane, of the same length but for rounding, whose cosine with the query is `ORTHOGONAL`."""
    return torch.stack([-query[:, 1], query[:, 0]], 1) + ORTHOGONAL * query


def deviations(ratio: float, k: int) -> Tensor:
    """1 - P/alpha on a grid of [1, ratio], one row for each P of degree k with P(0) = 0."""
    generator = generator_of(0)
    best = chebyshev_roots(k, 1, ratio)
    near = best * (0.2 * normal(100, k, generator=generator)).exp()
    random = 1 + (ratio - 1) * uniform(100, k, generator=generator)
    grid = torch.linspace(1, ratio, GRID, dtype=torch.float64)
    return torch.cat([(1 - grid / roots[:, None]).prod(0)[None] for roots in [best, *near, *random]])


def _remark(degrees: Sequence[int], ratios: Sequence[float]) -> str:
    """How far the bound is from what is possible at all."""
    best = min(extremal_size(k, 1, ratio) for k, ratio in zip(degrees, ratios, strict=True))
    loose = "The constants are loose, so this can hardly fail: n" if best > 0.75 else "N"
    return f"{loose}o polynomial of these degrees is below {best:.3f}."


def _least_error(
    depths: list[int],
    least: list[float],
    instance: str,
    bound: float = 0.25,
    others: dict[str, list[float]] | None = None,
    *,
    log_y: bool = False,
) -> Finding:
    """The finding that the `least` largest errors at these depths are at least `bound`."""
    y_label = "largest relative error of the best weights"
    plot = bound_plot("layers L", depths, y_label, least, bound, others, log_y=log_y)
    return Finding(min(least), bound, instance, plot, at_least=True)
