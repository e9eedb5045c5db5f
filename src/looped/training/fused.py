"""The passes of a one-block decoder by the kernels in `models/gpu`; imported only where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.models.base import LoopedModel
from looped.models.decoder import Context, LoopedDecoder
from looped.models.gpu.decoder_loops import NAMES, Loops, one_loop, weights_of
from looped.models.gpu.products import over_tokens
from looped.prompt import AnyPrompt
from looped.training.passes import Passes


class FusedPasses(Passes):
    """Runs the loops by kernels with gradients in full precision; the read-in's gradients follow from the prompt's."""

    low: LoopedDecoder
    model: LoopedDecoder

    def __init__(self, model: LoopedModel, dtype: torch.dtype):
        super().__init__(model, dtype)
        named = dict(model.named_parameters())
        self.loop_weights = [named[name] for name in NAMES]
        self.read_in: tuple[Tensor, Tensor] | None = None
        self.zeros: dict[Any, Tensor] = {}

    @torch.no_grad()
    def begin(self, prompt: AnyPrompt) -> tuple[Any, Any]:
        """The context and the state before the first loop; the decoder itself converts the prompt to its precision."""
        context = self.low.embed(prompt)
        return context, self.low.start(context)

    @torch.no_grad()
    def loop(self, state: Tensor, context: Context) -> Tensor:
        """One loop without gradient."""
        return one_loop(state, context.tokens, *weights_of(self.model, self.low), heads=self.model.config.heads)

    def whole(self, prompt: AnyPrompt, *, ahead: int, loops: int, grad: int | None, keep: int) -> Tensor:
        """`ahead` loops and the last ones as one pass."""
        return self.finish(prompt, loops=loops, grad=grad, keep=keep, ahead=ahead)

    def finish(
        self, prompt: AnyPrompt, state: Any = None, *, loops: int, grad: int | None, keep: int, ahead: int = 0
    ) -> Tensor:
        """`ahead` loops without gradient and the last ones, all of them with gradient."""
        assert grad is None or grad == loops
        with torch.no_grad():
            tokens = self.low.interleaved(prompt)
            embedded = self.low.read(tokens).tokens.contiguous()
        self.read_in = tokens, embedded.requires_grad_()
        start = self._zeros(embedded) if state is None else state
        matrices, vectors = weights_of(self.model, self.low)
        return Loops.apply(
            embedded, start.detach(), ahead, loops, keep, self.model.config.heads, matrices, vectors, *self.loop_weights
        )

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        """The gradient of the loss, summed over models, for every weight; the next call may overwrite it."""
        assert self.read_in is not None
        tokens, embedded = self.read_in
        up, *loop_slopes = torch.autograd.grad(loss, [embedded, *self.loop_weights], self.one.expand_as(loss))
        slopes = dict(zip(NAMES, loop_slopes, strict=True))
        # tokens = interleaved pairs; embedded = tokens W' + b + positions
        # positions behind the prompt's have slope 0: the sum goes straight in front of zeros made once
        slopes["positions"] = self._zeros(self.model.positions, up.shape[-2])
        positions = slopes["positions"][..., : up.shape[-2], :]
        torch.sum(up, -3, dtype=positions.dtype, out=positions)
        slopes["read_in.bias"] = positions.sum(-2)
        weight = self.model.read_in.weight
        models = weight.shape[:-2].numel()
        # cut into as many parts as fill the card: as one product it would be two tiles, each a sum over every token
        up, tokens = (part.reshape(1, models, -1, part.shape[-1]) for part in (up, tokens))
        slopes["read_in.weight"] = over_tokens(up, tokens).view_as(weight)
        return [slopes[name] for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _zeros(self, like: Tensor, use: int = 0) -> Tensor:
        """Zeros of this shape for this use, made once: outside a graph, in the plain step before its capture."""
        key = (like.shape, like.dtype, use)
        if key not in self.zeros:
            self.zeros[key] = torch.zeros_like(like, requires_grad=False)
        return self.zeros[key]
