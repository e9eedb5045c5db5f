"""The GPT-2-like decoder of yang24, looped; the unlooped one is a single loop of many layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.functional.counts import check_at_least
from looped.models.base import LoopedModel, ModelConfig, only_pairs
from looped.models.blocks import Block, LayerNorm, Linear
from looped.models.injections import INJECTIONS
from looped.models.loop import State, check_layers, check_positions
from looped.prompt import AnyPrompt, Prompt


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A decoder: `layers` blocks a loop, `loops` loops."""

    d: int = 20
    """Dimension of x."""
    width: int = 256
    """Width of the residual stream: the paper's D."""
    heads: int = 8
    """Attention heads."""
    layers: int = 1
    """Blocks applied in each loop: the paper's L."""
    positions: int = 203
    """Learned positions, two for each pair of the longest prompt."""
    inject: Literal["add", "multiply", "none", "scaled", "gated", "concat"] = "add"
    """How a loop reads the prompt P: Y + P, Y * P, not at all (weight tying: Y starts at P), or with weights of its own
    (`models/injections.py`)."""
    inside: bool = True
    """Whether positions and final LayerNorm act inside every loop, as yang24 trained it, or once, around the loop."""

    has_read_in = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, d=self.d, width=self.width, heads=self.heads, layers=self.layers, positions=self.positions)
        check_layers(self.layers)
        check_positions(self.positions)
        if self.width % self.heads:
            raise ValueError(f"`width` must be a multiple of heads={self.heads}; got {self.width}.")

    @property
    def layers_applied(self) -> int:
        """Blocks that one answer passes through."""
        return self.loops * self.layers

    def block(self) -> Block:
        """A block, its weights not yet as they start."""
        return Block(self.width, heads=self.heads)

    def build(self) -> LoopedDecoder:
        """A freshly initialised decoder."""
        return LoopedDecoder(self)

    @property
    def max_examples(self) -> int:
        """Two positions to a pair, the query's included."""
        return self.positions // 2 - 1

    @property
    def injects(self) -> bool:
        """In every way but one."""
        return self.inject != "none"


class Context(NamedTuple):
    """What every loop reads."""

    tokens: Float[Tensor, "*models batch seq width"]
    """The embedded prompt P, with the positions already added where P enters by addition."""


class LoopedDecoder(LoopedModel):
    """A decoder block applied again and again to the same prompt.

        Y <- norm(Block(Y + P + positions)),  Y_0 = 0

    Ref: yang24, Sec. 3. Positions and norm inside the loop come from the published program, not from the text.
    """

    config: DecoderConfig
    causal = True

    def __init__(self, config: DecoderConfig):
        super().__init__(config)
        self.read_in = Linear(config.d, config.width)
        self.positions = nn.Parameter(torch.empty(config.positions, config.width).normal_(std=0.02))
        blocks = [config.block() for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(config.width)
        self.read_out = Linear(config.width, 1)
        self.injection = INJECTIONS[config.inject](config.width) if config.inject in INJECTIONS else None
        for block in blocks:
            block.initialize(num_layers=config.layers)

    def embed(self, prompt: AnyPrompt) -> Context:
        """Read the interleaved pairs in, and add positions where they go with P."""
        return self.read(self.interleaved(prompt))

    def interleaved(self, prompt: AnyPrompt) -> Float[Tensor, "*models batch seq d"]:
        """x_1, y_1, x_2, ..., in the weights' precision; y in coordinate 0."""
        prompt = only_pairs(prompt)
        if prompt.d != self.config.d:
            raise ValueError(f"this model reads x of dimension {self.config.d}; got {prompt.d}. Use a matching task.")
        if 2 * prompt.num_examples > self.config.positions:
            raise ValueError(
                f"a prompt may have at most {self.config.positions // 2} examples here; got {prompt.num_examples}. "
                "Shorten it, or raise `positions` and train anew."
            )
        return self._shared(interleave(prompt, self.positions.dtype))

    def read(self, tokens: Float[Tensor, "*models batch seq d"]) -> Context:
        """Read interleaved tokens in: what every loop reads."""
        tokens = self.read_in(tokens)
        with_prompt = self.config.inject not in ("multiply", "none") or not self.config.inside
        return Context(tokens + self._positions(tokens) if with_prompt else tokens)

    def start(self, context: Context) -> Tensor:
        """The prompt itself for weight tying, ones for multiplication, zeros for all else."""
        if self.config.inject == "none":
            return context.tokens
        fill = torch.ones_like if self.config.inject == "multiply" else torch.zeros_like
        return fill(context.tokens)

    def substeps(self, state: Tensor, context: Context, t: int) -> Iterator[Tensor]:
        """The stream after each block of one loop; the last is the loop's new state."""
        stream = self._inject(state, context, t)
        for index, block in enumerate(self.blocks_at(t)):
            stream = block(stream)
            last = index == len(self.blocks) - 1
            yield self.norm(stream) if last and self.config.inside else stream

    def step(self, state: State, context: Context, t: int) -> State:
        """Inject the prompt, then apply every block."""
        *_, state = self.substeps(state, context, t)
        return state

    def readout(self, state: Tensor, context: Context) -> Float[Tensor, "*models batch n"]:
        """One number at every x token."""
        at_x = state[..., ::2, :]
        return self.read_out(at_x if self.config.inside else self.norm(at_x)).squeeze(-1)

    def blocks_at(self, t: int) -> Iterable[Callable[[Tensor], Tensor]]:
        """The blocks of loop t: the same in every loop."""
        return self.blocks

    def _inject(self, state: Tensor, context: Context, t: int) -> Tensor:
        if self.config.inject == "add":
            return state + context.tokens
        if self.injection is not None:
            return self.injection(state, context.tokens)
        stream = state * context.tokens if self.config.inject == "multiply" else state
        return stream + self._positions(stream) if self.config.inside else stream

    def _positions(self, tokens: Tensor) -> Tensor:
        return batch_axis(self.positions[..., : tokens.shape[-2], :])

    def _shared(self, tokens: Tensor) -> Tensor:
        """Give every model of a stack the same prompts, unless each has its own already."""
        stacked = self.positions.ndim == 3 and tokens.ndim == 3
        return tokens.expand(self.positions.shape[0], -1, -1, -1) if stacked else tokens


def batch_axis(weight: Tensor) -> Tensor:
    """Insert the batch axis, of length 1, into the weights of a stack of models."""
    return weight if weight.ndim == 2 else weight[:, None]


def interleave(prompt: Prompt, dtype: torch.dtype | None = None) -> Float[Tensor, "*models batch seq d"]:
    """Tokens x_1, y_1, x_2, y_2, ...; y lies in coordinate 0, the rest of its token is zero.

    In the prompt's precision, or in `dtype`.
    """
    xs = prompt.xs
    # written straight to their place in the precision they are read in: each copy is a kernel in a captured step
    tokens = xs.new_zeros(*xs.shape[:-1], 2, xs.shape[-1], dtype=dtype or xs.dtype)
    tokens[..., 0, :] = xs
    tokens[..., 1, 0] = prompt.ys
    return tokens.flatten(-3, -2)
