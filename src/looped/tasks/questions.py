"""What an evaluation asks: the prompts of a task, and the query of every position where that is another x."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.prompt import AnyPrompt, Prompt


@dataclass(frozen=True)
class Questions:
    """Prompts with a query at every position: position i is asked (examples[:i], queries[i])."""

    prompt: AnyPrompt
    """The examples, or a sequence."""
    queries: Float[Tensor, "batch n d"] | None = None
    """What position i asks; None: each x of the prompt is its own query."""
    answers: Float[Tensor, "batch n"] | None = None
    """The labels of the queries; None together with `queries`."""
    defined: Bool[Tensor, "n"] | None = None
    """False where there is no query, such as one orthogonal to as many examples as there are dimensions; None: all."""

    @property
    def judged(self) -> AnyPrompt:
        """The queries with their labels, as a prompt to score answers with; no model reads it."""
        if self.queries is None or self.answers is None:
            return self.prompt
        return Prompt(self.queries, self.answers, truth=self.prompt.truth)

    def rows(self, index: slice) -> Questions:
        """The questions of the prompts at `index` of the batch."""
        queries, answers = (None if part is None else part[index] for part in (self.queries, self.answers))
        return Questions(self.prompt.rows(index), queries, answers, self.defined)

    def to(self, target: torch.device | torch.dtype | str) -> Questions:
        """The same on another device or in another precision."""
        queries, answers = (None if part is None else part.to(target) for part in (self.queries, self.answers))
        defined = self.defined
        if defined is not None and not isinstance(target, torch.dtype):
            defined = defined.to(target)
        return Questions(self.prompt.to(target), queries, answers, defined)
