"""Experiments of a figure as one sweep: finished runs and kept models are used, and seeds train as one stack."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from looped.experiment import Experiment, hash_of
from looped.files import Busy, read_json
from looped.training.executors import Executor
from looped.training.folder import checkpoint_steps, read_checkpoint
from looped.training.kept import kept_models
from looped.training.points import Standing, point, standing
from looped.training.run import Run
from looped.training.sweep import sweep
from looped.training.trainer import Diverged


def train_grid(
    experiments: Sequence[Experiment],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
    trained: Callable[[Run], None] = lambda run: None,
    executor: Executor | None = None,
) -> list[Run]:
    """The run of every experiment, in the order asked, each trained unless `out` has it or it is a kept model.

    A sweep whose points are the experiments: they share their folders with every other, and a stopped grid goes on
    where it stopped. `progress` hears what is being trained and the share of the steps asked that is done, `trained` of
    every run at the end. Where a run diverges, or another process trains it, the others are still trained; then
    `Diverged` or `Busy` comes.
    """
    asked = [point(one, out) for one in experiments]
    kept = _kept_by_hash({one.experiment.hash for one in asked})
    used = {
        one.path: Run(kept[one.experiment.hash], one.experiment)
        for one in asked
        if one.experiment.hash in kept and standing(one.path).status != "finished"
    }
    points = list({one.path: one for one in asked if one.path not in used}.values())
    if used and not points:
        progress("all are kept models", 1.0)
    total, share = sum(one.steps for one in points), 0.0
    done = [0] * len(points)
    finished: set[int] = set()
    stepped = 0

    def tell(index: int, one: Standing) -> None:
        nonlocal share, stepped
        stepped += one.step - done[index]
        done[index] = one.step
        if one.status == "finished":
            finished.add(index)
        share = max(share, stepped / total)  # a run that goes back to an earlier step does not turn the bar back
        progress(f"{points[index].experiment.name} ({len(finished)} of {len(points)} runs done)", share)

    executor = executor or Executor(device=torch.device(device).type)
    stands = sweep(points, executor, tell=tell)
    for status, kind in (("failed", ValueError), ("diverged", Diverged), ("busy", Busy)):
        troubles = list(dict.fromkeys(one.message for one in stands if one.status == status))
        if troubles:
            count = sum(one.status == status for one in stands)
            said = {
                "failed": f"{count} of {len(points)} runs failed. {' '.join(troubles)}",
                "diverged": f"{count} of {len(points)} runs diverged. {' '.join(troubles)}",
                "busy": f"all is trained but what another process trains. {' '.join(troubles)} Then ask again.",
            }
            raise kind(said[status])
    runs = [used.get(one.path) or Run.create(one.path, one.experiment) for one in asked]
    for run in runs:
        trained(run)
    return runs


def train_variants(
    variants: Mapping[str, Experiment],
    seeds: Sequence[int],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
    trained: Callable[[Run], None] = lambda run: None,
    executor: Executor | None = None,
) -> dict[str, list[Run]]:
    """The runs of every variant, one for each seed."""
    grid = []
    for label, one in variants.items():
        if one.train is None:
            raise ValueError(f"`{label}` says nothing about training. Set `train`.")
        grid += [replace(one, train=replace(one.train, seed=seed)) for seed in seeds]
    found = iter(train_grid(grid, out=out, device=device, progress=progress, trained=trained, executor=executor))
    return {label: [next(found) for _ in seeds] for label in variants}


def _kept_by_hash(wanted: Collection[str]) -> dict[str, Path]:
    """The kept models of experiments with the `wanted` hashes, as this library writes them today."""
    found: dict[str, Path] = {}
    for path in kept_models().values():
        with contextlib.suppress(ValueError, OSError):  # of code that was not handed over, or damaged: no run's place
            config = read_json(path / "config.json")
            own = Experiment.from_data(config).hash
            if own in wanted and own not in found:
                [step] = checkpoint_steps(path)
                # weights of another config under this one's name, or of an earlier step, are not what it gives
                checkpoint = read_checkpoint(path, step)
                if checkpoint.finished and checkpoint.experiment == hash_of(config):
                    found[own] = path
    return found
