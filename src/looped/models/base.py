"""What every model is: embed, start, step, readout; the forward pass is written here, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.models.gradients import GradientRule
from looped.models.loop import (
    Context,
    ExitRule,
    Settled,
    State,
    check_loops,
    settle,
    settle_tokens,
    unroll,
)
from looped.prompt import AnyPrompt, P, Prompt, Sequence


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The fields of a model, as data; `build` makes the model.

    Class attributes say what the model can do, for those who have no model yet; a model of your own overrides them by
    attributes, properties or fields.
    """

    loops: int = 1
    """How often the step is applied: the paper's b, and the default of every call."""

    d: ClassVar[int | None] = None
    """The dimension of x that it reads; None: any."""
    vocabulary: ClassVar[int | None] = None
    """How many different tokens of text it reads; None: it reads no text."""
    max_examples: ClassVar[int | None] = None
    """The most examples before a query that it has positions for; None: any number."""
    injects: ClassVar[bool] = False
    """Whether every loop reads the prompt again, beside the state."""
    has_read_in: ClassVar[bool] = False
    """Whether weights act before the first loop; without injection only gradient through all loops trains them."""
    reads_query_last: ClassVar[bool] = False
    """Whether it answers the last pair of a prompt alone, as its query; else it answers every pair."""
    hides_labels: ClassVar[bool] = True
    """Whether an answer is made without the label of the pair that it answers."""
    sees_next_token: ClassVar[bool] = False
    """Whether a token of a sequence reads those after it, and so the one that it is to predict."""
    subspaces: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Names and sizes of the parts of the stream, in order, where they have names."""

    def __post_init__(self) -> None:
        check_loops(self.loops)

    @abstractmethod
    def build(self) -> LoopedModel:
        """A freshly initialised model; random numbers come from torch's global generator."""

    @property
    def layers_applied(self) -> int:
        """Blocks that one answer passes through."""
        return self.loops


class LoopedModel(nn.Module, ABC):
    """A model that answers a prompt by applying one step again and again."""

    steady: bool = True
    """Whether all loops are the same: `step` does not use t."""
    draws: bool = False
    """Whether `start` draws random numbers in training."""
    costs: bool = False
    """Whether `cost` adds to the training loss."""
    causal: bool = False
    """Whether the answer to every pair reads only the pairs before it, so that a prompt may be cut."""
    left_to_adam: str = r"embed|position|token|words|read_?in|read_?out|(^|\.)(lm_)?head\."
    """The matrices that the optimiser Muon leaves to Adam, as it leaves vectors: a pattern of their names."""

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

    def cost(self, state: State) -> Tensor | None:
        """What the last state of a prompt adds to its training loss; None: nothing."""
        return None

    def forward(
        self, prompt: AnyPrompt | Tensor, ys: Tensor | None = None, *, loops: int | None = None,
        grad: int | None = None, keep: int = 1, gradient: GradientRule | None = None,
    ) -> Float[Tensor, "kept *answers"]:  # fmt: skip
        """Predictions after each of the last `keep` of `loops` loops, with gradient through the last `grad`.

        Pairs may also be given as tensors, `model(xs, ys)`: xs (batch, n, d), and ys (batch, n), or (batch, n - 1)
        without the last label, which is the query's. `gradient` is another rule in place of `grad`. An answer is
        (*models, batch, positions), with an axis of outputs behind where a position has several.
        """
        prompt = self._as_prompt(prompt, ys)
        context = self.embed(prompt)
        state = self.start(context)
        windows = {"loops": self.config.loops if loops is None else loops, "keep": keep, "collect": self.readout}
        if gradient is None:
            return unroll(self.step, state, context, grad=grad, **windows)
        if grad is not None:
            raise ValueError(f"`grad` and `gradient` exclude each other; got {grad} and {gradient}. Leave one out.")
        return torch.stack(gradient(self.step, state, context, batch_axes=len(prompt.places) - 1, **windows))

    @torch.no_grad()
    def predict(
        self, prompt: AnyPrompt | Tensor, ys: Tensor | None = None, *, loops: int | None = None
    ) -> Float[Tensor, "*answers"]:
        """Predictions at every position after `loops` loops; each reads only what comes before it.

        Pairs may also be given as tensors, `model.predict(xs, ys)`. A prompt that is not finite is refused, and so are
        loops that overflow; `model(prompt)` refuses neither.
        """
        return _finite(self(self._checked(self._as_prompt(prompt, ys)), loops=loops)[-1])

    @torch.no_grad()
    def settle(self, prompt: AnyPrompt, rule: ExitRule, *, max_loops: int) -> Settled:
        """Predictions where `rule` lets each prompt leave the loop, after at most `max_loops`."""
        context = self.embed(self._checked(prompt))
        settled = settle(self.step, self.start(context), context, rule, max_loops=max_loops, collect=self.readout)
        return settled._replace(predictions=_finite(settled.predictions))

    @torch.no_grad()
    def settle_tokens(self, prompt: AnyPrompt, rule: ExitRule, *, max_loops: int) -> Settled:
        """Predictions where `rule`, such as `TokenChange`, lets each token stay as it is, after at most `max_loops`."""
        context = self.embed(self._checked(prompt))
        state = self.start(context)
        settled = settle_tokens(self.step, state, context, rule, max_loops=max_loops, collect=self.readout)
        return settled._replace(predictions=_finite(settled.predictions))

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

    def _as_prompt(self, prompt: AnyPrompt | Tensor, ys: Tensor | None) -> AnyPrompt:
        """The prompt, or that of the tensors xs and ys; a query's label that is left out becomes 0."""
        if isinstance(prompt, (Prompt, Sequence)):
            if ys is not None:
                raise ValueError("a prompt holds its labels already, and got `ys` beside it. Leave `ys` out.")
            return prompt
        if ys is None:
            raise ValueError(
                f"a model reads a Prompt, a Sequence, or tensors `xs, ys`; got one {type(prompt).__name__} alone. "
                "Give the labels too: `model(xs, ys)`."
            )
        both = isinstance(prompt, Tensor) and isinstance(ys, Tensor) and prompt.ndim > 2
        if both and self.config.hides_labels and ys.shape == (*prompt.shape[:-2], prompt.shape[-2] - 1):
            ys = nn.functional.pad(ys, (0, 1))
        return Prompt(prompt, ys)

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
    wrong = int((~predictions.isfinite()).sum())
    if wrong:
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
