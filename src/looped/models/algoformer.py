"""AlgoFormer: a pre-transformer, a looped one and a post-transformer over the library's one block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from looped.functional.counts import check_at_least
from looped.models.base import LoopedModel, ModelConfig
from looped.models.blocks import Activation, Block, LayerNorm, Linear, gelu
from looped.models.decoder import Context, batch_axis, interleave
from looped.models.loop import check_layers, check_positions
from looped.prompt import AnyPrompt, Sequence


@dataclass(frozen=True, kw_only=True)
class Part:
    """The shape of one of the three transformers; without layers it is left out."""

    layers: int = 1
    """Blocks, applied one after the other."""
    heads: int = 8
    """Attention heads of each block."""
    head_width: int | None = None
    """Width of a head; None divides the stream's width among the heads."""
    hidden: int | None = None
    """Hidden units of the MLP; None means four times the stream's width."""

    def __post_init__(self) -> None:
        check_at_least(0, layers=self.layers)
        check_at_least(1, heads=self.heads, head_width=self.head_width, hidden=self.hidden)
        check_layers(self.layers)


@dataclass(frozen=True, kw_only=True)
class AlgoFormerConfig(ModelConfig):
    """An AlgoFormer; without `pre` and `post` layers it is the vanilla looped model, with one loop a standard one."""

    d: int = 20
    """Dimension of x, or of a token of a sequence; 1 for text, whose tokens are whole numbers."""
    outputs: int = 1
    """How many numbers are predicted at a token: the dimension of y."""
    vocabulary: int | None = None
    """For text, how many different tokens there are. They are embedded, not read in, and the answers are logits."""
    width: int = 256
    """Width of the residual stream: the paper's D."""
    positions: int = 203
    """Learned positions, one for each token of the longest prompt; a pair is two tokens."""
    tokens: Literal["overlaid", "apart", "given"] = "overlaid"
    """How a prompt becomes tokens: x and (y, 0..0) as in yang24; (x, 0) and (0, y) as in gao24's proofs; or
    the tokens are given, as a `Sequence`."""
    query: Literal["every", "last"] = "every"
    """Which x is the query. `last` hides the last pair's label and marks its tokens; full attention needs it."""
    read: Literal["x", "y"] = "x"
    """The token of a pair that carries the answer; `y` needs a hidden label."""
    pre: Part = field(default_factory=Part)
    """The pre-transformer."""
    loop: Part = field(default_factory=Part)
    """The looped transformer."""
    post: Part = field(default_factory=Part)
    """The post-transformer."""
    inject: Literal["none", "add"] = "none"
    """How a loop reads pre(X): only as its first state, as printed; or added in every loop, starting from zero."""
    norm: bool = True
    """LayerNorm in the blocks and before the read-out; the constructions have none."""
    loop_norm: bool = False
    """LayerNorm at the end of every loop, as yang24's program has it; it replaces the last one where post is empty."""
    activation: Activation = gelu
    """The activation of the MLPs, a function of this library."""
    causal: bool = True
    """Whether a token reads only itself and those before it (decoder), or all (encoder)."""
    subspaces: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the parts of the stream, in order, where a construction gave them."""

    has_read_in = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positions(self.positions)
        check_at_least(1, d=self.d, outputs=self.outputs, width=self.width, positions=self.positions)
        for part in (self.pre, self.loop, self.post):
            if part.head_width is None and part.layers and self.width % part.heads:
                raise ValueError(f"`width` must be a multiple of heads={part.heads}; got {self.width}.")
        if self.loop.layers < 1:
            raise ValueError("`loop.layers` must be at least 1; got 0. Leave out `pre` or `post` instead.")
        if self.vocabulary is not None and (self.vocabulary < 1 or (self.tokens, self.query) != ("given", "every")):
            raise ValueError(
                f'`vocabulary` must be at least 1, and text needs `tokens="given"` and `query="every"`; got '
                f"{self.vocabulary}, {self.tokens!r} and {self.query!r}."
            )
        if self.vocabulary is not None and not (self.d == self.outputs == 1 and self.causal):
            raise ValueError(
                "text has `d=1` and `outputs=1`, one whole number a token, and `causal=True`: otherwise a token sees "
                f"the next one; got {self.d}, {self.outputs} and {self.causal}."
            )
        if self.query == "every" and self.tokens != "given" and (not self.causal or self.read == "y"):
            raise ValueError(
                '`query="every"` needs `causal=True` and `read="x"`: otherwise a pair\'s answer sees its own label. '
                'Use `query="last"`.'
            )
        if self.tokens == "given" and self.read == "y":
            raise ValueError('`read="y"` names a token of a pair, and `tokens="given"` has no pairs. Use `read="x"`.')
        if self.tokens == "overlaid" and self.outputs > 1:
            raise ValueError(f'`outputs` must be 1 with `tokens="overlaid"`; got {self.outputs}. Use "apart".')
        if self.subspaces and sum(size for _, size in self.subspaces) != self.width:
            raise ValueError(f"`subspaces` must fill `width`={self.width}; got {self.subspaces}.")

    @property
    def token_width(self) -> int:
        """Length of a token before it is read in."""
        return self.d + self.outputs if self.tokens == "apart" else self.d

    @property
    def layers_applied(self) -> int:
        """Blocks that one answer passes through."""
        return self.pre.layers + self.loops * self.loop.layers + self.post.layers

    def build(self) -> AlgoFormer:
        """A freshly initialised AlgoFormer."""
        return AlgoFormer(self)

    @property
    def max_examples(self) -> int:
        """Two positions to a pair, the query's included."""
        return self.positions // 2 - 1

    @property
    def injects(self) -> bool:
        """By addition."""
        return self.inject != "none"

    @property
    def reads_query_last(self) -> bool:
        """With `query="last"`."""
        return self.query == "last"

    @property
    def sees_next_token(self) -> bool:
        """With full attention and an answer at every token."""
        return self.query == "every" and not self.causal


class AlgoFormer(LoopedModel):
    """A transformer before the loop, one inside and one after it.

        output = post(loop(... loop(pre(X))))

    Ref: gao24, Eq. (2). `inject="add"` is not in the paper: it repeats Y <- loop(Y + pre(X)) from Y = 0, so that pre
    receives gradient also when only the last loops do. Learned positions are added once, where X is read in.
    """

    config: AlgoFormerConfig

    def __init__(self, config: AlgoFormerConfig):
        super().__init__(config)
        # text reads in and out by one matrix, as GPT-2 does
        words = config.vocabulary
        self.words = None if words is None else nn.Parameter(torch.empty(words, config.width).normal_(std=0.02))
        self.read_in = Linear(config.token_width, config.width) if words is None else None
        self.positions = nn.Parameter(torch.empty(config.positions, config.width).normal_(std=0.02))
        marks = 0 if config.query == "every" else 1 if config.tokens == "given" else 2
        self.marks = nn.Parameter(torch.empty(marks, config.width).normal_(std=0.02)) if marks else None
        self.pre = self._blocks(config.pre)
        self.loop = self._blocks(config.loop)
        self.post = self._blocks(config.post)
        self.loop_norm: nn.Module = LayerNorm(config.width) if config.loop_norm else nn.Identity()
        bare = not config.norm or (config.loop_norm and not config.post.layers)
        self.norm: nn.Module = nn.Identity() if bare else LayerNorm(config.width)
        self.read_out = Linear(config.width, config.outputs) if words is None else None

    @property
    def causal(self) -> bool:
        """Where it answers at every pair."""
        return self.config.causal and self.config.query == "every"

    def embed(self, prompt: AnyPrompt) -> Context:
        """Read the prompt in, add positions and the marks of the query, and run pre.

        Of pairs with `query="last"` the last token, the label asked for, is read as 0.
        """
        stream = self._read(self.tokenize(prompt))
        seq = stream.shape[-2]
        if seq > self.config.positions:
            raise ValueError(
                f"a prompt may have at most {self.config.positions} tokens here; got {seq}. "
                "Shorten it, or raise `positions` and train anew."
            )
        stream = stream + batch_axis(self.positions[..., :seq, :])
        if self.marks is not None:
            count = self.marks.shape[-2]
            stream = torch.cat((stream[..., :-count, :], stream[..., -count:, :] + batch_axis(self.marks)), -2)
        for block in self.pre:
            stream = block(stream)
        return Context(stream)

    def tokenize(self, prompt: AnyPrompt) -> Float[Tensor, "*batch seq token"] | Int[Tensor, "*batch seq"]:
        """The tokens of a prompt, two to a pair, unless it is a sequence and holds them already."""
        config = self.config
        if isinstance(prompt, Sequence):
            text = config.vocabulary is not None
            if config.tokens == "overlaid" or text == prompt.tokens.is_floating_point():
                read = "pairs" if config.tokens == "overlaid" else "whole numbers" if text else "vectors"
                raise ValueError(f"this model reads {read}; got tokens of {prompt.tokens.dtype}. Use a matching task.")
            if prompt.d != config.token_width:
                raise ValueError(f"this model reads tokens of length {config.token_width}; got {prompt.d}.")
            return prompt.tokens
        if config.tokens == "given":
            raise ValueError("this model reads a sequence; got pairs (x, y). Use a matching task.")
        if prompt.d != config.d:
            raise ValueError(f"this model reads x of dimension {config.d}; got {prompt.d}. Use a matching task.")
        if config.outputs > 1:
            raise ValueError(
                f"a prompt's labels are numbers; this model reads labels of dimension {config.outputs}. "
                "Use `given(pairs(xs, ys))`."
            )
        return interleave(prompt) if config.tokens == "overlaid" else pairs(prompt.xs, prompt.ys[..., None])

    def start(self, context: Context) -> Tensor:
        """pre(X) itself, or zeros where it is injected."""
        return context.tokens if self.config.inject == "none" else torch.zeros_like(context.tokens)

    def substeps(self, state: Tensor, context: Context, t: int) -> Iterator[Tensor]:
        """The stream after each block of one loop; the last is the loop's new state."""
        stream = state if self.config.inject == "none" else state + context.tokens
        for index, block in enumerate(self.loop):
            stream = block(stream)
            yield self.loop_norm(stream) if index == len(self.loop) - 1 else stream

    def step(self, state: Tensor, context: Context, t: int) -> Tensor:
        """Apply every block of the loop once."""
        *_, state = self.substeps(state, context, t)
        return state

    def readout(self, state: Tensor, context: Context) -> Tensor:
        """Run post and read predictions (*models, batch, asked), with an axis of outputs for vectors and for logits."""
        for block in self.post:
            state = block(state)
        if self.config.tokens != "given":
            state = state[..., (0 if self.config.read == "x" else 1) :: 2, :]
        if self.config.query == "last":
            state = state[..., -1:, :]
        state = self.norm(state)
        if self.words is not None:
            return F.linear(state, self.words) if self.words.ndim == 2 else state @ self.words.mT[:, None]
        assert self.read_out is not None
        answers = self.read_out(state)
        return answers if self.config.tokens == "given" or self.config.outputs > 1 else answers.squeeze(-1)

    def _read(self, tokens: Tensor) -> Tensor:
        """The tokens in the stream, before positions; all models of a stack read the same, unless each has its own."""
        stacked = self.positions.ndim == 3
        if self.words is not None:
            if not stacked:
                return F.embedding(tokens, self.words)
            models, words = self.words.shape[:2]
            first = words * torch.arange(models, device=tokens.device)
            return F.embedding(tokens + first[:, None, None], self.words.flatten(0, 1))
        assert self.read_in is not None
        tokens = tokens.to(self.positions.dtype)
        if self.config.query == "last" and self.config.tokens != "given":
            tokens = torch.cat((tokens[..., :-1, :], torch.zeros_like(tokens[..., -1:, :])), -2)
        return self.read_in(
            tokens.expand(len(self.positions), *tokens.shape) if stacked and tokens.ndim == 3 else tokens
        )

    def _blocks(self, part: Part) -> nn.ModuleList:
        config, shape = self.config, asdict(part)
        layers = shape.pop("layers")
        shape |= {"activation": config.activation, "norm": config.norm, "causal": config.causal}
        blocks = [Block(config.width, **shape) for _ in range(layers)]
        for block in blocks:
            block.initialize(num_layers=layers)
        return nn.ModuleList(blocks)


def pairs(xs: Float[Tensor, "*batch n d"], ys: Float[Tensor, "*batch n outputs"]) -> Float[Tensor, "*batch seq token"]:
    """Tokens (x_1, 0), (0, y_1), (x_2, 0), ...: x and y in coordinates of their own. Ref: gao24, Theorem 3.1."""
    left = torch.cat((xs, torch.zeros_like(ys)), -1)
    right = torch.cat((torch.zeros_like(xs), ys), -1)
    return torch.stack((left, right), dim=-2).flatten(-3, -2)


def given(tokens: Float[Tensor, "*batch seq token"] | Int[Tensor, "*batch seq"]) -> Sequence:
    """Tokens as a sequence to predict from; the targets are the tokens themselves, and are not read."""
    return Sequence(tokens, tokens)
