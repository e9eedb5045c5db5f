"""The positions of a prompt that a slow baseline answers, and its progress."""

from collections.abc import Callable, Sequence

Report = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""


def chosen(at: Sequence[int] | None, n: int) -> list[int]:
    """The positions to answer, from 0 to n-1: all of them, or those in `at`, sorted and without repetition."""
    if at is None:
        return list(range(n))
    if any(not 0 <= i < n for i in at):
        raise ValueError(f"`at` must hold positions from 0 to {n - 1}; got {next(i for i in at if not 0 <= i < n)}.")
    return sorted(set(at))


def spread(n: int, count: int = 11) -> list[int]:
    """About `count` evenly spread positions of a prompt of n pairs, including the first and the last."""
    if count < 2:
        raise ValueError(f"`count` must be at least 2: the first and the last position; got {count}.")
    return sorted({round(i * (n - 1) / (count - 1)) for i in range(count)})
