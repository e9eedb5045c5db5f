"""Points of a sweep as tasks of a Ray cluster: the optional extra `looped[cluster]`."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from looped.files import log
from looped.training.executors import Executor, Pool
from looped.training.worker import Job, Result, work

LOOPBACK = ("127.", "localhost", "[::1]", "local")


class Cluster(Pool):
    """Tasks on a cluster, each with what it reserves; a retry of Ray's own would not know when to stop, so none."""

    def __init__(self, executor: Executor):
        self.ray, self.own = _connect(executor)
        self.executor = executor
        self.task = self.ray.remote(num_cpus=executor.cpus, num_gpus=executor.gpus, max_retries=0)(work)
        self.flying: dict[Any, int] = {}
        ask = {"CPU": executor.cpus, "GPU": executor.gpus}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0.0) >= count for name, count in ask.items()) for node in nodes):
            said = f"no node has {executor.cpus:g} CPUs and {executor.gpus:g} GPUs for a run"
            if self.own:
                self.close()
                raise ValueError(f"{said}. Ask for less.")
            log.warning(f"looped: {said}; the sweep waits for one.")

    def room(self) -> int:
        """As many as the cluster can run, and once more so that no node idles; nodes may come and go."""
        if self.executor.workers is not None:
            return self.executor.workers - len(self.flying)
        have, ask = self.ray.cluster_resources(), {"CPU": self.executor.cpus, "GPU": self.executor.gpus}
        fit = min(int(have.get(name, 0.0) // count) for name, count in ask.items() if count)
        return max(2 * fit, 1) - len(self.flying)

    def submit(self, key: int, job: Job) -> None:
        """Hand a job over."""
        self.flying[self.task.remote(job)] = key

    def wait(self, seconds: float) -> list[tuple[int, Result | str]]:
        """What has ended; an error of Ray's own means that the worker or its node was lost."""
        if not self.flying:  # Ray would not wait for nothing
            time.sleep(seconds)
            return []
        errors = self.ray.exceptions
        ready, _ = self.ray.wait(list(self.flying), num_returns=len(self.flying), timeout=seconds)
        found: list[tuple[int, Result | str]] = []
        for reference in ready:
            key = self.flying.pop(reference)
            try:
                found.append((key, self.ray.get(reference)))
            except errors.RayTaskError as error:
                found.append((key, {"status": "failed", "message": " ".join(str(error.cause).split())}))
            except errors.RayError as error:
                found.append((key, f"its worker was lost: {str(error).strip().splitlines()[0]}"))
        return found

    def stop(self) -> None:
        """Ray interrupts each task as Ctrl-C would, and the trainer saves."""
        for reference in self.flying:
            self.ray.cancel(reference)

    def close(self) -> None:
        """End what still runs; a cluster of our own ends too."""
        for reference in self.flying:
            self.ray.cancel(reference, force=True)
        if self.own:
            self.ray.shutdown()


def _connect(executor: Executor) -> tuple[Any, bool]:
    """Ray, connected, and whether the connection is ours to close."""
    # no token under the home folder and no word to anybody; whoever wants either sets it
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = executor.address is None or executor.address.startswith(LOOPBACK)
    if local:
        # otherwise Ray takes 127.0.0.1 for the machine's address in the network, and listens there
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError("the executor ray needs Ray: pip install 'looped[cluster]'.") from None
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if executor.address is None:
        cores = (executor.workers or os.cpu_count() or 1) * executor.cpus
        options |= {"address": "local", "num_cpus": max(int(cores), 1), "include_dashboard": False}
        options |= {"_node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20}
    else:
        options |= {"address": executor.address} | ({"_node_ip_address": "127.0.0.1"} if local else {})
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"no Ray cluster at {executor.address or 'this machine'}: {reason}") from None
    addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if executor.address is None and addresses != {"127.0.0.1"}:
        ray.shutdown()
        raise ValueError(
            "Ray was imported before this sweep and would listen beyond this machine. Set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 first, or start a cluster of yours and pass its address."
        )
    return ray, True
