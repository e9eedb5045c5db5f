"""What no weights can do: Lemma 3 (polynomials), Lemma 1 (scalings), Theorem 1 (depth).

A lower bound is checked from both sides: weights are made as good as can be found, by closed form, by search and by
training, beside random ones; and for each the worst scaling is searched. Reported is the best of these worst cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import differential_evolution
from torch import Tensor
from torch.func import functional_call

from looped.functional import kernels
from looped.functional.polynomials import chebyshev_roots, extremal_size
from looped.models.kernel_transformer import KernelTransformer, restricted, unrestricted
from looped.prompt import Prompt
from looped.theorems.check import Finding, Plot, theorem, worst
from looped.theorems.gatmiry24.instances import normal, seeded

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
                found.append(_errors(model, prompt, answer))
                if d == 1:
                    found.append(_errors(fit(model, *scaled(d, gammas[::8], seed=layers)), prompt, answer))
        error = torch.cat(found)
        least.append(float(error.amax(1).min()))
        lengths.append(float(((error[:, :-1] >= 0.25) * gammas.diff()).sum(1).min()))
    yield Finding(
        measured=min(least),
        bound=0.25,
        at_least=True,
        instance=f"L in {depths}, d in 1 and 3, linear and ReLU, 24 weight sets each: random of four scales, "
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
    printed = [_best_unrestricted(layers, 2.0**layers) for layers in depths]
    limits = [extremal_size((3**layers - 1) // 2, 1, 4.0**layers) for layers in depths]
    instance = (
        f"L in {depths}, d=1, linear; 60 random weight sets of four scales, and P = diag(a, 1), Q = diag(q, 0) found "
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
    corrected = [_best_unrestricted(layers, 3.0 * (3**layers - 1)) for layers in depths]
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
    for form, layers, bound in (("as printed", [4, 10, 20], 0.5), ("as corrected", [1, 2, 3], 0.25)):
        ratios = [float((count if bound == 0.5 else 6 * count) ** 2) for count in layers]
        least = []
        for count, ratio in zip(layers, ratios, strict=True):
            gammas = torch.linspace(1, ratio, 600, dtype=torch.float64).sqrt()
            prompt, answer = scaled(1, gammas, seed=count)
            found = []
            for kernel in (kernels.linear, kernels.relu):
                model = restricted_sets(1, count, kernel, top=ratio)
                found += [_errors(model, prompt, answer)]
                if count <= 4:
                    found += [_errors(fit(model, *scaled(1, gammas[::20], seed=count)), prompt, answer)]
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
            "makes any error infinite), linear and ReLU, 24 weight sets each as in lem1a; 600 covariances; the least "
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
    least = [_best_unrestricted(layers, math.sqrt(ratio), d=2) for layers, ratio in zip(depths, ratios, strict=True)]
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


def scaled(d: int, gammas: Tensor, *, seed: int) -> tuple[Prompt, Tensor]:
    """One realizable instance with its X and y, not its query, scaled by every gamma; and w'x_q.

    With d = 1 all x are positive and XX' = 1, so that ReLU attention is linear there; otherwise they are random.
    """
    generator = seeded(seed)
    xs = normal(d + 3, d, generator=generator)
    if d < 3:
        basis = torch.linalg.qr(xs)[0]
        xs = torch.cat([basis[:-1].abs() if d == 1 else basis[:-1], torch.ones(1, d).double()])
        xs[:-1] = xs[:-1] @ _whiten(xs[:-1])
    w = torch.ones(d).double() if d < 3 else normal(d, generator=generator)
    sizes = torch.cat([gammas[:, None].expand(-1, len(xs) - 1), torch.ones(len(gammas), 1).double()], 1)
    rows = sizes[..., None] * xs
    return Prompt(rows, rows @ w), (xs[-1] @ w).expand(len(gammas))


def restricted_sets(d: int, layers: int, kernel: kernels.Kernel, *, top: float) -> KernelTransformer:
    """24 restricted models side by side: 12 random ones of four scales, and 12 near Chebyshev's for [1, top]."""
    generator, n = seeded(layers), d + 2
    config = restricted(d=d, loops=layers, layers=layers, kernel=kernel, tilted=True, models=24)
    model = config.build().double()
    scales = torch.logspace(-3, 1, 4, dtype=torch.float64).repeat_interleave(3)[:, None, None, None] * n
    random = scales * normal(12, layers, d, d, generator=generator)
    best = n / chebyshev_roots(layers, 1, top)[:, None, None] * torch.eye(d, dtype=torch.float64)
    noise = torch.linspace(0, 0.5, 12, dtype=torch.float64)[:, None, None, None]
    near = best * (noise * normal(12, layers, 1, 1, generator=generator)).exp()
    tilt = (
        0.1 * torch.linspace(0, 1, 24, dtype=torch.float64)[:, None, None] * normal(24, layers, d, generator=generator)
    )
    tilt[12] = 0
    model.put(score=torch.cat([random, near]), tilt=tilt)
    return model


def fit(model: KernelTransformer, prompt: Prompt, answer: Tensor, steps: int = 60) -> KernelTransformer:
    """The same models after Adam on the factors of their weights, for the smallest largest error over the batch."""
    start = {name: weight.detach() for name, weight in model.named_parameters()}
    factors = {name: torch.ones_like(weight, requires_grad=True) for name, weight in start.items()}
    optimiser = torch.optim.Adam(factors.values(), lr=0.02)
    best, lowest = start, torch.full((model.config.models or 1,), math.inf, dtype=torch.float64)
    for _ in range(steps):
        weights = {name: start[name] * factors[name] for name in start}
        error = (functional_call(model, weights, (prompt,))[-1, ..., 0] - answer).abs() / answer.abs()
        largest = error.detach().amax(1).nan_to_num(math.inf)
        better, lowest = largest < lowest, torch.minimum(largest, lowest)
        best = {name: torch.where(_like(better, old), weights[name].detach(), old) for name, old in best.items()}
        optimiser.zero_grad()
        torch.logsumexp(8 * error.clamp(1e-9, 1e9).log(), 1).nan_to_num(0, 0, 0).sum().backward()
        for factor in factors.values():
            assert factor.grad is not None
            factor.grad.nan_to_num_(0, 0, 0)
        optimiser.step()
    trained = replace(model.config).build().double()
    trained.load_state_dict(best)
    return trained


def searched(layers: int, top: float) -> tuple[Tensor, Tensor]:
    """(q, a) of the layers P = diag(a, 1), Q = diag(q, 0) with the least largest error on XX' in [1, top], d = 1.

    error = prod_t (1 - q_t s_t),  s_{t+1} = s_t (1 - a_t q_t s_t)^2,  s_0 = XX'
    """
    grid = np.geomspace(1, top, 200)[:, None]

    def largest(free: np.ndarray) -> np.ndarray:
        q, a = np.exp(free[:layers]), free[layers:]
        s, error = np.broadcast_to(grid, (len(grid), free.shape[1])), np.ones((len(grid), free.shape[1]))
        for t in range(layers):
            error = error * (1 - q[t] * s)
            s = s * (1 - a[t] * q[t] * s) ** 2 if t + 1 < layers else s
        return np.nan_to_num(np.abs(error).max(0), nan=1e300)

    limits = [(-math.log(top) - 0.1, 0.7)] * layers + [(0.0, 2.0)] * (layers - 1)
    with np.errstate(all="ignore"):
        found = differential_evolution(
            largest, limits, vectorized=True, updating="deferred", rng=0, maxiter=250, popsize=20, polish=False
        ).x
    return torch.tensor(found[:layers]).exp(), torch.tensor(np.append(found[layers:], 0.0))


def _best_unrestricted(layers: int, top: float, d: int = 1) -> float:
    """The least over unrestricted weight sets of the largest relative error over scalings in [1, top]."""
    gammas, n, generator = torch.logspace(0, math.log10(top), 300, dtype=torch.float64), d + 2, seeded(layers)
    config = unrestricted(d=d, loops=layers, layers=layers, models=68)
    model = config.build().double()
    q, a = searched(layers, top**2)
    value, score = torch.zeros(2, 8, layers, d + 1, d + 1, dtype=torch.float64)
    score[:, :, :d, :d] = n * q[:, None, None] * torch.eye(d).double()
    value[:, :, :d, :d], value[:, :, d, d] = a[:, None, None] * torch.eye(d).double(), 1
    blur = torch.linspace(0, 1e-3, 8, dtype=torch.float64)[:, None, None, None]
    value, score = (part + blur * normal(*part.shape, generator=generator) for part in (value, score))
    scales = torch.logspace(-3, 0, 4, dtype=torch.float64).repeat_interleave(15)[:, None, None, None]
    random = scales * normal(2, 60, layers, d + 1, d + 1, generator=generator)
    model.put(value=torch.cat([value, random[0]]), score=torch.cat([score, random[1]]))
    prompt, answer = scaled(d, gammas, seed=0)
    trained = fit(model, *scaled(d, gammas[::6], seed=0))
    return min(float(_errors(one, prompt, answer).amax(1).min()) for one in (model, trained))


@torch.no_grad()
def _errors(model: KernelTransformer, prompt: Prompt, answer: Tensor) -> Tensor:
    """Relative errors, a row for each model; one beyond float64 counts as infinite."""
    return ((model(prompt)[-1, ..., 0] - answer) / answer).abs().nan_to_num(math.inf)


def _whiten(xs: Tensor) -> Tensor:
    """The inverse square root of xs'xs."""
    values, vectors = torch.linalg.eigh(xs.mT @ xs)
    return vectors / values.sqrt() @ vectors.mT


def _like(mask: Tensor, weight: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (weight.ndim - 1))


def _over_layers(layers: list[int], measured: list[float], more: dict[str, list[float]], bound: float = 0.25) -> Plot:
    lines = {"measured": measured, "bound": [bound] * len(layers)} | more
    return Plot(
        x_label="layers L", y_label="largest relative error of the best weights", x=layers, lines=lines, log_y=False
    )
