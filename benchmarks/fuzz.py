"""Bad input at every entry point, in hundreds: the answer is finite, or one line says what is wrong.

    python benchmarks/fuzz.py [--examples 350] [--seed 0] [--entry commands] [--only 17]

An example is a function of entry point, seed and number: `--entry runs --seed 0 --only 17` repeats one. Prints how many
passed, each failure with its input and what went wrong, and the slowest example; exits 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from fuzz.entries import ENTRIES
from fuzz.harness import Outcome, run_example


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=350, help="examples for each entry point")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entry", choices=list(ENTRIES), action="append")
    parser.add_argument("--only", type=int, help="repeat one example and print it in full")
    parser.add_argument("--json", metavar="FILE", help="write the counts here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numbers = range(options.examples) if options.only is None else [options.only]
    print(f"seed {options.seed}, {len(numbers)} examples for each entry point")
    print(f"{'':12}{'tried':>8}{'answered':>10}{'refused':>10}{'failed':>8}{'slowest':>10}")
    outcomes: list[Outcome] = []
    for name in options.entry or ENTRIES:
        with tempfile.TemporaryDirectory() as folder:
            here = [run_example(name, ENTRIES[name], options.seed, number, Path(folder)) for number in numbers]
        outcomes += here
        _print_counts(name, here)
        for outcome in here:
            if outcome.kind == "failed" or options.only is not None:
                print(f"{outcome.kind}: {outcome}", flush=True)
    if len(options.entry or ENTRIES) > 1:
        _print_counts("in all", outcomes)
    if options.json:
        counts = {name: Counter(outcome.kind for outcome in outcomes if outcome.entry == name) for name in ENTRIES}
        Path(options.json).write_text(json.dumps({"seed": options.seed, "counts": counts}, indent=2) + "\n")
    return int(any(outcome.kind == "failed" for outcome in outcomes))


def _print_counts(name: str, outcomes: list[Outcome]) -> None:
    count = Counter(outcome.kind for outcome in outcomes)
    slowest = max((outcome.seconds for outcome in outcomes), default=0.0)
    numbers = f"{len(outcomes):8,}{count['answered']:10,}{count['refused']:10,}{count['failed']:8,}"
    print(f"{name:12}{numbers}{slowest:8.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
