"""A file of a user's own: a recurrent-depth model of torch's layers, a task and a loss. Tests copy it elsewhere."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import looped


@dataclass(frozen=True, kw_only=True)
class Waves(looped.Task):
    """y = sin(w'x); the loss is the absolute error."""

    label_variance = 0.5

    def sample(self, *, batch, n, generator, dims=None):
        xs = torch.randn(batch, n, self.d, generator=generator, device=generator.device)
        w = torch.randn(batch, self.d, 1, generator=generator, device=generator.device)
        return looped.Prompt(xs, (xs @ w).squeeze(-1).sin())

    def error(self, outputs, prompt):
        return (outputs - prompt.ys).abs() / 0.6


@dataclass(frozen=True, kw_only=True)
class GatedConfig(looped.ModelConfig):
    """A prelude, a core with a GRU as its gate, and a random start."""

    d: int = 2
    width: int = 8
    noise: float = 1.0
    dropout: float = 0.0
    injects = True

    def build(self):
        return Gated(self)


class Context(NamedTuple):
    tokens: Tensor
    unused: Tensor | None = None


class Gated(looped.LoopedModel):
    causal = True

    def __init__(self, config):
        super().__init__(config)
        width = config.width
        self.read_in, self.read_out = nn.Linear(config.d + 1, width), nn.Linear(width, 1)
        self.prelude = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.attention, self.cell = nn.MultiheadAttention(width, 2, batch_first=True), nn.GRUCell(width, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(config.dropout)
        self.tied = self.read_in  # one layer under two names
        self.strength = nn.Parameter(torch.ones(()))
        self.register_buffer("share", torch.tensor(0.5))

    def embed(self, prompt):
        before = nn.functional.pad(prompt.ys, (1, 0))[..., :-1, None]
        tokens = self.read_in(torch.cat((prompt.xs, before), -1))
        return Context(self.prelude(tokens, src_mask=later(tokens)) + self.share * self.tied.bias)

    def start(self, context):
        if not self.config.noise:
            return torch.zeros_like(context.tokens)
        return self.config.noise * torch.randn_like(context.tokens)

    def step(self, state, context, t):
        tokens = self.norm(state + self.strength * context.tokens)
        mixed = self.attention(tokens, tokens, tokens, attn_mask=later(tokens), need_weights=False)[0]
        return self.cell(self.dropout(mixed).flatten(0, -2), state.flatten(0, -2)).view(state.shape)

    def readout(self, state, context):
        return self.read_out(state).squeeze(-1)


def later(tokens):
    return torch.ones(tokens.shape[-2], tokens.shape[-2], dtype=torch.bool, device=tokens.device).triu(1)


def gated():
    train = looped.TrainConfig(
        steps=6, batch=4, points=4, window=2, log_every=2, checkpoint_every=2, optimizer=looped.Muon(clip=1.0)
    )
    return looped.Experiment(name="gated", task=Waves(d=2), model=GatedConfig(loops=3), train=train)


def calm(state, previous, context, t):
    """An exit rule: a prompt leaves when no number of its state moves by more than .3."""
    return (state - previous).abs().amax((-2, -1)) < 0.3


def plain():
    model = looped.DecoderConfig(d=2, width=8, heads=2, layers=1, loops=3, positions=12)
    return looped.Experiment(name="plain", task=Waves(d=2), model=model, train=gated().train)
