"""Random numbers in float64."""

import torch
from torch import Tensor


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Numbers drawn uniformly from [0, 1)."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)
