"""What a task is: it samples prompts and scores answers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.functional.memory import check_memory
from looped.prompt import AnyPrompt, Prompt, Sequence
from looped.tasks.questions import Questions

MOST_POINTS = 10**5
"""More pairs in a prompt than this are a typo: no model here reads them in seconds."""
FLOAT = 4
"""Bytes of a number, at least."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A function class: each prompt shows examples of one function drawn from it."""

    d: int = 20
    """Dimension of x."""
    degree: ClassVar[int] = 1
    """How its functions grow: f(c x) = c^degree f(x) for c > 0; needed where the task has `labels`."""
    captured: ClassVar[bool] = False
    """Whether sampling stays on the device, so that a CUDA graph can capture it; if not, prompts are drawn outside."""

    def __post_init__(self) -> None:
        check_at_least(1, d=self.d)

    @property
    @abstractmethod
    def label_variance(self) -> float:
        """E[y^2], the error of predicting zero: the unit of `error`."""

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

    def draw(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> AnyPrompt:
        """What `sample` gives, if that is of the size that was asked for and the machine has room for it."""
        if n > MOST_POINTS:
            raise ValueError(f"a prompt may have at most {MOST_POINTS:,} pairs, `points`; got {n}.")
        size, remedy = f"{batch:,} prompts of {n:,} pairs", "Ask for fewer prompts, or for shorter ones."
        check_memory(FLOAT * batch * n * (self.d + 1), size, remedy)
        prompt = self.sample(batch=batch, n=n, generator=generator, dims=dims)
        if isinstance(prompt, Prompt) and tuple(prompt.places) != (batch, n):
            got = " x ".join(map(str, prompt.places))
            raise ValueError(
                f"`sample` of {type(self).__name__} must give {size}, the query included; got {got}. Return `batch` "
                "prompts of `n` pairs."
            )
        return prompt

    def check(self, generator: torch.Generator, *, batch: int, n: int) -> None:
        """Refuse a task whose own numbers are not finite: no learning rate helps against that."""
        if not (math.isfinite(self.label_variance) and self.label_variance > 0):
            raise ValueError(
                f"`label_variance` of {type(self).__name__} must be a number above 0; got {self.label_variance}."
            )
        self.draw(batch=batch, n=n, generator=generator).check_finite()

    def questions(
        self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None
    ) -> Questions:
        """What an evaluation asks; here the prompts of `sample`, each x its own query."""
        return Questions(self.draw(batch=batch, n=n, generator=generator, dims=dims))

    def labels(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """The labels of the functions in `truth` at any `xs`, without noise; where `truth` is the whole function."""
        raise ValueError(
            f"{type(self).__name__} cannot label new x, so its x cannot be shifted. Shift its labels (ScaledLabels, "
            "NoisyOutputs), or use a task with `labels`, such as LinearRegression."
        )

    def error(
        self, outputs: Float[Tensor, "*loops batch scored"], prompt: Prompt
    ) -> Float[Tensor, "*loops batch scored"]:
        """Squared error at the last `scored` positions, in units where predicting zero has error 1 on average.

        A decoder answers at every position; a model that reads the last pair as its query answers only there.
        """
        scored, n = outputs.shape[-1], prompt.num_examples
        if scored not in (1, n):
            raise ValueError(
                f"a model answers each of the {n} pairs of a prompt, or the last one alone; this one gives {scored} "
                "numbers. One that answers a vector needs a task whose `error` reads one."
            )
        ys = prompt.ys[..., -scored:].expand_as(outputs)
        # one operation forward and one backward, where (outputs - ys).square() takes two and three
        return torch.nn.functional.mse_loss(outputs, ys, reduction="none") / self.label_variance


@dataclass(frozen=True, kw_only=True)
class NoisyTask(Task):
    """A task whose labels may have normal noise."""

    noise: float = 0.0
    """Standard deviation of the label noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise ValueError(f"`noise` is a standard deviation, at least 0; got {self.noise}.")

    @property
    def label_noise(self) -> float:
        """`noise`."""
        return self.noise

    def add_noise(self, ys: Float[Tensor, "batch n"], generator: torch.Generator) -> Float[Tensor, "batch n"]:
        """The labels with fresh noise."""
        return ys + self.noise * torch.randn(ys.shape, generator=generator, device=ys.device) if self.noise else ys


@dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """A task whose prompts are sequences: every token asks for the next one."""

    @property
    def tokens_per_point(self) -> int:
        """Tokens of one point: one, unless an example is shown step by step."""
        return 1

    @abstractmethod
    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Sequence:  # type: ignore[override]
        """`batch` sequences of `n` points on the generator's device; a point is one token or several."""

    def error(  # type: ignore[override]
        self, outputs: Float[Tensor, "*loops batch seq outputs"], prompt: Sequence
    ) -> Float[Tensor, "*loops batch seq"]:
        """Squared error at every token, averaged over its outputs; predicting zero has error 1 on average."""
        return (outputs - prompt.targets).square().mean(-1) / self.label_variance


def active_mask(d: int, dims: int | Tensor | None, device: torch.device) -> Float[Tensor, "d"]:
    """1 for the first `dims` coordinates, 0 for the rest; a tensor `dims` may change without changing shapes."""
    if dims is None:
        return torch.ones(d, device=device)
    if isinstance(dims, int) and not 1 <= dims <= d:
        raise ValueError(f"`dims` must be in [1, d={d}]; got {dims}.")
    return (torch.arange(d, device=device) < dims).float()
