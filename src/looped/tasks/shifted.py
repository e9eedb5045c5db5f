"""A task under shifts is a task again; the shifts themselves are in `looped.tasks.shifts`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True)
class Draw:
    """A batch of prompts while it is being shifted."""

    xs: Float[Tensor, "batch n d"]
    """The examples' x."""
    queries: Float[Tensor, "batch n d"]
    """What position i asks after the i pairs before it: the very tensor `xs`, until a shift of the query."""
    labels: Callable[[Tensor], Tensor]
    """(batch, n, d) -> (batch, n): labels of any x; noise is drawn anew at each call."""
    variance: float
    """E[y^2]."""
    noise: float
    """Standard deviation of the part of the labels that is the task's own noise."""
    degree: int
    """f(c x) = c^degree f(x)."""
    mask: Float[Tensor, "d"]
    """1 for the active coordinates."""
    rank: Float[Tensor, ""]
    """Dimension of the space that the x span."""
    generator: torch.Generator


class Questions(NamedTuple):
    """Prompts with a query of its own at every position: position i is asked (examples[:i], queries[i])."""

    prompt: Prompt
    """The examples."""
    queries: Float[Tensor, "batch n d"]
    """What position i asks; the examples' own x (the same tensor) where no shift changed it."""
    answers: Float[Tensor, "batch n"]
    """The labels of the queries."""
    defined: Bool[Tensor, "n"]
    """False where the definition gives no query, such as one orthogonal to as many examples as there are dimensions."""

    @property
    def own(self) -> bool:
        """Whether each x is its own query, as in any prompt."""
        return self.queries is self.prompt.xs

    def rows(self, index: slice) -> Questions:
        """The prompts at `index` of the batch."""
        prompt = self.prompt.rows(index)
        queries = prompt.xs if self.own else self.queries[index]
        return Questions(prompt, queries, self.answers[index], self.defined)

    def to(self, target: torch.device | torch.dtype | str) -> Questions:
        """The same on another device or in another precision."""
        prompt = self.prompt.to(target)
        queries = prompt.xs if self.own else self.queries.to(target)
        defined = self.defined if isinstance(target, torch.dtype) else self.defined.to(target)
        return Questions(prompt, queries, self.answers.to(target), defined)


@dataclass(frozen=True, kw_only=True)
class Shift(ABC):
    """A change of the distribution that prompts come from."""

    stage: ClassVar[int] = 0
    """0 changes x, 1 the query, 2 the labels: the order in which shifts act."""
    same_function: ClassVar[bool] = True
    """Whether labels are still the drawn function's at x, so that the prompt's truth stays true."""

    @abstractmethod
    def __call__(self, draw: Draw) -> Draw:
        """The shifted batch."""

    def defined(self, n: int, rank: Tensor) -> Bool[Tensor, "n"]:
        """The positions whose query this shift defines, where the x span `rank` dimensions."""
        return torch.ones(n, dtype=torch.bool, device=rank.device)


@dataclass(frozen=True, kw_only=True)
class Shifted(Task):
    """A task under shifts: `Shifted(task=LinearRegression(d=20), shifts=(SkewedCovariance(), NoisyOutputs()))`.

    With a shift of the query each position has a query of its own, which `questions` gives; a prompt from `sample`
    asks the last one, and only that position has weight.
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
            raise ValueError(f"a query can be shifted in one way only; got {' and '.join(queries)}. Leave one out.")

    @property
    def asks_elsewhere(self) -> bool:
        """Whether a query is another x than the example that stands in its place for later queries."""
        return any(shift.stage == 1 for shift in self.shifts)

    @cached_property
    def label_variance(self) -> float:
        """E[y^2] of the shifted labels."""
        return self._shift(self._empty()).variance

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Prompts whose x and labels are shifted; with a shift of the query, the last pair is that query."""
        asked = self.questions(batch=batch, n=n, generator=generator, dims=dims)
        if not self.asks_elsewhere:
            return asked.prompt
        bound = self.d if dims is None or isinstance(dims, Tensor) else dims
        if not bool(self._defined(n, bound)[-1]):
            raise ValueError(f"this shift has no query after {n - 1} examples, x has too few dimensions. Lower `n`.")
        xs = torch.cat((asked.prompt.xs[:, :-1], asked.queries[:, -1:]), 1)
        ys = torch.cat((asked.prompt.ys[:, :-1], asked.answers[:, -1:]), 1)
        weights = torch.zeros_like(ys)
        weights[:, -1] = 1
        return Prompt(xs, ys, weights, asked.prompt.truth)

    def questions(
        self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None
    ) -> Questions:
        """Examples, and the query of every position; without shifts exactly what the task samples."""
        drawn = self.task.sample(batch=batch, n=n, generator=generator, dims=dims)
        if not isinstance(drawn, Prompt):
            raise ValueError(f"only tasks of pairs (x, y) can be shifted; {type(self.task).__name__} gives sequences.")
        device = drawn.xs.device
        if not self.shifts:
            return Questions(drawn, drawn.xs, drawn.ys, torch.ones(n, dtype=torch.bool, device=device))

        noise = self.task.label_noise

        def labels(xs: Tensor) -> Tensor:
            if xs is drawn.xs:  # also for tasks that cannot label new x
                return drawn.ys
            clean = self.task.labels(xs, drawn.truth)
            if not noise:
                return clean
            return clean + noise * torch.randn(clean.shape, generator=generator, device=device)

        mask = active_mask(self.d, dims, device)
        start = replace(
            self._empty(), xs=drawn.xs, queries=drawn.xs, labels=labels, mask=mask, rank=mask.sum(), generator=generator
        )
        end = self._shift(start)
        truth = drawn.truth if all(shift.same_function for shift in self.shifts) else {}
        prompt = Prompt(end.xs, end.labels(end.xs), drawn.weights, truth)
        answers = prompt.ys if end.queries is end.xs else end.labels(end.queries)
        defined = torch.ones(n, dtype=torch.bool, device=device)
        for shift in self.shifts:
            defined = defined & shift.defined(n, end.rank)
        return Questions(prompt, end.queries, answers, defined)

    def _shift(self, draw: Draw) -> Draw:
        for shift in sorted(self.shifts, key=lambda one: one.stage):
            draw = shift(draw)
        return draw

    def _empty(self) -> Draw:
        """A draw of one zero: what a shift does to the variance can be read off it."""
        xs = torch.zeros(1, 1, self.d)
        mask = torch.ones(self.d)
        generator = torch.Generator().manual_seed(0)
        noise = self.task.label_noise
        variance, degree = self.task.label_variance, self.task.degree
        return Draw(xs, xs, lambda xs: xs[..., 0], variance, noise, degree, mask, mask.sum(), generator)

    def _defined(self, n: int, dims: int) -> Bool[Tensor, "n"]:
        draw = self._empty()
        mask = active_mask(self.d, dims, draw.mask.device)
        end = self._shift(replace(draw, mask=mask, rank=mask.sum()))
        found = [shift.defined(n, end.rank) for shift in self.shifts]
        return torch.stack(found).all(0)
