"""Does the same seed give the same weights here, bit for bit? Train a few steps twice and look."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from looped.experiment import Experiment
from looped.training.distributed import join
from looped.training.run import Run
from looped.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first tensor that differs."""

    name: str
    """Which one: weights come first, then the optimiser's state and the random state."""
    size: float
    """Largest absolute difference; nan where one is not a number in one of them alone."""
    tensors: int
    """How many tensors differ."""
    of: int
    """How many there are."""


def check_determinism(
    experiment: Experiment,
    *,
    seeds: Sequence[int] | None = None,
    steps: int = 10,
    device: torch.device | str = "cpu",
    engine: str = "auto",
) -> Difference | None:
    """Train `steps` steps twice from the start and compare all that training changed; None where it is equal."""
    if experiment.train is None:
        raise ValueError(f"`{experiment.name}` was imported or constructed: there is nothing to train. Set `train`.")
    own = experiment.train.seed
    members = [replace(experiment, train=replace(experiment.train, seed=seed)) for seed in seeds or [own]]
    first, second = (_few(members, min(steps, experiment.train.steps), device, engine) for _ in range(2))
    different = [name for name, value in first.items() if not _equal(value, second[name])]
    if not different:
        return None
    name = different[0]
    size = (first[name].double() - second[name].double()).abs().max()
    return Difference(name=name, size=float(size), tensors=len(different), of=len(first))


def _few(members: Sequence[Experiment], steps: int, device: torch.device | str, engine: str) -> dict[str, Tensor]:
    """Everything a trainer holds after `steps` steps; nothing is written."""
    team = join(device)
    with tempfile.TemporaryDirectory() as folder:  # empty: a run that has no checkpoint starts fresh
        runs = [Run(Path(folder) / one.hash, one) for one in members]
        trainer = Trainer(runs, team.place(device), engine, team)
        for step in range(steps):
            trainer.step(step)
    state = {f"optimizer {name}": value for name, value in trainer.optimizers.tensors().items()}
    random = {f"generator {index}": one.get_state() for index, one in enumerate(trainer.batches.generators)}
    return {name: value.clone() for name, value in {**trainer.weights(), **state, **random}.items()}


def _equal(one: Tensor, other: Tensor) -> bool:
    """The same bits: a nan equals itself."""
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
