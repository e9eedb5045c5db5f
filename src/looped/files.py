"""Files that are whole or not there: written to a temporary name, flushed, renamed. And the lock on a folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import platform
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows, whose locks die with their process too
    fcntl = None

log = logging.getLogger("looped")
"""What a person should know though the work goes on: one line on standard error, unless logging is set up otherwise."""


class Busy(ValueError):
    """Another process holds the lock."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash there is the old one or the new one, never a part."""
    # a random name, since processes on several machines that share a disk can have one number
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)  # a full disk does not say where
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def tidied(*folders: Path) -> Iterator[None]:
    """What was refused or stopped leaves no empty folder: those not there before go again, if they are empty."""
    new = [one for folder in folders for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        yield
    finally:
        for one in new:
            with contextlib.suppress(OSError, ValueError):  # somebody put something there, or it was never made
                one.rmdir()


def check_folder(path: Path, what: str) -> None:
    """Make a folder and try it, so that one that cannot be written is refused before the work, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"{what} cannot be kept in {path} ({error.strerror}). Name another folder with --out."
        ) from None


def _sync_folder(folder: Path) -> None:
    """See a new name onto the disk too: what is removed after it must not be gone where the name is not there yet."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened or flushed
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


_held: set[FileIO] = set()
"""The lock files that this process has open."""


@contextlib.contextmanager
def _watched(file: FileIO) -> Iterator[None]:
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)


def _forked() -> None:
    """A forked child holds nothing: it may outlive its parent, and must not keep the parent's locks."""
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; `Busy` where another process does. The kernel lets go of it when its process dies, however."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file, _watched(file):
        try:
            _lock(file.fileno())
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                raise Busy(f"{what} was removed just now by another process. Ask again.")
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                file.seek(0)
                owner = file.read(200).decode(errors="replace").strip() or "another process"
                raise Busy(f"{what} is being trained by {owner}. Wait until that ends, or stop it.") from None
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            log.warning(f"looped: {path} cannot be locked ({error.strerror}): do not train {what} in two processes.")
        with contextlib.suppress(OSError):  # only for people to read; a full disk can still be locked
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        yield


def _lock(number: int) -> None:
    if fcntl is not None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        os.lseek(number, 1 << 30, os.SEEK_SET)  # a byte beyond the text, which others may then still read
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically; a number that is not finite is an error."""
    write_bytes(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def finite(data: Any) -> Any:
    """JSON data with null for every number that is not finite, which JSON cannot hold."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(item) for item in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def read_json(path: Path) -> Any:
    """Read JSON; damage is a ValueError that names the file."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}. Restore it from a copy.") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a few facts about them as one safetensors file, with a checksum."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(about, allow_nan=False)
    # one entry, since safetensors writes several in random order: equal checkpoints are equal files
    write_bytes(path, save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))


def read_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; a truncated, altered or foreign file is a ValueError, never unpickled."""
    remedy = "Delete it to fall back on an earlier one, or restore it from a copy."
    try:
        with safe_open(path, framework="pt") as file:
            facts = (file.metadata() or {})["looped"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{path} is not a whole checkpoint of looped ({error}). {remedy}") from None
    checksum, _, text = facts.partition(" ")
    if digest(tensors, text) != checksum:
        raise ValueError(f"{path} is damaged: its checksum does not match. {remedy}")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, _facts(path, text)


def read_about(path: Path) -> dict[str, Any]:
    """The facts of what `write_tensors` wrote, without its tensors: of a whole length, but no checksum is taken."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = (file.metadata() or {})["looped"]
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{path} is not a whole checkpoint of looped ({error}).") from None
    return _facts(path, facts.partition(" ")[2])


def _facts(path: Path, text: str) -> dict[str, Any]:
    try:
        about = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise ValueError(f"{path} is not a checkpoint of looped: what it says about itself is no object. Remove it.")
    return about


def digest(tensors: Mapping[str, Tensor], about: str) -> str:
    """SHA-256 over the facts, names, shapes and bytes."""
    total = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
