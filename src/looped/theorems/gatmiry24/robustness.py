"""Covariances not seen in training: Theorem 6 (multilayer blows up), 7 (looped stays small), 8 (monotone in depth)."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from looped.constructions.gradient_descent import preconditioned
from looped.models.kernel_transformer import KernelTransformer
from looped.theorems.check import Finding, Form, bound_plot, bounded, theorem
from looped.theorems.gatmiry24.realizable_prompts import orthonormal, population_loss, random_directions
from looped.theorems.sampling import seeded, uniform

D = 3
DELTAS = [0.5, 0.2, 0.1, 0.01, 1e-3]
SPREADS = [(1.0, 0.0, 0.01), (0.5, 0.0, 0.02), (0.2, 0.1, 0.05), (0.1, 0.2, 0.1)]
"""Right-spread-out distributions for Theorem 7: (eps, delta, eps'/eps)."""
RISE = 1e-9
"""The smallest change of a loss that counts as a rise or a fall."""


@theorem(
    "gatmiry24.thm6",
    "For beta/alpha >= 10 some (1/L, 0) right-spread-out distribution has a multilayer minimiser of zero loss whose "
    "loss is at least eps delta'^2 d 9^(L-1) under any distribution with mass eps on 8 alpha <= Sigma <= (1 - delta') "
    "beta.",
)
def thm6() -> Iterator[Finding]:
    """The proof's minimiser on the covariances where its loss is smallest."""
    low, mass, generator = 1.0, 0.5, seeded(0)
    cases = [(layers, delta) for layers in (2, 3, 4, 6) for delta in DELTAS]
    losses, train = [], 0.0
    for layers, delta in cases:
        high = 8 * low / (1 - delta) * 1.5
        model, support = overfitted(layers, low, high)
        train = max(train, float(population_loss(model, support, loops=layers, generator=generator)[-1].max()))
        values = 8 * low + ((1 - delta) * high - 8 * low) * torch.rand(20, D, generator=generator).double()
        values[0], values[1] = 8 * low, (1 - delta) * high
        tested = random_directions(values, generator)
        loss = population_loss(model, tested, loops=layers, generator=generator)[-1]
        losses.append(mass * float(loss.min()))  # the rest of the mass is on a training covariance, where loss is 0
    depths, deltas = torch.tensor(cases).double().T
    measured = torch.tensor(losses, dtype=torch.float64) if train <= 1e-12 else torch.zeros(len(losses)).double()
    shown = depths == 3
    forms: list[tuple[Form, int, str]] = [
        ("as printed", 1, "... is at least eps delta' d 9^(L-1); with delta', not its square."),
        ("as corrected", 2, ""),
    ]
    instance = (
        f"L in 2, 3, 4, 6, delta' in {DELTAS}, beta = 12 alpha / (1 - delta'), d={D}, eps={mass}; 20 covariances each, "
        f"the ends and random ones (seed 0), of which the smallest loss counts; training loss {train:.0e}"
    )
    for form, power, statement in forms:
        bound = mass * deltas**power * D * 9 ** (depths - 1)
        plot = bound_plot("delta' (L = 3)", DELTAS, "loss", measured[shown], bound[shown], log_x=True)
        yield bounded(measured, bound, instance, plot, at_least=True).stated(form, statement)


@theorem(
    "gatmiry24.thm7",
    "The looped minimiser A of an (eps, delta) right-spread-out distribution with 1/beta <= A <= 1/alpha has loss at "
    "most max(eps', d (1 - alpha/beta)^L) for every covariance in [alpha, (1 - delta') beta], delta' = delta + 2 "
    "ln(d/eps')/L.",
)
def thm7() -> Iterator[Finding]:
    """Convex minimisers of several distributions, tested on extreme and random covariances."""
    low, high = 1.0, 8.0
    rate = 1 - low / high
    rows: dict[Form, list[tuple[int, int, float, float]]] = {"as printed": [], "as corrected": []}
    for layers in (20, 40, 80):
        for seed, (mass, spread, share) in enumerate(SPREADS):
            target, generator = share * mass, seeded(seed)
            probabilities, support = spread_out(mass, (1 - spread) * high, low, high, generator)
            best = looped_minimiser(probabilities, support, layers, low, high)
            model = preconditioned(best[None], n=D + 2, loops=layers)
            bounds: dict[Form, tuple[int, float]] = {
                "as printed": (1, min(target, rate ** (2 * layers))),
                "as corrected": (2, max(target, D * rate**layers)),
            }
            for form, (factor, bound) in bounds.items():
                delta = spread + factor * math.log(D / target) / layers
                if delta <= rate:
                    loss = _largest_loss(model, low, (1 - delta) * high, layers, generator)
                    rows[form].append((seed, layers, loss, bound))
    printed = "... has loss at most min(eps', (1 - alpha/beta)^(2L)), with delta' = delta + ln(d/eps')/L."
    instance = (
        f"[alpha, beta] = [1, 8], d={D}, L in 20, 40, 80; four right-spread-out distributions, (eps, delta, eps'/eps) "
        f"in {SPREADS}, the rest of their mass on random covariances (seeds 0-3); minimisers of the convex loss by "
        "BFGS; tested on both ends and 30 random covariances, of which the largest loss counts"
    )
    for form in rows:
        losses, limits = torch.tensor([row[2:] for row in rows[form]], dtype=torch.float64).T
        shown_layers, shown_losses, shown_limits = zip(*(row[1:] for row in rows[form] if row[0] == 1), strict=True)
        plot = bound_plot("loops L (eps = .5, delta = 0)", shown_layers, "largest loss", shown_losses, shown_limits)
        yield bounded(losses, limits, instance, plot).stated(form, printed if form == "as printed" else "")


@theorem(
    "gatmiry24.thm8",
    "A multilayer model with positive definite A_t, not all equal, has a covariance for which its loss is not "
    "monotone in depth: it rises at one layer and falls at another.",
)
def thm8() -> Iterator[Finding]:
    """A search for the adversarial covariance, for negative definite and for positive definite weights."""
    gaps = [1.0, 0.3, 0.1, 0.03]
    printed = (
        "A multilayer model whose A_t are not all equal has a covariance for which its loss is not monotone in depth. "
        "(Unequal negative definite A_t make every loss rise at every layer.)"
    )
    forms: list[tuple[Form, str, float, str]] = [
        ("as printed", printed, -1.0, "negative"),
        ("as corrected", "", 1.0, "positive"),
    ]
    for form, statement, sign, kind in forms:
        largest = []
        for seed, gap in enumerate(gaps):
            generator = seeded(seed)
            vectors = orthonormal(4, D, D, generator=generator)
            values = 1 + gap * uniform(4, D, generator=generator)
            largest.append(unevenness(sign * (vectors * values[:, None] @ vectors.mT), generator))
        instance = (
            f"{kind} definite A_t, eigenvalues in [1, 1 + gap], gap in {gaps}, L=4, d={D}, seeds 0-3; covariances near "
            "rank one, 200 directions, 8 sizes each; measured is the smallest over the A of the largest min(rise, fall)"
        )
        y_label = "largest min(rise, fall) of the loss"
        plot = bound_plot("gap between the A_t", gaps, y_label, largest, RISE, log_x=True)
        yield Finding(min(largest), RISE, instance, plot, at_least=True, tolerance=True).stated(form, statement)


@theorem(
    "gatmiry24.thm8b",
    "The looped model's loss is monotone in L from L_0 on: at once if all |1 - b_i| <= 1, else from L_0 = ln(d / (b "
    "- 1)) / ln b with b = max |1 - b_i| > 1, the b_i being the eigenvalues of Sigma^1/2 A Sigma^1/2.",
)
def thm8b() -> Iterator[Finding]:
    """The loss past L_0, for random symmetric A and covariances."""
    generator, after, changes = seeded(5), 30, []
    for _ in range(40):
        vectors = orthonormal(2, D, D, generator=generator)
        values = 0.05 + 1.6 * uniform(2, D, generator=generator)
        matrix, covariance = vectors * values[:, None] @ vectors.mT
        spectrum = torch.linalg.eigvals(covariance @ matrix).real
        top = float((1 - spectrum).abs().max())
        start = 1 if top <= 1 else max(1, math.ceil(math.log(D / (top - 1)) / math.log(top)))
        if start > 200:
            continue
        model = preconditioned(matrix[None], n=D + 2, loops=start + after)
        loss = population_loss(model, covariance[None], loops=start + after, generator=generator)[start - 1 :, 0]
        change = loss.diff() / loss[:-1]
        wrong_way = change.clamp_min(0) if top <= 1 else (-change).clamp_min(0)
        changes.append((start, float(wrong_way.max())))
    starts, measured = zip(*sorted(changes), strict=True)
    instance = (
        f"{len(starts)} random symmetric A and covariances, d={D}, seed 5, L_0 from {starts[0]} to {starts[-1]}, "
        f"{after} loops past it; measured is the largest relative change in the wrong direction"
    )
    plot = bound_plot("L_0", starts, "largest change in the wrong direction", measured, RISE, log_y=False)
    yield Finding(max(measured), RISE, instance, plot, tolerance=True)


def overfitted(layers: int, low: float, high: float) -> tuple[KernelTransformer, Tensor]:
    """The proof's minimiser and its training covariances: distinct eigenvalues in [low, 2 low], and high I.

    Ref: gatmiry24, proof of Theorem 6, with B in [alpha, 2 alpha]; the paper prints B^-1.
    """
    values = torch.linspace(low, 2 * low, (layers - 1) * D, dtype=torch.float64).reshape(layers - 1, D)
    support = torch.diag_embed(torch.cat([values, torch.full((1, D), high, dtype=torch.float64)]))
    return preconditioned(torch.linalg.inv(support), n=D + 2), support


def spread_out(mass: float, top: float, low: float, high: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A right-spread-out distribution: `mass` on top I, the rest on five random covariances in [low, high]."""
    random = random_directions(low + (high - low) * uniform(5, D, generator=generator), generator)
    support = torch.cat([top * torch.eye(D, dtype=torch.float64)[None], random])
    probabilities = torch.tensor([mass] + [(1 - mass) / 5] * 5, dtype=torch.float64)
    return probabilities[probabilities > 0], support[probabilities > 0]


def looped_minimiser(probabilities: Tensor, support: Tensor, loops: int, low: float, high: float) -> Tensor:
    """The global minimiser of E tr((I - S^1/2 A S^1/2)^(2L)) over symmetric A: a convex problem.

    BFGS minimises the logarithm of the loss's 2L-th root, a norm of an affine function of A. An error is raised where
    the minimiser is outside 1/high <= A <= 1/low.
    """
    values, vectors = np.linalg.eigh(support.numpy())
    root = vectors * np.sqrt(values)[:, None] @ vectors.transpose(0, 2, 1)
    weights, power = probabilities.numpy()[:, None], 2 * loops

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        matrix = (flat.reshape(D, D) + flat.reshape(D, D).T) / 2
        spectrum, basis = np.linalg.eigh(np.eye(D) - root @ matrix @ root)
        size = np.abs(spectrum).max()
        if size < 1e-12:  # a single covariance and its inverse: no loss at all
            return math.log(1e-12), np.zeros_like(flat)
        scaled = spectrum / size
        total = (weights * scaled**power).sum()
        inner = basis * (weights * scaled ** (power - 1))[:, None] @ basis.transpose(0, 2, 1)
        gradient = -(root @ inner @ root).sum(0) / (size * total)
        return math.log(size) + math.log(total) / power, gradient.ravel()

    start = (np.eye(D) / high).ravel()
    best = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x.reshape(D, D)
    matrix = torch.tensor((best + best.T) / 2)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    if not (1 / high - 1e-9 <= eigenvalues[0] and eigenvalues[-1] <= 1 / low + 1e-9):
        raise ValueError(
            f"the minimiser must be within [1/high, 1/low]; got eigenvalues {eigenvalues.tolist()}. Change the mass."
        )
    return matrix


def unevenness(matrices: Tensor, generator: torch.Generator) -> float:
    """The largest min(rise, fall) of the loss over the layers, over adversarial covariances.

    The covariances are near rank one, s v v' with v'v = 1 and s around 2 / mean of |v'A_t v|: layer t multiplies the
    loss along v by (1 - s v'A_t v)^2.

    Ref: gatmiry24, proof of Theorem 8.
    """
    directions = orthonormal(200, D, D, generator=generator)[:, :, 0]
    means = torch.einsum("bd,tde,be->tb", directions, matrices, directions).mean(0).abs()
    sizes = torch.tensor([0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 3], dtype=torch.float64)[:, None] * 2 / means
    lines = sizes[..., None, None] * directions[:, :, None] * directions[:, None, :]
    covariances = (lines + 1e-6 * torch.eye(D, dtype=torch.float64)).flatten(0, 1)
    model = preconditioned(matrices, n=D + 2)
    loss = population_loss(model, covariances, loops=len(matrices), generator=generator)
    change = torch.cat([torch.full_like(loss[:1], float(D)), loss]).diff(dim=0)
    return float(torch.minimum(change.amax(0), (-change).amax(0)).clamp_min(0).max())


def _largest_loss(model: KernelTransformer, low: float, high: float, loops: int, generator: torch.Generator) -> float:
    """The largest loss over both ends of [low, high] and 30 random covariances."""
    values = low + (high - low) * uniform(32, D, generator=generator)
    values[0], values[1] = low, high
    return float(
        population_loss(model, random_directions(values, generator), loops=loops, generator=generator)[-1].max()
    )
