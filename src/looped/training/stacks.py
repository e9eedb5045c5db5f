"""The checkpoints of a stack: where a kill left them at different steps, and the tensors of all as one."""

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from looped.training.folder import Checkpoint, read_checkpoint
from looped.training.run import Run


def last_common_checkpoints(runs: list[Run], latest: list[Checkpoint | None]) -> list[Checkpoint | None]:
    """The checkpoints to go on from: for a stack that stands at different steps, those of the last common step.

    So a stack stays one, and equals an unbroken one bit for bit: apart, its runs would round otherwise.
    """
    latest = list(latest)
    index = {name: i for i, run in enumerate(runs) for name in run.known_hashes()}
    stacks = {checkpoint.together for checkpoint in latest if checkpoint is not None and not checkpoint.finished}
    for whole in stacks - {()}:
        members = [index[name] for name in whole if name in index]
        stood = [latest[member] for member in members]
        foreign = any(checkpoint is not None and checkpoint.together != whole for checkpoint in stood)
        level = len({checkpoint and checkpoint.step for checkpoint in stood}) == 1
        if len(members) < len(whole) or foreign or level:
            continue
        if None in stood:
            every = runs[0].experiment.train.checkpoint_every
            if any(checkpoint is not None and checkpoint.step > every for checkpoint in stood):
                continue  # somebody removed a run: what the others have is not thrown away
            for member in members:  # killed in its first save: back to the start, as if there had been none
                runs[member].prune(max(runs[member].steps, default=0), keep=0)
                latest[member] = None
            continue
        shared = set.intersection(*(set(runs[member].steps) for member in members))
        for step in sorted(shared, reverse=True):
            with contextlib.suppress(ValueError):
                common = [read_checkpoint(runs[member].path, step) for member in members]
                if all(checkpoint.together == whole and not checkpoint.finished for checkpoint in common):
                    for member, checkpoint in zip(members, common, strict=True):
                        latest[member] = checkpoint
                    break
    return latest


def parts_of(checkpoints: Sequence[Checkpoint], part: str, device: torch.device) -> dict[str, Tensor]:
    """The tensors under `part`: of one checkpoint as they are, of several with the models as first axis."""
    parts = [checkpoint.part(part) for checkpoint in checkpoints]
    # a count of steps is common to all
    lone = {name for name, value in parts[0].items() if value.ndim == 0 and name.endswith("/step")}
    return {
        name: value.to(device)
        if len(parts) == 1 or name in lone
        else torch.stack([tensors[name] for tensors in parts]).to(device)
        for name, value in parts[0].items()
    }
