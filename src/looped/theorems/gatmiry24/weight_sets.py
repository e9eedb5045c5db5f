"""Weights as good as can be found, beside random ones, and instances scaled over a whole range."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import differential_evolution
from torch import Tensor
from torch.func import functional_call

from looped.functional import kernels
from looped.functional.polynomials import chebyshev_roots
from looped.models.kernel_transformer import KernelTransformer, restricted, unrestricted
from looped.prompt import Prompt
from looped.theorems.gatmiry24.instances import normal, seeded


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
    """16 restricted models side by side: 8 near Chebyshev's for [1, top], and 8 random ones of four scales."""
    generator, n = seeded(layers), d + 2
    config = restricted(d=d, loops=layers, layers=layers, kernel=kernel, tilted=True, models=16)
    model = config.build().double()
    best = n / chebyshev_roots(layers, 1, top)[:, None, None] * torch.eye(d, dtype=torch.float64)
    noise = torch.linspace(0, 0.5, 8, dtype=torch.float64)[:, None, None, None]
    near = best * (noise * normal(8, layers, 1, 1, generator=generator)).exp()
    scales = torch.logspace(-3, 1, 4, dtype=torch.float64).repeat_interleave(2)[:, None, None, None] * n
    random = scales * normal(8, layers, d, d, generator=generator)
    tilt = (
        0.1 * torch.linspace(0, 1, 16, dtype=torch.float64)[:, None, None] * normal(16, layers, d, generator=generator)
    )
    model.put(score=torch.cat([near, random]), tilt=tilt)
    return model


def fit(
    model: KernelTransformer, prompt: Prompt, answer: Tensor, *, steps: int = 40, num: int = 10
) -> KernelTransformer:
    """The first `num` of the models after Adam on the factors of their weights, for the least largest error."""
    start = {name: weight.detach()[:num] for name, weight in model.named_parameters()}
    trained = replace(model.config, models=num).build().double()
    factors = {name: torch.ones_like(weight, requires_grad=True) for name, weight in start.items()}
    optimiser = torch.optim.Adam(factors.values(), lr=0.02)
    best, lowest = start, torch.full((num,), math.inf, dtype=torch.float64)
    for _ in range(steps):
        weights = {name: start[name] * factors[name] for name in start}
        error = (functional_call(trained, weights, (prompt,))[-1, ..., 0] - answer).abs() / answer.abs()
        largest = error.detach().amax(1).nan_to_num(math.inf)
        better, lowest = largest < lowest, torch.minimum(largest, lowest)
        best = {name: torch.where(_like(better, old), weights[name].detach(), old) for name, old in best.items()}
        optimiser.zero_grad()
        torch.logsumexp(8 * error.clamp(1e-9, 1e9).log(), 1).nan_to_num(0, 0, 0).sum().backward()
        for factor in factors.values():
            factor.grad = None if factor.grad is None else factor.grad.nan_to_num(0, 0, 0)
        optimiser.step()
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


def best_unrestricted(layers: int, top: float, d: int = 1) -> float:
    """The least over unrestricted weight sets of the largest relative error over scalings in [1, top]."""
    gammas, n, generator = torch.logspace(0, math.log10(top), 300, dtype=torch.float64), d + 2, seeded(layers)
    config = unrestricted(d=d, loops=layers, layers=layers, models=24)
    model = config.build().double()
    q, a = searched(layers, top**2)
    value, score = torch.zeros(2, 8, layers, d + 1, d + 1, dtype=torch.float64)
    score[:, :, :d, :d] = n * q[:, None, None] * torch.eye(d).double()
    value[:, :, :d, :d], value[:, :, d, d] = a[:, None, None] * torch.eye(d).double(), 1
    blur = torch.linspace(0, 1e-3, 8, dtype=torch.float64)[:, None, None, None]
    value, score = (part + blur * normal(*part.shape, generator=generator) for part in (value, score))
    scales = torch.logspace(-3, 0, 4, dtype=torch.float64).repeat_interleave(4)[:, None, None, None]
    random = scales * normal(2, 16, layers, d + 1, d + 1, generator=generator)
    model.put(value=torch.cat([value, random[0]]), score=torch.cat([score, random[1]]))
    prompt, answer = scaled(d, gammas, seed=0)
    trained = fit(model, *scaled(d, gammas[::10], seed=0))
    return min(float(relative_errors(one, prompt, answer).amax(1).min()) for one in (model, trained))


@torch.no_grad()
def relative_errors(model: KernelTransformer, prompt: Prompt, answer: Tensor) -> Tensor:
    """Relative errors, a row for each model; one beyond float64 counts as infinite."""
    return ((model(prompt)[-1, ..., 0] - answer) / answer).abs().nan_to_num(math.inf)


def _whiten(xs: Tensor) -> Tensor:
    """The inverse square root of xs'xs."""
    values, vectors = torch.linalg.eigh(xs.mT @ xs)
    return vectors / values.sqrt() @ vectors.mT


def _like(mask: Tensor, weight: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (weight.ndim - 1))
