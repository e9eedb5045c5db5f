"""What a task is: it samples prompts and judges answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt, Sequence


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A function class: each prompt is one function drawn from it, shown by examples."""

    d: int = 20
    """Dimension of x."""
    degree: ClassVar[int] = 1
    """How its functions grow: f(c x) = c^degree f(x) for c > 0, where `labels` is there."""
    captured: ClassVar[bool] = False
    """Sampling was seen to stay on the device, so that a CUDA graph can hold it; False: prompts are drawn outside."""

    def __post_init__(self) -> None:
        if self.d < 1:
            raise ValueError(f"`d` must be at least 1; got {self.d}.")

    @property
    @abstractmethod
    def label_variance(self) -> float:
        """E[y^2]: what predicting zero costs, and so the unit of `error`."""

    @property
    def label_noise(self) -> float:
        """Standard deviation of the noise in its labels."""
        return 0.0

    @property
    def vocabulary_size(self) -> int | None:
        """How many different tokens its text has; None: it is no text."""
        return None

    @abstractmethod
    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """`batch` prompts of `n` pairs on the generator's device; only the first `dims` coordinates are active."""

    def labels(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """What the functions in `truth` say at any `xs`, without noise; for tasks whose truth is the whole function."""
        raise ValueError(
            f"{type(self).__name__} cannot label new x, so its x cannot be shifted. Shift its labels (ScaledLabels, "
            "NoisyOutputs), or use a task with `labels`, such as LinearRegression."
        )

    def error(
        self, outputs: Float[Tensor, "*kept batch scored"], prompt: Prompt
    ) -> Float[Tensor, "*kept batch scored"]:
        """Squared error at the last `scored` positions, scaled so that predicting zero scores 1 on average.

        A decoder answers at every position; a model that reads the last pair as its query answers there alone.
        """
        ys = prompt.ys[..., -outputs.shape[-1] :].expand_as(outputs)
        # one operation forward and one backward: (outputs - ys).square() takes two and three
        return torch.nn.functional.mse_loss(outputs, ys, reduction="none") / self.label_variance


@dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """A task whose prompts are sequences: at every token, what comes next."""

    @abstractmethod
    def sample(  # type: ignore[override]
        self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None
    ) -> Sequence:
        """`batch` sequences of `n` points on the generator's device; a point is one token or several."""

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*kept batch seq outputs"], prompt: Sequence
    ) -> Float[Tensor, "*kept batch seq"]:
        """Squared error at every token, the mean over its outputs, so that predicting zero scores 1 on average."""
        return (outputs - prompt.targets).square().mean(-1) / self.label_variance


def active_mask(d: int, dims: int | Tensor | None, device: torch.device) -> Float[Tensor, "d"]:
    """1 for the first `dims` coordinates, 0 for the rest; a tensor keeps shapes fixed while it changes."""
    if dims is None:
        return torch.ones(d, device=device)
    if isinstance(dims, int) and not 1 <= dims <= d:
        raise ValueError(f"`dims` must be in [1, d={d}]; got {dims}.")
    return (torch.arange(d, device=device) < dims).float()
