"""How much memory the machine has, and refusals of what would need more, before it is begun."""

import re
from pathlib import Path

WORTH_ASKING = 2**28
"""Bytes below which nobody asks the machine: any has that much, and a training step has no time for it."""


def available() -> int | None:
    """Bytes of the machine's memory that are free now; None where the system does not say."""
    try:
        hit = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return 1024 * int(hit[1]) if hit else None


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse what takes `needed` bytes, at least, where the machine does not have them."""
    free = available() if needed > WORTH_ASKING else None
    if free is not None and needed > free:
        raise ValueError(f"{what} would take {_size(needed)} of memory, and {_size(free)} are free. {remedy}")


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes < 1e13 else f"{num_bytes / 1e12:,.0f} TB"
