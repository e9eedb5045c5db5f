"""The passes of a one-block decoder by the kernels in `models/gpu`; imported only where there is a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from looped.models.base import LoopedModel
from looped.models.decoder import Context, LoopedDecoder
from looped.models.gpu.decoder import NAMES, Loops, one_loop, weights_of
from looped.prompt import AnyPrompt
from looped.training.passes import Passes


class FusedPasses(Passes):
    """The prompt is embedded by autograd, the loops by kernels whose gradients come in full precision."""

    low: LoopedDecoder
    model: LoopedDecoder

    def __init__(self, model: LoopedModel, dtype: torch.dtype):
        super().__init__(model, dtype)
        own = dict(model.named_parameters())
        copies = dict(self.low.named_parameters())
        self.loop_weights = [own[name] for name in NAMES]
        self.read = [own[name] if name in NAMES else copies[name] for name, one in own.items() if one.requires_grad]

    @torch.no_grad()
    def loop(self, state: Tensor, context: Context) -> Tensor:
        """One loop without gradient."""
        return one_loop(state, context.tokens, *weights_of(self.model, self.low), heads=self.model.config.heads)

    def finish(self, prompt: AnyPrompt, state: Any = None, *, loops: int, grad: int | None, keep: int) -> Tensor:
        """The last loops, all of them with gradient."""
        assert grad is None or grad == loops
        context = self.low.embed(prompt.to(self.dtype))
        tokens = context.tokens.contiguous()
        start = torch.zeros_like(tokens) if state is None else state
        matrices, vectors = weights_of(self.model, self.low)
        return Loops.apply(
            tokens, start.detach(), loops, keep, self.model.config.heads, matrices, vectors, *self.loop_weights
        )
