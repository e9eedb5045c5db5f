"""A run: one experiment, trained. Its folder holds what `training/folder.py` says, and its metrics.

RUN/config.json            the experiment, complete but for fields that came later and have their defaults
RUN/metrics.jsonl          one line every `log_every` steps; no clock in it, so a resumed run's is bit-equal
RUN/tensorboard/           the same metrics for TensorBoard
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from looped.config import code_of, code_places, kinds
from looped.experiment import Experiment, Setup, known_hashes, trainable, training
from looped.files import (
    log,
    one_line,
    parse_json,
    quoted,
    read_about,
    read_json,
    read_tensors,
    regular,
    write_bytes,
    write_json,
)
from looped.functional.counts import check_at_least
from looped.functional.streams import seeded
from looped.models.base import LoopedModel
from looped.tasks.task import Task
from looped.training.folder import Checkpoint, Folder, begin, checkpoint_path, read_checkpoint
from looped.training.footprint import check_weights_fit
from looped.training.kept import PRETRAINED, hint, is_kept, locate, refuse_missing_weights, refuse_training

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The precisions that weights may be saved in; those of 8 bits need scales that nobody saved."""


class Run(Folder):
    """A run folder, open."""

    def __init__(self, path: Path, setup: Setup):
        super().__init__(path, setup.hash)
        self.setup = setup

    @property
    def experiment(self) -> Experiment:
        """The experiment that the run trains; imported or constructed weights have none."""
        return trainable(self.setup)

    @staticmethod
    def create(path: Path, setup: Setup) -> Run:
        """A new folder with its config, or the existing one if it holds the same config."""
        begin(path, setup.to_data(), "experiment", lambda data: _same_config(data, setup))
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
        data = read_json(path / "config.json")
        try:
            return Run(path, Setup.from_data(data, code))
        except ValueError as error:
            raise ValueError(f"{path / 'config.json'}: {error}") from None

    def known_hashes(self) -> set[str]:
        """The hashes of its config that its checkpoints may carry: today's, and those of earlier versions."""
        file = self.path / "config.json"
        if not file.exists():
            return {self.setup.hash}
        data = read_json(file)
        if not isinstance(data, dict):
            raise ValueError(f"{file} must hold a config; got {type(data).__name__}. Restore it from a copy.")
        return known_hashes(data, self.setup)

    @property
    def points(self) -> int:
        """Pairs in a prompt: as trained, else as the model was made for, else 2d examples and the query."""
        if isinstance(self.setup, Experiment):
            return self.setup.train.points
        points = self.provenance().get("points", 2 * self.setup.task.d + 1)
        if not isinstance(points, int) or points < 1:
            file = self.path / "provenance.json"
            raise ValueError(f"`points` in {file} must be a whole number from 1; got {points!r}. Give `--points`.")
        return points

    @property
    def kept(self) -> bool:
        """Whether it is a kept model: nothing is written into its folder, and its training cannot go on."""
        return is_kept(self.path)

    def extend(self, steps: int) -> Run:
        """A run beside this one that goes on from its end to `steps`: its schedules are from there on those of `steps`.

        It equals, bit for bit, a training from the start under its config, which has the steps of before in `extended`.
        """
        refuse_training(self.path)
        old, end = self.experiment.train, self.latest()
        if end is None or not end.finished:
            raise ValueError(f"{self.path} is not finished: {self.progress}. Finish it, then extend it. {self.resume}")
        if steps <= old.steps:
            raise ValueError(f"`train.steps` must be above the {old.steps} that {self.path} has; got {steps}.")
        experiment = training(self.experiment, steps=steps, extended=old.ends)
        longer = Run.create(self.path.parent / experiment.folder, experiment)
        with longer.lock():
            if not longer.steps:
                write_bytes(longer.path / "metrics.jsonl", b"".join(self._lines_up_to(end.step)))
                write_json(longer.path / "provenance.json", self.provenance())
                longer.save(Checkpoint(end.step, False, end.tensors))
        return longer

    @property
    def edited(self) -> bool:
        """Whether the config is another than the last checkpoint was written under; damage is found elsewhere."""
        with contextlib.suppress(ValueError, IndexError):
            about = read_about(checkpoint_path(self.path, self.steps[-1]))
            return about.get("experiment", "") not in ("", *self.known_hashes())
        return False

    @property
    def resume(self) -> str:
        """How to continue the training, for messages."""
        files = "".join(f" --code {shlex.quote(file)}" for file in code_places(self.setup).values())
        return f"{super().resume}, or: looped train --resume {quoted(self.path)}{files}"

    def best(self) -> Checkpoint | None:
        """The whole checkpoint of the lowest logged loss; where none can be judged, the last one."""
        for step in self.by_loss(self.steps):
            try:
                return read_checkpoint(self.path, step)
            except ValueError:
                if (file := checkpoint_path(self.path, step)).exists():  # else training has found a better one
                    log.warning(f"looped: {file} is damaged; the next best is used.")
        return self.latest()

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of another config; warn where the metrics beside it are not those of its time."""
        super().check(checkpoint)
        lines = b"".join(self._lines_up_to(checkpoint.step))
        if checkpoint.metrics and hashlib.sha256(lines).hexdigest() != checkpoint.metrics:
            log.warning(
                f"looped: {self.path / 'metrics.jsonl'} is not as it was written up to step {checkpoint.step}: "
                "what is left of it stays. The training itself loses nothing."
            )

    def model(self, device: torch.device | str = "cpu", *, best: bool = False) -> LoopedModel:
        """The trained model in evaluation mode, with the averaged weights where there are any, else the last ones.

        With `best` they come from the checkpoint of the lowest logged loss.
        """
        return self.model_of(self.best() if best else self.latest(), device)

    def model_of(self, checkpoint: Checkpoint | None, device: torch.device | str = "cpu") -> LoopedModel:
        """The model with a checkpoint's weights, in evaluation mode."""
        check_weights_fit(self.setup.model)
        model = self.setup.model.build().to(device)
        if checkpoint and checkpoint.experiment not in ("", *self.known_hashes()):
            log.warning(f"looped: {self.path / 'config.json'} is not the one its weights were trained under.")
        load_weights(model, self.path, checkpoint)
        return model.eval()

    def metrics(self) -> list[dict[str, float]]:
        """The metrics so far, one dict a line, without a last line that a kill cut short."""
        try:
            return [_line(line) for line in self._lines()]
        except ValueError as error:
            file = self.path / "metrics.jsonl"
            raise ValueError(f"{file} is damaged: {error}. Restore it from a copy, or remove it.") from None

    def append_metrics(self, line: Mapping[str, float]) -> None:
        """Add one line and flush it to the disk."""
        with open(regular(self.path / "metrics.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind_metrics(self, step: int) -> None:
        """Drop torn lines and those after `step`, which will be written again, the same."""
        file = self.path / "metrics.jsonl"
        if file.exists():
            write_bytes(file, b"".join(self._lines_up_to(step)))

    def _lines_up_to(self, step: int) -> list[bytes]:
        lines: list[bytes] = []
        for line in self._lines():
            with contextlib.suppress(ValueError):
                if _line(line)["step"] <= step:
                    lines.append(line)
        return lines

    def _lines(self) -> list[bytes]:
        file = self.path / "metrics.jsonl"
        lines = regular(file).read_bytes().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines if line.endswith(b"\n")]  # a kill may have cut the last one short

    def by_loss(self, steps: Sequence[int]) -> list[int]:
        """Those of these checkpoints that can be compared, the lowest logged loss first.

        It depends on the config and the metrics alone, so that a run that was stopped keeps the same checkpoint. Only
        those count that were due, that have a line of metrics just before, and whose masks are those of the last step.
        """
        if not isinstance(self.setup, Experiment):
            return []
        config = self.setup.train

        def masks(step: int) -> list[float]:
            schedules = [schedule for schedule in (config.dims, config.active_points) if schedule is not None]
            return [int(config.value(schedule, step - 1)) for schedule in schedules]

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


def _line(line: bytes) -> dict[str, float]:
    """One line of the metrics; damage is a ValueError."""
    data = parse_json(line)
    numbers = isinstance(data, dict) and all(type(value) in (int, float) for value in data.values())
    if not numbers or not {"step", "loss", "error"} <= data.keys() or not isinstance(data["step"], int):
        raise ValueError("a line does not have the numbers step, loss and error")
    return data


def load_weights(model: LoopedModel, path: Path, checkpoint: Checkpoint | None = None) -> None:
    """Load a run folder's weights into `model`, in their own precision: the averaged ones where there are any.

    They come from `checkpoint`, or from the last one. Weights that were rounded to half the size become float32.
    """
    checkpoint = checkpoint or Folder(path, "").latest()
    file = path / PRETRAINED if checkpoint is None else checkpoint_path(path, checkpoint.step)
    if checkpoint is not None:
        weights = checkpoint.part("average") or checkpoint.part("model")
    elif os.path.isfile(file):
        weights, _ = read_tensors(file, remedy=" Get it again.")
    else:
        if not os.path.isdir(path):  # false also for names that no file can have
            recipe = re.fullmatch(r"([^/]+)-[0-9a-f]{10}", str(path))
            remedy = f", or train `{recipe[1]}` into the folder of this run first." if recipe else hint(path)
            raise ValueError(f"there is no run folder {path}. Name one that is there{remedy}")
        refuse_missing_weights(path)
        raise ValueError(
            f"{path} has no checkpoint. Train it first: `looped train --resume {quoted(path)}`{hint(path)}"
        )
    check_weights(weights, model.state_dict(), file)
    try:
        precision = next(iter(weights.values())).dtype
        model.to(torch.promote_types(precision, torch.float32)).load_state_dict(weights)
    except (RuntimeError, StopIteration):
        raise ValueError(
            f"the weights in {path} do not fit the model of this config. Take the recipe and the scale they are from, "
            f"as {path / 'config.json'} has them."
        ) from None


def check_weights(weights: Mapping[str, Tensor], like: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights that are not finite, or no floats where those of the model are: torch would convert them."""
    for name, value in weights.items():
        kind = like.get(name, value).dtype  # a name that the model does not have is refused later
        if value.dtype != kind and not (value.dtype in FLOATS and kind in FLOATS):
            raise ValueError(f"{file} holds `{name}` as {value.dtype}; the model's is {kind}. Restore it from a copy.")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{file} holds weights that are not finite, in `{name}`. Restore it from a copy.")


def digest(weights: Mapping[str, Tensor]) -> str:
    """A short hash of named tensors: equal weights, equal digest."""
    total = hashlib.sha256()
    for name, value in sorted(weights.items()):
        total.update(name.encode())
        total.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:10]


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
    run.save(Checkpoint(step=0, finished=True, tensors=weights))
    run.save_provenance("cpu", 0.0, **origin)
    return run


def save(model: nn.Module, task: Task, path: str | Path, *, name: str | None = None, points: int | None = None) -> Run:
    """Make a model from a training loop of your own a run, which all commands take; saved again, it is replaced.

    `name` is what reports call it, by default that of the folder; `points` the pairs of its prompts, by default 2d + 1.
    """
    model = getattr(model, "_orig_mod", model)  # out of torch.compile
    if not isinstance(model, LoopedModel) or not isinstance(task, Task):
        got = f"{type(model).__name__} and {type(task).__name__}"
        raise ValueError(f"`save` takes a `LoopedModel` and a `Task`; got {got}. See docs/own_code.md for both.")
    check_at_least(1, points=points)
    with seeded(0, "weights"):
        rebuilt = model.config.build()
    try:
        rebuilt.load_state_dict(model.state_dict())
    except RuntimeError as error:
        reason = one_line(error).partition(": ")[2][:150]
        raise ValueError(f"the weights do not fit what `model.config.build()` makes: {reason}. Put it right.") from None
    size = {} if points is None else {"points": points}
    title = re.sub(r"[^\w.-]", "_", Path(path).name) if name is None else name
    return save_model(path, model, task, name=title, **size)
