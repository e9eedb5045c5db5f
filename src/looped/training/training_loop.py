"""The one training loop: step, log, save, stop, go on. Stacks of runs and families of models both train by it."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from looped.files import one_line
from looped.training.distributed import ALONE, Team
from looped.training.folder import Checkpoint, Folder
from looped.training.provenance import commit as current_commit
from looped.training.stopping import Interrupted, nothing_to_save, stop_signals, writing


class TrainingLoop(ABC):
    """A training in progress: its folders, how many steps are done, and the time they took.

    A subclass says what a step does and which tensors a checkpoint holds.
    """

    def __init__(
        self, folders: Sequence[Folder], device: torch.device, *, steps: int, keep_checkpoints: int, team: Team = ALONE
    ):
        self.folders, self.device, self.team = list(folders), device, team
        self.steps, self.keep_checkpoints = steps, keep_checkpoints
        self.done = 0
        self.earlier: dict[str, Any] = {}
        """The provenance that earlier processes left."""
        self.started = self.saved_at = time.monotonic()
        current_commit()  # found now: sources may be edited while it trains

    @abstractmethod
    def step(self, now: int) -> None:
        """One update of the weights; `now` counts from 0."""

    @abstractmethod
    def checkpoint_due(self) -> bool:
        """Whether to write a checkpoint after the step just done; the last step always has one."""

    @abstractmethod
    def checkpoints(self) -> list[dict[str, Tensor]]:
        """The tensors of a checkpoint of this moment, one dict a folder."""

    @abstractmethod
    def load(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Take everything that `checkpoints` gave from one checkpoint a folder."""

    def log(self) -> None:  # noqa: B027
        """Record the step just done, where one is due."""

    def finish(self) -> None:  # noqa: B027
        """Do what comes after the last step and before its checkpoint."""

    def facts(self) -> dict[str, Any]:
        """What else belongs into the provenance."""
        return {}

    @property
    def seconds(self) -> float:
        """Training time so far, of earlier processes too."""
        return self.earlier.get("train_seconds", 0.0) + time.monotonic() - self.started

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Do all steps that are left, with checkpoints on the way; `progress` gets the number of steps done."""
        self.started = time.monotonic()
        began = self.done
        with stop_signals() as stopping:
            while self.done < self.steps:
                first = self.done == began
                with nothing_to_save(self.team, self.where_it_stopped()) if first else contextlib.nullcontext():
                    self.step(self.done)
                stopping.listen()
                self.done += 1
                last = self.done == self.steps
                self.log()
                if last:
                    self.finish()
                # read once: a signal from here on stops after the next step, and saves there
                stop = self.team.any(stopping.is_set())
                if self.checkpoint_due() or last or stop:
                    self.save()
                if progress is not None:
                    progress(self.done)
                if stop and not last:
                    raise Interrupted(self.where_it_stopped())

    def save(self) -> None:
        """Write a checkpoint of this moment into every folder."""
        # to the host first: that waits for the device, and the time it worked counts
        states = [{name: value.cpu() for name, value in state.items()} for state in self.checkpoints()]
        facts = {**self._commits(), **self.facts()}
        together = tuple(folder.hash for folder in self.folders) if len(self.folders) > 1 else ()
        for folder, state in zip(self.folders, states, strict=True):
            with writing(folder):
                folder.save_provenance(self.device, self.seconds, **facts)
                folder.save(Checkpoint(self.done, self.done == self.steps, state, together))
        for folder in self.folders:  # only now: until all have the new one, all have an old one in common
            with writing(folder):
                folder.prune(self.done, keep=self.keep_checkpoints)
        self.saved_at = time.monotonic()

    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Go back to the moment of the checkpoints, one a folder; with none, stay at the start."""
        if not checkpoints:
            return
        for folder, checkpoint in zip(self.folders, checkpoints, strict=True):
            folder.check(checkpoint)
        try:
            self.load(checkpoints)
        except (RuntimeError, KeyError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else one_line(error)
            raise ValueError(f"the checkpoint in {self.folders[0].path} does not fit its config: {reason}.") from None
        self.done = checkpoints[0].step
        self.earlier = self.folders[0].provenance()

    def _commits(self) -> dict[str, Any]:
        """The commits that earlier steps were trained at, where they were not all trained at this one."""
        earlier = [*self.earlier.get("earlier_commits", []), self.earlier.get("commit")]
        others = [commit for commit in dict.fromkeys(earlier) if commit not in (None, current_commit())]
        return {"earlier_commits": others} if others else {}

    def where_it_stopped(self) -> str:
        """Where the training stands and what is saved, for messages."""
        if not self.done and self.folders:
            return f"stopped before the first of {self.steps} steps; nothing was trained. {self.folders[0].resume}"
        where = f"stopped at step {self.done} of {self.steps}"
        if not self.folders:
            return f"{where}; it has no folder, so nothing is saved."
        return f"{where}; saved in {', '.join(str(folder.path) for folder in self.folders)}. {self.folders[0].resume}"
