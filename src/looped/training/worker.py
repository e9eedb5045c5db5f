"""A worker process of a sweep: `work` trains one trial, `serve` reads jobs from standard input.

    python -m looped.training.worker        one job a line in, one result a line out, both JSON

`looped sweep` runs it. When its parent is gone, it saves and ends.
"""

import importlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from looped.config import code_of, code_places, load_code
from looped.experiment import Experiment
from looped.files import Busy, one_line
from looped.training.stopping import Interrupted, NotSaved
from looped.training.trainer import Diverged, train
from looped.training.trials import Trial

Job = dict[str, Any]
"""A trial as JSON data: path, config, hash, code, device, threads, patience."""
Result = dict[str, Any]
"""What came of a job: status, message. The status is `not saved` where the disk is full, `lost` where the worker is."""
PATIENCE_S = 60.0
"""Seconds that a worker waits for a run whose last worker was lost: that one may take a while to die."""


def job_of(trial: Trial, *, device: str, threads: int) -> Job:
    """A trial as data that another process can read."""
    return {
        "path": str(trial.path.resolve()),
        "config": trial.experiment.to_data(),
        "hash": trial.experiment.hash,
        "code": code_places(trial.experiment),
        "device": device,
        "threads": threads,
        "patience": 0.0,
    }


def work(job: Mapping[str, Any]) -> Result:
    """Train a trial to its end, from its last checkpoint; whatever happens is a result, never an exception."""
    path = Path(job["path"])
    try:
        torch.set_num_threads(job["threads"])
        modules = [
            load_code(file) if "." not in name else importlib.import_module(name) for name, file in job["code"].items()
        ]
        experiment = Experiment.from_data(job["config"], code_of(*modules))
        if experiment.hash != job["hash"]:
            raise ValueError(f"{path} has another config here than where it was asked for. Use one version of looped.")
        deadline = time.monotonic() + job["patience"]
        while True:
            try:
                train(experiment, folder=path, device=job["device"], threads=job["threads"])
                return {"status": "finished", "message": ""}
            except Busy:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
    except Exception as error:  # the other trials go on, and the table shows what happened to this one
        return result_of(error)


def result_of(error: Exception) -> Result:
    """What came of a job that ended with this error."""
    kinds = {NotSaved: "not saved", Interrupted: "stopped", Diverged: "diverged", Busy: "busy"}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), "failed")
    expected = isinstance(error, (*kinds, ValueError, OSError))
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    return {"status": status, "message": one_line(message)}


def serve() -> None:
    """Do the jobs that come on standard input until it ends; the job at hand then stops too, and is saved."""
    # results go to standard output; whatever a library prints goes to standard error instead
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    jobs: queue.Queue[bytes | None] = queue.Queue()
    busy = threading.Event()

    def read() -> None:
        # unbuffered: a thread that holds the buffer of sys.stdin when Python ends would abort it
        with open(0, "rb", buffering=0, closefd=False) as lines:
            for line in lines:
                jobs.put(line)
        jobs.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while (line := jobs.get()) is not None:
        busy.set()
        result = work(json.loads(line))
        busy.clear()
        try:
            print(json.dumps(result), file=results)
        except BrokenPipeError:
            os._exit(1)  # nobody listens; the work is saved


if __name__ == "__main__":
    serve()
