"""The best weights that can be found, random weights, and their errors on prompts scaled over a whole range."""

import math
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import differential_evolution
from torch import Tensor
from torch.func import functional_call

from looped.functional import kernels
from looped.functional.polynomials import chebyshev_roots
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import KernelTransformer, restricted, unrestricted
from looped.prompt import Prompt
from looped.theorems.gatmiry24.realizable_prompts import square_roots
from looped.theorems.sampling import normal


def scaled(d: int, gammas: Tensor, *, seed: int) -> tuple[Prompt, Tensor]:
    """A realizable prompt whose X and y, not its query, are scaled by every gamma; and w'x_q.

    With d = 1 all x are positive and XX' = 1, so ReLU attention is linear there. With d = 2, XX' = I.
    """
    generator = generator_of(seed)
    xs = normal(d + 3, d, generator=generator)
    if d < 3:
        basis = torch.linalg.qr(xs)[0]
        xs = torch.cat([basis[:-1].abs() if d == 1 else basis[:-1], torch.ones(1, d).double()])
        xs[:-1] = xs[:-1] @ square_roots(xs[:-1].mT @ xs[:-1])[1]
    w = torch.ones(d).double() if d < 3 else normal(d, generator=generator)
    sizes = torch.cat([gammas[:, None].expand(-1, len(xs) - 1), torch.ones(len(gammas), 1).double()], 1)
    rows = sizes[..., None] * xs
    return Prompt(rows, rows @ w), (xs[-1] @ w).expand(len(gammas))


def restricted_errors(d: int, layers: int, gammas: Tensor, *, top: float, stride: int | None) -> Tensor:
    """Relative errors of linear and ReLU `restricted_sets` at every scaling, one row for each weight set.

    With a `stride` the sets are also trained on every `stride`-th scaling, and these rows are added.
    """
    prompt, answer = scaled(d, gammas, seed=layers)
    errors = []
    for kernel in (kernels.linear, kernels.relu):
        model = restricted_sets(d, layers, kernel, top=top)
        errors.append(relative_errors(model, prompt, answer))
        if stride:
            trained = fit(model, *scaled(d, gammas[::stride], seed=layers))
            errors.append(relative_errors(trained, prompt, answer))
    return torch.cat(errors)


def restricted_sets(d: int, layers: int, kernel: kernels.Kernel, *, top: float) -> KernelTransformer:
    """16 restricted models side by side: 8 near Chebyshev's for [1, top], and 8 random ones of four sizes."""
    generator, n = generator_of(layers), d + 2
    config = restricted(d=d, loops=layers, layers=layers, kernel=kernel, tilted=True, models=16)
    model = config.build().double()
    best = n / chebyshev_roots(layers, 1, top)[:, None, None] * torch.eye(d, dtype=torch.float64)
    noise = torch.linspace(0, 0.5, 8, dtype=torch.float64)[:, None, None, None]
    near = best * (noise * normal(8, layers, 1, 1, generator=generator)).exp()
    sizes = torch.logspace(-3, 1, 4, dtype=torch.float64).repeat_interleave(2)[:, None, None, None] * n
    random = sizes * normal(8, layers, d, d, generator=generator)
    tilts = 0.1 * torch.linspace(0, 1, 16, dtype=torch.float64)[:, None, None]
    tilt = tilts * normal(16, layers, d, generator=generator)
    model.put(score=torch.cat([near, random]), tilt=tilt)
    return model


def fit(
    model: KernelTransformer, prompt: Prompt, answer: Tensor, *, steps: int = 40, num: int = 10
) -> KernelTransformer:
    """The first `num` models after Adam has lowered their largest error; it trains a factor on every weight."""
    start = {name: weight.detach()[:num] for name, weight in model.named_parameters()}
    trained = replace(model.config, models=num).build().double()
    factors = {name: torch.ones_like(weight, requires_grad=True) for name, weight in start.items()}
    optimizer = torch.optim.Adam(factors.values(), lr=0.02)
    best, lowest = start, torch.full((num,), math.inf, dtype=torch.float64)
    for _ in range(steps):
        weights = {name: start[name] * factors[name] for name in start}
        error = (functional_call(trained, weights, (prompt,))[-1, ..., 0] - answer).abs() / answer.abs()
        largest = error.detach().amax(1).nan_to_num(math.inf)
        better, lowest = largest < lowest, torch.minimum(largest, lowest)
        best = {name: torch.where(_like(better, old), weights[name].detach(), old) for name, old in best.items()}
        optimizer.zero_grad()
        torch.logsumexp(8 * error.clamp(1e-9, 1e9).log(), 1).nan_to_num(0, 0, 0).sum().backward()
        for factor in factors.values():
            factor.grad = None if factor.grad is None else factor.grad.nan_to_num(0, 0, 0)
        optimizer.step()
    trained.load_state_dict(best)
    return trained


def searched(layers: int, top: float) -> tuple[Tensor, Tensor]:
    """(q, a) of layers P = diag(a, 1), Q = diag(q, 0) whose largest error for XX' in [1, top] is smallest, d = 1.

    error = prod_t (1 - q_t s_t),  s_{t+1} = s_t (1 - a_t q_t s_t)^2,  s_0 = XX'
    """
    grid = np.geomspace(1, top, 200)[:, None]

    def largest(values: np.ndarray) -> np.ndarray:
        q, a = np.exp(values[:layers]), values[layers:]
        s, error = np.broadcast_to(grid, (len(grid), values.shape[1])), np.ones((len(grid), values.shape[1]))
        for t in range(layers):
            error = error * (1 - q[t] * s)
            s = s * (1 - a[t] * q[t] * s) ** 2 if t + 1 < layers else s
        return np.nan_to_num(np.abs(error).max(0), nan=1e300)

    limits = [(-math.log(top) - 0.1, 0.7)] * layers + [(0.0, 2.0)] * (layers - 1)
    with np.errstate(all="ignore"):
        best = differential_evolution(
            largest, limits, vectorized=True, updating="deferred", rng=0, maxiter=250, popsize=20, polish=False
        ).x
    return torch.tensor(best[:layers]).exp(), torch.tensor(np.append(best[layers:], 0.0))


def best_unrestricted(layers: int, top: float, d: int = 1) -> float:
    """The largest relative error over scalings in [1, top], for the best of the unrestricted weight sets."""
    gammas, model = torch.logspace(0, math.log10(top), 300, dtype=torch.float64), unrestricted_sets(layers, top, d)
    prompt, answer = scaled(d, gammas, seed=0)
    trained = fit(model, *scaled(d, gammas[::10], seed=0))
    return min(float(relative_errors(weights, prompt, answer).amax(1).min()) for weights in (model, trained))


def unrestricted_sets(layers: int, top: float, d: int) -> KernelTransformer:
    """24 unrestricted models side by side: 8 near the searched ones for [1, top], and 16 random ones of four sizes."""
    n, generator = d + 2, generator_of(layers)
    config = unrestricted(d=d, loops=layers, layers=layers, models=24)
    model = config.build().double()
    q, a = searched(layers, top**2)
    value, score = torch.zeros(2, 8, layers, d + 1, d + 1, dtype=torch.float64)
    score[:, :, :d, :d] = n * q[:, None, None] * torch.eye(d).double()
    value[:, :, :d, :d], value[:, :, d, d] = a[:, None, None] * torch.eye(d).double(), 1
    blur = torch.linspace(0, 1e-3, 8, dtype=torch.float64)[:, None, None, None]
    value, score = (part + blur * normal(*part.shape, generator=generator) for part in (value, score))
    sizes = torch.logspace(-3, 0, 4, dtype=torch.float64).repeat_interleave(4)[:, None, None, None]
    random = sizes * normal(2, 16, layers, d + 1, d + 1, generator=generator)
    model.put(value=torch.cat([value, random[0]]), score=torch.cat([score, random[1]]))
    return model


def normalising(layers: int) -> KernelTransformer:
    """Weights for d = 1 whose output is nearly the same for every scaling of the whole prompt in [1, 2^L].

        x <- x (1 - q_t XX'),  q_t = 1 / (l^2 + lu + u^2) for |X| in [l, u];  then the output is c |X|^2 x_q

    Both ends have the same image under the cubic, so L - 1 of them leave a narrow range. The labels are not read: these
    weights know w.
    """
    low, high = 1.0, 2.0**layers
    value, score = torch.zeros(2, layers, 2, 2, dtype=torch.float64)
    for layer in range(layers - 1):
        q = 1 / (low**2 + low * high + high**2)
        value[layer, 0, 0], score[layer, 0, 0] = 1, 3 * q  # three examples
        low, high = low * (1 - q * low**2), 2 / (3 * math.sqrt(3 * q))
    value[-1, 1, 0], score[-1, 0, 0] = 1, 3 * 2 / (low**3 + high**3)
    model = unrestricted(d=1, loops=layers, layers=layers).build().double()
    model.put(value=value, score=score)
    return model


@torch.no_grad()
def relative_errors(model: KernelTransformer, prompt: Prompt, answer: Tensor) -> Tensor:
    """Relative errors, one row for each model; an overflow counts as infinite."""
    return ((model(prompt)[-1, ..., 0] - answer) / answer).abs().nan_to_num(math.inf)


def _like(mask: Tensor, weight: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (weight.ndim - 1))
