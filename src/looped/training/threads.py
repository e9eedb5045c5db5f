"""How many threads torch uses: sums over threads round differently, so a training records the number."""

import contextlib
import os
from collections.abc import Iterator

import torch

from looped.files import log
from looped.training.folder import Folder

MOST = 1024
"""No machine has more cores; torch would try to start any number of threads."""


@contextlib.contextmanager
def at_threads(count: int | None) -> Iterator[int]:
    """Run with `count` torch threads, or with torch's own number where it is None; yields the number."""
    check_threads(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def check_threads(count: int | None) -> None:
    """Refuse a number of threads that no machine has."""
    if count is not None and not 1 <= count <= MOST:
        raise ValueError(f"`threads` must be from 1 to {MOST}; got {count}.")


def recorded(folder: Folder, *, ranks: int = 1) -> int | None:
    """The number of threads a training began with; None where it has not begun, or had other ranks or more cores."""
    origin = folder.provenance() if folder.steps else {}
    count = origin.get("threads")
    if not isinstance(count, int) or count < 1 or origin.get("ranks", 1) != ranks:
        return None
    if count > max(os.cpu_count() or 1, torch.get_num_threads()):
        log.warning(
            f"looped: {folder.path} was trained with {count} threads, this machine has {os.cpu_count()} cores: it goes "
            f"on with {torch.get_num_threads()}, equal up to rounding. `--threads {count}` would be exact."
        )
        return None
    return count
