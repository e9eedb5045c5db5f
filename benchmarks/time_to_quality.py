"""Seconds from the start of a process to a model better than yang24's published looped one, on a GPU.

    python benchmarks/time_to_quality.py [--seeds 3] [--out runs] [--json FILE]

Trains `yang24.linear` at `paper` scale, each seed in its own process, alone on the card, and evaluates it on 1280 fresh
prompts in float32. A seed passes with an error of at most .0242 after 20 examples and 7.8e-4 after 40, at b loops, and
at most 1.2 times that at 2b. `compile` is the part of the total that compilation and capture of kernels take. Exits 1
if a seed misses. `--scale smoke --device cpu` is a rehearsal without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from looped.evaluation.curves import evaluate
from looped.experiment import TrainConfig
from looped.files import write_json
from looped.recipes import experiment
from looped.training.provenance import provenance
from looped.training.trainer import train

PUBLISHED = {20: 0.0242, 40: 7.8e-4}
"""Examples -> error of the published looped model."""
DRIFT = 1.2
SETTLED = 3
"""How many steps it takes to compile and capture a new prompt length."""


def lengths(config: TrainConfig) -> list[int]:
    """The steps at which prompts become longer, so that something new is compiled."""
    quarter = -(-config.points // 4)
    schedule = config.active_points or (lambda step, steps: config.points)
    cuts = [-(-int(schedule(step, config.steps)) // quarter) for step in range(config.steps)]
    return [step for step in range(config.steps) if step == 0 or cuts[step] != cuts[step - 1]]


def one_seed(options: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one seed, in this process."""
    base = experiment(options.recipe, options.scale)
    assert base.train is not None
    seeded = replace(base, train=replace(base.train, seed=options.seed))
    if (folder := options.out / seeded.folder).exists():
        raise ValueError(f"{folder} exists: its training would not be timed whole. Choose another --out.")
    device = torch.device(options.device)
    begins = lengths(base.train)
    stamps: dict[int, float] = {}

    def clock(step: int, line: dict[str, float]) -> None:
        if step in begins or step - SETTLED in begins:
            if device.type == "cuda":
                torch.cuda.synchronize()
            stamps[step] = time.time()

    imported = time.time()
    run = train(seeded, out=options.out, device=device, progress=clock)
    trained = time.time()
    stamps[0] = imported
    compiling = sum(stamps[step + SETTLED] - stamps[step] for step in begins if step + SETTLED in stamps)
    model = run.model(device)
    b, points = seeded.model.loops, base.train.points
    given = {"points": points, "seed": options.seed + 1, "baselines": {}}
    curves = {loops: evaluate(model, seeded.task, loops=loops, max_loops=loops, **given) for loops in (b, 2 * b)}
    places = [k for k in PUBLISHED if k < points] or [points - 1]
    errors = {
        loops: {k: [getattr(curve.by_examples[0], key)[k] for key in ("mean", "low", "high")] for k in places}
        for loops, curve in curves.items()
    }
    drift = max(errors[2 * b][k][0] / errors[b][k][0] for k in places)
    judged_at = [k for k in places if k in PUBLISHED]  # none at a smaller scale: there nothing is judged
    met = drift <= DRIFT and all(errors[b][k][0] <= PUBLISHED[k] for k in judged_at) if judged_at else None
    return {
        "seed": options.seed,
        "seconds": trained - options.began,
        "import": imported - options.began,
        "compile": compiling,
        "training": trained - imported - compiling,
        "judging": time.time() - trained,
        "errors": errors,
        "drift": drift,
        "met": met,
        "run": run.path.name,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipe", default="yang24.linear")
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}.")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("this needs a GPU; `--scale smoke --device cpu` rehearses it without one.")
    if options.seed is not None:
        print(json.dumps(one_seed(options)))
        return 0
    results = []
    for seed in range(options.seeds):
        given = [f"--{name}={getattr(options, name)}" for name in ("recipe", "scale", "device", "out")]
        command = [sys.executable, __file__, f"--seed={seed}", f"--began={time.time()}", *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        results.append(result)
        parts = ", ".join(f"{name} {result[name]:.1f}" for name in ("import", "compile", "training"))
        print(f"seed {seed}: {result['seconds']:.1f} s ({parts})")
        for loops, at in result["errors"].items():
            numbers = (f"k={k} {mean:.2e} [{low:.2e}, {high:.2e}]" for k, (mean, low, high) in at.items())
            print(f"    {loops} loops: {', '.join(numbers)}")
        verdict = {True: "met", False: "MISSED", None: "not judged at this scale"}[result["met"]]
        print(f"    2b over b {result['drift']:.2f}: {verdict}", flush=True)
        if options.json:
            targets = {"published": PUBLISHED, "drift": DRIFT}
            write_json(options.json, {**targets, "provenance": provenance(options.device), "seeds": results})
    print(f"slowest {max(result['seconds'] for result in results):.1f} s of {len(results)} seeds")
    return 1 if any(result["met"] is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
