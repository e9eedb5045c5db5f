"""Samplers on the CPU, as ratios within one run.

    python benchmarks/samplers.py [--batch 64] [--rounds 30]

Drawing a batch of trees, and of sparse functions, against a batch of linear functions with as many pairs, d = 20:
at most 3x its time, at 41 and at 101 pairs. The samplers take turns, so that a busy machine slows all of them.

Exits 1 if a ratio is above its target.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.task import Task
from looped.tasks.trees import DecisionTree

TARGET = 3.0
PAIRS = (41, 101)
DRAWS = 20


def seconds(task: Task, batch: int, n: int, generator: torch.Generator) -> float:
    """Time of one draw, from a few in a row."""
    started = time.perf_counter()
    for _ in range(DRAWS):
        task.sample(batch=batch, n=n, generator=generator)
    return (time.perf_counter() - started) / DRAWS


def ratios(batch: int, n: int, rounds: int) -> dict[str, float]:
    """The median over rounds of each sampler's time over the linear one's in the same round."""
    tasks: dict[str, Task] = {"linear": LinearRegression(), "sparse": SparseRegression(), "tree": DecisionTree()}
    generator = torch.Generator().manual_seed(0)
    times = [{name: seconds(task, batch, n, generator) for name, task in tasks.items()} for _ in range(rounds + 1)][1:]
    shown = ", ".join(f"{name} {1e3 * min(draw[name] for draw in times):.2f} ms" for name in tasks)
    print(f"{batch} prompts of {n} pairs: {shown}")
    others = [name for name in tasks if name != "linear"]
    return {name: statistics.median(draw[name] / draw["linear"] for draw in times) for name in others}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    worst = 0.0
    for n in PAIRS:
        for name, ratio in ratios(options.batch, n, options.rounds).items():
            verdict = "met" if ratio <= TARGET else "MISSED"
            print(f"{name} over linear, {n} pairs: {ratio:.2f}x, target at most {TARGET:g}x: {verdict}")
            worst = max(worst, ratio)
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
