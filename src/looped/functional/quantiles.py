"""Quantiles: their levels, and the loss that they minimise."""

import torch
from jaxtyping import Float
from torch import Tensor


def quantile_levels(count: int) -> tuple[float, ...]:
    """(j + 1/2) / count for j < count: with 10, the outer two are 5% and 95%."""
    return tuple((index + 0.5) / count for index in range(count))


def pinball(
    quantiles: Float[Tensor, "*places levels"], ys: Float[Tensor, "*places"], levels: tuple[float, ...]
) -> Float[Tensor, "*places levels"]:
    """max(level (y - q), (level - 1) (y - q)), whose expectation is least at the quantile of that level."""
    level = torch.tensor(levels, dtype=quantiles.dtype, device=quantiles.device)
    below = ys[..., None] - quantiles
    return torch.maximum(level * below, (level - 1) * below)
