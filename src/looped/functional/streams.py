"""Independent random streams from one seed, and torch's global generators, from which a model of your own may draw."""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def stream(seed: int, purpose: str) -> int:
    """The seed of one of a run's independent random streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:7], "big")


@contextlib.contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Seed torch's global generators, on the CPU and on all GPUs; afterwards they are as they were.

    As a decorator, `@seeded(0, "evaluation")`, it makes a function give the same numbers at every call.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(stream(seed, purpose))
        yield
