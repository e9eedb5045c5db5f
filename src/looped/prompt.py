"""What a task gives and a model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """A batch of prompts: n pairs (x_i, y_i), each x_i a query answered from the pairs before it.

    A leading axis of models may stand in front of `batch` in every tensor.
    """

    xs: Float[Tensor, "*models batch n d"]
    ys: Float[Tensor, "*models batch n"]
    weights: Float[Tensor, "*models batch n"] | None = None
    """Weight of each position in the loss, 0 for not scored; None scores all alike."""
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    """What generated the labels (`w`, `noise`...), batch first: for judges only, models never read it."""

    def __post_init__(self) -> None:
        if self.xs.ndim < 3 or self.ys.shape != self.xs.shape[:-1]:
            raise ValueError(
                f"`xs` must be (batch, n, d) and `ys` (batch, n); got {tuple(self.xs.shape)} and "
                f"{tuple(self.ys.shape)}. Add the missing axis, or make the first axes agree."
            )
        if 0 in self.xs.shape:
            raise ValueError(f"a prompt needs at least one prompt, example and dimension; got {tuple(self.xs.shape)}.")
        if not (self.xs.is_floating_point() and self.ys.is_floating_point()):
            raise ValueError(
                f"a prompt holds floats; got {self.xs.dtype} and {self.ys.dtype}. Call `.float()` on them."
            )
        if self.weights is not None and self.weights.shape != self.ys.shape:
            raise ValueError(
                f"`weights` must have the shape of `ys`, {tuple(self.ys.shape)}; got {tuple(self.weights.shape)}."
            )

    @property
    def num_examples(self) -> int:
        """How many pairs each prompt holds."""
        return self.xs.shape[-2]

    @property
    def d(self) -> int:
        """The dimension of each x."""
        return self.xs.shape[-1]

    def to(self, target: torch.device | torch.dtype | str) -> Prompt:
        """The same prompt on another device or in another precision."""
        precision = isinstance(target, torch.dtype)
        return self._map(lambda one: one if precision and not one.is_floating_point() else one.to(target))

    def rows(self, index: slice | Tensor) -> Prompt:
        """The prompts at `index` of the batch."""
        return self._map(lambda tensor: tensor[index])

    def head(self, n: int) -> Prompt:
        """The first `n` pairs of every prompt."""
        weights = None if self.weights is None else self.weights[..., :n]
        return replace(self, xs=self.xs[..., :n, :], ys=self.ys[..., :n], weights=weights)

    def _map(self, f) -> Prompt:
        weights = None if self.weights is None else f(self.weights)
        return Prompt(f(self.xs), f(self.ys), weights, {name: f(value) for name, value in self.truth.items()})
