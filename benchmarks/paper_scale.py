"""Train named experiments at the paper's scale on one GPU, and bring them home as small run folders.

    python benchmarks/paper_scale.py train --queue FILE --runs DIR --minutes 9     trains what the queue names
    python benchmarks/paper_scale.py pack --runs DIR --out OUT                     archives of what is finished
    python benchmarks/paper_scale.py unpack --out OUT --home DIR                   run folders out of the archives
    python benchmarks/paper_scale.py table --runs DIR                              what is finished, a line each
    python benchmarks/paper_scale.py measure --out FILE                            trainings side by side, or stacked
    python benchmarks/paper_scale.py list                                          the experiments' names

A queue is a text file with one training a line: `gao24.regression 0`, or `gao24.regression 0 1 2` for three seeds as
one stack of models. It is read again before every training, so it may change meanwhile. Several `train` processes may
share a queue: each training has one of them. A training that is stopped by the minutes is saved, and goes on when the
same command is given again; a finished one is never trained again.

`pack` writes the averaged weights, the config, the metrics, the provenance and the errors on 1280 prompts, in pieces of
one archive; models of more than `HALF_FROM` parameters travel as float16. `--scale smoke --device cpu` rehearses it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
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
from typing import Any

import torch

from looped.evaluation.curves import Evaluation, evaluate
from looped.experiment import Experiment
from looped.files import write_json
from looped.functional.schedules import Ramp, RandomDepth, Trapezoid
from looped.papers import gao24, yang24
from looped.papers.gao24.variants import three
from looped.papers.yang24.measuring import with_loops
from looped.papers.yang24.trainings import PAPER, training
from looped.tasks.task import SequenceTask
from looped.training.run import Checkpoint, Run
from looped.training.stopping import Interrupted
from looped.training.trainer import Trainer, train, train_seeds

STEPS = {"regression": 7000, "autoregression": 6000, "chain_of_thought": 4000}
"""Steps of gao24's Figure 2, the same for the three models of a task."""
CELL_STEPS = 8000
"""Steps of every cell of yang24's Figure 4."""
PROMPTS, PROMPT_SEED = 1280, 1
FAR = {"yang24.tree": 200, "gao24.regression": 200, "gao24.autoregression": 200, "gao24.chain": 200}
"""Most loops that are judged; 500 for the others."""
HALF_FROM = 4_000_000
"""Parameters from which on weights travel as float16: a file that comes back has at most 16 MiB."""
PIECE, MOST = 15 * 2**20, 60 * 2**20
"""Bytes of one file of an archive, and of all of them."""


def experiments(scale: str) -> dict[str, Experiment]:
    """All experiments by name."""
    listed = [*figure_2(scale), *trees(scale), yang24.tied(scale), *figure_4(scale)]
    if scale == "smoke":
        listed = [training(experiment, steps=4, checkpoint_every=2, log_every=2) for experiment in listed]
    return {experiment.name: experiment for experiment in listed}


def figure_2(scale: str) -> Iterator[Experiment]:
    """gao24's three models on its three tasks, with yang24's optimiser, averaging and precision."""
    for task, steps in STEPS.items():
        base = getattr(gao24, task)(scale)
        if scale == "paper":
            dims = None if isinstance(base.task, SequenceTask) else Ramp(start=5, stop=20, share=1 / 3)
            ours = {"optimizer": PAPER.optimizer, "average": PAPER.average, "dtype": PAPER.dtype, "dims": dims}
            base = training(base, steps=steps, batch=64, log_every=100, checkpoint_every=2000, **ours)
        yield from three(base, 12 if scale == "paper" else 2).values()


def trees(scale: str) -> Iterator[Experiment]:
    """Decision trees in two stages: few loops from nothing, then b = 70 from there; later pairs weigh more in both."""
    base = yang24.tree(scale)
    first, longer = replace(base, name="yang24.tree_first"), replace(base, name="yang24.tree_longer")
    if scale == "paper":
        optimizer = replace(PAPER.optimizer, schedule=Trapezoid(warmup=0.02, decay=0.3, floor=0.4))
        every = {"log_every": 500, "checkpoint_every": 5000, "emphasis": 1.0}
        shallow = RandomDepth(low=16, high=32)
        first = training(first, steps=36_000, depth=shallow, optimizer=optimizer, **every)
        first = replace(first, model=replace(first.model, loops=24))
        rates = {"learning_rate": 1.5e-3, "muon_learning_rate": 5e-3, "schedule": Trapezoid(warmup=0.02, decay=0.9)}
        optimizer = replace(PAPER.optimizer, **rates)
        longer = training(longer, steps=15_000, dims=None, active_points=None, optimizer=optimizer, **every)
    yield first
    yield training(longer, start=first.folder if scale == "paper" else None)


def figure_4(scale: str) -> Iterator[Experiment]:
    """Cells (b, T) of linear regression, all by one recipe; the loops climb from T to b as in the paper."""
    for b in (12, 20, 30, 40, 50) if scale == "paper" else (4,):
        for window in (5, 10, 15) if scale == "paper" else (2,):
            base = replace(yang24.linear(scale), name=f"yang24.linear_b{b}_T{window}")
            if scale == "paper":
                base = training(base, steps=CELL_STEPS, batch=64)
            yield with_loops(base, b, window, every=100)


def train_queue(options: argparse.Namespace) -> int:
    """Train what the queue names and no other process trains, until nothing is left or the minutes are over."""
    deadline = time.monotonic() + 60 * options.minutes
    known = experiments(options.scale)
    options.runs.mkdir(parents=True, exist_ok=True)
    # the trainer saves on SIGTERM, and raises `Interrupted`
    timer = threading.Timer(60 * options.minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while time.monotonic() < deadline:
        for line in options.queue.read_text().splitlines():
            name, *seeds = line.split()
            label = "-".join((name, *seeds))
            ended = any((options.runs / f"{label}.{how}").exists() for how in ("done", "failed"))
            if ended or name not in known:
                continue
            members = [training(known[name], seed=int(seed)) for seed in seeds]
            start = members[0].train.start  # pyright: ignore[reportOptionalMemberAccess]
            if start is not None and not finished(options.runs / start):
                continue
            with claimed(options.runs / f"{label}.lock") as free:
                if not free:
                    continue
                print(f"{time.strftime('%X')} training {label}", flush=True)
                try:
                    began = time.monotonic()
                    settings = {"out": options.runs, "device": options.device}
                    alone = len(members) == 1
                    runs = (
                        [train(members[0], **settings)]
                        if alone
                        else train_seeds(known[name], [int(seed) for seed in seeds], **settings)
                    )
                    for run in runs:
                        judge(run, options)
                    options.runs.joinpath(f"{label}.done").touch()
                    print(f"{time.strftime('%X')} done {label}: {time.monotonic() - began:.1f} s", flush=True)
                except Interrupted as stopped:
                    print(stopped, flush=True)
                    return 0
                except Exception:
                    options.runs.joinpath(f"{label}.failed").write_text(traceback.format_exc())
                    traceback.print_exc()
                    return 1  # a CUDA error spoils the process: whoever started it starts it again
            break
        else:
            if not options.wait:
                return 0
            time.sleep(1)
    return 0


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
    judged: dict[str, Any] = {"b": evaluate(model, run.experiment.task, loops=b, max_loops=far, **given)}
    weights = checkpoint.part("average") or checkpoint.part("model")
    halved = sum(value.numel() for value in weights.values()) > options.half_from
    if halved:
        weights = {name: value.half() for name, value in weights.items()}
        model.load_state_dict({name: value.float() for name, value in weights.items()})
        judged["b, weights rounded to float16"] = evaluate(model, run.experiment.task, loops=b, max_loops=b, **given)
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
    write_json(small.path / "evaluation.json", {name: shortened(found) for name, found in judged.items()})
    os.rename(small.path, target)


def shortened(found: Evaluation) -> dict[str, Any]:
    """An evaluation as data, its numbers to six digits."""

    def rounded(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: rounded(value) for key, value in data.items()}
        if isinstance(data, list):
            return [rounded(value) for value in data]
        # strings where JSON has no number
        return float(f"{data:.6g}") if isinstance(data, float) and abs(data) < float("inf") else (
            str(data) if isinstance(data, float) else data
        )  # fmt: skip

    return rounded(found.to_data())


def folders(path: Path) -> list[Path]:
    """The run folders in a folder that are whole."""
    return sorted(file.parent for file in path.glob("*/config.json") if not file.parent.name.startswith("."))


def line_of(path: Path) -> dict[str, Any]:
    """The facts of a small run folder for the table."""
    run = Run.open(path)
    train_config = run.experiment.train
    assert train_config is not None
    last = run.metrics()[-1]
    judged, origin = json.loads((path / "evaluation.json").read_text()), run.provenance()
    [near], by_loops = judged["b"]["by_examples"], judged["b"]["by_loops"]
    b = run.experiment.model.loops
    rounded = judged.get("b, weights rounded to float16")
    return {
        "run": path.name,
        "seed": train_config.seed,
        "steps": train_config.steps,
        "batch": train_config.batch,
        "seconds": round(origin["train_seconds"], 1),
        "stack": origin.get("models_in_one_batch", 1),
        "loss": last["loss"],
        "error": last["error"],
        "at_b": by_loops["mean"][b - 1],
        "low": by_loops["low"][b - 1],
        "high": by_loops["high"][b - 1],
        "mean_over_points": sum(near["mean"]) / len(near["mean"]),
        "rounded": None if rounded is None else rounded["by_loops"]["mean"][b - 1],
        "far_loops": by_loops["x"][-1],
        "far": by_loops["mean"][-1],
    }


def table(folder: Path) -> str:
    """What is finished, a line each."""
    head = (
        "run | seed | steps x batch | seconds (stack of) | last logged loss, error | at b [90%] | mean over points | "
        "as float16 | after loops"
    )
    lines = [head]
    for path in folders(folder):
        one = line_of(path)
        rounded = "-" if one["rounded"] is None else f"{one['rounded']:.4g}"
        far = f"{one['far']:.4g}" if isinstance(one["far"], float) else one["far"]
        lines.append(
            f"{one['run']} | {one['seed']} | {one['steps']} x {one['batch']} | {one['seconds']} ({one['stack']}) | "
            f"{one['loss']:.4g}, {one['error']:.4g} | {one['at_b']:.4g} [{one['low']:.4g}, {one['high']:.4g}] | "
            f"{one['mean_over_points']:.4g} | {rounded} | {one['far_loops']}: {far}"
        )
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
            done = (options.runs / "small" / path.parent.name).exists() or not files
            if not done and files[-1].stat().st_size <= room:
                room -= files[-1].stat().st_size
                for file in (files[-1], path.parent / "config.json", path.parent / "metrics.jsonl",
                             path.parent / "provenance.json"):  # fmt: skip
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


def measure(options: argparse.Namespace) -> None:
    """Steps a second of trainings alone, side by side in processes of their own, and as one stack of three seeds."""
    context = multiprocessing.get_context("spawn")
    jobs = {
        **{f"ar{seed}": ("gao24.autoregression", [seed]) for seed in range(3)},
        "stack": ("gao24.autoregression", [0, 1, 2]),
        "tree": ("yang24.tree_first", [0]),
    }
    pipes: dict[str, Any] = {}
    for label, (name, seeds) in jobs.items():
        ours, theirs = context.Pipe()
        given = (theirs, name, seeds, options.scale, options.device, str(options.out) + f".{label}")
        context.Process(target=measured, args=given, daemon=True).start()
        theirs.close()
        pipes[label] = ours
    found: dict[str, Any] = {label: pipe.recv() for label, pipe in pipes.items()}  # seconds to warm up, or an error
    print("warm after", found, flush=True)
    together = (["ar0"], ["ar0", "ar1"], ["ar0", "ar1", "ar2"], ["stack"], ["tree"], ["tree", "ar0"],
                ["tree", "ar0", "ar1"])  # fmt: skip
    rates: dict[str, Any] = {}
    for labels in together:
        if any(isinstance(found[label], str) for label in labels):
            continue
        for label in labels:
            pipes[label].send(options.seconds)
        rates["+".join(labels)] = {label: round(pipes[label].recv(), 1) for label in labels}
        print("+".join(labels), "steps a second:", rates["+".join(labels)], flush=True)
    for pipe in pipes.values():
        with suppress(OSError):
            pipe.send(None)
    alone = rates["ar0"]["ar0"]
    two, three_, stack = (
        sum(rates[label].values()) / alone for label in ("ar0+ar1", "ar0+ar1+ar2", "stack")
    )  # fmt: skip
    workers = 3 if three_ >= 1.25 and three_ >= 1.1 * two else 2 if two >= 1.15 else 1
    print(f"two at once {two:.2f}, three {three_:.2f}, a stack of three {3 * stack:.2f} times one: {workers} workers")
    options.out.write_text(str(workers))


def measured(pipe: Any, name: str, seeds: list[int], scale: str, device: str, folder: str) -> None:
    """A training that steps for as many seconds as it is told; runs in a process of its own."""
    began = time.monotonic()
    try:
        members = [training(experiments(scale)[name], seed=seed) for seed in seeds]
        runs = [Run.create(Path(folder) / member.folder, member) for member in members]
        trainer = Trainer(runs, torch.device(device))
        last = trainer.config.steps
        done = 0

        def steps(count: int) -> None:
            nonlocal done
            for _ in range(count):
                # the end of the training: all points and dims
                trainer.step(last - 1 - done % (last // 4 or 1))
                done += 1
            if device == "cuda":
                torch.cuda.synchronize()

        steps(12)
        pipe.send(time.monotonic() - began)
    except Exception as error:
        pipe.send(repr(error))
        return
    while (seconds := pipe.recv()) is not None:
        count, until, first = 0, time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            steps(10)
            count += 10
        pipe.send(count / (time.monotonic() - first))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "pack", "unpack", "table", "measure", "list"))
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
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--scale", default="paper", choices=("paper", "smoke"))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(f"{name} {one.folder}" for name, one in experiments(options.scale).items()))
    elif options.what == "train":
        return train_queue(options)
    elif options.what == "table":
        print(table(options.home or options.runs / "small"))
    else:
        {"pack": pack, "unpack": unpack, "measure": measure}[options.what](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
