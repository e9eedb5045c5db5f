"""Off the training covariances: Theorem 6 (multilayer blows up), 7 (looped stays small), 8 (monotone in depth)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from looped.constructions.gradient_descent import preconditioned
from looped.models.kernel_transformer import KernelTransformer
from looped.theorems.check import Finding, Plot, theorem, worst
from looped.theorems.gatmiry24.instances import orthonormal, population_loss, seeded

D = 3
DELTAS = [0.5, 0.2, 0.1, 0.01, 1e-3]
SPREADS = [(1.0, 0.0, 0.01), (0.5, 0.0, 0.02), (0.2, 0.1, 0.05), (0.1, 0.2, 0.1)]
"""Right-spread-out distributions for Theorem 7: (eps, delta, eps'/eps)."""
RISE = 1e-9
"""The least change of a loss that counts as a rise or a fall."""


@theorem(
    "gatmiry24.thm6",
    "For beta/alpha >= 10 some (1/L, 0) right-spread-out distribution has a multilayer minimiser of zero loss whose "
    "loss "
    "is at least eps delta'^2 d 9^(L-1) under any distribution with mass eps on 8 alpha <= Sigma <= (1 - delta') beta.",
)
def thm6() -> Iterator[Finding]:
    """The proof's minimiser over the least favourable covariances found."""
    low, mass, generator = 1.0, 0.5, seeded(0)
    loss, order, layers_of, train = [], [], [], 0.0
    for layers in (2, 3, 4, 6):
        for delta in DELTAS:
            high = 8 * low / (1 - delta) * 1.5
            model, support = overfitted(layers, low, high)
            train = max(train, float(population_loss(model, support, loops=layers, generator=generator)[-1].max()))
            values = 8 * low + ((1 - delta) * high - 8 * low) * torch.rand(20, D, generator=generator).double()
            values[0], values[1] = 8 * low, (1 - delta) * high
            vectors = orthonormal(20, D, D, generator=generator)
            tested = vectors * values[:, None] @ vectors.mT
            losses = population_loss(model, tested, loops=layers, generator=generator)[-1]
            loss.append(mass * float(losses.min()))  # the rest of the mass sits on a training covariance, of loss zero
            order.append(delta)
            layers_of.append(layers)
    deltas, depths = torch.tensor(order).double(), torch.tensor(layers_of).double()
    measured = torch.tensor(loss, dtype=torch.float64) if train <= 1e-12 else torch.zeros(len(loss)).double()
    instance = (
        f"L in 2, 3, 4, 6, delta' in {DELTAS}, beta = 12 alpha / (1 - delta'), d={D}, eps={mass}; 20 covariances "
        "each, the "
        f"ends and random ones (seed 0), the least loss taken; training loss {train:.0e}"
    )
    bounds = {power: mass * deltas**power * D * 9 ** (depths - 1) for power in (1, 2)}
    found, limit = worst(measured, bounds[1], at_least=True)
    yield Finding(
        measured=found,
        bound=limit,
        at_least=True,
        form="as printed",
        statement="... is at least eps delta' d 9^(L-1); with delta', not its square.",
        instance=instance,
        plot=_over_delta(measured, bounds[1], depths == 3),
    )
    found, limit = worst(measured, bounds[2], at_least=True)
    yield Finding(
        measured=found,
        bound=limit,
        at_least=True,
        form="as corrected",
        instance=instance,
        plot=_over_delta(measured, bounds[2], depths == 3),
    )


@theorem(
    "gatmiry24.thm7",
    "The looped minimiser A of an (eps, delta) right-spread-out distribution with 1/beta <= A <= 1/alpha has loss at "
    "most "
    "max(eps', d (1 - alpha/beta)^L) for every covariance in [alpha, (1 - delta') beta], delta' = delta + 2 "
    "ln(d/eps')/L.",
)
def thm7() -> Iterator[Finding]:
    """Convex minimisers of several distributions, tested on extreme and random covariances."""
    rows, plotted = [], []
    for layers in (20, 40, 80):
        for seed, (mass, spread, share) in enumerate(SPREADS):
            low, high, wanted = 1.0, 8.0, share * mass
            generator = seeded(seed)
            probabilities, support = spread_out(mass, (1 - spread) * high, low, high, generator)
            best = looped_minimiser(probabilities, support, layers, low, high)
            model = preconditioned(best[None], n=D + 2, loops=layers)
            for factor, name in ((1, "printed"), (2, "corrected")):
                delta = spread + factor * math.log(D / wanted) / layers
                if delta > 1 - low / high:
                    continue
                loss = _largest_loss(model, low, (1 - delta) * high, layers, generator)
                rate = 1 - low / high
                bound = min(wanted, rate ** (2 * layers)) if factor == 1 else max(wanted, D * rate**layers)
                rows.append((name, loss, bound))
                if seed == 1:
                    plotted.append((name, layers, loss, bound))
    instance = (
        f"[alpha, beta] = [1, 8], d={D}, L in 20, 40, 80; four right-spread-out distributions, (eps, delta, "
        "eps'/eps) in "
        f"{SPREADS}, the rest of their mass on random covariances (seeds 0-3); minimisers of the convex loss by "
        "L-BFGS; "
        "tested on both ends and 30 random covariances, the largest loss taken"
    )
    for name, statement in (
        ("printed", "... has loss at most min(eps', (1 - alpha/beta)^(2L)), with delta' = delta + ln(d/eps')/L."),
        ("corrected", ""),
    ):
        mine = [(loss, bound) for kind, loss, bound in rows if kind == name]
        found, limit = worst(*torch.tensor(mine, dtype=torch.float64).T)
        points = [(layers, loss, bound) for kind, layers, loss, bound in plotted if kind == name]
        yield Finding(
            measured=found,
            bound=limit,
            form="as printed" if name == "printed" else "as corrected",
            statement=statement,
            instance=instance,
            plot=Plot(
                x_label="loops L (eps = .5, delta = 0)",
                y_label="largest loss",
                x=[point[0] for point in points],
                lines={"measured": [point[1] for point in points], "bound": [point[2] for point in points]},
            ),
        )


@theorem(
    "gatmiry24.thm8",
    "A multilayer model with positive definite A_t, not all equal, has a covariance for which its loss is not "
    "monotone in "
    "depth: it rises at one layer and falls at another.",
)
def thm8() -> Iterator[Finding]:
    """A search for the adversarial covariance, for negative definite and for positive definite weights."""
    gaps = [1.0, 0.3, 0.1, 0.03]
    for sign, kind in ((-1.0, "negative"), (1.0, "positive")):
        found = []
        for seed, gap in enumerate(gaps):
            generator = seeded(seed)
            vectors = orthonormal(4, D, D, generator=generator)
            values = 1 + gap * torch.rand(4, D, generator=generator, dtype=torch.float64)
            found.append(unevenness(sign * (vectors * values[:, None] @ vectors.mT), generator))
        yield Finding(
            measured=min(found),
            bound=RISE,
            at_least=True,
            tolerance=True,
            form="as printed" if sign < 0 else "as corrected",
            statement="A multilayer model whose A_t are not all equal has a covariance for which its loss is not "
            "monotone "
            "in depth. (Unequal negative definite A_t make every loss rise at every layer.)"
            if sign < 0
            else "",
            instance=f"{kind} definite A_t, eigenvalues in [1, 1 + gap], gap in {gaps}, L=4, d={D}, seeds 0-3; "
            "covariances "
            "near rank one, 200 directions, 8 sizes each; measured is the least over the A of the largest min(rise, "
            "fall)",
            plot=Plot(
                x_label="gap between the A_t",
                y_label="largest min(rise, fall) of the loss",
                x=gaps,
                lines={"measured": found, "bound": [RISE] * len(found)},
                log_x=True,
            ),
        )


@theorem(
    "gatmiry24.thm8b",
    "The looped model's loss is monotone in L from L_0 on: at once if all |1 - b_i| <= 1, else from L_0 = ln(d / (b "
    "- 1)) / "
    "ln b with b = max |1 - b_i| > 1, the b_i being the eigenvalues of Sigma^1/2 A Sigma^1/2.",
)
def thm8b() -> Iterator[Finding]:
    """The loss past L_0, for random symmetric A and covariances."""
    generator, after = seeded(5), 30
    starts, worst_change = [], []
    for _ in range(40):
        vectors = orthonormal(2, D, D, generator=generator)
        values = 0.05 + 1.6 * torch.rand(2, D, generator=generator, dtype=torch.float64)
        matrix, covariance = vectors * values[:, None] @ vectors.mT
        spectrum = torch.linalg.eigvals(covariance @ matrix).real
        top = float((1 - spectrum).abs().max())
        start = 1 if top <= 1 else max(1, math.ceil(math.log(D / (top - 1)) / math.log(top)))
        if start > 200:
            continue
        model = preconditioned(matrix[None], n=D + 2, loops=start + after)
        loss = population_loss(model, covariance[None], loops=start + after, generator=generator)[start - 1 :, 0]
        change = loss.diff() / loss[:-1]
        against = change.clamp_min(0) if top <= 1 else (-change).clamp_min(0)
        starts.append(start)
        worst_change.append(float(against.max()))
    yield Finding(
        measured=max(worst_change),
        bound=RISE,
        tolerance=True,
        instance=f"{len(starts)} random symmetric A and covariances, d={D}, seed 5, L_0 from {min(starts)} to "
        f"{max(starts)}, "
        f"{after} loops past it; measured is the largest relative change the wrong way",
        plot=Plot(
            x_label="L_0",
            y_label="largest change the wrong way",
            x=sorted(starts),
            lines={
                "measured": [change for _, change in sorted(zip(starts, worst_change, strict=True))],
                "bound": [RISE] * len(starts),
            },
            log_y=False,
        ),
    )


def overfitted(layers: int, low: float, high: float) -> tuple[KernelTransformer, Tensor]:
    """The proof's minimiser and its training covariances: Ld distinct numbers in [low, 2 low], and high I.

    Ref: gatmiry24, proof of Theorem 6, with B in [alpha, 2 alpha] where B^-1 is printed.
    """
    values = torch.linspace(low, 2 * low, (layers - 1) * D, dtype=torch.float64).reshape(layers - 1, D)
    support = torch.diag_embed(torch.cat([values, torch.full((1, D), high, dtype=torch.float64)]))
    return preconditioned(torch.linalg.inv(support), n=D + 2), support


def spread_out(mass: float, top: float, low: float, high: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A right-spread-out distribution: `mass` on top I, the rest on five random covariances in [low, high]."""
    values = low + (high - low) * torch.rand(5, D, generator=generator, dtype=torch.float64)
    vectors = orthonormal(5, D, D, generator=generator)
    support = torch.cat([top * torch.eye(D, dtype=torch.float64)[None], vectors * values[:, None] @ vectors.mT])
    probabilities = torch.tensor([mass] + [(1 - mass) / 5] * 5, dtype=torch.float64)
    return probabilities[probabilities > 0], support[probabilities > 0]


def looped_minimiser(probabilities: Tensor, support: Tensor, loops: int, low: float, high: float) -> Tensor:
    """The global minimiser of E tr((I - S^1/2 A S^1/2)^(2L)) over symmetric A: a convex problem.

    BFGS on the logarithm of the loss's root of order 2L, a norm of an affine function of A. An error where it leaves
    1/high <= A <= 1/low.
    """
    values, vectors = np.linalg.eigh(support.numpy())
    root = vectors * np.sqrt(values)[:, None] @ vectors.transpose(0, 2, 1)
    weights, power = probabilities.numpy()[:, None], 2 * loops

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        matrix = (flat.reshape(D, D) + flat.reshape(D, D).T) / 2
        spectrum, basis = np.linalg.eigh(np.eye(D) - root @ matrix @ root)
        size = np.abs(spectrum).max()
        if size < 1e-12:  # no loss at all: one covariance, and its inverse
            return math.log(1e-12), np.zeros_like(flat)
        scaled = spectrum / size
        total = (weights * scaled**power).sum()
        inner = basis * (weights * scaled ** (power - 1))[:, None] @ basis.transpose(0, 2, 1)
        gradient = -(root @ inner @ root).sum(0) / (size * total)
        return math.log(size) + math.log(total) / power, gradient.ravel()

    found = minimize(objective, (np.eye(D) / high).ravel(), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    matrix = torch.tensor((found.reshape(D, D) + found.reshape(D, D).T) / 2)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    if not (1 / high - 1e-9 <= eigenvalues[0] and eigenvalues[-1] <= 1 / low + 1e-9):
        raise ValueError(
            f"the minimiser left [1/high, 1/low]; got eigenvalues {eigenvalues.tolist()}. Change the mass."
        )
    return matrix


def unevenness(matrices: Tensor, generator: torch.Generator) -> float:
    """The largest min(rise, fall) of the loss over the layers that an adversarial covariance makes.

    The covariances are near rank one, s v v' with v'v = 1, s around 2 / mean of |v'A_t v|: layer t then multiplies the
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
    values = low + (high - low) * torch.rand(32, D, generator=generator, dtype=torch.float64)
    values[0], values[1] = low, high
    vectors = orthonormal(32, D, D, generator=generator)
    covariances = vectors * values[:, None] @ vectors.mT
    return float(population_loss(model, covariances, loops=loops, generator=generator)[-1].max())


def _over_delta(measured: Tensor, bound: Tensor, chosen: Tensor) -> Plot:
    return Plot(
        x_label="delta' (L = 3)",
        y_label="loss",
        x=DELTAS,
        lines={"measured": measured[chosen].tolist(), "bound": bound[chosen].tolist()},
        log_x=True,
    )
