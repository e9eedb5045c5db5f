"""Independent random streams from one seed."""

import hashlib

import torch

GENERATOR_SEEDS = 2**32
"""torch's generator on the CPU reads the low 32 bits of its seed: 0 and 2^32 would draw the same prompts."""


def stream(seed: int, purpose: str) -> int:
    """The seed of one of a run's independent random streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:7], "big")


def generator_of(seed: int) -> torch.Generator:
    """A generator on the CPU; seeds outside [0, 2^32) are refused, since some of them would draw the same numbers."""
    if not 0 <= seed < GENERATOR_SEEDS:
        raise ValueError(f"`seed` must be in [0, {GENERATOR_SEEDS - 1:,}]; got {seed}.")
    return torch.Generator().manual_seed(seed)
