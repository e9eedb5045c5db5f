"""Files that are whole or not there: written to a temporary name, flushed, renamed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash there is the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    return {name: tensor.to(device) for name, tensor in tensors.items()}, json.loads(text)


def digest(tensors: Mapping[str, Tensor], about: str) -> str:
    """SHA-256 over the facts, names, shapes and bytes."""
    total = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
