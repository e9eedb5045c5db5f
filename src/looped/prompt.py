"""What a task samples and a model reads: pairs to learn a function from, or a sequence to continue."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

B = TypeVar("B", bound="_Batch")


class _Batch(ABC):
    """What both kinds of prompt share: their fields are tensors, batch first."""

    weights: Tensor | None

    @property
    @abstractmethod
    def places(self) -> torch.Size:
        """The shape of what is scored: (*models, batch, positions)."""

    @property
    def num_positions(self) -> int:
        """How many answers of a prompt are scored: one per x, or one per token of a sequence."""
        return self.places[-1]

    def to(self: B, target: torch.device | torch.dtype | str) -> B:
        """The same prompt on another device or in another precision."""
        precision = isinstance(target, torch.dtype)
        return self._map(lambda tensor: tensor if precision and not tensor.is_floating_point() else tensor.to(target))

    def rows(self: B, index: slice | Tensor | tuple[slice, ...]) -> B:
        """The prompts at `index` of the batch; where there is an axis of models, index that first."""
        return self._map(lambda tensor: tensor[index])

    def chunks(self: B, size: int) -> list[B]:
        """The batch in parts of at most `size` prompts."""
        return [self.rows(slice(first, first + size)) for first in range(0, self.places[0], size)]

    def head(self: B, n: int) -> B:
        """The first `n` pairs of every prompt, or tokens of every sequence."""
        axis, length = len(self.places) - 1, min(n, self.num_positions)
        heads = {key: value.narrow(axis, 0, length) for key, value in vars(self).items() if isinstance(value, Tensor)}
        return type(self)(**{**vars(self), **heads})

    def clone(self: B) -> B:
        """A copy in new memory."""
        return self._map(torch.clone)

    def tensors(self) -> list[Tensor]:
        """All its tensors, in the same order for all prompts of a kind."""
        tensors: list[Tensor] = []
        self._map(lambda tensor: tensors.append(tensor) or tensor)
        return tensors

    def check_finite(self) -> None:
        """Refuse numbers that are not finite: one of them spoils every answer after it, and some before.

        The check waits for the device, so it runs where prompts come from a user (predict, evaluate, baselines), never
        in a training step: there the loss shows it.
        """
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
                first = float(value[~value.isfinite()].flatten()[0])
                raise ValueError(
                    f"`{name}` of a prompt must be finite; got {first}. Fill in or drop such examples; a label "
                    "that is not known yet, such as the last one, may be 0: it is not read."
                )

    def _check_tensors(self, *names: str) -> None:
        """Refuse what is not a tensor; this must be cheap, since every training step makes prompts."""
        for name in (*names, *(() if self.weights is None else ("weights",))):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                raise ValueError(f"`{name}` must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor.")

    def _check_weights(self) -> None:
        places = tuple(self.places)
        if self.weights is not None and self.weights.shape != places:
            raise ValueError(f"`weights` must have one number per position, {places}; got {tuple(self.weights.shape)}.")

    def _map(self: B, function: Callable[[Tensor], Tensor]) -> B:
        return _zip(lambda tensors: function(tensors[0]), [self])


@dataclass(frozen=True)
class Prompt(_Batch):
    """A batch of prompts: n pairs (x_i, y_i); each x_i is a query, answered from the pairs before it.

    Every tensor may have an axis of models in front of `batch`.
    """

    xs: Float[Tensor, "*models batch n d"]
    ys: Float[Tensor, "*models batch n"]
    weights: Float[Tensor, "*models batch n"] | None = None
    """Weight of each position in the loss, 0 where it is not scored; None weights all alike."""
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    """What generated the labels (`w`, `noise`...), batch first: for evaluation only, models never read it."""

    def __post_init__(self) -> None:
        self._check_tensors("xs", "ys")
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
        self._check_weights()

    @property
    def num_examples(self) -> int:
        """How many pairs each prompt holds."""
        return self.xs.shape[-2]

    @property
    def places(self) -> torch.Size:
        """(*models, batch, n)."""
        return self.ys.shape

    @property
    def d(self) -> int:
        """The dimension of each x."""
        return self.xs.shape[-1]


@dataclass(frozen=True)
class Sequence(_Batch):
    """A batch of sequences: every token has a target, predicted from the tokens up to it.

    Tokens and targets are vectors or, for text, whole numbers. There may be an axis of models in front.
    """

    tokens: Float[Tensor, "*models batch seq d"] | Int[Tensor, "*models batch seq"]
    targets: Float[Tensor, "*models batch seq outputs"] | Int[Tensor, "*models batch seq"]
    weights: Float[Tensor, "*models batch seq"] | None = None
    """Weight of each position in the loss, 0 where it is not scored (padding, unpredictable tokens); None: alike."""
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    """What generated the sequence, batch first: for evaluation only, models never read it."""

    def __post_init__(self) -> None:
        self._check_tensors("tokens", "targets")
        places = self.places
        if len(places) < 2 or places != _places(self.targets):
            raise ValueError(
                "`tokens` and `targets` must be (batch, seq, d) of floats or (batch, seq) of whole numbers; got "
                f"{tuple(self.tokens.shape)} of {self.tokens.dtype} and {tuple(self.targets.shape)} of "
                f"{self.targets.dtype}. Add the missing axis, or make the first axes agree."
            )
        if 0 in self.tokens.shape or 0 in self.targets.shape:
            raise ValueError(
                "a sequence needs at least one prompt, token and dimension; got "
                f"{tuple(self.tokens.shape)} and {tuple(self.targets.shape)}."
            )
        self._check_weights()

    @property
    def places(self) -> torch.Size:
        """(*models, batch, seq)."""
        return _places(self.tokens)

    @property
    def d(self) -> int:
        """The dimension of each token; 1 for whole numbers."""
        return self.tokens.shape[-1] if self.tokens.is_floating_point() else 1


def _places(tokens: Tensor) -> torch.Size:
    return tokens.shape[:-1] if tokens.is_floating_point() else tokens.shape


AnyPrompt = Prompt | Sequence
"""What a task may sample."""
P = TypeVar("P", bound=AnyPrompt)


def join(prompts: Iterable[P]) -> P:
    """Stack one batch of prompts per model into one with an axis of models in front; a single batch stays as it is."""
    prompts = list(prompts)
    return prompts[0] if len(prompts) == 1 else _zip(torch.stack, prompts)


def _zip(function: Callable[[list[Tensor]], Tensor], prompts: list[Any]) -> Any:
    """Apply `function` to corresponding tensors of several prompts of one kind; weights that are None stay None."""

    def of(values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {name: function([value[name] for value in values]) for name in values[0]}
        return None if values[0] is None else function(values)

    return type(prompts[0])(**{name: of([getattr(prompt, name) for prompt in prompts]) for name in vars(prompts[0])})
