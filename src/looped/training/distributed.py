"""Several processes train one run: every rank draws the whole batch, keeps its rows, and adds up the gradients.

    torchrun --nproc-per-node 2 -m looped train RECIPE

Rank 0 alone writes files and speaks; results equal one process's up to the order in which rows are summed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from looped.experiment import Experiment
from looped.files import digest, locked
from looped.prompt import P
from looped.training.folder import Checkpoint, read_checkpoint
from looped.training.run import Run

TIMEOUT = "LOOPED_RANK_TIMEOUT"
"""Environment variable: seconds after which a rank that does not answer counts as lost; 300 where it is not set."""


class LostRank(Exception):
    """Another rank of this job ended or does not answer; everything up to the last checkpoint is saved."""


@dataclass(frozen=True)
class Team:
    """The ranks that train together; a process on its own is a team of one that never waits."""

    rank: int = 0
    """This process's number."""
    size: int = 1
    """How many there are."""
    joined: bool = False
    """This is a torchrun job: even one rank then goes the way of many."""

    @property
    def leads(self) -> bool:
        """Rank 0 writes the files."""
        return self.rank == 0

    def place(self, device: torch.device | str) -> torch.device:
        """The device of this rank: a GPU each."""
        device = torch.device(device)
        return torch.device("cuda", _local_rank()) if self.joined and device.type == "cuda" else device

    def open(self, path: Path, experiment: Experiment) -> Run:
        """The run folder, which rank 0 makes and writes and the others only look at."""
        return Run.create(path, experiment) if self.leads else Onlooker(path, experiment)

    def lock(self, run: Run) -> contextlib.AbstractContextManager[None]:
        """Rank 0's lock stands for the whole team."""
        return locked(run.path / "lock", str(run.path)) if self.leads else contextlib.nullcontext()

    def checkpoints(self, runs: Sequence[Run], find: Callable[[], list[Checkpoint | None]]) -> list[Checkpoint | None]:
        """The checkpoints that rank 0 finds to go on from; the others read the same ones from the folder."""
        if not self.joined:
            return find()
        latest = find() if self.leads else []
        steps = torch.tensor([-1 if one is None else one.step for one in latest] or [-1] * len(runs))
        with self._others():
            dist.broadcast(steps, src=0)
        if self.leads:
            return latest
        try:
            return [
                None if step < 0 else read_checkpoint(run.path, step)
                for run, step in zip(runs, steps.tolist(), strict=True)
            ]
        except ValueError as error:
            raise ValueError(f"rank {self.rank} does not see what rank 0 sees: {error} Share the folder.") from None

    def check_same(self, weights: Mapping[str, Tensor], generators: Sequence[torch.Generator]) -> None:
        """Refuse ranks that do not start from the same state: they would train different models."""
        if not self.joined:
            return
        states = {f"generator {index}": one.get_state() for index, one in enumerate(generators)}
        own = digest({name: value.cpu() for name, value in {**weights, **states}.items()}, "")
        mine = torch.tensor(list(bytes.fromhex(own)), dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with self._others():
            dist.all_gather(everyone, mine)
        other = next((rank for rank, one in enumerate(everyone) if not torch.equal(one, everyone[0])), None)
        if other is not None:
            raise ValueError(
                f"rank {other} does not start from the same weights and random state as rank 0. Give all ranks the "
                "same command, files, torch and kind of device."
            )

    def rows(self, prompt: P, *, stacked: bool = False) -> P:
        """Of the whole batch the rows of this rank: as many as the others', or one more."""
        batch = prompt.places[-2]
        if batch < self.size:
            raise ValueError(
                f"`batch` must be at least the number of ranks, {self.size}; got {batch}. Use fewer ranks."
            )
        if self.size == 1:
            return prompt
        own = slice(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)
        return prompt.rows((slice(None), own) if stacked else own)

    def add(self, *tensors: Tensor) -> None:
        """Put the sum over all ranks into each tensor, as one message."""
        if not self.joined:
            return
        flat = torch.cat([one.reshape(-1) for one in tensors])
        with self._others():
            dist.all_reduce(flat)
        for one, total in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
            one.copy_(total.view_as(one))

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Put the sum over all ranks into every gradient."""
        self.add(*(parameter.grad for parameter in model.parameters() if parameter.grad is not None))

    def any(self, said: bool) -> bool:
        """Whether any rank says so; on the CPU, so that no GPU is waited for, and a rank that died is noticed."""
        if not self.joined:
            return said
        told = torch.tensor(int(said))
        with self._others():
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told)

    @contextlib.contextmanager
    def reporting(self, runs: Sequence[Run]) -> Iterator[None]:
        """A lost rank is one line that also says where the run stands and what to do."""
        try:
            yield
        except LostRank as error:
            path, steps = runs[0].path, runs[0].steps
            where = f"its last checkpoint is of step {steps[-1]}" if steps else "it has no checkpoint yet"
            raise LostRank(f"{error} {path} is whole; {where}. Go on with the same command.") from None

    @contextlib.contextmanager
    def _others(self) -> Iterator[None]:
        """Around every message: a rank that is gone is a `LostRank`."""
        try:
            yield
        except RuntimeError as error:
            atexit.unregister(dist.destroy_process_group)  # it could wait for the lost one
            late = "timed out" in str(error).lower()
            what = f"did not answer for {_timeout():.0f} s" if late else "ended"
            raise LostRank(f"rank {self.rank} of {self.size} stops: another rank {what}.") from None


ALONE = Team()
"""One process."""


class Onlooker(Run):
    """A run folder that rank 0 writes: seen here, never touched."""

    def latest(self, *, mend: bool = False) -> Checkpoint | None:
        """The last whole checkpoint."""
        return super().latest()

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    # rank 0 checks and writes
    check = save = prune = tidy = append_metrics = rewind_metrics = save_provenance = _nothing


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def leads() -> bool:
    """Whether this process is the one that speaks."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def join(device: torch.device | str) -> Team:
    """The team of this process: of torchrun's ranks, or alone."""
    return _join(torch.device(device).type) if launched() else ALONE


@functools.cache
def _join(kind: str) -> Team:
    """Meet the other ranks: gloo between CPUs, NCCL between GPUs; by loopback where all are on this machine."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if kind == "cuda":
        if (count := torch.cuda.device_count()) <= _local_rank():
            asked = os.environ.get("LOCAL_WORLD_SIZE", size)
            raise ValueError(f"{asked} ranks need as many GPUs; here is {count}. Use --nproc-per-node {count}.")
        torch.cuda.set_device(_local_rank())
    if size == int(os.environ.get("LOCAL_WORLD_SIZE", 0)):
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
    try:
        # numbers on the CPU travel by gloo in any case: stopping, and noticing a dead rank, must not wait for a GPU
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise LostRank(f"rank {rank} of {size} cannot meet the others: {reason}. Start the job again.") from None
    atexit.register(dist.destroy_process_group)
    return Team(rank, size, joined=True)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def _timeout() -> float:
    """Seconds."""
    text = os.environ.get(TIMEOUT, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"`{TIMEOUT}` must be a number of seconds above 0; got {text!r}.")
    return seconds
