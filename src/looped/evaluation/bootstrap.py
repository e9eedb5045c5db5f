"""Percentile bootstrap intervals, batched over curves."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.streams import generator_of


class Interval(NamedTuple):
    """A mean and its interval."""

    mean: Tensor
    low: Tensor
    high: Tensor


def bootstrap(
    values: Float[Tensor, "batch *curve"], *, level: float = 0.9, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Mean over prompts with a percentile interval over resampled prompts (yang24: 90%, 1000 resamples)."""
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1; got {level}. A 90% interval has level 0.9.")
    means = resampled_means(values, resamples=resamples, seed=seed)
    tail = (1 - level) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    mean = values.detach().cpu().double().mean(0)
    return Interval(mean, low.view(mean.shape), high.view(mean.shape))


def resampled_means(
    values: Float[Tensor, "batch *curve"], *, resamples: int, seed: int
) -> Float[Tensor, "resamples _"]:
    """Means over resampled prompts: the same resamples for everything that has as many prompts and the same seed.

    A resample is a vector of counts, so that all of them are one matrix product.
    """
    count = len(values)
    generator = generator_of(seed)
    draws = torch.randint(count, (resamples, count), generator=generator)
    counts = torch.zeros(resamples, count, dtype=torch.float64).scatter_add_(1, draws, torch.ones_like(draws).double())
    return counts @ values.detach().cpu().double().reshape(count, -1) / count
