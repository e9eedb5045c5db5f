"""Does the same seed give the same weights here, bit for bit? Train a few steps twice and compare."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from looped.experiment import Experiment, training
from looped.training.distributed import join
from looped.training.run import Run
from looped.training.trainer import trainers


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first tensor that differs."""

    name: str
    """Its name; weights are compared first, then the optimiser's state and the random state."""
    size: float
    """Largest absolute difference; nan where a value is nan in one training alone."""
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
    """Train `steps` steps twice from the start and compare everything; None where all of it is equal."""
    seeds = seeds or [experiment.train.seed]
    members = [training(experiment, seed=seed) for seed in seeds]
    first, second = (_train_briefly(members, min(steps, experiment.train.steps), device, engine) for _ in range(2))
    different = [name for name, value in first.items() if not _equal(value, second[name])]
    if not different:
        return None
    name = different[0]
    size = (first[name].double() - second[name].double()).abs().max()
    return Difference(name=name, size=float(size), tensors=len(different), of=len(first))


def _train_briefly(
    members: Sequence[Experiment], steps: int, device: torch.device | str, engine: str
) -> dict[str, Tensor]:
    """Everything a trainer holds after `steps` steps; nothing is written."""
    team = join(device)
    everything: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:  # empty: a run that has no checkpoint starts fresh
        runs = [Run(Path(folder) / member.hash, member) for member in members]
        for trainer in trainers(runs, team.place(device), engine, team):
            for step in range(steps):
                trainer.step(step)
            state = {f"optimizer {name}": value for name, value in trainer.optimizers.tensors().items()}
            random = {f"generator {i}": source.get_state() for i, source in enumerate(trainer.batches.generators)}
            drawn = {f"random {place}": value for place, value in trainer.draws.state.items()}
            after = "" if trainer.stacked else f" of seed {trainer.seeds[0]}"
            parts = {**trainer.weights(), **state, **random, **drawn}
            everything |= {f"{name}{after * (len(runs) > 1)}": value.clone() for name, value in parts.items()}
    return everything


def _equal(left: Tensor, right: Tensor) -> bool:
    """Whether the bits are the same: a nan equals itself."""
    return torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))
