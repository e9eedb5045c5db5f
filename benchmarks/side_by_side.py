"""Steps a second of trainings on one GPU: alone, side by side in processes of their own, and as one stack of seeds.

    nvidia-cuda-mps-control -d                  without it the processes take turns on the card
    python benchmarks/side_by_side.py [--seconds 1.5]

`looped queue --beside N` trains side by side. `--scale smoke --device cpu` rehearses it without a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from looped.experiment import training
from looped.recipes import experiment
from looped.training.run import Run
from looped.training.trainer import Trainer

TRAININGS = {
    "ar0": ("gao24.autoregression", [0]),
    "ar1": ("gao24.autoregression", [1]),
    "ar2": ("gao24.autoregression", [2]),
    "stack": ("gao24.autoregression", [0, 1, 2]),
    "tree": ("yang24.tree", [0]),
}
"""Label -> experiment and seeds."""
GROUPS = ("ar0", "ar0 ar1", "ar0 ar1 ar2", "stack", "tree", "tree ar0", "tree ar0 ar1")
"""What runs at the same time."""
WARM_UP = 12
"""Steps in which kernels are compiled and graphs captured."""


def work(pipe: Any, label: str, options: argparse.Namespace, folder: str) -> None:
    """Step for as many seconds as the pipe says, and answer with steps a second; None ends it."""
    name, seeds = TRAININGS[label]
    members = [training(experiment(name, options.scale), seed=seed) for seed in seeds]
    runs = [Run.create(Path(folder) / label / member.folder, member) for member in members]
    trainer = Trainer(runs, torch.device(options.device))
    last = trainer.config.steps - 1  # the last steps have all points and dims
    done = 0

    def steps(count: int) -> None:
        nonlocal done
        for _ in range(count):
            trainer.step(last - done % (last // 4 + 1))
            done += 1
        if options.device == "cuda":
            torch.cuda.synchronize()

    steps(WARM_UP)
    pipe.send("warm")
    while (seconds := pipe.recv()) is not None:
        num_steps, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            steps(10)
            num_steps += 10
        pipe.send(num_steps / (time.monotonic() - began))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--scale", default="paper", choices=("paper", "smoke"))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in TRAININGS:
            pipes[label], theirs = context.Pipe()
            context.Process(target=work, args=(theirs, label, options, folder), daemon=True).start()
            theirs.close()
        for pipe in pipes.values():
            pipe.recv()
        for group in GROUPS:
            for label in group.split():
                pipes[label].send(options.seconds)
            rates = {label: round(pipes[label].recv(), 1) for label in group.split()}
            print(f"{group}: {rates} steps a second", flush=True)
        for pipe in pipes.values():
            pipe.send(None)


if __name__ == "__main__":
    main()
