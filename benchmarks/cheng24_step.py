"""One training step (forward and backward) of cheng24's models at the paper's batch, fast against plain.

    python benchmarks/cheng24_step.py [--batch 30000] [--repeats 3] [--target 5]

Plain is the form on paper: (d+1) x (d+1) value and query matrices, an (n+1) x (n+1) attention for every prompt and
layer, autograd. Fast is `looped.models.fast_losses.cheng24_loss`. Their gradients are compared first. Prints a
line for each h, and exits 1 if a ratio is below the target.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.models.fast_losses.cheng24_loss import head_weights, in_context_loss, prepare
from looped.prompt import Prompt

HEADS = {"linear": kernels.linear, "relu": kernels.relu, "exp": kernels.exp, "softmax": softmax}
RESAMPLE = 10
"""Steps on one minibatch, which share the cost of preparing it."""


def plain_loss(weights: dict[str, Tensor], name: str, prompt: Prompt) -> Tensor:
    """Z <- Z + V Z M h(Z, Q Z), tokens as columns, as cheng24's Eq. (2) and (3) print it."""
    d, n = prompt.d, prompt.num_examples - 1
    labels = torch.cat([prompt.ys[:, :-1], torch.zeros_like(prompt.ys[:, -1:])], -1)
    z = torch.cat([prompt.xs, labels[..., None]], -1).mT
    mask = torch.diag(torch.cat([torch.ones(n), torch.zeros(1)])).to(z)
    for layer in range(len(weights["label"])):
        value = torch.block_diag(weights["transform"][layer], weights["label"][layer].view(1, 1))
        key, query = (pad(weights[part][layer], (0, 1, 0, 1)) for part in ("key", "query"))
        raw = (key @ z).mT @ (query @ z)
        if name == "softmax":
            scores = raw[:, :n].softmax(1)
            scores = torch.cat([scores, torch.zeros_like(raw[:, n:])], 1)
        else:
            scores = {"linear": lambda s: s, "relu": torch.relu, "exp": torch.exp}[name](raw)
        z = z + value @ z @ mask @ scores
    return (z[:, d, n] + prompt.ys[:, -1]).square().mean()


def measure(step: Callable[[int], object], repeats: int) -> float:
    """Seconds of the fastest step out of `repeats` minibatches, a minibatch's first steps included in its share."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        for index in range(RESAMPLE):
            step(index)
        best = min(best, (time.perf_counter() - started) / RESAMPLE)
    return best


def main() -> int:
    """Measure every h, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=30_000)
    parser.add_argument("--examples", type=int, default=14)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--target", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator, d = torch.Generator().manual_seed(0), 5
    xs = torch.randn(options.batch, options.examples + 1, d, generator=generator)
    prompt = Prompt(xs / xs.norm(dim=-1, keepdim=True), torch.randn(xs.shape[:2], generator=generator))
    shapes = {"transform": (d, d), "key": (d, d), "query": (d, d), "label": ()}
    enough = True
    print(f"batch {options.batch}, n {options.examples}, d {d}, L {options.layers}, {options.threads} threads, float32")
    for name, kernel in HEADS.items():
        weights = {
            part: (0.1 * torch.randn(options.layers, *shape, generator=generator)).requires_grad_()
            for part, shape in shapes.items()
        }
        leaves = list(weights.values())
        shared = {}

        def fast(index: int, kernel=kernel, weights=weights, leaves=leaves, shared=shared) -> list[Tensor]:
            if index == 0:
                shared["batch"] = prepare(prompt, (kernel,))
            head = head_weights(**{part: weight[None] for part, weight in weights.items()})
            loss = in_context_loss([head], (kernel,), shared["batch"])
            return list(torch.autograd.grad(loss.sum(), leaves, allow_unused=True))

        def plain(index: int, name=name, weights=weights, leaves=leaves) -> list[Tensor]:
            return list(torch.autograd.grad(plain_loss(weights, name, prompt), leaves))

        for gradient, expected in zip(fast(0), plain(0), strict=True):
            torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=1e-3)
        slow, quick = measure(plain, options.repeats), measure(fast, options.repeats)
        enough &= slow / quick >= options.target
        print(f"{name:8} plain {1e3 * slow:8.1f} ms   fast {1e3 * quick:7.1f} ms   ratio {slow / quick:6.1f}")
    print(f"target {options.target:g}: {'reached' if enough else 'missed'}")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
