"""Seconds and memory of listing a sweep, the queue and a report for 50, 1,000 and 10,000 finished points.

    python benchmarks/many_points.py [--points 50 1000 10000] [--folder FOLDER]

One training of seconds is made; every point is a folder with the config of its own and links to the files of that
training. Each command runs in a new process. Seconds are those of the CPU, since other work on the machine makes those
on the clock say little; start-up is what a command takes for the smallest number of points, 50 by default: a report
draws that many runs and no more. Exits 1 where a command takes more than 2 s beyond that, or more than 50 MB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MORE_S, MORE_MB = 2.0, 50.0
"""What a command may take beyond the smallest number of points."""
RATES = 10
"""Learning rates; each has a tenth of the points, which differ in their seeds."""


def write_points(folder: Path, count: int) -> None:
    """A sweep of so many finished points."""
    # here and not above: what this process takes would count as the commands' memory, which it starts
    from looped.papers.yang24 import linear
    from looped.training.sweep import save_sweep
    from looped.training.trainer import train
    from looped.training.trials import trials

    base, out = linear("smoke"), folder / "runs"
    rates = [0.001 * (1 + index) for index in range(RATES)]
    points = trials(base, {"train.optimizer.learning_rate": rates}, seeds=range(count // RATES), out=out)
    first = train(points[0].experiment, out=out)
    files = [first.path / name for name in ("metrics.jsonl", "provenance.json")]
    checkpoints = [*(first.path / "checkpoints").glob("*.safetensors")]
    for point in points[1:]:
        (point.path / "checkpoints").mkdir(parents=True)
        (point.path / "config.json").write_text(json.dumps(point.experiment.to_data(), indent=2))
        for file in files:
            os.link(file, point.path / file.name)
        for file in checkpoints:
            os.link(file, point.path / "checkpoints" / file.name)
    save_sweep(points)


def commands(count: int) -> dict[str, list[str]]:
    """What is typed after `looped` for so many points."""
    rates = ",".join(repr(0.001 * (1 + index)) for index in range(RATES))
    sweep = ["sweep", "yang24.linear", f"train.optimizer.learning_rate={rates}", "--seeds", str(count // RATES)]
    sweep += ["--scale", "smoke"]
    return {
        "sweep --list": [*sweep, "--list"],
        "sweep, finished": [*sweep, "--prompts", "0"],
        "queue": ["queue", "--scale", "smoke"],
        "report": ["report"],
    }


def measure(words: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a command."""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "looped", *words],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"`looped {' '.join(words)}` fails: {(folder / 'output').read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[50, 1000, 10_000], help="multiples of 10")
    parser.add_argument("--only", nargs="+", choices=[*commands(RATES)], help="which commands")
    parser.add_argument("--folder", type=Path, help="work there, and take the points that are there")
    options = parser.parse_args(arguments)
    too_much = False
    with tempfile.TemporaryDirectory() if options.folder is None else contextlib.nullcontext(options.folder) as place:
        first: dict[str, tuple[float, float]] = {}
        for count in sorted(options.points):
            folder = Path(place) / str(count)
            if not folder.exists():
                writer = multiprocessing.get_context("spawn").Process(target=write_points, args=(folder, count))
                writer.start()
                writer.join()
            for name in options.only or commands(count):
                seconds, memory = measure(commands(count)[name], folder)
                start = first.setdefault(name, (seconds, memory))
                more = seconds - start[0], memory - start[1]
                too_much |= more[0] > MORE_S or more[1] > MORE_MB
                size = (folder / "report.html").stat().st_size / 1e6 if name == "report" else 0
                page = f", page of {size:.1f} MB" if size else ""
                print(
                    f"{count:6,} points, {name:16}: {seconds:6.2f} s ({more[0]:+.2f}), {memory:4.0f} MB "
                    f"({more[1]:+.0f}){page}",
                    flush=True,
                )
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
