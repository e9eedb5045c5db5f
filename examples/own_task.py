"""A task of your own: learn half-spaces in context.

looped train examples/own_task.py:halfspace
looped evaluate runs/halfspace-HASH --code examples/own_task.py
"""

from dataclasses import dataclass, replace

import torch

import looped
from looped.papers import yang24


@dataclass(frozen=True, kw_only=True)
class Halfspace(looped.Task):
    """y = sign(w'x), with a fresh w for every prompt."""

    label_variance = 1.0  # of y: errors are in units of predicting zero

    def sample(self, *, batch, n, generator, dims=None):
        """`batch` prompts of `n` pairs, on the generator's device."""
        options = {"generator": generator, "device": generator.device}
        xs = torch.randn(batch, n, self.d, **options)
        w = torch.randn(batch, self.d, 1, **options)
        return looped.Prompt(xs, (xs @ w).squeeze(-1).sign())


def halfspace(scale="cpu"):
    """A recipe: what `looped train` takes. Only the task differs from yang24's linear regression."""
    base = yang24.linear(scale)
    return replace(base, name="halfspace", task=Halfspace(d=base.task.d), train=replace(base.train, dims=None))
