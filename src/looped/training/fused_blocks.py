"""The passes of a model whose blocks are applied by the kernels in `models/gpu`; imported only where there is a GPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.models.base import LoopedModel
from looped.models.blocks import Block
from looped.models.fusing import block_obstacle
from looped.models.gpu.block import FusedBlock
from looped.models.loop import collected
from looped.prompt import AnyPrompt
from looped.training.passes import Passes


class FusedBlocks(Passes):
    """Runs every block that the kernels cover by them; other blocks, read-in and read-out stay torch's.

    The states of the kept loops are read out as one batch.
    """

    def __init__(self, model: LoopedModel, dtype: torch.dtype):
        super().__init__(model, dtype)
        if self.low is model:  # a twin that shares the weights: the model itself keeps its blocks
            self.low = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
        self.anchor = self.one.clone().requires_grad_()
        self.blocks: dict[str, FusedBlock] = {}
        for (name, block), low in zip(model.named_modules(), self.low.modules(), strict=True):
            if isinstance(block, Block) and isinstance(low, Block) and block_obstacle(block) is None:
                self.blocks[name] = FusedBlock(block, low, self.anchor)
                low.forward = self.blocks[name]  # pyright: ignore[reportAttributeAccessIssue]  # never with `num_keys`
        inside = {f"{name}.{part}" for name, fused in self.blocks.items() for part, _ in fused.block.named_parameters()}
        named = self.low.named_parameters()
        self.outside = {name: weight for name, weight in named if weight.requires_grad and name not in inside}

    def finish(self, prompt: AnyPrompt, state: Any = None, *, loops: int, grad: int | None, keep: int) -> Tensor:
        """The last `loops` loops from `state` (None: from the start); predictions after the last `keep` of them."""
        low = self.low
        self._clear()
        self._expect(1)
        context = low.embed(prompt.to(self.dtype))
        state = low.start(context) if state is None else state
        self._expect(loops if grad is None else grad)
        states = collected(low.step, state, context, loops=loops, grad=grad, keep=keep, collect=lambda state, _: state)
        self._expect(1)
        outputs = self._read_out(states, context)
        return outputs.float() if self.dtype is torch.bfloat16 else outputs

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        """The gradient of the loss, summed over models, for every weight; None for a weight that it does not read."""
        inputs = [*self.outside.values(), self.anchor]
        *slopes, _ = torch.autograd.grad(loss, inputs, self.one.expand_as(loss), allow_unused=True)
        gradients = dict(zip(self.outside, slopes, strict=True))
        second = torch.cuda.Stream(loss.device) if loss.is_cuda else None
        if second is not None:
            second.wait_stream(torch.cuda.current_stream(loss.device))
        for name, fused in self.blocks.items():
            gradients |= {f"{name}.{part}": slope for part, slope in fused.gradients(second).items()}
        if second is not None:
            torch.cuda.current_stream(loss.device).wait_stream(second)
        self._clear()
        names = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        ordered = zip(map(gradients.get, names), self.weights, strict=True)
        return [None if slope is None else slope.to(weight.dtype).contiguous() for slope, weight in ordered]

    def _read_out(self, states: list[Tensor], context: Any) -> Tensor:
        """Predictions (states, *models, batch, ...) from one pass over all states; decoders read no context here."""
        axis = states[0].ndim - 3
        answers = self.low.readout(states[0] if len(states) == 1 else torch.cat(states, axis), context)
        return answers.unflatten(axis, (len(states), -1)).movedim(axis, 0)

    def _expect(self, count: int) -> None:
        """Say how often each block is about to be applied with gradient."""
        for fused in self.blocks.values():
            fused.count = count

    def _clear(self) -> None:
        """Drop every tape."""
        for fused in self.blocks.values():
            fused.tape.clear()
