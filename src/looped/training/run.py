"""The run folder: resolved config, metrics, checkpoints, provenance.

RUN/config.json            the experiment, complete but for fields that came later and have their defaults
RUN/metrics.jsonl          one line every `log_every` steps; no clock in it, so a resumed run's is bit-equal
RUN/checkpoints/*.safetensors   weights, optimiser, random state, checksums of all that and of the two files above
RUN/provenance.json        command, commit, device, versions, wall time
RUN/tensorboard/           the same metrics for TensorBoard
RUN/lock                   held by the process that trains the run; readers do not look at it
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped.config import code_of, kinds
from looped.experiment import Experiment, Setup, known_hashes, trainable
from looped.files import log, read_json, read_tensors, write_bytes, write_json, write_tensors
from looped.models.base import LoopedModel
from looped.tasks.task import Task
from looped.training.kept import hint, is_kept, locate


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run is at one step."""

    step: int
    """Steps done."""
    finished: bool
    """No step is left to do."""
    tensors: dict[str, Tensor]
    """`model/...`, `average/...`, `optimizer/...`, `sums`, `generator`."""
    together: tuple[str, ...] = ()
    """Hashes of the experiments in one stack of models with this one, itself included; of a run alone none."""
    experiment: str = ""
    """Hash of the config it was written under; checkpoints of old versions may not say."""
    metrics: str = ""
    """SHA-256 of the metrics up to its step, where there were any."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }


class Run:
    """A run folder, open."""

    def __init__(self, path: Path, setup: Setup):
        self.path, self.setup = path, setup

    @property
    def experiment(self) -> Experiment:
        """The experiment that the run trains; a folder of weights that were imported or constructed has none."""
        return trainable(self.setup)

    @staticmethod
    def create(path: Path, setup: Setup) -> Run:
        """A new folder with its config, or the existing one if it holds the same config."""
        if (path / "config.json").exists():
            if not _same_config(read_json(path / "config.json"), setup):
                raise ValueError(f"{path} holds another experiment. Choose another folder, or remove it.")
            return Run(path, setup)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_json(path / "config.json", setup.to_data())
        except OSError as error:
            raise ValueError(f"{path} cannot be written ({error.strerror}). Name another folder with --out.") from None
        return Run(path, setup)

    @staticmethod
    def open(path: str | Path, code: Mapping[str, Any] | None = None) -> Run:
        """An existing folder, or a kept model by its name where no such path is.

        `code` holds the classes from outside the library that the config may name.
        """
        path = locate(path)
        if not os.path.isfile(path / "config.json"):  # false also for names that no file can have
            raise ValueError(
                f"{path} is not a run folder: it has no config.json. Train or import one first{hint(path)}"
            )
        return Run(path, Setup.from_data(read_json(path / "config.json"), code))

    def known_hashes(self) -> set[str]:
        """The hashes of its config that its checkpoints may carry: today's, and those of earlier versions."""
        file = self.path / "config.json"
        return known_hashes(read_json(file), self.setup) if file.exists() else {self.setup.hash}

    @property
    def kept(self) -> bool:
        """Whether it is a kept model: nothing is written into its folder, and it cannot be trained on."""
        return is_kept(self.path)

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return checkpoint_steps(self.path)

    def latest(self, *, mend: bool = False) -> Checkpoint | None:
        """The last whole checkpoint, or None where there is none yet; to `mend` puts damaged ones aside."""
        return latest_checkpoint(self.path, mend=mend)

    @property
    def comparable(self) -> bool:
        """Whether its checkpoints have logged losses to compare, so that there is a best one."""
        return bool(self._by_loss(self.steps))

    def best(self) -> Checkpoint | None:
        """The whole checkpoint of the lowest logged loss; where none can be judged, the last one."""
        for step in self._by_loss(self.steps):
            try:
                return read_checkpoint(self.path, step)
            except ValueError:
                if (file := checkpoint_path(self.path, step)).exists():  # else training has found a better one
                    log.warning(f"looped: {file} is damaged; the next best is used.")
        return self.latest()

    def save(self, checkpoint: Checkpoint, *, keep: int | None = None) -> None:
        """Write a checkpoint; with `keep`, then drop all but the last so many and the best."""
        about = {"step": checkpoint.step, "finished": checkpoint.finished, "experiment": self.setup.hash}
        if checkpoint.together:
            about["together"] = list(checkpoint.together)
        if (file := self.path / "metrics.jsonl").exists():
            about["metrics"] = hashlib.sha256(file.read_bytes()).hexdigest()
        target = checkpoint_path(self.path, checkpoint.step)
        target.parent.mkdir(exist_ok=True)  # somebody may have removed all checkpoints to begin anew
        write_tensors(target, checkpoint.tensors, about)
        if keep is not None:
            self.prune(checkpoint.step, keep=keep)

    def prune(self, step: int, *, keep: int) -> None:
        """Of the checkpoints up to `step` drop all but the last `keep` and the best; to keep none drops that too.

        Up to `step`: a stack that went back has later ones as well.
        """
        steps = [one for one in self.steps if one <= step]
        kept = {*steps[max(len(steps) - keep, 0) :], *self._by_loss(steps)[:1]} if keep else set()
        for old in steps:
            if old not in kept:
                checkpoint_path(self.path, old).unlink()

    def check(self, checkpoint: Checkpoint) -> None:
        """What lies beside a checkpoint is what lay there when it was written; metrics that are not are only a line."""
        if checkpoint.experiment not in ("", *self.known_hashes()):
            raise ValueError(
                f"the checkpoint in {self.path} does not fit its config: it was written under another, of hash "
                f"{checkpoint.experiment}. Restore config.json from a copy, or train in another folder."
            )
        lines = b"".join(self._lines_up_to(checkpoint.step))
        if checkpoint.metrics and hashlib.sha256(lines).hexdigest() != checkpoint.metrics:
            log.warning(
                f"looped: {self.path / 'metrics.jsonl'} is not as it was written up to step {checkpoint.step}: "
                "what is left of it stays. The training itself loses nothing."
            )

    def tidy(self) -> None:
        """Remove what a kill left of unfinished writes; only for the process that holds the lock."""
        for pattern in ("checkpoints/.*.tmp", ".metrics.jsonl.*.tmp", ".provenance.json.*.tmp"):
            for torn in self.path.glob(pattern):
                torn.unlink()

    def model(self, device: torch.device | str = "cpu", *, best: bool = False) -> LoopedModel:
        """The trained model in evaluation mode: the averaged weights where the run keeps them, else the last ones.

        With `best` those of the checkpoint with the lowest logged loss.
        """
        return self.model_of(self.best() if best else self.latest(), device)

    def model_of(self, checkpoint: Checkpoint | None, device: torch.device | str = "cpu") -> LoopedModel:
        """The model with a checkpoint's weights, in evaluation mode."""
        model = self.setup.model.build().to(device)
        if checkpoint and checkpoint.experiment not in ("", *self.known_hashes()):
            log.warning(f"looped: {self.path / 'config.json'} is not the one its weights were trained under.")
        load_weights(model, self.path, checkpoint)
        return model.eval()

    def metrics(self) -> list[dict[str, float]]:
        """The metrics so far, one dict a line; a last line that a kill cut short does not count yet."""
        try:
            return [_line(line) for line in self._lines()]
        except ValueError as error:
            file = self.path / "metrics.jsonl"
            raise ValueError(f"{file} is damaged: {error}. Restore it from a copy, or remove it.") from None

    def append_metrics(self, line: Mapping[str, float]) -> None:
        """Add one line and see it onto the disk."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind_metrics(self, step: int) -> None:
        """Drop lines after `step`, and torn ones: those after `step` will be written again, the same."""
        file = self.path / "metrics.jsonl"
        if file.exists():
            write_bytes(file, b"".join(self._lines_up_to(step)))

    def provenance(self) -> dict[str, Any]:
        """Where the run came from; empty before its first save."""
        file = self.path / "provenance.json"
        found = read_json(file) if file.exists() else {}
        numbers = ("train_seconds", "points")
        if not isinstance(found, dict) or any(type(found.get(name, 0)) not in (int, float) for name in numbers):
            raise ValueError(
                f"{file} is damaged: it is no object with numbers of seconds and points. Restore it from a copy, or "
                "remove it."
            )
        return found

    def save_provenance(self, device: torch.device | str, seconds: float, **more: Any) -> None:
        """Record command, commit, device, versions and the training time so far."""
        write_json(self.path / "provenance.json", {**provenance(device), "train_seconds": round(seconds, 3), **more})

    def _lines_up_to(self, step: int) -> list[bytes]:
        """The whole lines of the metrics up to `step`, as they are written."""
        kept: list[bytes] = []
        for line in self._lines():
            with contextlib.suppress(ValueError):
                if _line(line)["step"] <= step:
                    kept.append(line)
        return kept

    def _lines(self) -> list[bytes]:
        """The lines of the metrics; a last one that a kill cut short is none yet."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines if line.endswith(b"\n")]

    def _by_loss(self, steps: Sequence[int]) -> list[int]:
        """Of these checkpoints the ones that can be compared, the lowest logged loss first.

        A function of the config and the metrics alone, so that a run that was stopped keeps the same one: only those
        written in due course, with a line of the steps just before, under the masks that the last step has too.
        """
        if not isinstance(self.setup, Experiment):
            return []
        config = self.setup.train

        def masks(step: int) -> list[float]:
            schedules = [one for one in (config.dims, config.active_points) if one is not None]
            return [int(schedule(step - 1, config.steps)) for schedule in schedules]

        lines = self._lines()
        losses: dict[int, float] = {}
        for step in steps:
            due = step % config.checkpoint_every == 0 or step == config.steps
            with contextlib.suppress(ValueError):  # damage: that one cannot be judged
                # found by halving, since a long run has many lines
                at = bisect.bisect_right(lines, step, key=lambda line: _line(line)["step"])
                line = _line(lines[at - 1]) if at else None
                fresh = line is not None and step - line["step"] < config.log_every
                if due and line and fresh and math.isfinite(line["loss"]) and masks(step) == masks(config.steps):
                    losses[step] = line["loss"]
        return sorted(losses, key=lambda step: (losses[step], step))


def _same_config(data: Any, setup: Setup) -> bool:
    """Whether a config file, perhaps of the version before, holds `setup`."""
    with contextlib.suppress(ValueError):
        return Setup.from_data(data, code_of(*kinds(setup))) == setup
    return False


def checkpoint_steps(path: Path) -> list[int]:
    """The steps that have a checkpoint in a run folder, ascending."""
    names = [file.stem.removeprefix("step-") for file in (path / "checkpoints").glob("step-*.safetensors")]
    return sorted(int(name) for name in names if name.isdigit())


def checkpoint_path(path: Path, step: int) -> Path:
    """Where a run folder's checkpoint of `step` lies."""
    return path / "checkpoints" / f"step-{step:08d}.safetensors"


def read_checkpoint(path: Path, step: int) -> Checkpoint:
    """A run folder's checkpoint of `step`; damage is a ValueError, a file that may not be read an OSError."""
    file = checkpoint_path(path, step)
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(file, "rb"):
        pass  # else one that cannot be opened just now would look like a damaged one
    tensors, about = read_tensors(file)
    together, texts = about.get("together", []), [about.get(name, "") for name in ("experiment", "metrics")]
    named = isinstance(together, list) and all(isinstance(one, str) for one in (*together, *texts))
    if about.get("step") != step or not isinstance(about.get("finished"), bool) or not named:
        raise ValueError(f"{file} is not a checkpoint of step {step}: it says it is something else. Remove it.")
    return Checkpoint(step, about["finished"], tensors, tuple(together), *texts)


def latest_checkpoint(path: Path, *, mend: bool = False) -> Checkpoint | None:
    """The last whole checkpoint of a run folder, or None where there is none yet.

    A damaged one is passed over for the one before it, with a line that says so; to `mend` also renames it, so that it
    does not count as one of those to keep.
    """
    damaged: dict[int, str] = {}
    gone: set[int] = set()
    # listed again after every trouble: another process may train the run, and replace the files that were listed
    while left := [step for step in checkpoint_steps(path) if step not in damaged and step not in gone]:
        try:
            found = read_checkpoint(path, left[-1])
        except ValueError as error:
            if checkpoint_path(path, left[-1]).exists():
                damaged[left[-1]] = str(error)
            else:
                gone.add(left[-1])
            continue
        for step in damaged:
            file = checkpoint_path(path, step)
            aside = file.with_name(f"{file.name}.damaged")
            if mend:
                os.replace(file, aside)
            log.warning(
                f"looped: {file} is damaged{f' (now {aside.name})' if mend else ''}; "
                f"the checkpoint before it, of step {found.step}, is used."
            )
        return found
    if damaged:
        raise ValueError(
            f"no checkpoint in {path} is whole. {damaged[max(damaged)].partition(' Delete it')[0]} Restore one from a "
            f"copy, or remove {path / 'checkpoints'} to train from the start."
        )
    return None


def _line(line: bytes) -> dict[str, float]:
    """One line of the metrics; damage is a ValueError."""
    try:
        found = json.loads(line)
    except RecursionError:
        raise ValueError("a line is no line of numbers") from None
    numbers = isinstance(found, dict) and all(type(value) in (int, float) for value in found.values())
    if not numbers or not {"step", "loss", "error"} <= found.keys() or not isinstance(found["step"], int):
        raise ValueError("a line does not have the numbers step, loss and error")
    return found


def load_weights(model: LoopedModel, path: Path, checkpoint: Checkpoint | None = None) -> None:
    """Put a run folder's weights into `model`, in their own precision: the averaged ones where the run keeps them.

    Those of `checkpoint`, or of the last one.
    """
    checkpoint = checkpoint or latest_checkpoint(path)
    if checkpoint is None:
        if not os.path.isdir(path):  # false also for names that no file can have
            recipe = re.fullmatch(r"([^/]+)-[0-9a-f]{10}", str(path))
            remedy = f", or train `{recipe[1]}` into the folder of this run first." if recipe else hint(path)
            raise ValueError(f"there is no run folder {path}. Name one that is there{remedy}")
        raise ValueError(f"{path} has no checkpoint. Train it first: `looped train --resume {path}`{hint(path)}")
    weights = checkpoint.part("average") or checkpoint.part("model")
    try:
        model.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    except (RuntimeError, StopIteration):
        raise ValueError(
            f"the weights in {path} do not fit the model of this config. Take the recipe and the scale they are from, "
            f"as {path / 'config.json'} has them."
        ) from None


def digest(weights: Mapping[str, Tensor]) -> str:
    """The first letters of a hash of named tensors: equal weights, equal digest."""
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:10]


def load(
    path: str | Path, *, code: Sequence[Any] = (), device: torch.device | str = "cpu", best: bool = False
) -> LoopedModel:
    """The model of a run folder, or a kept one by its name such as `yang24.linear`, ready to predict.

    `code` holds your own classes or modules that its config names. The last weights, or with `best` those of the
    checkpoint with the lowest logged loss.
    """
    return Run.open(path, code_of(*code)).model(device, best=best)


def save_model(path: str | Path, model: LoopedModel, task: Task, *, name: str, **origin: Any) -> Run:
    """Write a model that was not trained here, imported or constructed, as an ordinary run folder."""
    run = Run.create(Path(path), Setup(name=name, task=task, model=model.config))
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
    """What was typed: the `looped` command with its arguments, or the name of the script.

    Of an absolute path the last part alone: where it lay on this machine says nothing on another.
    """
    name = Path(sys.argv[0]).name
    words = [re.sub(r"(^|=)/(?:[^/]+/)*", r"\1", word) for word in sys.argv[1:]]
    return shlex.join(["looped", *words]) if name in ("looped", "__main__.py") else name


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
