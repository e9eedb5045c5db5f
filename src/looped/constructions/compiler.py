"""Compiles a program to the weights of an ordinary AlgoFormer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from looped.constructions.language import ONE, Array, Attend, Layer, Program, Put, Stream, Sum
from looped.models.algoformer import AlgoFormer, AlgoFormerConfig, Part
from looped.models.blocks import Block, relu


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How close the weights come to the limit in which softmax heads do what the program says."""

    temperature: float = 1e-4
    """The paper's c: the error of `Sum` falls as c, or as c^2 with symmetric heads; rounding grows as 1/c."""
    anchor: float = 30.0
    """The paper's C: the error of `Sum` also has a part that falls as n exp(-C)."""
    sharpness: float = 100.0
    """The factor on the scores of `Attend` and `Match`; their error falls as n exp(-sharpness * gap)."""
    symmetric: bool = True
    """Whether the two heads of `Sum` are at +c and -c; the paper's are at +c and 0."""
    gate: float = 1e6
    """What is subtracted from a blocked MLP row; it must exceed every blocked value."""

    def __post_init__(self) -> None:
        for name in ("temperature", "anchor", "sharpness", "gate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0; got {getattr(self, name)}.")


class _Head(NamedTuple):
    """The four matrices of a head, over the whole stream."""

    query: Array
    key: Array
    value: Array
    write: Array

    @property
    def width(self) -> int:
        return max(self.query.shape[0], self.value.shape[0])


def construct(program: Program, *, limits: Limits | None = None, loops: int = 1) -> AlgoFormer:
    """An AlgoFormer whose weights run `program`: softmax attention, full or causal, ReLU, no LayerNorm.

    Heads that a layer does not use are zero. The weights are in float64, because large numbers cancel; a run folder
    preserves that precision.
    """
    limits = limits or Limits()
    stream = program.stream
    config = AlgoFormerConfig(
        loops=loops,
        d=program.d,
        outputs=len(stream.read(program.output)),
        width=stream.width,
        positions=program.seq,
        tokens=program.tokens,
        query=program.query,
        read=program.read,
        pre=_part(program.pre, stream),
        loop=_part(program.loop, stream),
        post=_part(program.post, stream),
        norm=False,
        activation=relu,
        causal=program.causal,
        subspaces=tuple(stream.spaces.items()),
    )
    model = config.build().double()
    assert model.read_in is not None
    assert model.read_out is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.read_in.weight.copy_(_tensor(stream.write(program.inputs)))
        model.positions.copy_(_tensor(program.table()))
        if model.marks is not None:
            model.marks.copy_(_tensor(program.mark_table()))
        for blocks, layers in ((model.pre, program.pre), (model.loop, program.loop), (model.post, program.post)):
            for block, layer in zip(blocks, layers, strict=True):
                assert isinstance(block, Block)
                _fill_attention(block, _heads(layer, stream, limits))
                _fill_mlp(block, layer.mlp, stream, limits)
        model.read_out.weight.copy_(_tensor(stream.read(program.output)))
    return model


def _part(layers: Sequence[Layer], stream: Stream) -> Part:
    """The smallest numbers of heads, head dimensions and hidden units that fit every layer of a part."""
    heads = [head for layer in layers for head in _heads(layer, stream, Limits())]
    hidden = [sum(2 * len(stream.read(put.value)) for put in layer.mlp) for layer in layers]
    return Part(
        layers=len(layers),
        heads=max([1, *(layer.heads for layer in layers)]),
        head_width=max([1, *(head.width for head in heads)]),
        hidden=max([1, *hidden]),
    )


def _heads(layer: Layer, stream: Stream, limits: Limits) -> list[_Head]:
    heads: list[_Head] = []
    for operation in layer.attention:
        if isinstance(operation, Attend):  # hard attention is a softmax with large scores
            query, key = limits.sharpness * stream.read(operation.query), stream.read(operation.key)
            heads.append(_Head(query, key, stream.read(operation.value), stream.write(operation.to)))
        else:
            heads += _sum_heads(operation, stream, limits)
    return heads


def _sum_heads(total: Sum, stream: Stream, limits: Limits) -> list[_Head]:
    """Linear attention as the difference of two softmax heads, normalised by an anchor of score C.

        e^C softmax(c s_ij) -> 1 + c s_ij,  so  e^C / 2c (head at +c  -  head at -c) -> sum_j s_ij value_j

    Ref: gao24, Lemma A.2, whose second head is at 0.
    """
    c, first, second = limits.temperature, 1.0, -1.0 if limits.symmetric else 0.0
    query, key = [stream.read(total.query)], [stream.read(total.key)]
    level = limits.anchor
    if total.match is not None:
        query.append(limits.sharpness * stream.read(total.match.query))
        key.append(stream.read(total.match.key))
        level += limits.sharpness * total.match.top
    query.append(level * stream.read(ONE))
    key.append(stream.read({total.anchor: 1.0}))
    value, write = stream.read(total.value), stream.write(total.to)
    factor = math.exp(limits.anchor) / (c * (first - second))
    keys = np.concatenate(key)
    return [
        _Head(np.concatenate([sign * c * query[0], *query[1:]]), keys, value, weight * factor * write)
        for sign, weight in ((first, 1.0), (second, -1.0))
    ]


def _fill_attention(block: Block, heads: Sequence[_Head]) -> None:
    """Copy heads into the joint matrices; the query cancels the block's division by sqrt(head width)."""
    attention = block.attention
    size = attention.head_width
    qkv = attention.qkv.weight.view(3, attention.heads, size, -1)
    proj = attention.proj.weight.view(-1, attention.heads, size)
    for index, head in enumerate(heads):
        for which, matrix in enumerate((math.sqrt(size) * head.query, head.key, head.value)):
            qkv[which, index, : len(matrix)] = _tensor(matrix)
        proj[:, index, : head.write.shape[1]] = _tensor(head.write)


def _fill_mlp(block: Block, puts: Sequence[Put], stream: Stream, limits: Limits) -> None:
    """leaky(v) = relu(v - gate) - slope relu(-v - gate), gate = limits.gate * (sum of the `unless`)."""
    row = 0
    for put in puts:
        value, to = stream.read(put.value), stream.write(put.to)
        gate = limits.gate * sum((stream.coordinate(gate) for gate in put.unless), np.zeros((1, stream.width)))
        for sign, weight in ((1.0, 1.0), (-1.0, -put.slope)):
            rows = slice(row, row + len(value))
            block.mlp.fc.weight[rows] = _tensor(sign * value - gate)
            block.mlp.proj.weight[:, rows] = _tensor(weight * to)
            row += len(value)


def _tensor(matrix: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float64))
