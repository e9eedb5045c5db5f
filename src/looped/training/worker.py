"""What trains a point of a sweep in a process of its own: `work`, and a loop that reads jobs from standard input.

    python -m looped.training.worker        one job a line in, one result a line out, both JSON

Run by `looped sweep`; nobody else need know it. Where its parent is gone it saves and ends.
"""

from __future__ import annotations

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
from looped.files import Busy
from looped.training.folder import checkpoint_steps
from looped.training.points import Point
from looped.training.stopping import Interrupted, NotSaved
from looped.training.trainer import Diverged, train

Job = dict[str, Any]
"""A point as JSON data: path, config, hash, code, device, threads, patience."""
Result = dict[str, Any]
"""What came of a job: status, message, and the step it went on from. `not saved` where the disk took no more."""
PATIENCE = 60.0
"""Seconds that a worker waits for a run whose last worker was lost: on another node it may take a while to die."""


def job_of(point: Point, *, device: str, threads: int) -> Job:
    """A point as data that another process can read."""
    return {
        "path": str(point.path.resolve()),
        "config": point.experiment.to_data(),
        "hash": point.experiment.hash,
        "code": code_places(point.experiment),
        "device": device,
        "threads": threads,
        "patience": 0.0,
    }


def work(job: Mapping[str, Any]) -> Result:
    """Train a point to its end, from its last checkpoint; whatever happens is a result, never an exception."""
    path = Path(job["path"])
    began = max(checkpoint_steps(path), default=0)
    try:
        torch.set_num_threads(job["threads"])
        modules = [
            load_code(file) if "." not in name else importlib.import_module(name) for name, file in job["code"].items()
        ]
        experiment = Experiment.from_data(job["config"], code_of(*modules))
        if experiment.hash != job["hash"]:
            raise ValueError(f"{path} has another config here than where it was asked for. Use one version of looped.")
        _patiently(experiment, path, job)
        status, message = "finished", ""
    except NotSaved as error:
        status, message = "not saved", str(error)
    except Interrupted as error:
        status, message = "stopped", str(error)
    except Diverged as error:
        status, message = "diverged", str(error)
    except Busy as error:
        status, message = "busy", str(error)
    except (ValueError, OSError) as error:
        status, message = "failed", str(error)
    except Exception as error:  # one point's trouble is its own: the others go on, and the table says what it was
        status, message = "failed", f"{type(error).__name__}: {error}"
    return {"status": status, "message": " ".join(message.split()), "began": began, "process": os.getpid()}


def _patiently(experiment: Experiment, path: Path, job: Mapping[str, Any]) -> None:
    """Train; where another process holds the run, wait as long as the job says for it to let go."""
    end = time.monotonic() + job["patience"]
    while True:
        try:
            train(experiment, folder=path, device=job["device"], threads=job["threads"])
            return
        except Busy:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def serve() -> None:
    """Do the jobs that come on standard input until it ends; a parent that is gone ends the job at hand too, saved."""
    # results go where standard output was; what anybody prints goes to standard error
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
