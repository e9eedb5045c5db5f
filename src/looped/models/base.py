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
    """The fields of a model, as data; `build` makes the model."""

    loops: int = 1
    """How often the step is applied: the paper's b, and the default of every call."""

    @abstractmethod
    def build(self) -> LoopedModel:
        """A freshly initialised model; random numbers come from torch's global generator."""

    def __post_init__(self) -> None:
        check_loops(self.loops)

    @property
    def layers_applied(self) -> int:
        """Blocks that one answer passes through."""
        return self.loops


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
        """Whether all loops are alike: `step` does not look at t."""
        return True

    @property
    def causal(self) -> bool:
        """Whether every pair of a prompt is answered from those before it alone, so that a prompt may be cut."""
        return False

    @torch.no_grad()
    def predict(self, prompt: AnyPrompt, *, loops: int | None = None) -> Float[Tensor, "*answers"]:
        """Predictions at every position after `loops` loops; each reads only what comes before it.

        All are finite: a prompt that is not, and loops that overflow, are refused. `model(prompt)` refuses neither.
        """
        return _finite(self(self._own(prompt), loops=loops)[-1])

    @torch.no_grad()
    def settle(self, prompt: AnyPrompt, rule: ExitRule, *, max_loops: int) -> Settled:
        """Predictions where `rule` lets each prompt leave the loop, after at most `max_loops`."""
        context = self.embed(self._own(prompt))
        found = settle(self.step, self.start(context), context, rule, max_loops=max_loops, collect=self.readout)
        _finite(found.predictions)
        return found

    @torch.no_grad()
    def states(self, prompt: AnyPrompt, loops: int | None = None) -> list[State]:
        """The state after every loop (a model of several layers a loop gives one after every layer)."""
        context = self.embed(prompt)
        states = [self.start(context)]
        for t in range(self.config.loops if loops is None else loops):
            states.extend(self.substeps(states[-1], context, t))
        return states[1:]

    def substeps(self, state: State, context: Context, t: int):
        """The states inside loop t, the last one being `step`'s: one, unless a model has layers to show."""
        yield self.step(state, context, t)

    def _own(self, prompt: P) -> P:
        """A user's prompt, finite and in the precision of the weights."""
        prompt = prompt.to(next(self.parameters()).dtype) if any(True for _ in self.parameters()) else prompt
        prompt.check_finite()
        return prompt

    @property
    def num_parameters(self) -> int:
        """How many trainable numbers there are."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def _finite(predictions: Tensor) -> Tensor:
    """The predictions, if they are numbers; whoever studies how a loop diverges calls the model itself."""
    if not bool(predictions.isfinite().all()):
        wrong = int((~predictions.isfinite()).sum())
        raise ValueError(
            f"{wrong} of {predictions.numel()} predictions are not finite: the loops diverge, or the prompt's scale is "
            "too large for this precision. Use fewer loops, rescale x and y, or call `model(prompt)` to see them."
        )
    return predictions


def only_pairs(prompt: AnyPrompt, who: str = "this model") -> Prompt:
    """The prompt itself; a sequence is refused by models, and by judges, that read pairs."""
    if not isinstance(prompt, Prompt):
        raise ValueError(
            f"{who} reads pairs (x, y); got a sequence. Use a task of pairs, or for sequences an AlgoFormer with "
            '`tokens="given"`.'
        )
    return prompt
