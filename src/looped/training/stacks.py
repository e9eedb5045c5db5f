"""A stack of runs that a kill or damage left at different steps goes back to the last step that all of it has."""

import contextlib

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
