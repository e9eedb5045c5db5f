"""Triton's interpreter, put right for bfloat16: it multiplies bits as integers, and cuts off rather than rounds."""

from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def repair(monkeypatch: Any) -> None:
    """Products of bfloat16 in float32, which holds them exactly, as tensor cores do; numbers rounded to the nearest."""
    if DEVICE.type == "cuda":
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain, plain_cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (self.create_fp_ext(factor, tl.float32) for factor in (a, b))
        return plain(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)

    def cast(self: Any, number: Any, dtype: Any) -> Any:
        if (number.dtype.scalar, dtype.scalar) != (tl.float32, tl.bfloat16):
            return plain_cast(self, number, dtype)
        bits = torch.tensor(number.data).to(torch.bfloat16).view(torch.uint16).numpy()
        return TensorHandle(bits.reshape(number.data.shape), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast)
    monkeypatch.setattr(InterpreterBuilder, "create_fp_trunc", cast)
