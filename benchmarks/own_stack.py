"""Eight models of a user's own, made of torch's layers alone, as one stack against one after the other.

    python benchmarks/own_stack.py [--models 8] [--width 16] [--batch 8] [--steps 100]

Seconds are the processor's, the least of two. The losses of both ways are compared first, to 1e-5.
Exits 1 where the stack is less than 1.5 times as fast.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from looped import Adam, Experiment, LinearRegression, LoopedModel, ModelConfig, TrainConfig
from looped.training.trainer import train, train_seeds

TARGET = 1.5


@dataclass(frozen=True, kw_only=True)
class GatedConfig(ModelConfig):
    """A decoder whose loops are gated."""

    d: int = 5
    width: int = 16
    injects = True

    def build(self) -> Gated:
        return Gated(self)


class Gated(LoopedModel):
    """state <- GRU(attention(norm(state + prompt)), state)."""

    causal = True

    def __init__(self, config: GatedConfig):
        super().__init__(config)
        width = config.width
        self.read_in, self.read_out = nn.Linear(config.d + 1, width), nn.Linear(width, 1)
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.cell = nn.GRUCell(width, width)

    def embed(self, prompt) -> Tensor:
        before = nn.functional.pad(prompt.ys, (1, 0))[..., :-1, None]
        return self.read_in(torch.cat((prompt.xs, before), -1))

    def start(self, context: Tensor) -> Tensor:
        return torch.zeros_like(context)

    def step(self, state: Tensor, context: Tensor, t: int) -> Tensor:
        tokens = self.norm(state + context)
        later = torch.ones(tokens.shape[-2], tokens.shape[-2], dtype=torch.bool).triu(1)
        mixed = self.attention(tokens, tokens, tokens, attn_mask=later, need_weights=False)[0]
        return self.cell(mixed.flatten(0, 1), state.flatten(0, 1)).view(state.shape)

    def readout(self, state: Tensor, context: Tensor) -> Tensor:
        return self.read_out(state).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fields = {"steps": options.steps, "batch": options.batch, "points": 11, "window": 4, "log_every": 10}
    config = TrainConfig(**fields, optimizer=Adam(learning_rate=1e-3, clip=1.0), checkpoint_every=options.steps)
    model = GatedConfig(loops=6, width=options.width)
    experiment = Experiment(name="gated", task=LinearRegression(d=5), model=model, train=config)

    def together(folder: str) -> list:
        return train_seeds(experiment, range(options.models), out=folder)

    def alone(folder: str) -> list:
        seeds = [replace(experiment, train=replace(config, seed=seed)) for seed in range(options.models)]
        return [train(member, out=folder) for member in seeds]

    seconds, losses = {}, {}
    for way in (together, alone, together, alone):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            runs = way(folder)
            seconds[way] = min(seconds.get(way, float("inf")), time.process_time() - begun)
            losses[way] = torch.tensor([[line["loss"] for line in run.metrics()] for run in runs])
    torch.testing.assert_close(losses[together], losses[alone], rtol=1e-5, atol=1e-5)
    ratio = seconds[alone] / seconds[together]
    print(f"{options.models} models of width {options.width}, {options.steps} steps of {options.batch} prompts")
    print(
        f"one after the other {seconds[alone]:.3g} s, as a stack {seconds[together]:.3g} s: {ratio:.3g} times as fast"
    )
    print(f"largest difference of a loss: {float((losses[together] - losses[alone]).abs().max()):.2g}")
    sys.exit(ratio < TARGET)


if __name__ == "__main__":
    main()
