"""Recurrent depth: a decoder with layers before and after its loops, and the other parts that looped models have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.functional.counts import check_at_least
from looped.models.block_parts import BlockParts, RMSNorm, per_model
from looped.models.blocks import Block, LayerNorm, Linear
from looped.models.decoder import Context, DecoderConfig, LoopedDecoder, batch_axis


@dataclass(frozen=True, kw_only=True)
class RecurrentDepthConfig(DecoderConfig):
    """A decoder with further parts; without any of them it is the looped decoder."""

    prelude: int = 1
    """Blocks before the loops: what they make of the prompt is what every loop reads."""
    coda: int = 1
    """Blocks behind the loops, before the read-out."""
    start_std: float = 0.0
    """Where `train` is at work, loops start from normal numbers of this spread; elsewhere from their mean."""
    parts: BlockParts = field(default_factory=BlockParts)
    """What the blocks are made of."""
    loop_embedding: bool = False
    """Whether a loop adds a vector of its own to the stream; loops past b share the last one."""
    rank: int = 0
    """Each loop changes the blocks' matrices by a matrix of this rank of its own; loops past b share the last one."""
    ponder: float | None = None
    """Learned halting: what a loop adds to the training loss of a token that has not halted; None: no halting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            0, prelude=self.prelude, coda=self.coda, rank=self.rank, start_std=self.start_std, ponder=self.ponder
        )
        self.parts.check(self.width, self.heads)
        if self.inject == "none" and self.start_std:
            raise ValueError(
                f"without injection loops start at the prompt: `start_std` must be 0; got {self.start_std}."
            )
        if self.prelude and self.inside and self.inject in ("multiply", "none"):
            raise ValueError(
                f"`inject={self.inject}` adds positions inside the loops, and the prelude needs them before: set "
                "`prelude=0`, `inside=false`, or another `inject`."
            )

    @property
    def layers_applied(self) -> int:
        """Blocks that one answer passes through."""
        return self.prelude + self.loops * self.layers + self.coda

    def block(self) -> Block:
        """A block of the chosen parts."""
        return self.parts.block(self.width, self.heads)

    def build(self) -> RecurrentDepth:
        """A freshly initialised model."""
        return RecurrentDepth(self)


class Halting(NamedTuple):
    """The state of a model that has learned when to halt, token by token."""

    stream: Float[Tensor, "*models batch seq width"]
    """What the loops change."""
    answer: Float[Tensor, "*models batch seq width"]
    """The mean over streams so far, each weighted by the chance to halt with it."""
    remaining: Float[Tensor, "*models batch seq"]
    """The chance not to have halted."""
    loops: Float[Tensor, "*models batch seq"]
    """The loops that are expected so far."""


class RecurrentDepth(LoopedDecoder):
    """Prelude once, core again and again, coda once.

        P = prelude(tokens + positions);  Y <- norm(core(inject(Y, P)));  answer = norm(coda(Y))

    Ref: Geiping et al. 2025, who start from random states at evaluation too; here it starts at their mean, 0.
    """

    config: RecurrentDepthConfig
    left_to_adam = rf"{LoopedDecoder.left_to_adam}|injection\."
    """As the read-in stays with Adam, so does what joins it to the state."""
    noise: Callable[[Tensor], Tensor] = staticmethod(torch.zeros_like)
    """Standard normal numbers of a tensor's shape; `training/draws.py` replaces it."""

    def __init__(self, config: RecurrentDepthConfig):
        super().__init__(config)
        self.steady = not (config.loop_embedding or config.rank)
        self.draws, self.costs = config.start_std > 0, config.ponder is not None
        norm = RMSNorm if config.parts.norm == "rms" else LayerNorm
        if norm is RMSNorm:
            self.norm = RMSNorm(config.width)
        if config.parts.rotary:  # a vector for x and one for y
            self.positions = nn.Parameter(torch.empty(2, config.width).normal_(std=0.02))
        self.prelude, self.coda = (self._blocks(count) for count in (config.prelude, config.coda))
        self.coda_norm = norm(config.width) if config.coda else None
        size = (config.loops, config.width)
        self.loop_embedding = nn.Parameter(torch.empty(size).normal_(std=0.02)) if config.loop_embedding else None
        self.changed = [name for name, layer in self.blocks[0].named_modules() if isinstance(layer, Linear)]
        self.changes = nn.ModuleList(
            LowRank(block.get_submodule(name), config.loops, config.rank)
            for block in self.blocks
            for name in self.changed
            if config.rank
        )
        self.halt = None if config.ponder is None else Linear(config.width, 1)
        if self.halt is not None:
            nn.init.zeros_(self.halt.weight)
            nn.init.constant_(self.halt.bias, -2.0)  # halts late at first: the chance is .12 a loop

    def _blocks(self, count: int) -> nn.ModuleList:
        blocks = [self.config.block() for _ in range(count)]
        for block in blocks:
            block.initialize(num_layers=count)
        return nn.ModuleList(blocks)

    def read(self, tokens: Float[Tensor, "*models batch seq d"]) -> Context:
        """Read interleaved tokens in, and apply the prelude."""
        stream = super().read(tokens).tokens
        for block in self.prelude:
            stream = block(stream)
        return Context(stream)

    def start(self, context: Context) -> Any:
        """As the looped decoder starts, plus noise."""
        state = super().start(context)
        if self.draws:
            state = state + self.config.start_std * self.noise(state)
        if self.halt is None:
            return state
        chance = torch.ones_like(state[..., 0])
        return Halting(state, torch.zeros_like(state), chance, torch.zeros_like(chance))

    def substeps(self, state: Any, context: Context, t: int) -> Iterator[Any]:
        """The stream after each block of one loop; the last is the loop's new state."""
        if self.halt is None:
            yield from super().substeps(state, context, t)
            return
        *inner, stream = super().substeps(state.stream, context, t)
        yield from (state._replace(stream=part) for part in inner)
        halts = state.remaining * self.halt(stream).sigmoid().squeeze(-1)
        answer = state.answer + halts[..., None] * stream
        yield Halting(stream, answer, state.remaining - halts, state.loops + state.remaining)

    def readout(self, state: Any, context: Context) -> Float[Tensor, "*models batch n"]:
        """One number at every x token; what has not halted answers with the last stream."""
        if self.halt is not None:
            state = state.answer + state.remaining[..., None] * state.stream
        if self.coda_norm is None:
            return super().readout(state, context)
        stream = state if self.config.inside else self.norm(state)
        for block in self.coda:
            stream = block(stream)
        return self.read_out(self.coda_norm(stream[..., ::2, :])).squeeze(-1)

    def cost(self, state: Any) -> Float[Tensor, "*models batch"] | None:
        """With halting: the price of the expected loops, a mean over tokens."""
        return None if self.config.ponder is None else self.config.ponder * state.loops.mean(-1)

    def blocks_at(self, t: int) -> Iterable[Callable[[Tensor], Tensor]]:
        """The blocks of loop t, with its change of their matrices."""
        if not self.changes:
            return super().blocks_at(t)
        t, changes = min(t, self.config.loops - 1), iter(cast(Sequence[LowRank], self.changes))
        changed: list[Callable[[Tensor], Tensor]] = []
        for block in self.blocks:
            weights = {f"{name}.weight": block.get_submodule(name).weight + next(changes)(t) for name in self.changed}
            changed.append(partial(torch.func.functional_call, block, weights))
        return changed

    def _inject(self, state: Tensor, context: Context, t: int) -> Tensor:
        stream = super()._inject(state, context, t)
        if self.loop_embedding is None:
            return stream
        return stream + per_model(self.loop_embedding[..., min(t, self.config.loops - 1), :], stream)

    def _positions(self, tokens: Tensor) -> Tensor:
        if not self.config.parts.rotary:
            return super()._positions(tokens)
        rows = torch.arange(tokens.shape[-2], device=tokens.device) % 2
        return batch_axis(self.positions[..., rows, :])


class LowRank(nn.Module):
    """A matrix of low rank for each loop: up_t down_t. Ref: Bae et al. 2024."""

    def __init__(self, layer: nn.Module, loops: int, rank: int):
        super().__init__()
        rows, columns = cast(Linear, layer).weight.shape
        self.down = nn.Parameter(torch.empty(loops, rank, columns).normal_(std=columns**-0.5))
        # not zero, as is usual: `down` would get no gradient in the first step
        self.up = nn.Parameter(torch.empty(loops, rows, rank).normal_(std=1e-3))

    def forward(self, t: int) -> Tensor:
        """The change of loop t."""
        return self.up[..., t, :, :] @ self.down[..., t, :, :]
