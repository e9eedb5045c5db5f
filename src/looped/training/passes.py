"""A model's passes as the trainer runs them: whole, or in parts that an engine can capture and replay separately."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.experiment import TrainConfig
from looped.models.base import LoopedModel
from looped.models.gradients import jacobian_penalty
from looped.models.loop import State, unroll
from looped.prompt import AnyPrompt
from looped.training.draws import Noise
from looped.training.pieces import pieces


class Passes:
    """begin, loop ..., finish: the forward pass cut where the gradient starts.

    In bfloat16 the passes read a copy of the float32 weights, made once a step; updates go to the float32 ones.
    """

    def __init__(self, model: LoopedModel, dtype: torch.dtype):
        self.model, self.dtype = model, dtype
        self.low = model if dtype is not torch.bfloat16 else copy.deepcopy(model).to(dtype)
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.read = [weight for weight in self.low.parameters() if weight.requires_grad]
        # made once: otherwise autograd fills a tensor with ones at every step
        self.one = next(model.parameters()).new_ones(())
        self.extra: ExtraLoss | None = None
        """What the loss has beside errors; it remembers the last state of the last pass."""
        self.copied = pieces(list(self.low.parameters()), list(model.parameters()))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights into the low-precision model."""
        if self.dtype is torch.bfloat16:
            torch._foreach_copy_(self.copied[0], self.copied[1])  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def begin(self, prompt: AnyPrompt) -> tuple[Any, Any]:
        """The context and the state before the first loop, without gradient."""
        context = self.low.embed(prompt.to(self.dtype))
        return context, self.low.start(context)

    @torch.no_grad()
    def loop(self, state: Any, context: Any) -> Any:
        """One loop without gradient, of a model whose loops are all alike."""
        return self.low.step(state, context, 0)

    def finish(self, prompt: AnyPrompt, state: Any = None, *, loops: int, grad: int | None, keep: int) -> Tensor:
        """The last `loops` loops from `state` (None: from the start); predictions after the last `keep` of them."""
        low = self.low
        context = low.embed(prompt.to(self.dtype))
        state = low.start(context) if state is None else state
        if self.extra is None:
            outputs = unroll(low.step, state, context, loops=loops, grad=grad, keep=keep, collect=low.readout)
        else:
            outputs = self.extra.unroll(state, context, len(prompt.places) - 1, loops=loops, grad=grad, keep=keep)
        return outputs.float() if self.dtype is torch.bfloat16 else outputs

    def whole(self, prompt: AnyPrompt, *, ahead: int, loops: int, grad: int | None, keep: int) -> Tensor:
        """begin, `ahead` times loop, and finish."""
        state = None
        if ahead:
            context, state = self.begin(prompt)
            for _ in range(ahead):
                state = self.loop(state, context)
        return self.finish(prompt, state, loops=loops, grad=grad, keep=keep)

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        """The gradient of the loss, summed over models, for every weight; None for a weight that it does not read."""
        # not backward(): it would bind the weights to the stream they were first used on
        slopes = torch.autograd.grad(loss, self.read, self.one.expand_as(loss), allow_unused=True)
        return [
            None if slope is None else slope.to(weight.dtype).contiguous()
            for slope, weight in zip(slopes, self.weights, strict=True)
        ]


class ExtraLoss:
    """Applies the loops by a gradient rule, and adds the model's own cost and the Jacobian's penalty to the loss.

    Only the plain engine runs it.
    """

    def __init__(self, model: LoopedModel, config: TrainConfig, generators: Sequence[torch.Generator]):
        self.model, self.config, self.noise = model, config, Noise(generators)
        self.loss: Tensor | None = None
        """Of the last pass, model by model in a stack; None: nothing."""
        if config.gradient is not None and config.gradient.alike and not model.steady:
            raise ValueError(
                f"{type(config.gradient).__name__} looks for a fixed point, and the loops of this model differ. "
                "Set `train.gradient=null`."
            )

    @staticmethod
    def needed(model: LoopedModel, config: TrainConfig) -> bool:
        """Whether a training has anything of this kind."""
        return config.gradient is not None or config.jacobian > 0 or model.costs

    def unroll(self, state: State, context: Any, batch_axes: int, *, loops: int, grad: int | None, keep: int) -> Tensor:
        """The predictions after the last `keep` loops; the loss beside theirs is put aside."""
        model, config, last = self.model, self.config, state

        def collect(state: State, context: Any) -> Tensor:
            nonlocal last
            last = state
            return model.readout(state, context)

        if config.gradient is None:
            outputs = unroll(model.step, state, context, loops=loops, grad=grad, keep=keep, collect=collect)
        else:
            options = {"loops": loops, "keep": keep, "collect": collect, "batch_axes": batch_axes}
            outputs = torch.stack(config.gradient(model.step, state, context, **options))
        cost = model.cost(last)
        if config.jacobian:
            direction = self.noise(last)
            penalty = jacobian_penalty(model.step, last, context, loops - 1, direction, batch_axes=batch_axes)
            cost = config.jacobian * penalty + (0 if cost is None else cost)
        self.loss = None if cost is None else cost.float().mean(-1)
        return outputs
