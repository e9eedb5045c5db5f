"""Which positions of a prompt a slow baseline answers, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Report = Callable[[float], None]
"""Is told the share that is done, from 0 to 1."""


def chosen(at: Sequence[int] | None, n: int) -> list[int]:
    """The positions to answer, from 0 to n-1: all of them, or those of `at`, each once and in order."""
    if at is None:
        return list(range(n))
    if any(not 0 <= i < n for i in at):
        raise ValueError(f"`at` holds positions from 0 to {n - 1}; got {next(i for i in at if not 0 <= i < n)}.")
    return sorted(set(at))


def spread(n: int, count: int = 11) -> list[int]:
    """About `count` positions of a prompt of n pairs, evenly spread, the first and the last among them."""
    if count < 2:
        raise ValueError(f"`count` must be at least 2: the first and the last position; got {count}.")
    return sorted({round(i * (n - 1) / (count - 1)) for i in range(count)})
