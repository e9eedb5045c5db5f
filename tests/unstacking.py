"""The inverse of `looped.models.blocks.stack`, for tests."""

import copy
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def unstack(model: M) -> list[M]:
    """Split what `stack` put together into single models."""
    count = next(model.parameters()).shape[0]
    singles = [copy.deepcopy(model) for _ in range(count)]
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        for single, value in zip(singles, parameter.detach(), strict=True):
            weight = nn.Parameter(value.clone(), requires_grad=parameter.requires_grad)
            setattr(single.get_submodule(owner), leaf, weight)
    return singles
