"""Independent random streams from one seed."""

import hashlib


def stream(seed: int, purpose: str) -> int:
    """The seed of one of a run's independent random streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:7], "big")
