"""Who trains the points of a sweep: this process in stacks of models, several local processes, or a Ray cluster."""

from __future__ import annotations

import collections
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from looped.experiment import Experiment
from looped.files import Busy
from looped.training.points import Point, Standing, Status, standing
from looped.training.stopping import Interrupted, NotSaved, stop_signals
from looped.training.threads import check_threads
from looped.training.trainer import Diverged, train, train_seeds
from looped.training.worker import PATIENCE, Job, Result, job_of

Tell = Callable[[int, Standing], None]
"""(index of a point, where it stands now) -> None."""
POLL = 0.25
"""Seconds between two looks at the points that run."""
VAIN, REST = 20, 5.0
"""Workers that may die before they begin a run, and the longest pause between two of them in seconds."""
GRACE = 60.0
"""Seconds that workers have to save when they are asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Who trains, and with what."""

    kind: Literal["stack", "processes", "ray"] = "stack"
    """This process, seeds of one config as one stack of models; local processes; a Ray cluster."""
    device: str = "cpu"
    """Where each run computes: cpu or cuda."""
    workers: int | None = None
    """Runs at a time; None: one for each core, or whatever the cluster has room for."""
    threads: int | None = None
    """Threads of each run; None: one for workers, so that results do not hang on how many there are; else torch's."""
    cpus: float = 1.0
    """For Ray: CPUs to reserve for each run."""
    gpus: float = 0.0
    """For Ray: GPUs to reserve for each run."""
    address: str | None = None
    """For Ray: the cluster, `auto` or `HOST:PORT`; None: one of its own on this machine, for loopback only."""
    retries: int = 3
    """How often a point whose worker or node was lost is handed to another."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0), ("gpus", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be at least {least}; got {value}.")
        check_threads(self.threads)
        if self.cpus <= 0:
            raise ValueError(f"`cpus` must be above 0; got {self.cpus}.")
        if self.kind != "ray" and (self.address is not None or self.cpus != 1.0 or self.gpus != 0.0):
            raise ValueError(f"`address`, `cpus` and `gpus` are for the executor ray; got {self.kind}.")
        if self.kind == "stack" and self.workers is not None:
            raise ValueError("`workers` is for the executors processes and ray; this process is one.")


class Pool(ABC):
    """Workers that take jobs."""

    @abstractmethod
    def room(self) -> int:
        """How many more jobs to hand over now."""

    @abstractmethod
    def submit(self, key: int, job: Job) -> None:
        """Hand a job over."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[int, Result | str]]:
        """What has ended within so many seconds: a result, or, of a worker that was lost, what is known about it."""

    @abstractmethod
    def stop(self) -> None:
        """Ask every job to save and stop."""

    @abstractmethod
    def close(self) -> None:
        """Let the workers go; those still at work are killed."""


def stacks_of(experiments: Sequence[Experiment]) -> list[list[int]]:
    """Indices of experiments that can train as one stack of models: those that differ in their seeds alone."""
    stacks: dict[str, list[int]] = {}
    for index, one in enumerate(experiments):
        stacks.setdefault(replace(one, train=replace(one.train, seed=0)).hash, []).append(index)
    return list(stacks.values())


def run_stacks(points: Sequence[Point], executor: Executor, tell: Tell) -> None:
    """Train in this process, stack by stack; `Interrupted` where it is asked to stop, with everything saved."""
    with stop_signals() as stopping:
        for stack in stacks_of([point.experiment for point in points]):
            _run_stack({index: points[index] for index in stack}, executor, tell)
            if stopping.is_set():
                raise Interrupted("")


def run_pool(points: Sequence[Point], executor: Executor, tell: Tell, pool: Pool) -> None:
    """Hand points to workers until all are done; a lost worker's point goes to another, from its last checkpoint."""
    device = "cuda" if executor.gpus else executor.device
    jobs = [job_of(point, device=device, threads=executor.threads or 1) for point in points]
    waiting = collections.deque(range(len(points)))
    flying: dict[int, int | None] = {}  # index -> when the run's lock was last taken before
    lost: collections.Counter[int] = collections.Counter()
    vain: collections.Counter[int] = collections.Counter()  # lost before the run began, so hardly by its doing
    resting: dict[int, float] = {}  # index -> when to try again
    unsaved, deadline = "", None

    def ended(index: int, status: Status | None, message: str = "") -> None:
        stands = replace(standing(points[index].path), lost=lost[index])
        tell(index, stands if status is None else replace(stands, status=status, message=message))

    with stop_signals() as stopping, contextlib.closing(pool):
        while flying or (waiting and deadline is None):
            if deadline is None and (stopping.is_set() or unsaved):
                deadline = time.monotonic() + GRACE
                pool.stop()
            if deadline is not None and time.monotonic() > deadline:
                break
            while deadline is None and pool.room() > 0:
                rested = (index for index in waiting if resting.get(index, 0.0) <= time.monotonic())
                if (index := next(rested, None)) is None:
                    break
                waiting.remove(index)
                flying[index] = _locked_at(points[index])
                pool.submit(index, jobs[index])
            for index, result in pool.wait(POLL):
                begun = _locked_at(points[index]) != flying.pop(index)
                status, message = ("lost", result) if isinstance(result, str) else (result["status"], result["message"])
                if status == "not saved":
                    unsaved, status = message, "stopped"
                elif status in ("lost", "stopped") and deadline is None:
                    # whom somebody else told to stop is as good as lost
                    (lost if begun else vain)[index] += 1
                    if lost[index] <= executor.retries and vain[index] <= VAIN:
                        # the next one waits for the lost one to die, and a cluster takes a while to miss a node
                        jobs[index] = {**jobs[index], "patience": PATIENCE}
                        resting[index] = time.monotonic() + min(vain[index], REST)
                        waiting.appendleft(index)
                    else:
                        status = "failed"
                ended(index, status if status in ("diverged", "busy", "failed") else None, message)
            for index, before in flying.items():
                if _locked_at(points[index]) != before:
                    ended(index, "running")
    if unsaved:
        raise NotSaved(unsaved)
    if deadline is not None:
        raise Interrupted("")


def _run_stack(members: Mapping[int, Point], executor: Executor, tell: Tell) -> None:
    """One stack of models; where it fails each is trained alone, so that one run takes no other with it."""
    first = next(iter(members.values()))
    seeds = {point.experiment.train.seed: index for index, point in members.items()}

    left = [index for index, point in members.items() if standing(point.path).status != "finished"]

    def report(step: int, line: dict[str, float]) -> None:
        for index in left:
            tell(index, Standing(status="running", step=step, metrics=line))

    options: dict[str, Any] = {"out": first.path.parent, "device": executor.device, "threads": executor.threads}
    try:
        train_seeds(first.experiment, list(seeds), progress=report, **options)
    except Busy as error:  # alone they would round otherwise than as the stack that somebody trains
        for index, point in members.items():
            tell(index, replace(standing(point.path), status="busy", message=str(error)))
        return
    except _TROUBLE as error:
        for index, point in members.items():
            trouble: Exception | None = _known(error)
            if len(members) > 1:
                try:
                    train(point.experiment, **options)
                    trouble = None
                except _TROUBLE as own:
                    trouble = _known(own)
            status = "diverged" if isinstance(trouble, Diverged) else "busy" if isinstance(trouble, Busy) else "failed"
            stands = standing(point.path)
            tell(index, stands if trouble is None else replace(stands, status=status, message=str(trouble)))
        return
    for index, point in members.items():
        tell(index, standing(point.path))


_TROUBLE = (Diverged, ValueError, OSError, MemoryError, RuntimeError)
"""What one run may meet though the others go on."""


def _known(error: Exception) -> Exception:
    """Of torch's general errors only those about memory are a run's own; others are ours, and come as they are."""
    if isinstance(error, RuntimeError) and "memory" not in str(error):
        raise error
    return error


def _locked_at(point: Point) -> int | None:
    """When somebody last took the lock of a run: a change tells that its worker has begun."""
    try:
        return (point.path / "lock").stat().st_mtime_ns
    except OSError:
        return None
