"""Dropout: in training a share of what a block adds to the stream is set to zero."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from looped.models.blocks import Block


class Dropout:
    """Sets a share of the numbers to zero and divides the others by the rest, where gradients are computed.

    Each model of a stack draws from a generator of its own.
    """

    def __init__(self, share: float, generators: Sequence[torch.Generator]):
        self.share_left, self.generators = 1 - share, generators

    def __call__(self, x: Tensor) -> Tensor:
        """What stays, divided by its expected share; in a pass without gradient x itself."""
        if not torch.is_grad_enabled():
            return x
        shape = x.shape if len(self.generators) == 1 else x.shape[1:]
        draws = [torch.rand(shape, generator=generator, device=x.device) for generator in self.generators]
        stays = (draws[0] if len(draws) == 1 else torch.stack(draws)) < self.share_left
        return torch.where(stays, x / self.share_left, 0.0)


def add_dropout(model: nn.Module, share: float, generators: Sequence[torch.Generator]) -> None:
    """Let every block of the model drop this share of its attention's and its MLP's outputs."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ValueError(
            f"`dropout` is for models of transformer blocks; got {share} for a {type(model).__name__}. "
            "Set `train.dropout=0`."
        )
    for block in blocks:
        block.drop = Dropout(share, generators)
