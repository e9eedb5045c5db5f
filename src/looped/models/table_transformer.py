"""A looped encoder for tables: a row is one token, rows have no order, and queries read the rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.functional.counts import check_at_least
from looped.functional.kernel_regression import NUM_REGRESSIONS, regressions
from looped.models.base import LoopedModel, ModelConfig, only_pairs
from looped.models.blocks import Block, LayerNorm, Linear
from looped.models.decoder import batch_axis
from looped.models.exit_rules import TokenChange
from looped.models.loop import settle_tokens, unroll
from looped.prompt import AnyPrompt

SETTLED = 0.05
"""A row whose state changes by less than this share in a loop has its answer."""
MOST_LOOPS = 2
"""`loops="auto"` ends after this many times the loops of training."""
LINEAR_WITHIN = 3.0
"""Standardised numbers are read as they are up to this size, and grow like a logarithm from there."""


@dataclass(frozen=True, kw_only=True)
class TableTransformerConfig(ModelConfig):
    """One block, looped over the rows of a table."""

    d: int = 20
    """Most features of a table; fewer are filled up with zeros."""
    width: int = 128
    """Width of the residual stream."""
    heads: int = 4
    """Attention heads."""
    queries: int = 16
    """The last pairs of a training prompt, all answered from the pairs before them; else the last pair alone."""
    quantiles: int = 0
    """In training a query is answered by a mean and this many quantiles, of levels (j + 1/2) / quantiles."""
    answers: Literal["means", "log_odds"] = "means"
    """What the label of a query is expected to be, or the log-odds that it is 1 where all labels are 0 or 1."""
    regressions: bool = field(default=False, metadata={"later": True})
    """Whether a row also shows what kernel regressions answer there, and how far off each is at the examples."""

    has_read_in = True
    injects = True
    reads_query_last = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, d=self.d, width=self.width, heads=self.heads, queries=self.queries)
        check_at_least(0, quantiles=self.quantiles)
        if self.width % self.heads:
            raise ValueError(f"`width` must be a multiple of heads={self.heads}; got {self.width}.")
        if self.answers not in ("means", "log_odds"):
            raise ValueError(f'`answers` must be "means" or "log_odds"; got {self.answers!r}.')
        if self.answers == "log_odds" and self.quantiles:
            raise ValueError(f"answers that are log-odds have no `quantiles`; got {self.quantiles}. Set it to 0.")

    def build(self) -> TableTransformer:
        """A freshly initialised model."""
        return TableTransformer(self)


class Context(NamedTuple):
    """What every loop reads, and the units of the answers."""

    tokens: Float[Tensor, "*models batch seq width"]
    """A learned token, the examples, then the queries, read in."""
    labels: Float[Tensor, "*models batch m"]
    """The examples' labels, standardised; the learned token and these m examples are read by all tokens."""
    mean: Float[Tensor, "*models batch 1"]
    """Of the examples' labels."""
    unit: Float[Tensor, "*models batch 1"]
    """The standard deviation of the examples' labels, or 1 where they are constant."""
    regressions: Float[Tensor, "*models batch queries regressions"] | None
    """What each answers at the queries, standardised."""


class TableTransformer(LoopedModel):
    """One block applied again and again to the rows of a table.

        Y <- norm(Block(Y + P)),  Y_0 = 0;  every token reads the examples, and no token reads a query

    Everything is standardised by the examples, inside the model: shifting or scaling a column or the labels shifts or
    scales the answers, and a query's label can leak into nothing. Features are sorted by how strongly they correlate
    with the labels and flipped to correlate positively, so their order and signs do not matter either. There are no
    positions. Examples never read a query, so all queries share one pass over the examples.
    """

    config: TableTransformerConfig

    def __init__(self, config: TableTransformerConfig):
        super().__init__(config)
        # beside x: the label, whether it is known, and how many there are, which a mean over examples does not tell
        self.read_in = Linear(config.d + 3 + (2 * NUM_REGRESSIONS if config.regressions else 0), config.width)
        self.learned_token = nn.Parameter(torch.empty(1, config.width).normal_(std=0.02))
        self.block = Block(config.width, heads=config.heads, causal=False)
        self.norm = LayerNorm(config.width)
        self.read_out = Linear(config.width, 1 + config.quantiles)
        if config.regressions:
            self.read_out_shares = Linear(config.width, NUM_REGRESSIONS)
            nn.init.normal_(self.read_out_shares.weight, std=0.02)
            nn.init.constant_(self.read_out_shares.bias, 1 / NUM_REGRESSIONS)
        self.block.initialize(num_layers=1)

    def embed(self, prompt: AnyPrompt) -> Context:
        """The last pairs are the queries: `queries` of them in training, else one."""
        prompt = only_pairs(prompt)
        if prompt.d != self.config.d:
            raise ValueError(f"this model reads x of dimension {self.config.d}; got {prompt.d}. Use a matching task.")
        n = prompt.num_examples
        examples = n - max(1, min(self.config.queries, n - 1) if self.training else 1)
        xs, ys = prompt.xs, prompt.ys
        if self.learned_token.ndim == 3 and xs.ndim == 3:  # every model of a stack gets the same prompts
            xs, ys = (values.expand(len(self.learned_token), *values.shape) for values in (xs, ys))
        return self.read(xs[..., :examples, :], ys[..., :examples], xs[..., examples:, :])

    def read(
        self,
        xs: Float[Tensor, "*models batch m d"],
        ys: Float[Tensor, "*models batch m"],
        queries: Float[Tensor, "*models batch queries d"],
    ) -> Context:
        """Read m examples and any number of queries."""
        precise = torch.promote_types(xs.dtype, torch.float32)  # a mean of bfloat16 numbers has two digits
        dtype, (xs, ys, queries) = self.learned_token.dtype, (part.to(precise) for part in (xs, ys, queries))
        m = ys.shape[-1]
        ys, mean, unit = standardized(ys[..., None])
        rows = torch.cat([xs, queries], -2)
        rows = standardized(xs, rows)[0]
        correlation = (rows[..., :m, :] * ys).sum(-2, keepdim=True)
        order = correlation.abs().argsort(dim=-1, descending=True, stable=True)
        rows = (rows * torch.where(correlation < 0, -1.0, 1.0)).gather(-1, order.expand_as(rows))
        labels, rows = compressed(ys), compressed(rows)
        count = torch.full_like(rows[..., :1], m).log1p() / 4
        known = torch.cat([labels, torch.ones_like(labels)], -1)
        known = nn.functional.pad(known, (0, 0, 0, queries.shape[-2]))
        shown, answers = [rows, known, count], None
        if self.config.regressions:
            at_examples, answers = map(compressed, regressions(rows[..., :m, :], labels[..., 0], rows[..., m:, :]))
            loss = (at_examples - labels).square().sum(-2, keepdim=True) / max(m, 1)
            at_rows = torch.cat([at_examples, answers], -2)
            shown += [at_rows, loss.clamp(1e-4, 10.0).log().expand_as(at_rows) / 4]
        tokens = self.read_in(torch.cat(shown, -1).to(dtype))
        first = batch_axis(self.learned_token).expand(*tokens.shape[:-2], 1, -1)
        return Context(torch.cat([first, tokens], -2), labels[..., 0], mean[..., 0], unit[..., 0], answers)

    def start(self, context: Context) -> Tensor:
        """Zeros."""
        return torch.zeros_like(context.tokens)

    def step(self, state: Tensor, context: Context, t: int) -> Tensor:
        """Inject the rows, then apply the block; all tokens read the learned token and the examples."""
        return self.norm(self.block(state + context.tokens, num_keys=1 + context.labels.shape[-1]))

    def readout(self, state: Tensor, context: Context) -> Tensor:
        """The mean at every query, in the units of the labels; in training a mean, then quantiles, if it has some."""
        answers = self.outputs(state, context)
        return answers if self.training and self.config.quantiles else answers[..., 0]

    def outputs(self, state: Tensor, context: Context) -> Float[Tensor, "*models batch queries outputs"]:
        """The mean and all quantiles at every query, in the units of the labels; or log-odds."""
        examples = context.labels.shape[-1]
        state = state[..., 1 + examples :, :]
        answers = self.read_out(state)
        if context.regressions is not None:
            answers = answers + (self.read_out_shares(state) * context.regressions.to(state.dtype)).sum(
                -1, keepdim=True
            )
        if self.config.answers == "log_odds":
            # from those of the examples, of which one half more is counted on either side
            share = (context.mean[..., None] * examples + 0.5) / (examples + 1)
            return share.logit() + answers.to(share.dtype)
        return torch.addcmul(context.mean[..., None], context.unit[..., None], answers.to(context.unit.dtype))


@torch.no_grad()
def answer_rows(
    model: TableTransformer,
    xs: Float[Tensor, "m d"],
    ys: Float[Tensor, "*classes m"],
    queries: Float[Tensor, "queries d"],
    *,
    loops: int | Literal["auto"] | None = None,
) -> Float[Tensor, "*classes queries outputs"]:
    """The outputs at every query, in one pass over the examples; for every row of labels if `ys` has several.

    With `loops="auto"` a row stays as it is once a loop changes its state by less than `SETTLED`.
    """
    labels = ys.reshape(-1, ys.shape[-1])
    context = model.read(xs.expand(len(labels), -1, -1), labels, queries.expand(len(labels), -1, -1))
    state = model.start(context)
    if loops == "auto":
        rule, most = TokenChange(tolerance=SETTLED), MOST_LOOPS * model.config.loops
        outputs = settle_tokens(model.step, state, context, rule, max_loops=most, collect=model.outputs).predictions
    else:
        loops = model.config.loops if loops is None else loops
        outputs = unroll(model.step, state, context, loops=loops, collect=model.outputs)[-1]
    return outputs.reshape(*ys.shape[:-1], *outputs.shape[1:])


def standardized(examples: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`rows` (None: the examples) with the examples' columns at mean 0 and variance 1; that mean and deviation.

    A constant column becomes zero in the examples, and its deviation counts as 1; without examples nothing changes.
    """
    alone = rows is None
    rows = examples if rows is None else rows
    if not examples.shape[-2]:
        zero = torch.zeros_like(rows[..., :1, :])
        return rows, zero, zero + 1
    mean = examples.mean(-2, keepdim=True)
    unit = (examples - mean).square().mean(-2, keepdim=True).sqrt()
    constant = unit <= 10 * torch.finfo(unit.dtype).eps * mean.abs()
    unit = torch.where(constant, 1.0, unit)
    scaled = (rows - mean) / unit
    return torch.where(constant, 0.0, scaled) if alone else scaled, mean, unit


def compressed(values: Tensor) -> Tensor:
    """v up to |v| = 3, then sign(v) (3 + log(|v| - 2)): smooth, monotone, and no outlier drowns the rest."""
    size = values.abs()
    beyond = LINEAR_WITHIN + (size - LINEAR_WITHIN).clamp(min=0).log1p()
    return torch.where(size > LINEAR_WITHIN, values.sign() * beyond, values)
