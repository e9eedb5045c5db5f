"""Several processes train one run: every rank draws the whole batch, computes its rows, and adds up the gradients.

    torchrun --nproc-per-node 2 -m looped train RECIPE

Only rank 0 writes files and prints; results equal those of one process up to the order in which rows are summed.
"""

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
from looped.files import digest, one_line
from looped.prompt import P
from looped.training.folder import Checkpoint, read_checkpoint
from looped.training.run import Run

TIMEOUT = "LOOPED_RANK_TIMEOUT"
"""Environment variable: seconds after which a rank that does not answer counts as lost; default 300."""


class LostRank(Exception):
    """Another rank of this job ended or does not answer; everything up to the last checkpoint is saved."""


@dataclass(frozen=True)
class Team:
    """The ranks that train together; a process on its own is a team of one and never waits."""

    rank: int = 0
    """This process's number."""
    size: int = 1
    """How many there are."""
    joined: bool = False
    """Whether this is a torchrun job, even one of a single rank."""

    @property
    def leads(self) -> bool:
        """Whether this rank writes the files: rank 0 does."""
        return self.rank == 0

    def place(self, device: torch.device | str) -> torch.device:
        """The device of this rank: every rank has its own GPU."""
        device = torch.device(device)
        return torch.device("cuda", _local_rank()) if self.joined and device.type == "cuda" else device

    def open(self, path: Path, experiment: Experiment) -> Run:
        """The run folder: rank 0 makes and writes it, the others only read it."""
        return Run.create(path, experiment) if self.leads else Onlooker(path, experiment)

    def checkpoints(self, runs: Sequence[Run], find: Callable[[], list[Checkpoint | None]]) -> list[Checkpoint | None]:
        """The checkpoints that rank 0 finds to go on from; the others read the same ones from the folder."""
        latest = find() if self.leads else []
        steps = torch.tensor([-1 if saved is None else saved.step for saved in latest] or [0] * len(runs))
        self.add(steps)  # all but rank 0 add nothing
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
        states = {f"generator {index}": generator.get_state() for index, generator in enumerate(generators)}
        state = digest({name: value.cpu() for name, value in {**weights, **states}.items()}, "")
        digests = torch.zeros(self.size, len(state) // 2, dtype=torch.uint8)
        digests[self.rank] = torch.tensor(list(bytes.fromhex(state)))
        self.add(digests)  # each rank fills its own row
        other = next((rank for rank, theirs in enumerate(digests) if not torch.equal(theirs, digests[0])), None)
        if other is not None:
            raise ValueError(
                f"rank {other} does not start from the same weights and random state as rank 0. Give all ranks the "
                "same command, files, torch and kind of device."
            )

    def rows(self, prompt: P, *, stacked: bool = False) -> P:
        """The rows of the batch that this rank computes: as many as the other ranks, or one more."""
        batch = prompt.places[-2]
        if batch < self.size:
            raise ValueError(
                f"`batch` must be at least the number of ranks, {self.size}; got {batch}. Use fewer ranks."
            )
        if self.size == 1:
            return prompt
        rows = slice(self.rank * batch // self.size, (self.rank + 1) * batch // self.size)
        return prompt.rows((slice(None), rows) if stacked else rows)

    def add(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all ranks, in one message; `LostRank` where another rank is gone."""
        if not self.joined:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            atexit.unregister(dist.destroy_process_group)  # it could wait for the lost one
            late = "timed out" in str(error).lower()
            what = f"did not answer for {_timeout():.0f} s" if late else "ended"
            raise LostRank(f"rank {self.rank} of {self.size} stops: another rank {what}.") from None
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def add_gradients(self, model: torch.nn.Module) -> None:
        """Replace every gradient by its sum over all ranks."""
        self.add(*(parameter.grad for parameter in model.parameters() if parameter.grad is not None))

    def any(self, here: bool) -> bool:
        """Whether `here` is true on any rank; ranks ask each other on the CPU, so that none waits for a GPU."""
        ranks = torch.tensor(int(here))
        self.add(ranks)
        return bool(ranks)

    @contextlib.contextmanager
    def reporting(self, runs: Sequence[Run]) -> Iterator[None]:
        """Add to the error of a lost rank where the run stands and what to do."""
        try:
            yield
        except LostRank as error:
            run = runs[0]
            raise LostRank(f"{error} {run.path} is whole; {run.progress}. Go on with the same command.") from None


ALONE = Team()
"""The team of a process on its own."""


class Onlooker(Run):
    """A run folder that rank 0 writes and this rank only reads."""

    def latest(self, *, mend: bool = False) -> Checkpoint | None:
        """The last whole checkpoint."""
        return super().latest()

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: rank 0 holds the lock for the whole team."""
        return contextlib.nullcontext()

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    # rank 0 checks and writes
    check = save = prune = tidy = append_metrics = rewind_metrics = save_provenance = _nothing


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def leads() -> bool:
    """Whether this process prints: rank 0, or a process on its own."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def join(device: torch.device | str) -> Team:
    """The team of this process: all ranks of its torchrun job, or itself."""
    return _join(torch.device(device).type) if launched() else ALONE


@functools.cache
def _join(kind: str) -> Team:
    """Connect to the other ranks: gloo between CPUs, NCCL between GPUs; by loopback where all are on this machine."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if kind == "cuda":
        if (count := torch.cuda.device_count()) <= _local_rank():
            ranks = os.environ.get("LOCAL_WORLD_SIZE", size)
            raise ValueError(f"{ranks} ranks need as many GPUs; got {count}. Use --nproc-per-node {count}.")
        torch.cuda.set_device(_local_rank())
    if size == int(os.environ.get("LOCAL_WORLD_SIZE", 0)):
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, loopback)
    try:
        # gloo for numbers on the CPU in any case: stopping and noticing a dead rank must not wait for a GPU
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))
    except RuntimeError as error:
        reason = one_line(error)[:200]
        raise LostRank(f"rank {rank} of {size} cannot reach the others: {reason}. Start the job again.") from None
    atexit.register(dist.destroy_process_group)
    return Team(rank, size, joined=True)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0))


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"`{TIMEOUT}` must be a number of seconds above 0; got {text!r}.")
    return seconds
