"""Models whose loops do something known, for `diagnose` and `check`."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from looped.models.base import LoopedModel, ModelConfig
from looped.prompt import Prompt


class Labels(NamedTuple):
    ys: Tensor
    xs: Tensor


class Pair(NamedTuple):
    answer: Tensor
    other: Tensor


@dataclass(frozen=True, kw_only=True)
class AffineConfig(ModelConfig):
    """y <- y + rate (label - y), beside a pair of numbers that turns and grows: a model whose loops are known."""

    rate: float = 0.5
    """How fast the answer goes to the label."""
    turn: float = 0.9
    """The pair turns by 90 degrees and is multiplied by this."""
    flip: float | None = None
    """Multiplies the pair instead of turning it."""
    step: float = 0.0
    """Added to the pair in every loop."""
    share: float = 1.0
    """The share of the prompts whose pair does not start at zero; by the first x."""
    first: float = 1.0
    """What the pair starts at."""
    read: float = 0.0
    """How much of the pair's first number, times x, is added to the answer."""
    injected: bool = True
    """Whether a loop reads the labels again; if not, the answer starts at them."""

    def build(self) -> LoopedModel:
        return Affine(self)


class Affine(LoopedModel):
    config: AffineConfig

    def embed(self, prompt: Prompt) -> Labels:
        return Labels(prompt.ys, prompt.xs[..., 0])

    def start(self, context: Labels) -> Pair:
        limit = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(self.config.share))
        chosen = (context.xs[:, :1] < limit).to(context.ys).expand(-1, 2)
        answer = torch.zeros_like(context.ys) if self.config.injected else context.ys
        return Pair(answer, self.config.first * chosen)

    def step(self, state: Pair, context: Labels, t: int) -> Pair:
        config = self.config
        if config.flip is None:
            other = config.turn * torch.stack((-state.other[:, 1], state.other[:, 0]), 1)
        else:
            other = config.flip * state.other + config.step
        answer = state.answer + config.rate * (context.ys - state.answer) if config.injected else state.answer
        return Pair(answer, other)

    def readout(self, state: Pair, context: Labels) -> Tensor:
        return state.answer + self.config.read * state.other[:, :1] * context.xs
