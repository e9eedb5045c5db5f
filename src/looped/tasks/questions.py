"""What an evaluation asks: the prompts of a task, and the query of every position where that is another x."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from looped.prompt import AnyPrompt, Prompt


@dataclass(frozen=True)
class Questions:
    """Prompts with a query at every position: position i is asked (examples[:i], queries.xs[i])."""

    prompt: AnyPrompt
    """The examples, or a sequence."""
    queries: Prompt | None = None
    """What position i asks and its label, both at i; None: each x of the prompt is its own query."""
    defined: Bool[Tensor, "n"] | None = None
    """False where there is no query, such as one orthogonal to as many examples as there are dimensions; None: all."""

    @property
    def judged(self) -> AnyPrompt:
        """The queries with their labels, as a prompt to score answers with; no model reads it."""
        return self.prompt if self.queries is None else self.queries

    def rows(self, index: slice) -> Questions:
        """The questions of the prompts at `index` of the batch."""
        return replace(self, prompt=self.prompt.rows(index), queries=self.queries and self.queries.rows(index))

    def to(self, target: torch.device | torch.dtype | str) -> Questions:
        """The same on another device or in another precision."""
        defined = self.defined
        if defined is not None and not isinstance(target, torch.dtype):
            defined = defined.to(target)
        return Questions(self.prompt.to(target), self.queries and self.queries.to(target), defined)
