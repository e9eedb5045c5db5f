"""Milliseconds of a training step by engine, for models that are trained block by block: graph against fused.

    python benchmarks/engines.py [--steps 100]

`--scale smoke --device cpu` rehearses it without a GPU, with the one engine that a CPU has.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from looped.bench.measure import timed
from looped.experiment import training
from looped.recipes import experiment
from looped.training.run import Run
from looped.training.trainer import Trainer

RECIPES = (
    *("yang24.linear_12_layers", "yang24.tied", "gao24.regression", "gao24.autoregression"),
    "gao24.chain_of_thought",
)
WARM_UP = 6
"""Steps in which kernels are compiled and graphs captured."""


def main() -> None:
    """One line a recipe, precision and engine; both engines' losses after the warm-up should agree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--dtype", nargs="+", default=["bfloat16", "float32"], help="precisions; on a CPU float32 alone"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    print(f"{'recipe':26} {'precision':9} {'engine':6} {'ms':>8} {'MB':>7}  loss")
    for name in RECIPES:
        for dtype in options.dtype if on_gpu else ("float32",):
            for engine in ("graph", "fused") if on_gpu else ("plain",):
                trained = training(experiment(name, options.scale), dtype=dtype)
                with tempfile.TemporaryDirectory() as folder:
                    trainer = Trainer([Run(Path(folder), trained)], device, engine=engine)
                    last = trained.train.steps - 1  # the last steps have all points and dims
                    for step in range(WARM_UP):
                        trainer.step(last - step)
                    loss = float(trainer.sums[0].mean()) / WARM_UP
                    ms = timed(lambda step, trainer=trainer, last=last: trainer.step(last), device, steps=options.steps)
                megabytes = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else 0
                line = f"{name:26} {dtype:9} {engine:6} {statistics.median(ms):8.3f} {megabytes:7.0f}  {loss:.6f}"
                print(line, flush=True)
                del trainer
                if on_gpu:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
