"""A sweep on a Ray cluster of two local nodes; a worker is killed and a node stopped: nothing is lost or repeated.

    python benchmarks/cluster.py [--loops 2 3] [--windows 1 2] [--seeds 3] [--steps 300]

The same points are then trained by local processes, whose checkpoints and metrics must be the same bytes, and as
stacks of models, whose weights and metrics must agree to 1e-5. Exits 1 if something differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only; read when ray is imported

import torch

from looped.experiment import Adam, Experiment, TrainConfig
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.executors import Executor
from looped.training.folder import checkpoint_path, read_checkpoint
from looped.training.sweep import sweep
from looped.training.trials import Standing, Trial, last_metrics, standing, trials

TOLERANCE = 1e-5


def experiment(steps: int) -> Experiment:
    # float64: Adam turns the rounding error of a zero gradient into a step
    return Experiment(
        name="cluster",
        task=LinearRegression(d=3),
        model=DecoderConfig(d=3, width=32, heads=2, loops=2, positions=16),
        train=TrainConfig(
            steps=steps,
            batch=32,
            points=7,
            dtype="float64",
            optimizer=Adam(learning_rate=0.001),
            log_every=10,
            checkpoint_every=10,
        ),
    )


class Saboteur:
    """Kills one worker by SIGKILL and stops one node, each in the middle of a run that has checkpoints."""

    def __init__(self, cluster: Any, node: Any, points: Sequence[Trial]):
        self.cluster, self.node, self.points = cluster, node, points
        self.stands = [Standing() for _ in points]
        self.ended: dict[int, int] = {}
        self.deeds: list[str] = []
        self.lost_at: dict[int, int] = {}
        self.wrong: list[str] = []
        self.thread: threading.Thread | None = None

    def tell(self, index: int, now: Standing) -> None:
        before, self.stands[index] = self.stands[index], now
        if now.lost > before.lost:
            self.lost_at[index] = now.step
        if now.step < self.lost_at.get(index, 0):
            self.wrong.append(f"point {index} fell back to step {now.step}")
        if now.status == "finished" and before.status != "finished":
            point = self.points[index]
            self.ended[index] = checkpoint_path(point.path, point.steps).stat().st_mtime_ns
        if not self.deeds and (running := self.halfway()):
            index, owner = running[0]
            os.kill(owner, signal.SIGKILL)
            self.deeds.append(f"SIGKILL to worker {owner} at step {self.stands[index].step} of point {index}")
        elif len(self.deeds) == 1 and self.lost_at:
            raylet = self.node.all_processes["raylet"][0].process.pid
            there = [(index, owner) for index, owner in self.halfway() if parent(owner) == raylet]
            if there:
                index, owner = there[0]
                self.deeds.append(
                    f"node stopped with worker {owner} at step {self.stands[index].step} of point {index}"
                )
                # in a thread: the sweep must notice by itself while the node dies
                self.thread = threading.Thread(target=self.cluster.remove_node, args=(self.node, False))
                self.thread.start()

    def halfway(self) -> list[tuple[int, int]]:
        """Running points that have a checkpoint and more than a third of their steps to go, and who trains them."""
        return [
            (index, int((self.points[index].path / "lock").read_text().split()[1]))
            for index, stand in enumerate(self.stands)
            if stand.status == "running" and 0 < stand.step < 2 * self.points[index].steps / 3
        ]

    def verdict(self) -> list[str]:
        if self.thread is not None:
            self.thread.join()
        wrong = list(self.wrong)
        if len(self.deeds) < 2:
            wrong.append(f"the sweep was over before both blows: {self.deeds}")
        if len(self.lost_at) < 2:
            wrong.append(f"two losses were to come, there were {len(self.lost_at)}")
        for index, point in enumerate(self.points):
            if index in self.ended and self.ended[index] != checkpoint_path(point.path, point.steps).stat().st_mtime_ns:
                wrong.append(f"point {index} was trained again after its end")
        return wrong


def parent(process: int) -> int:
    """The parent of a process, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def on_two_nodes(asked: Sequence[Trial]) -> tuple[list[Standing], list[str], list[str]]:
    """Run the sabotaged sweep on a cluster of two nodes of one CPU each; standings, deeds, and what went wrong."""
    import ray
    from ray.cluster_utils import Cluster

    local = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20, "num_cpus": 1}
    # on a busy machine a node may answer late; a node whose process is gone is still noticed at once
    patient = {"health_check_timeout_ms": 120_000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = {**local, "include_dashboard": False, "_system_config": patient}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        node = cluster.add_node(**local)
        saboteur = Saboteur(cluster, node, asked)
        stands = sweep(asked, Executor(kind="ray", address=cluster.address, threads=1), tell=saboteur.tell)
        return stands, saboteur.deeds, saboteur.verdict()
    finally:
        ray.shutdown()
        cluster.shutdown()


def differences(asked: Sequence[Trial], others: Sequence[Trial]) -> list[str]:
    """Points whose last checkpoint or metrics are not the same bytes."""
    return [
        f"{point.path.name}/{file} differs"
        for point, other in zip(asked, others, strict=True)
        for file in (f"checkpoints/step-{point.steps:08d}.safetensors", "metrics.jsonl")
        if (point.path / file).read_bytes() != (other.path / file).read_bytes()
    ]


def distance(asked: Sequence[Trial], others: Sequence[Trial]) -> float:
    """The largest difference of a weight, and of a number in the last line of the metrics."""
    most = 0.0
    for pair in zip(asked, others, strict=True):
        weights, other_weights = (read_checkpoint(point.path, point.steps).part("model") for point in pair)
        most = max([most, *((weights[name] - other_weights[name]).abs().max().item() for name in weights)])
        line, other_line = (last_metrics(point.path) for point in pair)
        most = max([most, *(abs(line[key] - other_line[key]) for key in line)])
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="looped-cluster-") as folder:
        grid = {"model.loops": options.loops, "train.window": options.windows}
        base = experiment(options.steps)
        asked, local, stacked = (
            trials(base, grid, seeds=range(options.seeds), out=Path(folder) / name)
            for name in ("ray", "local", "stack")
        )
        start = time.monotonic()
        stands, deeds, wrong = on_two_nodes(asked)
        seconds = [time.monotonic() - start]
        finished, lost = sum(stand.status == "finished" for stand in stands), sum(stand.lost for stand in stands)
        print(f"{len(asked)} points of {options.steps} steps; {'; '.join(deeds)}", flush=True)
        print(f"finished {finished}, workers lost in the middle of a run {lost}", flush=True)
        if finished < len(asked):
            failed = [stand for stand in stands if stand.status != "finished"]
            sys.exit("\n".join(f"WRONG: {stand.status}: {stand.message}" for stand in failed))
        for others, executor in ((local, Executor(kind="processes", workers=2, threads=1)), (stacked, Executor())):
            start = time.monotonic()
            stands = sweep(others, executor)
            wrong += [f"{stand.status}: {stand.message}" for stand in stands if stand.status != "finished"]
            seconds.append(time.monotonic() - start)
        wrong += [f"{point.path.name} is not finished" for point in asked if standing(point.path).status != "finished"]
        wrong += differences(asked, local)
        apart = distance(asked, stacked)
        wrong += [f"the stack of models differs by {apart:.2e}"] if not apart <= TOLERANCE else []
        print(f"two nodes {seconds[0]:.1f} s, two processes {seconds[1]:.1f} s, stacks of models {seconds[2]:.1f} s")
        print(f"against processes: {len(differences(asked, local))} files differ; against stacks: {apart:.2e} at most")
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
