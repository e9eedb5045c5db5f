"""Files that are complete or absent (written to a temporary name, flushed, renamed), and the lock on a folder."""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import platform
import re
import secrets
import shlex
import stat
import tempfile
import unicodedata
import weakref
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
except ImportError:  # Windows: msvcrt's locks end with their process too
    fcntl = None

PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")
"""A list in indented JSON that holds no other list and no object."""
LINE_END = re.compile(r"\n\s*")
FACTS_FIRST, TENSOR_END = b'{"__metadata__":', re.compile(rb'"data_offsets":\[\d+,(\d+)\]')
"""How the header of a safetensors file begins, and where a tensor ends."""
MOST_HEADER = 10**7
"""More bytes of a header than a million tensors have are damage."""
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's classes of control and formatting characters, lone surrogates and further ends of lines."""


def visible(text: str) -> str:
    """The text with what would steer a terminal, or hide or turn what follows, written as an escape of Python."""
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if letter not in "\n\t" and unicodedata.category(letter) in UNSEEN
        else letter
        for letter in text
    )


def one_line(text: object) -> str:
    """An error, or any text, on one line."""
    return " ".join(str(text).split())


def _shown_safely(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage()), ()
    return True


log = logging.getLogger("looped")
"""Warnings for people while the work goes on: one line on standard error, unless logging is configured otherwise."""
log.addFilter(_shown_safely)


class Busy(ValueError):
    """Another process holds the lock."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash there is the old file or the new one, never a part."""
    # a random name, since processes on several machines that share a disk can have the same process id
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
            error.filename = str(path)  # the error of a full disk does not name the file
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def tidied(*folders: Path) -> Iterator[None]:
    """Afterwards, remove those of the folders and their parents that did not exist before and are still empty."""
    new = [path for folder in folders for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError, ValueError):  # not empty any more, or never created
                path.rmdir()


def check_folder(path: Path, what: str, option: str = "--out") -> None:
    """Create a folder and write to it, so that one that cannot be written is refused before the work, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"{what} cannot be saved in {path} ({error.strerror}). Name another folder with {option}."
        ) from None


def _sync_folder(folder: Path) -> None:
    """Flush a new name to the disk, before anything that it replaces is removed."""
    with contextlib.suppress(OSError):  # not every system can open or flush a folder
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


_lock_files: weakref.WeakSet[FileIO] = weakref.WeakSet()
"""The lock files that this process has open."""


def _release_in_child() -> None:
    """Close the parent's lock files in a forked child, which may outlive its parent."""
    for file in _lock_files:
        file.close()
    _lock_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; `Busy` if another process does. The kernel releases it when the process ends in any way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        _lock_files.add(file)
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
        with contextlib.suppress(OSError):  # only for people to read; a lock needs no space on a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        yield


def _lock(number: int) -> None:
    if fcntl is not None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        os.lseek(number, 1 << 30, os.SEEK_SET)  # a byte beyond the text, so that others can still read the text
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, a list of plain values on one line; a number that is not finite is an error."""
    text = json.dumps(data, indent=2, allow_nan=False)
    text = PLAIN_LIST.sub(lambda hit: f"[{LINE_END.sub(' ', hit[1])}]", text)
    write_bytes(path, (text + "\n").encode())


def finite(data: Any) -> Any:
    """The data with None for every number that is not finite, which JSON cannot hold."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(item) for item in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def quoted(path: Path) -> str:
    """A path as it is typed in a command, for messages that show one."""
    return shlex.quote(str(path))


def regular(path: Path) -> Path:
    """The path, unless a pipe, a socket or a device lies there: reading one may never end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a link that leads back to itself. Restore the file from a copy.") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a pipe or a device. Remove it, or restore the file from a copy.")
    return path


MOST_DEEP = 100
"""How deep lists and objects of JSON may be nested: what reads them goes down by recursion."""


def parse_json(text: str | bytes) -> Any:
    """Data from JSON; a ValueError where it is no JSON, nested too deep, or has a number too large for a float."""
    try:
        data = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError(f"it is nested more than {MOST_DEEP} deep") from None
    containers = [data]
    for _ in range(MOST_DEEP + 1):
        parts = (
            part.values() if isinstance(part, dict) else part for part in containers if isinstance(part, (dict, list))
        )
        containers = [value for values in parts for value in values if isinstance(value, (dict, list))]
        if not containers:
            return data
    raise ValueError(f"it is nested more than {MOST_DEEP} deep")


def _whole_number(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError(f"it holds a whole number of {len(digits.lstrip('-'))} digits")
    return int(digits)


def read_json(path: Path) -> Any:
    """Read JSON; a damaged file is a ValueError that names it."""
    try:
        return parse_json(regular(path).read_text())
    except (OSError, ValueError) as error:  # of its text, or of its encoding
        raise ValueError(f"{path} cannot be read as JSON: {error}. Restore it from a copy.") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and the facts `about` them as one safetensors file, with a checksum."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    storages: set[int] = set()
    for name, tensor in tensors.items():  # a weight that two layers share is written twice: safetensors refuses it
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    text = json.dumps(about, allow_nan=False)
    # one entry, since safetensors writes several in random order; thus equal checkpoints are equal files
    write_bytes(path, save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"}))


def read_tensors(
    path: Path,
    *,
    remedy: str = " Delete it to fall back on an earlier one, or restore it from a copy.",
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, without unpickling; a truncated, altered or foreign file is a ValueError."""
    with _safetensors(path, remedy) as (file, checksum, text, about):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if digest(tensors, text) != checksum:
        raise ValueError(f"{path} is damaged: its checksum does not match.{remedy}")
    return tensors, about


def read_about(path: Path) -> dict[str, Any]:
    """Only the facts of what `write_tensors` wrote; the file's length is checked, its checksum is not."""
    about = _first_facts(path)
    if about is None:
        with _safetensors(path) as (_, _, _, about):
            pass
    return about


def _first_facts(path: Path) -> dict[str, Any] | None:
    """The facts, which stand first in what `write_tensors` wrote, in a third of the time; None where they do not."""
    with contextlib.suppress(OSError, ValueError, KeyError), open(regular(path), "rb", buffering=0) as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, MOST_HEADER))
        last = TENSOR_END.match(header, header.rfind(b'"data_offsets"'))  # safetensors writes them in their order
        size = 8 + length + (int(last[1]) if last else 0)
        if len(header) == length and header.startswith(FACTS_FIRST) and size == os.fstat(file.fileno()).st_size:
            entry, _ = json.JSONDecoder().raw_decode(header.decode(), len(FACTS_FIRST))
            about = parse_json(entry["looped"].partition(" ")[2])
            return about if isinstance(about, dict) else None
    return None


@contextlib.contextmanager
def _safetensors(path: Path, remedy: str = " Remove it.") -> Iterator[tuple[Any, str, str, dict[str, Any]]]:
    """The open file, its checksum, and its facts as text and as data."""
    try:
        with safe_open(regular(path), framework="pt") as file:
            checksum, _, text = (file.metadata() or {})["looped"].partition(" ")
            about = parse_json(text)
            if not isinstance(about, dict):
                raise ValueError("its facts are not a JSON object")
            yield file, checksum, text, about
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a whole checkpoint of looped ({error}).{remedy}") from None


def digest(tensors: Mapping[str, Tensor], about: str) -> str:
    """SHA-256 of the facts, names, dtypes, shapes and bytes."""
    total = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
