"""How many threads torch uses: sums over threads round differently, so the number is part of what a run records."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from looped.files import log
from looped.training.run import Run

MOST = 1024
"""More than any machine has cores to use; torch itself would try to start them all."""


@contextlib.contextmanager
def threads(run: Run, asked: int | None = None, *, ranks: int = 1) -> Iterator[None]:
    """Train with the threads asked for; else with those the run began with; else with torch's own number."""
    with at_threads(recorded(run, ranks=ranks) if asked is None else asked):
        yield


@contextlib.contextmanager
def at_threads(count: int | None) -> Iterator[int]:
    """So many threads for a while, None for as many as there are; gives their number."""
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


def recorded(run: Run, *, ranks: int = 1) -> int | None:
    """The threads a started run was trained with, unless that was by another number of ranks, or on more cores."""
    origin = run.provenance() if run.steps else {}
    count = origin.get("threads")
    if not isinstance(count, int) or count < 1 or origin.get("ranks", 1) != ranks:
        return None
    if count > max(os.cpu_count() or 1, torch.get_num_threads()):
        log.warning(
            f"looped: {run.path} was trained with {count} threads, this machine has {os.cpu_count()} cores: it goes on "
            f"with {torch.get_num_threads()}, equal up to rounding. `--threads {count}` would be exact."
        )
        return None
    return count
