"""A two-layer network trained on each prompt's examples, with all prompts as one batch of networks."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.baselines.checked import checked
from looped.baselines.positions import Report, chosen
from looped.functional.counts import check_at_least
from looped.prompt import Prompt

CHUNK = 2**22
"""Number of weights trained at once; more would not fit the processor's caches."""


@checked
def two_layer(
    prompt: Prompt,
    *,
    hidden: int = 100,
    steps: int = 1000,
    minibatch: int = 10,
    rate: float = 5e-3,
    at: Sequence[int] | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> Float[Tensor, "batch n"]:
    """Predict y_i by a ReLU network trained with Adam on the i-1 pairs before it, from a fresh start at each position.

        f(x) = v' max(A x + a, 0) + b,  loss = mean (f(x_j) - y_j)^2 over a minibatch of the pairs

    Ref: yang24, Fig. 10c and released program: 100 hidden units, Adam 5e-3, minibatches of 10 (or all pairs if fewer),
    1000 steps. Each prompt has its own loss, where the program takes the mean over prompts; Adam divides that factor
    out, except for its epsilon. Positions not in `at` are NaN. Computed in the prompt's precision.
    """
    check_at_least(1, hidden=hidden, minibatch=minibatch)
    check_at_least(0, steps=steps)
    batch, n, d = prompt.xs.shape
    predictions = prompt.ys.new_full((batch, n), torch.nan, dtype=torch.float64)
    positions = chosen(at, n)
    rows = max(1, CHUNK // (hidden * (d + 2)))
    for turn, i in enumerate(positions):
        # a position's random numbers do not depend on `at`, nor a prompt's on the chunks
        generator = torch.Generator().manual_seed(seed * 1_000_003 + i)
        weights = initial_weights(batch, d, hidden, generator, like=prompt.xs)
        batches = minibatches(i, minibatch, steps, generator).to(prompt.xs.device)
        for first in range(0, batch, rows):
            part = slice(first, first + rows)
            predictions[part, i] = 0.0
            if i:
                trained = [weight[part].clone().requires_grad_() for weight in weights]
                train(trained, prompt.xs[part, :i], prompt.ys[part, :i], batches, rate)
                predictions[part, i] = network(trained, prompt.xs[part, i : i + 1])[:, 0].detach().double()
            if progress:
                progress((turn + min(1.0, (first + rows) / batch)) / len(positions))
    return predictions


def initial_weights(models: int, d: int, hidden: int, generator: torch.Generator, like: Tensor) -> list[Tensor]:
    """A, a, v and b of every network, uniform within 1 / sqrt(inputs): torch's default for a linear layer."""

    def uniform(*shape: int, inputs: int) -> Tensor:
        draw = torch.rand(models, *shape, generator=generator, dtype=torch.float64)
        return ((2 * draw - 1) / inputs**0.5).to(like)

    return [
        uniform(d, hidden, inputs=d),
        uniform(1, hidden, inputs=d),
        uniform(hidden, 1, inputs=hidden),
        uniform(1, 1, inputs=hidden),
    ]


def minibatches(examples: int, size: int, steps: int, generator: torch.Generator) -> Int[Tensor, "steps size"]:
    """The examples of each step: drawn without repetition, the same for every prompt, all if there are few."""
    keys = torch.rand(steps, examples, generator=generator)
    return keys.argsort(dim=1)[:, :size]


def network(weights: Sequence[Tensor], xs: Float[Tensor, "models n d"]) -> Float[Tensor, "models n"]:
    """f(x) of every network at its prompt's x."""
    first, first_bias, second, second_bias = weights
    return torch.baddbmm(second_bias, torch.baddbmm(first_bias, xs, first).relu_(), second)[..., 0]


@torch.enable_grad()
def train(
    weights: list[Tensor],
    xs: Float[Tensor, "models n d"],
    ys: Float[Tensor, "models n"],
    batches: Int[Tensor, "steps size"],
    rate: float,
) -> None:
    """Adam on every network's loss, in place; it treats each weight alone, so one optimizer serves the whole batch."""
    optimizer = torch.optim.Adam(weights, lr=rate)
    for seen in batches:
        optimizer.zero_grad()
        loss = (network(weights, xs[:, seen]) - ys[:, seen]).square().mean(1).sum()
        loss.backward()
        optimizer.step()
