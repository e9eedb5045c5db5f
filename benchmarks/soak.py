"""Kill trainings and grids with SIGKILL again and again: every resume works, and the end is equal bit for bit.

    python benchmarks/soak.py [--kills 200] [--seed 0]

A kill comes at a random moment, or in the middle of a random write to the disk: with half the file written, before the
rename, or just after it. After each kill every file must be readable, and the next process continues, until one
finishes. Then checkpoints (weights, optimiser, random state; the last ones and the best) and metrics must equal, bit
for bit, those of an uninterrupted run, and no half-written file may be left. Then it starts over. Exits 1 if something
differs.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import multiprocessing
import os
import random
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from looped.experiment import Experiment, Muon, TrainConfig
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.folder import checkpoint_path
from looped.training.grid import train_grid
from looped.training.run import Run
from looped.training.trainer import train

TRAIN = TrainConfig(
    steps=30,
    batch=2,
    points=3,
    optimizer=Muon(learning_rate=0.01, clip=1.0),
    average=0.9,
    log_every=3,
    checkpoint_every=2,
)
EXPERIMENT = Experiment(
    name="soak",
    task=LinearRegression(d=2),
    model=DecoderConfig(d=2, width=8, heads=2, loops=2, positions=8),
    train=TRAIN,
)
GRID = [
    replace(EXPERIMENT, model=replace(EXPERIMENT.model, loops=loops), train=replace(TRAIN, steps=12, seed=seed))
    for loops in (1, 2)
    for seed in (0, 1, 2)
]
WORK = {"training": [EXPERIMENT], "grid": GRID}
MOMENTS = {"training": 100, "grid": 240}
"""About how many dangerous moments an uninterrupted run has."""


def die_at(moment: int) -> None:
    """Kill this process at its n-th dangerous moment: half a file written, not yet renamed, or just renamed."""
    moments = iter(range(moment + 1))
    fsync, rename = os.fsync, os.replace

    def danger() -> None:
        if next(moments, None) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def torn(number: int) -> None:
        size, kind = os.fstat(number).st_size, os.fstat(number).st_mode
        if stat.S_ISREG(kind) and next(moments, None) == moment:  # not a folder, which is flushed after a rename
            appended = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND  # a kill cuts off only what is being written
            os.ftruncate(number, size - (5 if appended else size // 3))
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(number)

    def guarded(*paths: Any) -> None:
        danger()
        rename(*paths)
        danger()

    os.fsync, os.replace = torn, guarded


def work(kind: str, out: str, moment: int | None, connection: Connection) -> None:
    """What one process does: continue from what is on the disk, to the end if it is not killed."""
    torch.set_num_threads(1)
    if moment is not None:
        die_at(moment)
    connection.send("begun")
    if kind == "training":
        train(EXPERIMENT, out=out)
    else:
        train_grid(GRID, out=out)


def launch(server: Any, kind: str, out: Path, moment: int | None = None) -> Any:
    """A process that has started its work, forked from a server that has imported everything."""
    parent, end = server.Pipe()
    process = server.Process(target=work, args=(kind, str(out), moment, end))
    process.start()
    end.close()
    parent.recv()
    return process


def folders(kind: str, out: Path) -> list[Path]:
    return [out / experiment.folder for experiment in WORK[kind]]


def read_all(kind: str, out: Path) -> None:
    """Read all that a kill left; a warning about damage is an error here, see `main`."""
    for folder in folders(kind, out):
        if (folder / "config.json").exists():
            run = Run.open(folder)
            run.latest()
            run.best()
            run.metrics()


def differences(kind: str, out: Path, whole: Path) -> list[str]:
    """Where the runs differ from the uninterrupted ones."""
    wrong = [f"{torn} is half a file" for torn in out.rglob("*.tmp") if not torn.name.startswith(".config.json.")]
    for mine, theirs in zip(folders(kind, out), folders(kind, whole), strict=True):
        left, right = Run.open(mine).latest(), Run.open(theirs).latest()
        assert left is not None
        assert right is not None
        if not left.finished or left.step != right.step or left.tensors.keys() != right.tensors.keys():
            wrong.append(f"{mine} ends at step {left.step}, not as {theirs}")
            continue
        names = [name for name, value in left.tensors.items() if not torch.equal(value, right.tensors[name])]
        wrong += [f"{mine}: {name}" for name in names]
        if (mine / "metrics.jsonl").read_bytes() != (theirs / "metrics.jsonl").read_bytes():
            wrong.append(f"{mine}/metrics.jsonl")
        # the last checkpoints and the best, byte by byte; a kill after the last save also leaves an older one
        for step in Run.open(theirs).steps:
            file, expected = (checkpoint_path(path, step) for path in (mine, theirs))
            if not file.exists() or file.read_bytes() != expected.read_bytes():
                wrong.append(str(file))
    return wrong


def soak(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill `kills` processes, then let the last ones finish; what went wrong."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["looped.training.grid", "torch._dynamo", "torch.utils.tensorboard"])
    draw = random.Random(seed)
    whole, seconds = folder / "whole", {}
    for kind in WORK:
        for _ in range(2):  # the first process warms the disk; the second finds everything done, which is a check too
            started = time.monotonic()
            process = launch(server, kind, whole)
            process.join()
            seconds[kind] = max(seconds.get(kind, 0.0), time.monotonic() - started)
            if process.exitcode != 0:
                return [f"{kind} fails even if it is not killed"]
    done: Counter[str] = Counter()
    ended, wrong = 0, []
    place = {kind: folder / f"{kind}-0" for kind in WORK}
    while sum(done.values()) < kills and not wrong:
        kind = draw.choice(list(WORK))
        at_write = draw.random() < 0.5
        # mostly early, so that many kills fall into one run
        moment = int(MOMENTS[kind] * draw.random() ** 2 / 2) if at_write else None
        process = launch(server, kind, place[kind], moment)
        if not at_write:
            process.join(seconds[kind] * draw.random() ** 2 / 2)
            process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            done[f"{kind}, {'in a write' if at_write else 'at a random moment'}"] += 1
            read_all(kind, place[kind])
        elif process.exitcode == 0:
            wrong += differences(kind, place[kind], whole)
            ended += 1
            place[kind] = folder / f"{kind}-{ended}"
        else:
            wrong.append(f"{kind} in {place[kind]} ended with exit code {process.exitcode}")
    for kind in WORK:
        if not wrong:
            process = launch(server, kind, place[kind])
            process.join()
            wrong += [] if process.exitcode == 0 else [f"{kind} ended with exit code {process.exitcode}"]
            wrong += differences(kind, place[kind], whole)
            ended += 1
    kinds = "; ".join(f"{count} {name}" for name, count in sorted(done.items()))
    print(f"seed {seed}: {sum(done.values())} kills ({kinds}); {ended} runs and grids came to their end")
    return wrong


class WarningsAreErrors(logging.Handler):
    """Turns warnings about damage into errors: atomic writes leave none."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("looped").addHandler(WarningsAreErrors())
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        wrong = soak(options.kills, options.seed, Path(folder))
    print("all bit-equal" if not wrong else "\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
