"""A task under shifts is a task again; the shifts themselves are in `looped.tasks.shifts`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.questions import Questions
from looped.tasks.regression import LinearRegression
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True)
class Draw:
    """A batch of prompts while it is being shifted."""

    xs: Float[Tensor, "batch n d"]
    """The examples' x."""
    queries: Float[Tensor, "batch n d"]
    """What position i asks after the i pairs before it; the same tensor as `xs` unless a shift changes the query."""
    labels: Callable[[Tensor], Tensor]
    """(batch, n, d) -> (batch, n): labels of any x; every call draws new noise."""
    variance: float
    """E[y^2]."""
    noise: float
    """Standard deviation of the noise that the unshifted task adds to its labels."""
    degree: int
    """f(c x) = c^degree f(x)."""
    mask: Float[Tensor, "d"]
    """1 for the active coordinates."""
    rank: Float[Tensor, ""]
    """Dimension of the space that the x span."""
    generator: torch.Generator
    """The source of all randomness."""


@dataclass(frozen=True, kw_only=True)
class Shift(ABC):
    """A change of the distribution that prompts come from."""

    stage: ClassVar[int] = 0
    """0 changes x, 1 the query, 2 the labels: the order in which shifts act."""
    same_function: ClassVar[bool] = True
    """Whether the labels are still those of the drawn function at x, so that the prompt's `truth` still holds."""

    @abstractmethod
    def __call__(self, draw: Draw) -> Draw:
        """The shifted batch."""

    def defined(self, n: int, rank: Tensor) -> Bool[Tensor, "n"]:
        """The positions whose query this shift defines, where the x span `rank` dimensions."""
        return torch.ones(n, dtype=torch.bool, device=rank.device)


@dataclass(frozen=True, kw_only=True)
class Shifted(Task):
    """A task under shifts: `Shifted(task=LinearRegression(d=20), shifts=(SkewedCovariance(), NoisyOutputs()))`.

    A shift of the query gives every position its own query; `questions` has them all. A prompt from `sample` asks the
    last one, and only that position has weight.
    """

    d: int = field(init=False, repr=False)
    """Dimension of x: the task's."""
    task: Task = field(default_factory=LinearRegression)
    """What is shifted."""
    shifts: tuple[Shift, ...] = ()
    """How; at most one of the query."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "d", self.task.d)
        super().__post_init__()
        queries = [type(shift).__name__ for shift in self.shifts if shift.stage == 1]
        if len(queries) > 1:
            raise ValueError(f"only one shift may change the query; got {' and '.join(queries)}. Leave one out.")

    @cached_property
    def label_variance(self) -> float:
        """E[y^2] of the shifted labels."""
        return self._shift(self._empty()).variance

    def error(
        self, outputs: Float[Tensor, "*kept batch scored"], prompt: Prompt
    ) -> Float[Tensor, "*kept batch scored"]:
        """The task's error, scaled so that predicting zero scores 1 on average under the shifts too."""
        return self.task.label_variance / self.label_variance * self.task.error(outputs, prompt)

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Prompts whose x and labels are shifted; with a shift of the query, the last pair is that query."""
        questions = self.questions(batch=batch, n=n, generator=generator, dims=dims)
        prompt = questions.prompt
        assert isinstance(prompt, Prompt)
        if questions.queries is None:
            return prompt
        # a tensor would have to be read back from its device: it counts as all dimensions
        rank = self._shift(self._empty(None if isinstance(dims, Tensor) else dims)).rank
        if not bool(self._defined(n, rank)[-1]):
            raise ValueError(f"this shift has no query after {n - 1} examples: x has too few dimensions. Lower `n`.")
        xs = torch.cat((prompt.xs[:, :-1], questions.queries.xs[:, -1:]), 1)
        ys = torch.cat((prompt.ys[:, :-1], questions.queries.ys[:, -1:]), 1)
        weights = torch.zeros_like(ys)
        weights[:, -1] = 1
        return Prompt(xs, ys, weights, prompt.truth)

    def questions(
        self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None
    ) -> Questions:
        """Examples, and the query of every position; without shifts exactly what the task samples."""
        drawn = self.task.draw(batch=batch, n=n, generator=generator, dims=dims)
        if not isinstance(drawn, Prompt):
            raise ValueError(f"only tasks of pairs (x, y) can be shifted; {type(self.task).__name__} gives sequences.")
        if not self.shifts:
            return Questions(drawn)
        noise = self.task.label_noise

        def labels(xs: Tensor) -> Tensor:
            if xs is drawn.xs:  # also for tasks that cannot label new x
                return drawn.ys
            clean = self.task.labels(xs, drawn.truth)
            if not noise:
                return clean
            return clean + noise * torch.randn(clean.shape, generator=generator, device=clean.device)

        mask = active_mask(self.d, dims, drawn.xs.device)
        end = self._shift(self._draw(drawn.xs, labels, mask, generator))
        truth = drawn.truth if all(shift.same_function for shift in self.shifts) else {}
        prompt = Prompt(end.xs, end.labels(end.xs), drawn.weights, truth)
        if end.queries is end.xs:
            return Questions(prompt)
        queries = Prompt(end.queries, end.labels(end.queries), truth=truth)
        return Questions(prompt, queries, self._defined(n, end.rank))

    def _shift(self, draw: Draw) -> Draw:
        for shift in sorted(self.shifts, key=lambda shift: shift.stage):
            draw = shift(draw)
        return draw

    def _draw(
        self, xs: Tensor, labels: Callable[[Tensor], Tensor], mask: Float[Tensor, "d"], generator: torch.Generator
    ) -> Draw:
        variance, noise = self.task.label_variance, self.task.label_noise
        return Draw(xs, xs, labels, variance, noise, self.task.degree, mask, mask.sum(), generator)

    def _empty(self, dims: int | None = None) -> Draw:
        """A draw of a single zero; it shows what the shifts do to the variance and the rank."""
        mask = active_mask(self.d, dims, torch.device("cpu"))
        return self._draw(torch.zeros(1, 1, self.d), lambda xs: xs[..., 0], mask, torch.Generator().manual_seed(0))

    def _defined(self, n: int, rank: Tensor) -> Bool[Tensor, "n"]:
        return torch.stack([shift.defined(n, rank) for shift in self.shifts]).all(0)
