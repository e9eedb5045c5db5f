"""The run folder: resolved config, metrics, checkpoints, provenance.

RUN/config.json            the experiment, complete
RUN/metrics.jsonl          one line every `log_every` steps; no clock in it, so a resumed run's is bit-equal
RUN/checkpoints/*.safetensors   weights, optimiser, random state
RUN/provenance.json        command, commit, device, versions, wall time
RUN/tensorboard/           the same metrics for TensorBoard
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped.config import code_of
from looped.experiment import Experiment
from looped.files import read_json, read_tensors, write_bytes, write_json, write_tensors
from looped.models.base import LoopedModel
from looped.tasks.task import Task


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run is at one step."""

    step: int
    """Steps done."""
    finished: bool
    """No step is left to do."""
    tensors: dict[str, Tensor]
    """`model/...`, `average/...`, `optimizer/...`, `meter/...`, `generator`."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }


class Run:
    """A run folder, open."""

    def __init__(self, path: Path, experiment: Experiment):
        self.path, self.experiment = path, experiment

    @staticmethod
    def create(path: Path, experiment: Experiment) -> Run:
        """A new folder with its config, or the existing one if it holds the same config."""
        if (path / "config.json").exists():
            found = read_json(path / "config.json")
            if found != experiment.to_data():
                raise ValueError(f"{path} holds another experiment. Choose another folder, or remove it.")
            return Run(path, experiment)
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", experiment.to_data())
        return Run(path, experiment)

    @staticmethod
    def open(path: str | Path, code: Mapping[str, Any] | None = None) -> Run:
        """An existing folder; `code` holds the classes from outside the library that its config may name."""
        path = Path(path)
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a run folder: it has no config.json. Train or import one first.")
        return Run(path, Experiment.from_data(read_json(path / "config.json"), code))

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return checkpoint_steps(self.path)

    def latest(self) -> Checkpoint | None:
        """The last checkpoint, or None where there is none yet."""
        return latest_checkpoint(self.path)

    def save(self, checkpoint: Checkpoint, *, keep: int) -> None:
        """Write a checkpoint, then drop all but the last `keep`."""
        about = {"step": checkpoint.step, "finished": checkpoint.finished, "experiment": self.experiment.hash}
        write_tensors(checkpoint_path(self.path, checkpoint.step), checkpoint.tensors, about)
        for step in self.steps[:-keep]:
            checkpoint_path(self.path, step).unlink()
        for torn in (self.path / "checkpoints").glob(".*.tmp"):  # what a kill left of an earlier write
            torn.unlink()

    def model(self, device: torch.device | str = "cpu") -> LoopedModel:
        """The trained model in evaluation mode: the averaged weights where the run keeps them, else the last ones."""
        model = self.experiment.model.build().to(device)
        load_weights(model, self.path)
        return model.eval()

    def metrics(self) -> list[dict[str, float]]:
        """The metrics so far, one dict a line; a last line that a kill cut short does not count yet."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        try:
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} is damaged: {error}. Restore it from a copy, or remove it.") from None

    def append_metrics(self, line: Mapping[str, float]) -> None:
        """Add one line and see it onto the disk."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind_metrics(self, step: int) -> None:
        """Drop lines after `step`, and a torn last one: they will be written again, the same."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for line in file.read_text().splitlines(keepends=True):
            try:
                if not line.endswith("\n") or json.loads(line)["step"] > step:
                    break
            except (json.JSONDecodeError, KeyError):
                break
            kept.append(line)
        write_bytes(file, "".join(kept).encode())

    def provenance(self) -> dict[str, Any]:
        """Where the run came from; empty before its first save."""
        file = self.path / "provenance.json"
        return read_json(file) if file.exists() else {}

    def save_provenance(self, device: torch.device | str, seconds: float, **more: Any) -> None:
        """Record command, commit, device, versions and the training time so far."""
        write_json(self.path / "provenance.json", {**provenance(device), "train_seconds": round(seconds, 3), **more})


def checkpoint_steps(path: Path) -> list[int]:
    """The steps that have a checkpoint in a run folder, ascending."""
    names = [file.stem.removeprefix("step-") for file in (path / "checkpoints").glob("step-*.safetensors")]
    return sorted(int(name) for name in names if name.isdigit())


def checkpoint_path(path: Path, step: int) -> Path:
    """Where a run folder's checkpoint of `step` lies."""
    return path / "checkpoints" / f"step-{step:08d}.safetensors"


def latest_checkpoint(path: Path) -> Checkpoint | None:
    """The last checkpoint of a run folder, or None where there is none yet."""
    steps = checkpoint_steps(path)
    if not steps:
        return None
    tensors, about = read_tensors(checkpoint_path(path, steps[-1]))
    return Checkpoint(about["step"], about["finished"], tensors)


def load_weights(model: LoopedModel, path: Path) -> None:
    """Put a run folder's weights into `model`, in their own precision: the averaged ones where the run keeps them."""
    checkpoint = latest_checkpoint(path)
    if checkpoint is None:
        raise ValueError(f"{path} has no checkpoint. Train it first: `looped train --resume {path}`.")
    weights = checkpoint.part("average") or checkpoint.part("model")
    try:
        model.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    except (RuntimeError, StopIteration):
        raise ValueError(f"the weights in {path} do not fit the model of this config.") from None


def load(path: str | Path, *, code: Sequence[Any] = (), device: torch.device | str = "cpu") -> LoopedModel:
    """The model of a run folder, ready to predict; `code` holds your own classes or modules that its config names."""
    return Run.open(path, code_of(*code)).model(device)


def save_model(path: str | Path, model: LoopedModel, task: Task, *, name: str, **origin: Any) -> Run:
    """Write a model that was not trained here, imported or constructed, as an ordinary run folder."""
    run = Run.create(Path(path), Experiment(name=name, task=task, model=model.config))
    weights = {f"model/{key}": value for key, value in model.state_dict().items()}
    run.save(Checkpoint(step=0, finished=True, tensors=weights), keep=1)
    run.save_provenance("cpu", 0.0, **origin)
    return run


def provenance(device: torch.device | str) -> dict[str, Any]:
    """Where and how this process runs."""
    device = torch.device(device)
    return {
        "command": command(),
        "commit": commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def command() -> str:
    """What was typed: the `looped` command with its arguments, or the name of the script."""
    name = Path(sys.argv[0]).name
    return shlex.join(["looped", *sys.argv[1:]]) if name in ("looped", "__main__.py") else name


@functools.cache
def commit() -> str | None:
    """The commit of the checkout this library runs from, with a + where files differ.

    LOOPED_COMMIT comes first: a copy of the sources, such as on a borrowed GPU, does not know where it came from.
    """
    if said := os.environ.get("LOOPED_COMMIT"):
        return said
    try:
        arguments = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True}
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **arguments).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], **arguments).stdout.strip()
        return head + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_name() -> str:
    """The processor's name and how many cores there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
