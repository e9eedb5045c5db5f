"""Kill trainings, figures and workers with SIGKILL again and again: every resume works, and all ends equal bit for bit.

    python benchmarks/soak.py [--kills 200] [--seed 0] [--only training grid figure processes ray]

A training, a grid and a figure (`looped reproduce` of one that trains) are killed at a random moment, or in the middle
of a random write to the disk: with half the file written, before the rename, or just after it. Of sweeps in local
processes and on a Ray cluster the workers are killed, at random moments after they began a run, and of the first kind
the parent too. Half of the kills are of the first sort.

After each kill every file must be readable, and the next process continues, until one finishes. Then checkpoints
(weights, optimiser, random state; the last ones and the best), metrics and results (but for their seconds) must equal,
bit for bit, those of an uninterrupted run, and no half-written file may be left. Then it starts over. Exits 1 if
something differs.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
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
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from looped.experiment import Experiment, Muon, TrainConfig
from looped.files import read_json
from looped.models.decoder import DecoderConfig
from looped.reproduce import reproduce, studies
from looped.tasks.regression import LinearRegression
from looped.training.executors import Executor
from looped.training.folder import checkpoint_path
from looped.training.grid import train_grid
from looped.training.run import Run
from looped.training.sweep import sweep
from looped.training.trainer import train
from looped.training.trials import standing, trial

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
POINTS = [replace(point, train=replace(point.train, steps=30)) for point in GRID]
FIGURE = "yang24.fig4"
KINDS = ("training", "grid", "figure")
"""What is killed as a whole."""
POOLS = ("processes", "ray")
"""Executors whose workers are killed."""
MOMENTS = {"training": 100, "grid": 240, "figure": 100}
"""About how many dangerous moments an uninterrupted run has."""
BEGIN_S, DIE_S = 120.0, 60.0
"""Seconds in which a worker begins a run, and in which the workers of a killed parent end."""


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
    elif kind == "grid":
        train_grid(GRID, out=out)
    elif kind == "alone":
        for point in POINTS:
            train(point, out=out, threads=1)
    elif kind == "figure":
        reproduce(studies()[FIGURE], "smoke", out=Path(out), runs=Path(out))
    else:
        workers = Executor(kind=kind, workers=2, retries=10**6)  # type: ignore[arg-type]
        stands = sweep([trial(point, out) for point in POINTS], workers)
        if troubles := [stand for stand in stands if stand.status != "finished"]:
            raise SystemExit(f"{kind}: {troubles[0]}")


def launch(server: Any, kind: str, out: Path, moment: int | None = None) -> Any:
    """A process that has started its work, forked from a server that has imported everything."""
    parent, end = server.Pipe()
    process = server.Process(target=work, args=(kind, str(out), moment, end))
    process.start()
    end.close()
    parent.recv()
    return process


def folders(out: Path) -> list[Path]:
    """The run folders."""
    return sorted(file.parent for file in out.glob("*/config.json"))


def read_all(out: Path) -> None:
    """Read all that a kill left; a warning about damage is an error here, see `main`."""
    for folder in folders(out):
        run = Run.open(folder)
        run.latest()
        run.best()
        run.metrics()
    for file in out.glob("*.json"):
        read_json(file)


def measured(file: Path) -> dict[str, Any]:
    """A result without what differs between any two measurements: its seconds, and those of its trainings."""
    result = read_json(file)
    origin = result["provenance"]
    trainings = [{**training, "train_seconds": 0} for training in origin.pop("trainings", [])]
    return {**result, "provenance": {**origin, "seconds": 0, "training_seconds": 0}, "trainings": trainings}


def differences(out: Path, whole: Path) -> list[str]:
    """Where runs and results differ from the uninterrupted ones."""
    wrong = [f"{torn} is half a file" for torn in out.rglob("*.tmp") if not torn.name.startswith(".config.json.")]
    if [folder.name for folder in folders(out)] != [folder.name for folder in folders(whole)]:
        return [*wrong, f"{out} has other runs than {whole}"]
    results = [file.name for file in whole.glob("*.json")]
    wrong += [name for name in results if measured(out / name) != measured(whole / name)]
    for mine, theirs in zip(folders(out), folders(whole), strict=True):
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


def kill_whole(server: Any, draw: random.Random, kills: int, folder: Path, kinds: Sequence[str]) -> Soaked:
    """Kill `kills` processes, then let the last ones finish."""
    whole, seconds = folder / "whole", {}
    soaked = Soaked()
    for kind in kinds:
        for _ in range(2):  # the first process warms the disk; the second finds everything done, which is a check too
            started = time.monotonic()
            process = launch(server, kind, whole / kind)
            process.join()
            seconds[kind] = max(seconds.get(kind, 0.0), time.monotonic() - started)
            if process.exitcode != 0:
                return Soaked(wrong=[f"{kind} fails even if it is not killed"])
    place = {kind: folder / f"{kind}-0" for kind in kinds}
    while sum(soaked.kills.values()) < kills and not soaked.wrong:
        kind = draw.choice(list(kinds))
        at_write = draw.random() < 0.5
        # mostly early, so that many kills fall into one run
        moment = int(MOMENTS[kind] * draw.random() ** 2 / 2) if at_write else None
        process = launch(server, kind, place[kind], moment)
        if not at_write:
            process.join(seconds[kind] * draw.random() ** 2 / 2)
            process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            soaked.kills[f"{kind}, {'in a write' if at_write else 'at a random moment'}"] += 1
            read_all(place[kind])
        elif process.exitcode == 0:
            soaked.wrong += differences(place[kind], whole / kind)
            soaked.ended += 1
            place[kind] = folder / f"{kind}-{soaked.ended}"
        else:
            soaked.wrong.append(f"{kind} in {place[kind]} ended with exit code {process.exitcode}")
    for kind in kinds:
        if not soaked.wrong:
            soaked.finish(server, kind, place[kind], whole / kind)
    return soaked


@dataclass
class Soaked:
    """What was killed, how much came to its end in spite of it, and what went wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    wrong: list[str] = field(default_factory=list)

    def finish(self, server: Any, kind: str, place: Path, whole: Path) -> None:
        """Let a process come to its end, and compare."""
        process = launch(server, kind, place)
        process.join()
        self.wrong += [] if process.exitcode == 0 else [f"{kind} ended with exit code {process.exitcode}"]
        self.wrong += differences(place, whole)
        self.ended += 1


def workers_at_work(out: Path) -> dict[int, Path]:
    """The processes that hold a run which is not finished, each with the run's folder."""
    holders = {}
    for lock in (out / point.folder / "lock" for point in POINTS):
        owner = lock.read_text().split() if lock.exists() else []
        if owner and Path("/proc", owner[1]).exists() and standing(lock.parent).status != "finished":
            holders[int(owner[1])] = lock.parent
    return holders


def kill_workers(server: Any, draw: random.Random, kills: int, folder: Path, kind: str) -> Soaked:
    """Kill workers of a sweep one after another, and now and then its parent; then let it finish."""
    whole, soaked = folder / f"whole-{kind}", Soaked()
    started = time.monotonic()
    process = launch(server, "alone", whole)
    process.join()
    if process.exitcode != 0:
        return Soaked(wrong=["the points of the sweep fail even if nothing is killed"])
    seconds = (time.monotonic() - started) / len(POINTS)
    sweeps = 0
    while sum(soaked.kills.values()) < kills and not soaked.wrong:
        place = folder / f"{kind}-{sweeps}"
        sweeps += 1
        process = launch(server, kind, place)
        while process.is_alive() and sum(soaked.kills.values()) < kills:
            deadline = time.monotonic() + BEGIN_S
            while not (victims := workers_at_work(place)) and process.is_alive():
                if time.monotonic() > deadline:
                    process.kill()
                    return Soaked(soaked.kills, soaked.ended, [f"{kind}: no worker began within {BEGIN_S:.0f} s"])
                time.sleep(0.01)
            time.sleep(seconds * draw.random())
            if kind == "processes" and draw.random() < 0.15:
                process.kill()
                process.join()
                soaked.kills[f"{kind}, its parent"] += 1
                deadline = time.monotonic() + DIE_S
                while workers_at_work(place) and time.monotonic() < deadline:  # they save and end by themselves
                    time.sleep(0.05)
                read_all(place)
                process = launch(server, kind, place)
            elif victims := workers_at_work(place):
                os.kill(draw.choice([*victims]), signal.SIGKILL)
                soaked.kills[f"{kind}, a worker"] += 1
        process.join()
        if process.exitcode != 0:
            soaked.wrong.append(f"{kind} in {place} ended with exit code {process.exitcode}")
        else:
            read_all(place)
            soaked.wrong += differences(place, whole)
            soaked.ended += 1
    return soaked


def soak(kills: int, seed: int, folder: Path, only: Sequence[str]) -> list[str]:
    """Kill `kills` processes, half of them as a whole and half of them workers; what went wrong."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["looped.training.grid", "torch._dynamo", "torch.utils.tensorboard", "looped.papers"])
    draw = random.Random(seed)
    kinds, pools = ([kind for kind in group if kind in only] for group in (KINDS, POOLS))
    if "ray" in pools and importlib.util.find_spec("ray") is None:
        print("Ray is not installed, so none of its workers is killed.")
        pools.remove("ray")
    left, parts = kills, []
    for index, pool in enumerate(pools):
        share = kills // (2 * len(pools)) if kinds else left // (len(pools) - index)
        parts.append(kill_workers(server, draw, share, folder, pool))
        left -= share
    if kinds:
        parts.append(kill_whole(server, draw, left, folder, kinds))
    done = sum((part.kills for part in parts), Counter())
    wrong = [trouble for part in parts for trouble in part.wrong]
    names = "; ".join(f"{count} {name}" for name, count in sorted(done.items()))
    ended = sum(part.ended for part in parts)
    print(
        f"seed {seed}: {sum(done.values())} kills ({names}); {ended} runs, grids, figures and sweeps came to their end"
    )
    return wrong


class WarningsAreErrors(logging.Handler):
    """Turns warnings about damage into errors: atomic writes leave none."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, *POOLS], default=[*KINDS, *POOLS], help="what to kill")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("looped").addHandler(WarningsAreErrors())
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        wrong = soak(options.kills, options.seed, Path(folder), options.only)
    print("all bit-equal" if not wrong else "\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
