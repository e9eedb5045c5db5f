"""gatmiry24's fast forms against the plain ones, as ratios within one run.

    python benchmarks/families.py [--models 64] [--batch 20000]

1. Training many models as one batch against one after the other, exact loss, depth 8: at least 10x.
2. One training step of one model on sampled prompts, depth 8, in the d-dimensional space against the plain form that
   builds (d+1)x(d+1) matrices and an (n+1)x(n+1) attention for every prompt: at least 5x. The gradients are compared
   first. The sample covariances are computed once for the 100 steps that use a batch.

Exits 1 where a ratio is below its target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from looped.bench.measure import timed
from looped.experiment import AdamW
from looped.models.fast_losses.batch_last import to_last
from looped.models.fast_losses.restricted_loss import exact_loss, residual
from looped.papers.gatmiry24.training import mixture
from looped.prompt import Prompt
from looped.tasks.isotropic import IsotropicRegression
from looped.training.clip import Clip
from looped.training.family import train_family

D, N, DEPTH, STEPS_PER_BATCH = 10, 20, 8, 100


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs, after one to warm up."""
    run()
    return min(timed(lambda _: run(), torch.device("cpu"), steps=repeats)) / 1000


def as_one_batch(models: int, steps: int) -> float:
    """How many times faster `models` models train together than one after the other."""
    s, weights = mixture(9).nodes(DEPTH + 1)
    start = 1e-4 * torch.randn(models, DEPTH, D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    adam = AdamW(learning_rate=0.01, betas=(0.99, 0.9))

    def train(part: Tensor) -> Tensor:
        depths = [DEPTH] * len(part)

        def loss(family, batch):
            return (exact_loss(family["score"], depths, s[None]) * weights).sum(-1)

        clip = Clip(norm=0.01, over="matrix")
        return train_family({"score": part}, loss, folder=None, steps=steps, optimizer=adam, clip=clip).losses[-1]

    together, alone = train(start), torch.cat([train(model) for model in start.split(1)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    slow = seconds(lambda: [train(model) for model in start.split(1)], 2)
    fast = seconds(lambda: train(start), 3)
    print(f"{models} models, {steps} steps, exact loss: one by one {slow:.3f} s, as one batch {fast:.3f} s")
    return slow / fast


def plain(score: Tensor, prompt: Prompt) -> Tensor:
    """Z <- Z - (1/n) P Z M (Z' Q Z) with every matrix written out. Ref: gatmiry24, Eq. (2), (3), (5)."""
    labels = torch.cat([prompt.ys[:, :-1], torch.zeros_like(prompt.ys[:, -1:])], 1)
    z = torch.cat([prompt.xs, labels[..., None]], -1).mT
    mask = torch.diag(torch.cat([torch.ones(N), torch.zeros(1)]))
    value = torch.zeros(D + 1, D + 1)
    value[D, D] = 1.0
    for a in score:
        q = pad(a, (0, 1, 0, 1))
        z = z - value @ z @ mask @ (z.mT @ q @ z) / N
    return (-z[:, D, -1] - prompt.ys[:, -1]).square().mean() / D


def one_step(batch: int) -> float:
    """How many times faster a step in the d-dimensional space is than the plain form."""
    prompt = IsotropicRegression(d=D).sample(batch=batch, n=N + 1, generator=torch.Generator().manual_seed(0))
    start = 0.02 * torch.randn(DEPTH, D, D, generator=torch.Generator().manual_seed(1)) + 0.05 * torch.eye(D)
    score = start.requires_grad_()
    ones, w, query = torch.ones(1, batch), prompt.truth["w"].T.contiguous(), prompt.xs[:, -1].T.contiguous()

    def covariances() -> Tensor:
        return to_last((prompt.xs[:, :-1].mT @ prompt.xs[:, :-1] / N)[None])

    def fast_loss(covariance: Tensor) -> Tensor:
        left = residual(score[None], [DEPTH], covariance, ones, w[None])[0]
        return (left * query).sum(0).square().mean() / D

    covariance = covariances()

    def step(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), score)

    losses = (plain(score, prompt), fast_loss(covariance))
    expected, gradient = (torch.autograd.grad(loss, score)[0] for loss in losses)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    slow = seconds(step(lambda: plain(score, prompt)), 3)
    fast = seconds(step(lambda: fast_loss(covariance)), 5) + seconds(covariances, 3) / STEPS_PER_BATCH
    print(f"one step, {batch} prompts, depth {DEPTH}: plain {slow:.3f} s, in d dimensions {fast:.3f} s")
    return slow / fast


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=20_000)
    options = parser.parse_args()
    results = [
        ("models as one batch", as_one_batch(options.models, options.steps), 10.0),
        ("a sampled step in d dimensions", one_step(options.batch), 5.0),
    ]
    for name, ratio, target in results:
        print(f"{name}: {ratio:.1f}x, target {target:g}x: {'met' if ratio >= target else 'MISSED'}")
    return 0 if all(ratio >= target for _, ratio, target in results) else 1


if __name__ == "__main__":
    sys.exit(main())
