"""The precision of products of float32 matrices on a GPU."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def tf32_products(*, allowed: bool = True) -> Iterator[None]:
    """Products of float32 matrices in TF32 where that is allowed, else in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
