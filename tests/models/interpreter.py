"""Triton's interpreter, put right where it multiplies bfloat16: it takes the bits for integers."""

from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def repair(monkeypatch: Any) -> None:
    """Products of bfloat16 in float32, which holds them exactly, as tensor cores do."""
    if DEVICE.type == "cuda":
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.create_dot

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (self.create_fp_ext(factor, tl.float32) for factor in (a, b))
        return plain(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)
