"""Trials of a sweep as tasks of a Ray cluster: the optional extra `looped[cluster]`."""

import logging
import os
import time
from typing import Any

from looped.files import log, one_line
from looped.training.executors import Executor, Pool
from looped.training.worker import Job, Result, work

LOOPBACK = ("127.", "localhost", "[::1]", "local")


class Cluster(Pool):
    """Tasks on a Ray cluster. Ray retries none of them: it would not know when to stop."""

    def __init__(self, executor: Executor):
        self.ray, self.owns_cluster = _connect(executor)
        self.executor = executor
        self.task = self.ray.remote(num_cpus=executor.cpus, num_gpus=executor.gpus, max_retries=0)(work)
        self.flying: dict[Any, int] = {}
        self.needs = {"CPU": executor.cpus, "GPU": executor.gpus}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0.0) >= count for name, count in self.needs.items()) for node in nodes):
            reason = f"no node has {executor.cpus:g} CPUs and {executor.gpus:g} GPUs for a run"
            if self.owns_cluster:
                self.close()
                raise ValueError(f"{reason}. Ask for less.")
            log.warning(f"looped: {reason}; the sweep waits for one.")

    def room(self) -> int:
        """Twice as many jobs as the cluster can run, so that no node idles; nodes may come and go."""
        if self.executor.workers is not None:
            return self.executor.workers - len(self.flying)
        have = self.ray.cluster_resources()
        fit = min(int(have.get(name, 0.0) // count) for name, count in self.needs.items() if count)
        return max(2 * fit, 1) - len(self.flying)

    def submit(self, key: int, job: Job) -> None:
        """Hand a job over."""
        self.flying[self.task.remote(job)] = key

    def wait(self, seconds: float) -> list[tuple[int, Result]]:
        """The jobs that ended; an error of Ray itself means that the worker or its node was lost."""
        if not self.flying:  # Ray would not wait for nothing
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.flying), num_returns=len(self.flying), timeout=seconds)
        ended: list[tuple[int, Result]] = []
        for reference in ready:
            key = self.flying.pop(reference)
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                result = {"status": "failed", "message": one_line(error.cause)}
            except self.ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[0]
                result = {"status": "lost", "message": f"its worker was lost: {reason}"}
            ended.append((key, result))
        return ended

    def stop(self) -> None:
        """Let Ray interrupt each task as Ctrl-C would; the trainer then saves."""
        for reference in self.flying:
            self.ray.cancel(reference)

    def close(self) -> None:
        """Kill what still runs, and the cluster where we started it."""
        for reference in self.flying:
            self.ray.cancel(reference, force=True)
        if self.owns_cluster:
            self.ray.shutdown()


def _connect(executor: Executor) -> tuple[Any, bool]:
    """Ray, connected, and whether we started the cluster and must shut it down."""
    # no token in the home folder and no usage statistics, unless the user sets them
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = executor.address is None or executor.address.startswith(LOOPBACK)
    if local:
        # otherwise Ray replaces 127.0.0.1 by the machine's address in the network, and listens there
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
        reason = one_line(error)
        raise ValueError(f"no Ray cluster at {executor.address or 'this machine'}: {reason}") from None
    addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if executor.address is None and addresses != {"127.0.0.1"}:
        ray.shutdown()
        raise ValueError(
            "Ray was imported before this sweep and would listen beyond this machine. Set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 first, or start a cluster yourself and pass its address."
        )
    return ray, True
