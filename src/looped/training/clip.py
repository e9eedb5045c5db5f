"""Gradient clipping for families of models, each model by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Gradients scaled down to a largest norm, each model by itself.

        g <- g min(1, norm / |g|)

    Ref: cheng24's program: `over="layer"`, `norm` = 1e-8/(9-i)^2, so far below Adam's eps that Adam's step becomes
    rate / eps times the momentum of normalised gradients; gatmiry24's: `over="matrix"`, `norm` = 0.01.
    """

    norm: float | tuple[float, ...]
    """The largest norm, or one for each layer, first layer first."""
    over: Literal["model", "layer", "matrix"] = "model"
    """What the norm is of: all weights of a model, all of one layer (second axis), or one weight's part in a layer."""

    def __post_init__(self) -> None:
        if self.over == "model" and isinstance(self.norm, tuple):
            raise ValueError("`norm` is one number when it is over the whole model; got several. Set `over` to layer.")

    def __call__(self, gradients: Sequence[Tensor]) -> None:
        """Scale the gradients, each `(models, layers, ...)`, in place."""
        axes = 1 if self.over == "model" else 2
        flat = [gradient.reshape(*gradient.shape[:axes], -1) for gradient in gradients]
        tiny = torch.finfo(flat[0].dtype).tiny
        unit: Tensor | None = None
        if self.over == "layer":  # in units of the largest entry: squares of an exploding gradient overflow
            unit = torch.stack([part.abs().amax(-1) for part in flat]).amax(0).clamp_min(1e-30)
            flat = [part / unit[..., None] for part in flat]
        squares = [part.square().sum(-1) for part in flat]
        if self.over != "matrix":
            squares = [torch.stack(squares).sum(0)] * len(squares)
        for gradient, square in zip(gradients, squares, strict=True):
            largest = self.norm if isinstance(self.norm, float) else _on(self.norm, square.device).to(square.dtype)
            largest = largest if unit is None else largest / unit
            factor = (largest / square.sqrt().clamp_min(tiny)).clamp(max=1.0)
            gradient.mul_(factor.view(*factor.shape, *[1] * (gradient.ndim - axes)))


@cache
def _on(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a device, copied there once: a captured step may not copy from the host."""
    return torch.tensor(values, dtype=torch.float64, device=device)
