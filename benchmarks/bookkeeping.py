"""What a sweep costs besides training: 1,000 finished points listed, resumed and put into a table.

    python benchmarks/bookkeeping.py [--points 1000]

Prints seconds and added memory, for short runs and for runs with a hundred times the metrics and large checkpoints. The
two must agree, since listing reads no weights and only the end of the metrics. Exits 1 if listing takes a second or
more.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from looped.experiment import Experiment, TrainConfig
from looped.files import read_tensors, write_tensors
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.folder import checkpoint_path
from looped.training.sweep import sweep, table, write_table
from looped.training.trainer import train
from looped.training.trials import Trial, standing, trials

LIMIT = 1.0


def experiment() -> Experiment:
    return Experiment(
        name="point",
        task=LinearRegression(d=2),
        model=DecoderConfig(d=2, width=8, heads=2, loops=2, positions=8),
        train=TrainConfig(steps=2, batch=2, points=3),
    )


def fill(asked: list[Trial], *, lines: int, floats: int) -> None:
    """Copy one trained folder to all points, with metrics of `lines` lines and checkpoints larger by `floats`."""
    first = asked[0]
    train(first.experiment, folder=first.path)
    last = (first.path / "metrics.jsonl").read_text()
    (first.path / "metrics.jsonl").write_text(last * lines)
    file = checkpoint_path(first.path, 2)
    tensors, about = read_tensors(file)
    write_tensors(file, {**tensors, "more": torch.zeros(floats)}, about)
    for point in asked[1:]:
        shutil.copytree(first.path, point.path)


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds (the best of three) and peak megabytes of some work."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return min(times), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000)
    count = parser.parse_args().points
    slow = 0.0
    for name, lines, floats in (("short runs", 1, 1), ("long runs", 100, 10_000)):
        with tempfile.TemporaryDirectory(prefix="looped-points-") as folder:
            out = Path(folder)

            def named(out: Path = out) -> list[Trial]:
                return trials(experiment(), seeds=range(count), out=out)

            asked = named()
            fill(asked, lines=lines, floats=floats)
            stands = sweep(asked)
            assert all(stand.status == "finished" for stand in stands)
            rows = table(asked, stands)
            works = {
                "points": named,
                "list": lambda asked=asked: [standing(point.path) for point in asked],
                "sweep again": lambda asked=asked: sweep(asked),
                "table": lambda asked=asked, stands=stands: table(asked, stands),
                "csv": lambda out=out, rows=rows: write_table(out / "table.csv", rows),
            }
            for what, work in works.items():
                seconds, peak = measured(work)
                print(f"{name:10}  {what:12} {count} points: {seconds:6.3f} s, {peak:6.1f} MB", flush=True)
                if what == "list":
                    slow = max(slow, seconds)
    print(f"listing takes {slow:.3f} s; the limit is {LIMIT:g} s")
    sys.exit(1 if slow >= LIMIT else 0)


if __name__ == "__main__":
    main()
