"""The folder of a training, a run's or a family's: config, checkpoints, provenance, lock.

FOLDER/config.json                  what is trained, complete
FOLDER/checkpoints/*.safetensors    weights, optimiser, random state, with checksums
FOLDER/provenance.json              command, commit, device, versions, training time
FOLDER/lock                         held by the process that trains it; readers do not look at it
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped.files import Busy, locked, log, read_json, read_tensors, regular, tidied, write_json, write_tensors
from looped.training.provenance import provenance


@dataclass(frozen=True)
class Checkpoint:
    """Everything a training is at one step."""

    step: int
    """Steps done."""
    finished: bool
    """No step is left to do."""
    tensors: dict[str, Tensor]
    """By name: `model/...`, `average/...`, `optimizer/...`, `sums`, `generator`."""
    together: tuple[str, ...] = ()
    """Hashes of the experiments in one stack of models with this one, itself included; empty for a run alone."""
    experiment: str = ""
    """Hash of the config it was written under; empty in checkpoints of old versions."""
    metrics: str = ""
    """SHA-256 of the metrics up to its step, where there were any."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors under `name/`."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }


class Folder:
    """A training's folder, open."""

    def __init__(self, path: Path, hash: str):
        self.path, self.hash = path, hash

    @property
    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending."""
        return checkpoint_steps(self.path)

    @property
    def resume(self) -> str:
        """How to continue the training, for messages."""
        return "Go on with the same command"

    @property
    def progress(self) -> str:
        """Where the training stands, for messages."""
        return f"its last checkpoint is of step {self.steps[-1]}" if self.steps else "it has no checkpoint yet"

    def latest(self, *, mend: bool = False) -> Checkpoint | None:
        """The last whole checkpoint, or None where there is none yet.

        A damaged one is passed over for the one before it, with a line that says so. `mend` also renames it, so that it
        does not count as one of those to keep.
        """
        damaged: dict[int, str] = {}
        gone: set[int] = set()
        # listed again after every trouble: another process may train the run, and replace the files that were listed
        while left := [step for step in checkpoint_steps(self.path) if step not in damaged and step not in gone]:
            try:
                checkpoint = read_checkpoint(self.path, left[-1])
            except ValueError as error:
                if checkpoint_path(self.path, left[-1]).exists():
                    damaged[left[-1]] = str(error)
                else:
                    gone.add(left[-1])
                continue
            for step in damaged:
                file = checkpoint_path(self.path, step)
                aside = file.with_name(f"{file.name}.damaged")
                if mend:
                    os.replace(file, aside)
                log.warning(
                    f"looped: {file} is damaged{f' (now {aside.name})' if mend else ''}; "
                    f"the checkpoint before it, of step {checkpoint.step}, is used."
                )
            return checkpoint
        if damaged:
            reason = damaged[max(damaged)].partition(" Delete it")[0]
            raise ValueError(
                f"no checkpoint in {self.path} is whole. {reason} Restore one from a copy, or remove "
                f"{self.path / 'checkpoints'} to train from the start."
            )
        return None

    def finished(self, steps: int) -> bool:
        """Whether all `steps` are done; a damaged checkpoint counts as not finished."""
        try:
            checkpoint = read_checkpoint(self.path, steps) if steps in self.steps else None
            if checkpoint is not None:
                self.check(checkpoint)
            return checkpoint is not None and checkpoint.finished
        except ValueError:
            return False

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint."""
        about = {"step": checkpoint.step, "finished": checkpoint.finished, "experiment": self.hash}
        if checkpoint.together:
            about["together"] = list(checkpoint.together)
        if (file := self.path / "metrics.jsonl").exists():
            about["metrics"] = hashlib.sha256(regular(file).read_bytes()).hexdigest()
        target = checkpoint_path(self.path, checkpoint.step)
        target.parent.mkdir(exist_ok=True)  # somebody may have removed all checkpoints to begin anew
        write_tensors(target, checkpoint.tensors, about)

    def prune(self, step: int, *, keep: int) -> None:
        """Of the checkpoints up to `step` drop all but the last `keep` and the best; `keep=0` drops the best too.

        Only up to `step`: a stack that went back has later ones as well.
        """
        steps = [saved for saved in self.steps if saved <= step]
        spared = {*steps[max(len(steps) - keep, 0) :], *self.by_loss(steps)[:1]} if keep else set()
        for old in steps:
            if old not in spared:
                checkpoint_path(self.path, old).unlink()

    def by_loss(self, steps: Sequence[int]) -> list[int]:
        """Those of these checkpoints that can be compared, the lowest logged loss first."""
        return []

    def known_hashes(self) -> set[str]:
        """The hashes of its config that its checkpoints may carry."""
        return {self.hash}

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that was written under another config."""
        if checkpoint.experiment not in ("", *self.known_hashes()):
            raise ValueError(
                f"the checkpoint in {self.path} does not fit its config: it was written under another, of hash "
                f"{checkpoint.experiment}. Restore config.json from a copy, or train in another folder."
            )

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder for this process; `Busy` where another one trains it."""
        return locked(self.path / "lock", str(self.path))

    def tidy(self) -> None:
        """Remove what a kill left of unfinished writes; only for the process that holds the lock."""
        for pattern in ("checkpoints/.*.tmp", ".metrics.jsonl.*.tmp", ".provenance.json.*.tmp"):
            for torn in self.path.glob(pattern):
                torn.unlink()

    def provenance(self) -> dict[str, Any]:
        """Where the training came from; empty before its first save."""
        file = self.path / "provenance.json"
        data = read_json(file) if file.exists() else {}
        numbers = ("train_seconds", "points")
        if not isinstance(data, dict) or any(type(data.get(name, 0)) not in (int, float) for name in numbers):
            raise ValueError(
                f"{file} is damaged: it is no object with numbers of seconds and points. Restore it from a copy, or "
                "remove it."
            )
        return data

    def save_provenance(self, device: torch.device | str, seconds: float, **more: Any) -> None:
        """Record command, commit, device, versions and the training time so far."""
        write_json(self.path / "provenance.json", {**provenance(device), "train_seconds": round(seconds, 3), **more})


def begin(path: Path, config: Mapping[str, Any], what: str, same: Callable[[Any], bool] | None = None) -> None:
    """Make a folder with its config, or refuse an existing one with another config; `same` compares (default `==`)."""
    if (path / "config.json").exists():
        data = read_json(path / "config.json")
        if not (data == config if same is None else same(data)):
            raise ValueError(f"{path} holds another {what}. Choose another folder, or remove it.")
        return
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", config)
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}). Name another folder with --out.") from None


def is_family(path: Path) -> bool:
    """Whether a folder is a family's, not a run's."""
    with contextlib.suppress(ValueError):
        config = read_json(path / "config.json")
        return isinstance(config, dict) and "family" in config
    return False


@contextlib.contextmanager
def traceless(paths: Sequence[Path]) -> Iterator[None]:
    """Training that is refused before it wrote anything leaves no folder that was not there before."""
    new = [path for path in paths if not path.exists()]
    with tidied(*paths):
        try:
            yield
        except (
            ValueError,
            TypeError,
            RuntimeError,
            MemoryError,
            LookupError,
            AttributeError,
            ArithmeticError,
            SystemExit,  # of a user's own code
        ) as error:
            for path in [] if isinstance(error, Busy) else filter(Path.exists, new):
                # under the lock: another process may just have begun to train there
                with contextlib.suppress(Busy, OSError), locked(path / "lock", str(path)):
                    if not any((path / "checkpoints").glob("*")) and not (path / "metrics.jsonl").exists():
                        shutil.rmtree(path, ignore_errors=True)
            raise


def checkpoint_steps(path: Path) -> list[int]:
    """The steps that have a checkpoint in a folder, ascending."""
    try:
        files = os.listdir(os.path.join(path, "checkpoints"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = [file[5:-12] for file in files if file.startswith("step-") and file.endswith(".safetensors")]
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 20)


def checkpoint_path(path: Path, step: int) -> Path:
    """Where a folder's checkpoint of `step` lies."""
    return path.joinpath("checkpoints", f"step-{step:08d}.safetensors")


def read_checkpoint(path: Path, step: int) -> Checkpoint:
    """A folder's checkpoint of `step`; damage is a ValueError, a file that may not be read an OSError."""
    file = checkpoint_path(path, step)
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(regular(file), "rb"):
        pass  # else one that cannot be opened just now would look like a damaged one
    tensors, about = read_tensors(file)
    together, texts = about.get("together", []), [about.get(name, "") for name in ("experiment", "metrics")]
    named = isinstance(together, list) and all(isinstance(name, str) for name in (*together, *texts))
    if about.get("step") != step or not isinstance(about.get("finished"), bool) or not named:
        raise ValueError(f"{file} is not a checkpoint of step {step}: it says it is something else. Remove it.")
    return Checkpoint(step, about["finished"], tensors, tuple(together), *texts)
