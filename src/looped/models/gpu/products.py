"""Matrix products over the tokens of many models, (models, tokens, width), and the sums that gradients are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from looped.models.blocks import Block
from looped.models.gpu.activation import gelu

FILL = 132
"""How many programs fill the card: a product over many tokens is cut into about as many parts."""


class Matrices(NamedTuple):
    """The weight matrices, (models, out, in), in the precision of the passes, and the biases that products add."""

    qkv: Tensor
    qkv_bias: Tensor
    proj: Tensor
    fc: Tensor
    fc_bias: Tensor
    out: Tensor


def matrices_of(block: Block) -> Matrices:
    """A block's matrices and the biases that its products add, with an axis of models in front."""
    return Matrices(
        qkv=stacked(block.attention.qkv.weight, 2),
        qkv_bias=stacked(block.attention.qkv.bias, 1),
        proj=stacked(block.attention.proj.weight, 2),
        fc=stacked(block.mlp.fc.weight, 2),
        fc_bias=stacked(block.mlp.fc.bias, 1),
        out=stacked(block.mlp.proj.weight, 2),
    )


def stacked(weight: Tensor, ndim: int) -> Tensor:
    """The weight with an axis of models in front, where it has none."""
    weight = weight.detach()
    return weight if weight.ndim > ndim else weight[None]


def flat(stream: Tensor, models: int) -> Tensor:
    """(models, tokens, width)."""
    return stream.detach().reshape(models, -1, stream.shape[-1])


def sequences(stream: Tensor, seq: int) -> Tensor:
    """(models, tokens, width) as the sequences that attention reads."""
    return stream.view(-1, seq, stream.shape[-1])


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    """X W' + b, model by model."""
    if len(weight) == 1:
        return torch.addmm(bias[0], x[0], weight[0].mT, out=None if out is None else out[0]).view(1, *x.shape[1:-1], -1)
    return torch.baddbmm(bias[:, None], x, weight.mT, out=out)


def gelu_affine(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    """gelu(X W' + b), model by model; for one model the library's product applies it."""
    if len(weight) == 1 and x.is_cuda:
        into = None if out is None else out[0]
        product = torch._addmm_activation  # pyright: ignore[reportPrivateImportUsage]
        return product(bias[0], x[0], weight[0].mT, use_gelu=True, out=into)[None]
    u = affine(x, weight, bias, out=out)
    return gelu(u, out=u)


def add(residual: Tensor, x: Tensor, weight: Tensor) -> None:
    """residual += X W', model by model; in place, since the library would otherwise copy the residual first."""
    if len(weight) == 1:
        residual[0].addmm_(x[0], weight[0].mT)
    else:
        residual.baddbmm_(x, weight.mT)


def times(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """X W, model by model."""
    if len(weight) == 1:
        return torch.mm(x[0], weight[0], out=None if out is None else out[0])[None]
    return torch.bmm(x, weight, out=out)


def over_tokens(up: Tensor, x: Tensor) -> Tensor:
    """A weight's gradient: the sum over loops and tokens of up x', model by model, in full precision."""
    loops, models, tokens, _ = up.shape
    parts = _parts(loops * tokens, up.shape[-1] * x.shape[-1]) if models == 1 else loops
    up, x = (stream.view(parts * models, -1, stream.shape[-1]) for stream in (up, x))
    if up.dtype is torch.bfloat16 and up.is_cuda:
        product = torch.bmm(up.mT, x, out_dtype=torch.float32)
    else:  # on a CPU, only triton's interpreter comes here
        product = torch.bmm(up.mT.float(), x.float())
    return product.view(parts, models, *product.shape[1:]).sum(0)


def _parts(tokens: int, size: int) -> int:
    """How many equal parts to cut a sum over tokens into, so that parts times tiles of the result fill the card."""
    wanted = max(1, FILL // max(1, size // 128**2))
    return max(part for part in range(1, wanted + 1) if tokens % part == 0)


def by_model(parts: Tensor, models: int) -> Tensor:
    """Sums over loops and parts, (loops, models * parts, size) -> (models, size)."""
    loops, size = len(parts), parts.shape[-1]
    return parts.view(loops * models, -1, size).sum(1).view(loops, models, size).sum(0)
