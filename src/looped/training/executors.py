"""Who trains the trials of a sweep: this process in stacks of models, local worker processes, or a Ray cluster."""

import collections
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from looped.experiment import Experiment, training
from looped.functional.counts import check_at_least
from looped.training.stopping import Interrupted, NotSaved, stop_signals
from looped.training.threads import check_threads
from looped.training.trainer import Diverged, train, train_seeds
from looped.training.trials import Standing, Status, Trial, standing
from looped.training.worker import PATIENCE_S, Job, Result, job_of, result_of

Tell = Callable[[int, Standing], None]
"""(index of a trial, where it stands now) -> None."""
POLL_S = 0.25
"""Seconds between two looks at the running trials."""
MAX_FAILED_STARTS, MAX_BACKOFF_S = 20, 5.0
"""How many workers may die before they begin a trial, and the longest pause before the next one, in seconds."""
GRACE_S = 60.0
"""Seconds that workers have for saving when they are asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Who trains, and with what."""

    kind: Literal["stack", "processes", "ray"] = "stack"
    """`stack`: this process, seeds of one config as one stack of models; `processes`: local ones; `ray`: a cluster."""
    device: str = "cpu"
    """Where each run computes: cpu or cuda."""
    workers: int | None = None
    """Runs at a time; None: one a core, or as many as the cluster has room for."""
    threads: int | None = None
    """Threads of each run; None: one in a worker, so that results do not depend on the number of workers."""
    cpus: float = 1.0
    """For Ray: CPUs to reserve for each run."""
    gpus: float = 0.0
    """For Ray: GPUs to reserve for each run."""
    address: str | None = None
    """For Ray: the cluster, `auto` or `HOST:PORT`; None: a new one on this machine, reached by loopback only."""
    retries: int = 3
    """How often a trial whose worker or node was lost is handed to another worker."""

    def __post_init__(self) -> None:
        check_at_least(1, workers=self.workers, threads=self.threads)
        check_at_least(0, retries=self.retries, gpus=self.gpus)
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
    def wait(self, seconds: float) -> list[tuple[int, Result]]:
        """The jobs that ended within `seconds`, each with its result."""

    @abstractmethod
    def stop(self) -> None:
        """Ask every job to save and stop."""

    @abstractmethod
    def close(self) -> None:
        """Release the workers; those still at work are killed."""


def stacks_of(experiments: Sequence[Experiment]) -> list[list[int]]:
    """Indices of experiments that can train as one stack of models: they differ in their seeds alone."""
    stacks: dict[str, list[int]] = {}
    for index, experiment in enumerate(experiments):
        stacks.setdefault(training(experiment, seed=0).hash, []).append(index)
    return list(stacks.values())


def run_stacks(trials: Sequence[Trial], unfinished: Collection[int], executor: Executor, tell: Tell) -> None:
    """Train in this process, stack by stack; when asked to stop, everything is saved and `Interrupted` raised.

    A stack with an unfinished trial is trained whole, since it may have to go back to a common step.
    """
    with stop_signals() as stopping:
        for stack in stacks_of([trial.experiment for trial in trials]):
            left = [index for index in stack if index in unfinished]
            if left:
                _run_stack({index: trials[index] for index in stack}, left, executor, tell)
            if stopping.is_set():
                raise Interrupted("")


def run_pool(trials: Mapping[int, Trial], executor: Executor, tell: Tell, pool: Pool) -> None:
    """Hand trials to workers until all are done; a lost worker's trial goes on in another, from its last checkpoint."""
    device = "cuda" if executor.gpus else executor.device
    jobs = {key: job_of(trial, device=device, threads=executor.threads or 1) for key, trial in trials.items()}
    waiting = collections.deque(trials)
    flying: dict[int, int | None] = {}  # index -> when its run was last locked before it was submitted
    lost: collections.Counter[int] = collections.Counter()
    failed_starts: collections.Counter[int] = collections.Counter()  # lost before it began: hardly the run's fault
    retry_at: dict[int, float] = {}
    unsaved, deadline = "", None

    def ended(index: int, status: Status | None, message: str = "") -> None:
        stands = replace(standing(trials[index].path), lost=lost[index])
        tell(index, stands if status is None else replace(stands, status=status, message=message))

    with stop_signals() as stopping, contextlib.closing(pool):
        while flying or (waiting and deadline is None):
            if deadline is None and (stopping.is_set() or unsaved):
                deadline = time.monotonic() + GRACE_S
                pool.stop()
            if deadline is not None and time.monotonic() > deadline:
                break
            while deadline is None and pool.room() > 0:
                ready = (index for index in waiting if retry_at.get(index, 0.0) <= time.monotonic())
                if (index := next(ready, None)) is None:
                    break
                waiting.remove(index)
                flying[index] = _locked_at(trials[index])
                pool.submit(index, jobs[index])
            for index, result in pool.wait(POLL_S):
                begun = _locked_at(trials[index]) != flying.pop(index)
                status, message = result["status"], result["message"]
                if status == "not saved":
                    unsaved, status = message, "stopped"
                elif status in ("lost", "stopped") and deadline is None:
                    # a worker that somebody else stopped is as good as lost
                    (lost if begun else failed_starts)[index] += 1
                    if lost[index] <= executor.retries and failed_starts[index] <= MAX_FAILED_STARTS:
                        # the next worker waits for the lost one to die; a cluster takes a while to notice a lost node
                        jobs[index] = {**jobs[index], "patience": PATIENCE_S}
                        retry_at[index] = time.monotonic() + min(failed_starts[index], MAX_BACKOFF_S)
                        waiting.appendleft(index)
                    else:
                        status = "failed"
                ended(index, status if status in ("diverged", "busy", "failed") else None, message)
            for index, before in flying.items():
                if _locked_at(trials[index]) != before:
                    ended(index, "running")
        if unsaved:
            raise NotSaved(unsaved)
        if deadline is not None:
            raise Interrupted("")


def _run_stack(members: Mapping[int, Trial], left: Sequence[int], executor: Executor, tell: Tell) -> None:
    """Train one stack of models; where it fails, train each model alone, so that one run does not fail the others."""
    first = next(iter(members.values())).path
    experiments = [trial.experiment for trial in members.values()]

    def report(step: int, line: dict[str, float]) -> None:
        for index in left:
            tell(index, Standing(status="running", step=step, metrics=line))

    options: dict[str, Any] = {"out": first.parent, "device": executor.device, "threads": executor.threads}
    seeds = dict.fromkeys(experiment.train.seed for experiment in experiments)
    trouble = _trouble(train_seeds, experiments[0], [*seeds], progress=report, **options)
    # where it is busy, runs trained alone would round differently from the stack that is being trained
    alone = trouble.get("status") in ("diverged", "failed") and len(members) > 1
    for index, trial in members.items():
        result = _trouble(train, trial.experiment, **options) if alone else trouble
        tell(index, replace(standing(trial.path), **result))


def _trouble(train: Callable[..., object], *arguments: Any, **options: Any) -> Result:
    """The result of a training that failed while others can go on; empty where all went well."""
    try:
        train(*arguments, **options)
    except (Diverged, ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise  # a bug, not the fault of one run
        return result_of(error)
    return {}


def _locked_at(trial: Trial) -> int | None:
    """When the lock of a run was last taken: it changes when a worker begins."""
    try:
        return (trial.path / "lock").stat().st_mtime_ns
    except OSError:
        return None
