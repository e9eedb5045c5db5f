"""The passes of a one-block decoder by the kernels in `models/gpu`; imported only where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.models.base import LoopedModel
from looped.models.decoder import Context, LoopedDecoder
from looped.models.gpu.decoder import NAMES, Loops, one_loop, weights_of
from looped.prompt import AnyPrompt
from looped.training.passes import Passes


class FusedPasses(Passes):
    """The loops by kernels whose gradients come in full precision; the read-in's follow from that of the prompt."""

    low: LoopedDecoder
    model: LoopedDecoder

    def __init__(self, model: LoopedModel, dtype: torch.dtype):
        super().__init__(model, dtype)
        own = dict(model.named_parameters())
        self.loop_weights = [own[name] for name in NAMES]
        self.read_in: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def loop(self, state: Tensor, context: Context) -> Tensor:
        """One loop without gradient."""
        return one_loop(state, context.tokens, *weights_of(self.model, self.low), heads=self.model.config.heads)

    def whole(self, prompt: AnyPrompt, *, ahead: int, loops: int, grad: int | None, keep: int) -> Tensor:
        """`ahead` loops and the last ones as one pass."""
        return self._loops(prompt, None, ahead, loops, grad, keep)

    def finish(self, prompt: AnyPrompt, state: Any = None, *, loops: int, grad: int | None, keep: int) -> Tensor:
        """The last loops, all of them with gradient."""
        return self._loops(prompt, state, 0, loops, grad, keep)

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        """The slope of the loss along every weight."""
        assert self.read_in is not None
        tokens, embedded = self.read_in
        up, *found = torch.autograd.grad(loss, [embedded, *self.loop_weights])
        slopes = dict(zip(NAMES, found, strict=True))
        # tokens = interleaved pairs; embedded = tokens W' + b + positions
        positions = up.sum(-3, dtype=torch.float32)
        every = torch.zeros_like(self.model.positions)
        every[..., : positions.shape[-2], :] = positions
        flat = (*up.shape[:-3], -1)
        slopes["positions"] = every
        slopes["read_in.bias"] = positions.sum(-2)
        slopes["read_in.weight"] = (
            up.reshape(*flat, up.shape[-1]).mT @ tokens.reshape(*flat, tokens.shape[-1])
        ).float()
        return [slopes[name] for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _loops(
        self, prompt: AnyPrompt, state: Tensor | None, ahead: int, loops: int, grad: int | None, keep: int
    ) -> Tensor:
        assert grad is None or grad == loops
        with torch.no_grad():
            tokens = self.low.interleaved(prompt)
            embedded = self.low.read(tokens).tokens.contiguous()
        self.read_in = tokens, embedded.requires_grad_()
        start = torch.zeros_like(embedded) if state is None else state
        matrices, vectors = weights_of(self.model, self.low)
        return Loops.apply(
            embedded, start.detach(), ahead, loops, keep, self.model.config.heads, matrices, vectors, *self.loop_weights
        )
