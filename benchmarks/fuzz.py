"""Bad input at every entry point, in hundreds: the answer is finite, or one line says what is wrong.

    python benchmarks/fuzz.py [--examples 575] [--seed 0] [--entry commands] [--only 17]

An example is a function of entry point, seed and number: `--entry runs --seed 0 --only 17` repeats one. All run in one
worker process, which is ended and started again where an example kills it, or hangs where Python cannot stop it. Prints
how many passed, each failure with its input and what went wrong, the slowest example and the largest; exits 1 if any
failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from fuzz.entries import ENTRIES
from fuzz.harness import MEMORY, PATIENCE, Outcome, run_example


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=575, help="examples for each entry point")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entry", choices=list(ENTRIES), action="append")
    parser.add_argument("--only", type=int, help="repeat one example and print it in full")
    parser.add_argument("--json", metavar="FILE", help="write the counts here")
    options = parser.parse_args()
    numbers = range(options.examples) if options.only is None else range(options.only, options.only + 1)
    print(f"seed {options.seed}, {len(numbers)} examples for each entry point")
    print(f"{'':12}{'tried':>8}{'answered':>10}{'refused':>10}{'failed':>8}{'slowest':>10}{'largest':>10}")
    outcomes: list[Outcome] = []
    started = time.monotonic()
    for name in options.entry or ENTRIES:
        here = [*_outcomes(name, options.seed, numbers)]
        outcomes += here
        _print_counts(name, here)
        for outcome in here:
            if outcome.kind == "failed" or options.only is not None:
                print(f"{outcome.kind}: {outcome}", flush=True)
    if len(options.entry or ENTRIES) > 1:
        _print_counts("in all", outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{seconds:.0f} s of CPU, {(time.monotonic() - started) / 60:.0f} min by the clock")
    if options.json:
        counts = {name: Counter(outcome.kind for outcome in outcomes if outcome.entry == name) for name in ENTRIES}
        Path(options.json).write_text(json.dumps({"seed": options.seed, "counts": counts}, indent=2) + "\n")
    return int(any(outcome.kind == "failed" for outcome in outcomes))


def _outcomes(name: str, seed: int, numbers: range) -> Iterator[Outcome]:
    """What became of the examples, in order; one that takes its worker along is a failure, and a new one goes on."""
    left = numbers
    while left:
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, name, seed, left))
        worker.start()
        theirs.close()
        lives = True
        while left and lives:
            # beyond the worker's own clock, and what it takes to import torch on a busy machine
            late = not ours.poll(PATIENCE + 60)
            try:
                outcome = None if late else ours.recv()
            except EOFError:
                outcome = None
            if lives := outcome is not None:
                yield outcome
            else:
                worker.kill()
                worker.join()
                reason = "a hang that Python could not stop" if late else f"it ended the process: {worker.exitcode}"
                yield Outcome(name, seed, left[0], "it did not live to say what it was", "failed", reason, PATIENCE)
            left = left[1:]
        worker.join()


def _work(pipe: Connection, name: str, seed: int, numbers: range) -> None:
    """Run examples one after another, each in an empty folder, and send what became of each."""
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (what an example prints, the harness reads)
    (kilobytes,) = (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "Available" in line)
    # far above the budget, so that an example that takes too much is a failure and not a refusal; never the machine's
    bound = min(4 * MEMORY, 1024 * int(kilobytes))
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            pipe.send(run_example(name, ENTRIES[name], seed, number, Path(folder)))


def _print_counts(name: str, outcomes: list[Outcome]) -> None:
    count = Counter(outcome.kind for outcome in outcomes)
    slowest = max((outcome.seconds for outcome in outcomes), default=0.0)
    largest = max((outcome.memory for outcome in outcomes), default=0)
    numbers = f"{len(outcomes):8,}{count['answered']:10,}{count['refused']:10,}{count['failed']:8,}"
    print(f"{name:12}{numbers}{slowest:8.1f} s{largest / 2**20:7,.0f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
