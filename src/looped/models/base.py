"""What every model is: embed, start, step, readout; the forward pass is written here, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.models.loop import Context, ExitRule, Settled, State, check_loops, settle, unroll
from looped.prompt import AnyPrompt, P, Prompt


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The fields of a model, as data; `build` makes the model.

    The properties say what the model can do, for those who have no model yet; a model of your own overrides them.
    """

    loops: int = 1
    """How often the step is applied: the paper's b, and the default of every call."""

    def __post_init__(self) -> None:
        check_loops(self.loops)

    @abstractmethod
    def build(self) -> LoopedModel:
        """A freshly initialised model; random numbers come from torch's global generator."""

    @property
    def input_d(self) -> int | None:
        """The dimension of x that it reads; None: any."""
        return None

    @property
    def vocabulary_size(self) -> int | None:
        """How many different tokens of text it reads; None: it reads no text."""
        return None

    @property
    def max_examples(self) -> int | None:
        """The most examples before a query that it has positions for; None: any number."""
        return None

    @property
    def injects(self) -> bool:
        """Whether every loop reads the prompt again, beside the state."""
        return False

    @property
    def has_read_in(self) -> bool:
        """Whether weights act before the first loop; without injection only gradient through all loops trains them."""
        return False

    @property
    def reads_query_last(self) -> bool:
        """Whether it answers the last pair of a prompt alone, as its query; else it answers every pair."""
        return False

    @property
    def hides_labels(self) -> bool:
        """Whether an answer is made without the label of the pair that it answers."""
        return True

    @property
    def sees_next_token(self) -> bool:
        """Whether a token of a sequence reads those after it, and so the one that it is to predict."""
        return False

    @property
    def named_subspaces(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the parts of the stream, in order, where they have names."""
        return ()


class LoopedModel(nn.Module, ABC):
    """A model that answers a prompt by applying one step again and again."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config

    @abstractmethod
    def embed(self, prompt: AnyPrompt) -> Context:
        """What every loop may read: a named tuple of tensors, batch first."""

    @abstractmethod
    def start(self, context: Context) -> State:
        """The state before the first loop."""

    @abstractmethod
    def step(self, state: State, context: Context, t: int) -> State:
        """Loop number t, counted from 0."""

    @abstractmethod
    def readout(self, state: State, context: Context) -> Tensor:
        """Predictions of +y at the scored positions."""

    def forward(
        self, prompt: AnyPrompt, *, loops: int | None = None, grad: int | None = None, keep: int = 1
    ) -> Float[Tensor, "kept *answers"]:
        """Predictions after each of the last `keep` of `loops` loops, with gradient through the last `grad`.

        An answer is (*models, batch, positions), with an axis of outputs behind where a position has several.
        """
        context = self.embed(prompt)
        state = self.start(context)
        loops = self.config.loops if loops is None else loops
        return unroll(self.step, state, context, loops=loops, grad=grad, keep=keep, collect=self.readout)

    @property
    def steady(self) -> bool:
        """Whether all loops are the same: `step` does not use t."""
        return True

    @property
    def causal(self) -> bool:
        """Whether the answer to every pair reads only the pairs before it, so that a prompt may be cut."""
        return False

    @torch.no_grad()
    def predict(self, prompt: AnyPrompt, *, loops: int | None = None) -> Float[Tensor, "*answers"]:
        """Predictions at every position after `loops` loops; each reads only what comes before it.

        A prompt that is not finite is refused, and so are loops that overflow; `model(prompt)` refuses neither.
        """
        return _finite(self(self._checked(prompt), loops=loops)[-1])

    @torch.no_grad()
    def settle(self, prompt: AnyPrompt, rule: ExitRule, *, max_loops: int) -> Settled:
        """Predictions where `rule` lets each prompt leave the loop, after at most `max_loops`."""
        context = self.embed(self._checked(prompt))
        settled = settle(self.step, self.start(context), context, rule, max_loops=max_loops, collect=self.readout)
        _finite(settled.predictions)
        return settled

    @torch.no_grad()
    def states(self, prompt: AnyPrompt, loops: int | None = None) -> list[State]:
        """The state after every loop; a model with several layers in a loop gives one after every layer."""
        context = self.embed(prompt)
        states = [self.start(context)]
        for t in range(self.config.loops if loops is None else loops):
            states.extend(self.substeps(states[-1], context, t))
        return states[1:]

    def substeps(self, state: State, context: Context, t: int):
        """The states inside loop t, of which the last is the new state; one, unless a loop has several layers."""
        yield self.step(state, context, t)

    def _checked(self, prompt: P) -> P:
        """A user's prompt in the precision of the weights; one that is not finite is refused."""
        prompt = prompt.to(next(self.parameters()).dtype) if any(True for _ in self.parameters()) else prompt
        prompt.check_finite()
        return prompt

    @property
    def num_parameters(self) -> int:
        """The number of trainable weights."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def _finite(predictions: Tensor) -> Tensor:
    """The predictions, if all are finite; to study how a loop diverges, call the model itself."""
    if not bool(predictions.isfinite().all()):
        wrong = int((~predictions.isfinite()).sum())
        raise ValueError(
            f"{wrong} of {predictions.numel()} predictions are not finite: the loops diverge, or the prompt's numbers "
            "are too large for this precision. Use fewer loops, rescale x and y, or call `model(prompt)` to see them."
        )
    return predictions


def only_pairs(prompt: AnyPrompt, who: str = "this model") -> Prompt:
    """The prompt, if it holds pairs; a sequence is refused."""
    if not isinstance(prompt, Prompt):
        raise ValueError(
            f"{who} reads pairs (x, y); got a sequence. Use a task of pairs, or for sequences an AlgoFormer with "
            '`tokens="given"`.'
        )
    return prompt
