"""Many experiments as one piece of work: finished runs are used again, and seeds train as one stack of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from looped.experiment import Experiment
from looped.training.run import Run
from looped.training.trainer import Diverged, train, train_seeds


def train_grid(
    experiments: Sequence[Experiment],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> list[Run]:
    """The run of every experiment, in the order asked, each trained unless `out` has it already.

    Each is the folder `out/NAME-HASH` that `train` would make, so grids share what they have in common; a stopped grid
    goes on where it stopped. `progress` hears what is being trained and the share of the steps asked that is done.
    Where a run diverges the others are still trained; then `Diverged` is raised.
    """
    stacks: dict[str, dict[int, Experiment]] = {}
    for one in experiments:
        if one.train is None:
            raise ValueError(f"`{one.name}` was imported or constructed: there is nothing to train. Set `train`.")
        common = replace(one, train=replace(one.train, seed=0)).hash
        stacks.setdefault(common, {})[one.train.seed] = one
    total = sum(_steps(stack) for stack in stacks.values())
    done, troubles = 0, []
    for number, stack in enumerate(stacks.values(), start=1):
        first = next(iter(stack.values()))
        what = f"{first.name} ({number} of {len(stacks)})"

        def report(step: int, line: dict[str, float], what=what, before=done, stack=stack) -> None:
            progress(what, (before + len(stack) * step) / total)

        progress(what, done / total)
        try:
            train_seeds(first, list(stack), out=out, device=device, progress=report)
        except Diverged as error:
            troubles += [str(error)] if len(stack) == 1 else _alone(stack, out, device)
        done += _steps(stack)
        progress(what, done / total)
    if troubles:
        raise Diverged(f"{len(troubles)} of {len(experiments)} runs diverged. " + " ".join(troubles))
    return [Run.create(Path(out) / f"{one.name}-{one.hash}", one) for one in experiments]


def train_variants(
    variants: Mapping[str, Experiment],
    seeds: Sequence[int],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> dict[str, list[Run]]:
    """The runs of every variant, one for each seed."""
    grid = []
    for label, one in variants.items():
        if one.train is None:
            raise ValueError(f"`{label}` says nothing about training. Set `train`.")
        grid += [replace(one, train=replace(one.train, seed=seed)) for seed in seeds]
    found = iter(train_grid(grid, out=out, device=device, progress=progress))
    return {label: [next(found) for _ in seeds] for label in variants}


def _steps(stack: dict[int, Experiment]) -> int:
    """Steps of all members together."""
    return sum(one.train.steps for one in stack.values() if one.train is not None)


def _alone(stack: dict[int, Experiment], out: str | Path, device: str | torch.device) -> list[str]:
    """Train one by one, so that a seed that diverges takes no other with it; the messages of those that did."""
    troubles = []
    for one in stack.values():
        try:
            train(one, out=out, device=device)
        except Diverged as error:
            troubles.append(str(error))
    return troubles
