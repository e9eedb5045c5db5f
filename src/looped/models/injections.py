"""How a loop reads the prompt P beside its state Y, where that has weights of its own."""

import torch
from torch import Tensor, nn

from looped.models.block_parts import per_model
from looped.models.blocks import Linear


class Scaled(nn.Module):
    """carry * Y + scale * P, a number for each channel; at first Y + P."""

    def __init__(self, width: int):
        super().__init__()
        self.carry, self.scale = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, state: Tensor, prompt: Tensor) -> Tensor:
        """The stream that the blocks read."""
        return per_model(self.carry, state) * state + per_model(self.scale, prompt) * prompt


class Gated(nn.Module):
    """(1 - g) * Y + g * P,  g = sigmoid(W [Y; P] + c): the update gate of a GRU; at first about their mean."""

    def __init__(self, width: int):
        super().__init__()
        self.gate = Linear(2 * width, width)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def forward(self, state: Tensor, prompt: Tensor) -> Tensor:
        """The stream that the blocks read."""
        return torch.lerp(state, prompt, self.gate(torch.cat([state, prompt], -1)).sigmoid())


class Concatenated(nn.Module):
    """W [Y; P] + c; at first Y + P. Ref: Geiping et al. 2025, whose adapter starts from random weights."""

    def __init__(self, width: int):
        super().__init__()
        self.adapter = Linear(2 * width, width)
        with torch.no_grad():
            self.adapter.weight.copy_(torch.eye(width).repeat(1, 2))
        nn.init.zeros_(self.adapter.bias)

    def forward(self, state: Tensor, prompt: Tensor) -> Tensor:
        """The stream that the blocks read."""
        return self.adapter(torch.cat([state, prompt], -1))


INJECTIONS = {"scaled": Scaled, "gated": Gated, "concat": Concatenated}
"""By the name that a decoder's `inject` has for them."""
