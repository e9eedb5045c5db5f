"""Train named experiments at the paper's scale on one GPU, and bring them home as small run folders.

    python benchmarks/paper_scale.py list
    python benchmarks/paper_scale.py train --queue FILE --runs DIR --minutes 9
    python benchmarks/paper_scale.py table --runs DIR
    python benchmarks/paper_scale.py pack --runs DIR --out OUT
    python benchmarks/paper_scale.py unpack --out OUT --home DIR

A queue is a text file with one training a line: `gao24.regression 0`, or `gao24.regression 0 1 2` for three seeds as
one stack of models. It is read again before every training, so it may change meanwhile. Several `train` processes may
share a queue; every training runs in only one of them (`benchmarks/side_by_side.py` measures whether that is faster). A
training that the minutes stop is saved, and goes on when the same command runs again. A finished one never runs again.

`pack` writes averaged weights, config, metrics, provenance and the errors on 1280 prompts as one archive in pieces.
Large models travel as float16. `--scale smoke --device cpu` rehearses all of it without a GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from looped.evaluation.curves import evaluate
from looped.experiment import Experiment
from looped.files import finite, read_json, write_json
from looped.functional.schedules import Ramp, RandomDepth, Trapezoid
from looped.papers import gao24, yang24
from looped.papers.gao24.variants import three
from looped.papers.yang24.trainings import PAPER, training
from looped.papers.yang24.variants import with_loops
from looped.tasks.task import SequenceTask
from looped.training.folder import Checkpoint
from looped.training.run import Run
from looped.training.stopping import Interrupted
from looped.training.trainer import train_seeds

STEPS = {"regression": 7000, "autoregression": 6000, "chain_of_thought": 4000}
"""Steps of gao24's Figure 2, the same for the three models of a task."""
CELL_STEPS = 8000
"""Steps of every cell of yang24's Figure 4."""
PROMPTS, PROMPT_SEED = 1280, 1
ROUNDED = "b, weights rounded to float16"
FAR = {"yang24.tree": 200, "gao24.regression": 200, "gao24.autoregression": 200, "gao24.chain": 200}
"""Most loops that are judged; 500 for the others."""
HALF_FROM = 4_000_000
"""Parameters from which on weights travel as float16: a file that comes back has at most 16 MiB."""
PIECE, MOST = 15 * 2**20, 60 * 2**20
"""Bytes of one file of an archive, and of all of them."""


def experiments(scale: yang24.Scale) -> dict[str, Experiment]:
    """All experiments by name."""
    listed = [*figure_2(scale), *trees(scale), yang24.tied(scale), *figure_4(scale)]
    if scale == "smoke":
        listed = [training(experiment, steps=4, checkpoint_every=2, log_every=2) for experiment in listed]
    return {experiment.name: experiment for experiment in listed}


def figure_2(scale: yang24.Scale) -> Iterator[Experiment]:
    """gao24's three models on its three tasks, with yang24's optimiser, averaging and precision."""
    for task, steps in STEPS.items():
        base = getattr(gao24, task)(scale)
        if scale == "paper":
            dims = None if isinstance(base.task, SequenceTask) else Ramp(start=5, stop=20, share=1 / 3)
            ours = {"optimizer": PAPER.optimizer, "average": PAPER.average, "dtype": PAPER.dtype, "dims": dims}
            base = training(base, steps=steps, batch=64, log_every=100, checkpoint_every=2000, **ours)
        yield from three(base, 12 if scale == "paper" else 2).values()


def trees(scale: yang24.Scale) -> Iterator[Experiment]:
    """Decision trees in two stages: few loops from nothing, then b = 70 from there; later pairs weigh more in both."""
    base = yang24.tree(scale)
    first, longer = replace(base, name="yang24.tree_first"), replace(base, name="yang24.tree_longer")
    if scale == "paper":
        optimizer = replace(PAPER.optimizer, schedule=Trapezoid(warmup=0.02, decay=0.3, floor=0.4))
        every = {"log_every": 500, "checkpoint_every": 5000, "emphasis": 1.0}
        first = training(first, steps=36_000, depth=RandomDepth(low=-8, high=8), optimizer=optimizer, **every)
        first = replace(first, model=replace(first.model, loops=24))
        rates = {"learning_rate": 1.5e-3, "muon_learning_rate": 5e-3, "schedule": Trapezoid(warmup=0.02, decay=0.9)}
        optimizer = replace(PAPER.optimizer, **rates)
        longer = training(longer, steps=15_000, dims=None, active_points=None, optimizer=optimizer, **every)
    yield first
    yield training(longer, start=first.folder if scale == "paper" else None)


def figure_4(scale: yang24.Scale) -> Iterator[Experiment]:
    """Cells (b, T) of linear regression, all by one recipe; the loops climb from T to b as in the paper."""
    for b in (12, 20, 30, 40, 50) if scale == "paper" else (4,):
        for window in (5, 10, 15) if scale == "paper" else (2,):
            base = replace(yang24.linear(scale), name=f"yang24.linear_b{b}_T{window}")
            if scale == "paper":
                base = training(base, steps=CELL_STEPS, batch=64)
            yield with_loops(base, b, window, every=100)


def train_queue(options: argparse.Namespace) -> int:
    """Train what the queue names and no other process trains, until nothing is left or the minutes are over."""
    if not options.queue.exists():
        raise SystemExit(f"there is no queue {options.queue}. Write one: a name and its seeds on every line.")
    deadline = time.monotonic() + 60 * options.minutes
    options.runs.mkdir(parents=True, exist_ok=True)
    # on SIGTERM the trainer saves and raises `Interrupted`
    timer = threading.Timer(60 * options.minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while time.monotonic() < deadline:
        status = next((status for line in queued(options) if (status := train_line(line, options)) is not None), None)
        if status == "failed":
            return 1  # a CUDA error spoils the process: its caller starts it again
        if status == "stopped" or (status is None and not options.wait):
            return 0
        if status is None:
            time.sleep(1)
    return 0


def queued(options: argparse.Namespace) -> list[list[str]]:
    """The lines of the queue whose experiments are known: a name, then seeds."""
    known = experiments(options.scale)
    lines = [line.split() for line in options.queue.read_text().splitlines()]
    return [line for line in lines if len(line) > 1 and line[0] in known]


def train_line(line: list[str], options: argparse.Namespace) -> str | None:
    """Train and judge one line of the queue: "done", "stopped", "failed", or None where there is nothing to do."""
    name, *seeds = line
    label = "-".join(line)
    experiment = experiments(options.scale)[name]
    assert experiment.train is not None
    ended = any((options.runs / f"{label}.{status}").exists() for status in ("done", "failed"))
    start = experiment.train.start
    if ended or (start is not None and not finished(options.runs / start)):
        return None
    with claimed(options.runs / f"{label}.lock") as free:
        if not free:
            return None
        print(f"{time.strftime('%X')} training {label}", flush=True)
        began = time.monotonic()
        try:
            runs = train_seeds(experiment, [int(seed) for seed in seeds], out=options.runs, device=options.device)
            for run in runs:
                judge(run, options)
        except Interrupted as error:
            print(error, flush=True)
            return "stopped"
        except Exception:
            (options.runs / f"{label}.failed").write_text(traceback.format_exc())
            traceback.print_exc()
            return "failed"
        (options.runs / f"{label}.done").touch()
        print(f"{time.strftime('%X')} done {label}: {time.monotonic() - began:.1f} s", flush=True)
        return "done"


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process has the training now; it is free again when the process ends, however it ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def finished(path: Path) -> bool:
    """Whether a run folder is there and complete."""
    with suppress(ValueError, OSError):
        checkpoint = Run.open(path).latest()
        return checkpoint is not None and checkpoint.finished
    return False


def judge(run: Run, options: argparse.Namespace) -> None:
    """Write a small copy of a finished run into RUNS/small: averaged weights and the errors on fresh prompts."""
    train_config, checkpoint = run.experiment.train, run.latest()
    assert train_config is not None
    assert checkpoint is not None
    b = run.experiment.model.loops
    far = 1 if b == 1 else max(b, FAR.get(run.experiment.name.partition("_")[0], 500))
    model = run.model(options.device)
    given = {"points": train_config.points, "prompts": options.prompts, "seed": PROMPT_SEED, "baselines": {}}
    began = time.monotonic()
    judged = {"b": evaluate(model, run.experiment.task, loops=b, max_loops=far, **given)}
    weights = checkpoint.part("average") or checkpoint.part("model")
    halved = sum(value.numel() for value in weights.values()) > options.half_from
    if halved:
        weights = {name: value.half() for name, value in weights.items()}
        model.load_state_dict({name: value.float() for name, value in weights.items()})
        judged[ROUNDED] = evaluate(model, run.experiment.task, loops=b, max_loops=b, **given)
    if far > b and run.experiment.name.startswith("yang24"):
        judged["far"] = evaluate(model, run.experiment.task, loops=far, max_loops=far, **given)
    origin = {**run.provenance(), "side_by_side": options.beside, "judge_seconds": round(time.monotonic() - began, 2)}
    target = options.runs / "small" / run.path.name
    shutil.rmtree(target, ignore_errors=True)
    small = Run.create(target.with_name(f".{target.name}"), run.experiment)
    shutil.copy(run.path / "metrics.jsonl", small.path)
    tensors = {f"average/{name}": value for name, value in weights.items()}
    small.save(Checkpoint(checkpoint.step, finished=True, tensors=tensors))
    write_json(small.path / "provenance.json", {**origin, "weights": "average alone"})
    write_json(small.path / "evaluation.json", finite({name: curves.to_data() for name, curves in judged.items()}))
    os.rename(small.path, target)


def folders(path: Path) -> list[Path]:
    """The run folders in a folder that are whole."""
    return sorted(file.parent for file in path.glob("*/config.json") if not file.parent.name.startswith("."))


def table(folder: Path) -> str:
    """What is finished, one line each; an error is that of the last pair, or of all tokens of a sequence."""
    names = "run", "seed", "steps x batch", "seconds", "logged loss, error", "at b [90%]", "mean", "as float16", "far"
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    for path in folders(folder):
        run = Run.open(path)
        train_config, b, last = run.experiment.train, run.experiment.model.loops, run.metrics()[-1]
        assert train_config is not None
        judged = read_json(path / "evaluation.json")
        [near], by_loops = judged["b"]["by_examples"], judged["b"]["by_loops"]
        at_b, low, high = (by_loops[key][b - 1] for key in ("mean", "low", "high"))
        rounded = judged.get(ROUNDED)
        cells = (
            path.name,
            str(train_config.seed),
            f"{train_config.steps} x {train_config.batch}",
            f"{run.provenance()['train_seconds']:.0f}",
            f"{last['loss']:.4g}, {last['error']:.4g}",
            f"{at_b:.4g} [{low:.4g}, {high:.4g}]",
            f"{sum(near['mean']) / len(near['mean']):.4g}",
            f"{rounded['by_loops']['mean'][b - 1]:.4g}" if rounded else "-",
            f"{by_loops['mean'][-1]:.4g} after {by_loops['x'][-1]}" if b > 1 else "-",
        )
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def pack(options: argparse.Namespace) -> None:
    """One archive, in pieces, of the small runs that were not sent yet, as many as may travel at once.

    With `--unfinished` the last checkpoint of every training under way comes as well, as far as there is room.
    """
    sent = options.runs / "sent"
    known = set(sent.read_text().split()) if sent.exists() else set()
    new = [path for path in folders(options.runs / "small") if path.name not in known]
    chosen: list[Path] = []
    room = MOST
    for path in sorted(new, key=lambda path: path.stat().st_mtime):
        size = sum(file.stat().st_size + 1024 for file in path.rglob("*"))
        if size <= room:
            chosen.append(path)
            room -= size
    archive = options.runs / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        for path in chosen:
            tar.add(path, path.name)
        for path in sorted(options.runs.glob("*-*/checkpoints")) if options.unfinished else []:
            files = sorted(path.glob("*.safetensors"))
            under_way = files and not (options.runs / "small" / path.parent.name).exists()
            if under_way and files[-1].stat().st_size <= room:
                room -= files[-1].stat().st_size
                beside = [path.parent / name for name in ("config.json", "metrics.jsonl", "provenance.json")]
                for file in (files[-1], *beside):
                    tar.add(file, f"unfinished/{file.relative_to(options.runs)}")
    content = archive.read_bytes()
    for index in range(0, len(content), PIECE):
        (options.out / f"part-{index // PIECE:02d}").write_bytes(content[index : index + PIECE])
    sent.write_text("\n".join([*known, *(path.name for path in chosen)]))
    print(f"packed {len(chosen)} of {len(new)} new runs, {len(content) / 1e6:.1f} MB")


def unpack(options: argparse.Namespace) -> None:
    """Run folders out of the pieces of an archive, their weights in float32."""
    options.home.mkdir(parents=True, exist_ok=True)
    archive = options.home / "archive.tar"
    archive.write_bytes(b"".join(piece.read_bytes() for piece in sorted(options.out.glob("part-*"))))
    with tarfile.open(archive) as tar:
        tar.extractall(options.home, filter="data")
    archive.unlink()
    for path in folders(options.home):
        run = Run.open(path)
        checkpoint = run.latest()
        assert checkpoint is not None
        tensors = {name: value.float() for name, value in checkpoint.tensors.items()}
        if any(value.dtype is torch.float16 for value in checkpoint.tensors.values()):
            run.save(replace(checkpoint, tensors=tensors))
            origin = {**run.provenance(), "weights": "average alone, rounded to float16"}
            write_json(path / "provenance.json", origin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "train", "table", "pack", "unpack"))
    parser.add_argument("--queue", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--wait", action="store_true", help="wait for new lines in the queue")
    parser.add_argument("--unfinished", action="store_true", help="pack checkpoints of trainings under way, too")
    parser.add_argument("--beside", type=int, default=1, help="trainings on the card at once, for the provenance")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--half-from", type=int, default=HALF_FROM)
    parser.add_argument("--scale", default="paper", choices=("paper", "smoke"))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(f"{name} {experiment.folder}" for name, experiment in experiments(options.scale).items()))
    elif options.what == "train":
        return train_queue(options)
    elif options.what == "table":
        print(table(options.home or options.runs / "small"))
    else:
        {"pack": pack, "unpack": unpack}[options.what](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
