"""A model of your own: the loop is a small gated network over the mean of the examples.

looped train examples/own_model.py:gated
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

import looped
from looped.papers import yang24


@dataclass(frozen=True, kw_only=True)
class GatedConfig(looped.ModelConfig):
    """Its sizes, as data."""

    d: int = 5
    width: int = 32

    def build(self):
        """A fresh model."""
        return Gated(self)


class Gated(looped.LoopedModel):
    """h <- h + sigmoid(G[h, c]) tanh(U[h, c]), c the mean of x_i y_i over the pairs before each query."""

    def __init__(self, config: GatedConfig):
        super().__init__(config)
        self.gate, self.update = (nn.Linear(config.width + config.d, config.width) for _ in range(2))
        self.weights = nn.Linear(config.width, config.d)

    def embed(self, prompt):
        """The running mean of x y; position i must not see its own y."""
        products = (prompt.xs * prompt.ys[..., None]).cumsum(-2)
        before = torch.cat([torch.zeros_like(products[..., :1, :]), products[..., :-1, :]], -2)
        counts = torch.arange(products.shape[-2], device=products.device).clamp(min=1)[:, None]
        return before / counts, prompt.xs  # what every loop may read

    def start(self, context):
        """Zeros."""
        summary, _ = context
        return summary.new_zeros(*summary.shape[:-1], self.config.width)

    def step(self, state, context, t):
        """One loop."""
        both = torch.cat([state, context[0]], -1)
        return state + self.gate(both).sigmoid() * self.update(both).tanh()

    def readout(self, state, context):
        """A prediction at every x."""
        return (self.weights(state) * context[1]).sum(-1)


def gated(scale="cpu"):
    """A recipe: the same task and training, with Adam, since Muon wants transformer blocks."""
    base = yang24.linear(scale)
    train = replace(base.train, optimizer=looped.Adam(learning_rate=1e-2, clip=1.0))
    return replace(base, name="gated", model=GatedConfig(d=base.task.d, loops=base.model.loops), train=train)
