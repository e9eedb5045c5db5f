"""Random numbers that training draws inside a model: the first state of models that start at random."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from looped.models.recurrent_depth import RecurrentDepth


class Noise:
    """Standard normal numbers where gradients are computed, zeros elsewhere.

    Each model of a stack draws from a generator of its own, which its checkpoints keep.
    """

    def __init__(self, generators: Sequence[torch.Generator]):
        self.generators = generators

    def __call__(self, x: Tensor) -> Tensor:
        """Of the shape of x."""
        if not torch.is_grad_enabled():
            return torch.zeros_like(x)
        options = {"device": x.device, "dtype": x.dtype}
        if len(self.generators) == 1:
            return torch.randn(x.shape, generator=self.generators[0], **options)
        return torch.stack([torch.randn(x.shape[1:], generator=generator, **options) for generator in self.generators])


def add_noise(model: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Let the model's loops start at random, if they are to."""
    if isinstance(model, RecurrentDepth) and model.draws:
        model.noise = Noise(generators)
