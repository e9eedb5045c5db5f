"""Local worker processes of a sweep: started when needed, reused, replaced when they die."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading

import torch

from looped.files import log
from looped.training.executors import GRACE_S, Executor, Pool
from looped.training.worker import Job, Result


class Processes(Pool):
    """Local worker processes, started when needed and reused."""

    def __init__(self, executor: Executor):
        self.max_workers = executor.workers or (torch.cuda.device_count() if executor.device == "cuda" else _cores())
        self.threads, self.gpu = executor.threads or 1, executor.device == "cuda"
        self.idle: list[_Process] = []
        self.busy: dict[_Process, int] = {}
        self.news: queue.Queue[tuple[_Process, str | None]] = queue.Queue()

    def room(self) -> int:
        """Workers without a job, those not started yet included."""
        return self.max_workers - len(self.busy)

    def submit(self, key: int, job: Job) -> None:
        """Hand a job to an idle worker, or to a new one."""
        worker = self.idle.pop() if self.idle else _Process(self.threads, self._gpu_with_fewest_workers(), self.news)
        self.busy[worker] = key
        worker.send(json.dumps(job))

    def wait(self, seconds: float) -> list[tuple[int, Result]]:
        """The jobs that ended; a worker whose output ends without a result was lost."""
        ended: list[tuple[int, Result]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                worker, line = self.news.get(timeout=0.0 if ended else seconds)
                key = self.busy.pop(worker, None)
                if line is not None:
                    self.idle.append(worker)
                elif worker in self.idle:
                    self.idle.remove(worker)
                if key is not None:
                    result = {"status": "lost", "message": worker.last_words()} if line is None else json.loads(line)
                    ended.append((key, result))
                if line is None:
                    worker.close()
        return ended

    def stop(self) -> None:
        """Send SIGTERM to all workers at work: they save after the step at hand."""
        for worker in self.busy:
            worker.process.terminate()

    def close(self) -> None:
        """Let the idle workers end and kill the rest."""
        for worker in self.busy:
            worker.process.kill()
        for worker in [*self.idle, *self.busy]:
            worker.close()

    def _gpu_with_fewest_workers(self) -> str | None:
        if not self.gpu:
            return None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
        taken = collections.Counter(worker.gpu for worker in [*self.idle, *self.busy])
        return min(names, key=lambda name: taken[name], default=None)


class _Process:
    """One worker process, and two threads that read its output."""

    def __init__(self, threads: int, gpu: str | None, news: queue.Queue[tuple[_Process, str | None]]):
        self.gpu = gpu
        count = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        # workers import what this process can; -P: `-m` would put the current folder first, which may not be so here
        places = {"PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
        seen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "looped.training.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **count, **places, **seen},
            start_new_session=True,  # Ctrl-C is for the parent, which asks every worker to save
        )
        self.errors: collections.deque[str] = collections.deque(maxlen=20)
        self.listeners = [
            threading.Thread(target=self._read_results, args=(news,), daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self.listeners:
            thread.start()

    def send(self, line: str) -> None:
        """Send a job; if the worker is dead already, the end of its output tells us."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def last_words(self) -> str:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        error = f": {self.errors[-1]}" if self.errors else ""
        return f"worker process {self.process.pid} {how}{error}."

    def close(self) -> None:
        """Let it end: a worker at work sees the end of its input, saves and stops."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self.listeners:
            thread.join()

    def _read_results(self, news: queue.Queue[tuple[_Process, str | None]]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                news.put((self, line))
        news.put((self, None))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.startswith("looped: "):
                    log.warning(line.rstrip())
                elif line.strip():
                    self.errors.append(line.strip())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
