"""A small language for constructions: named subspaces of the residual stream, and what layers do with them.

A program is data. `compiler.py` turns it into the weights of an ordinary AlgoFormer, whose softmax heads do what the
program says only in a limit. `interpreter.py` runs the program exactly, without softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float

Array = np.ndarray
Read = Mapping[str, float | Array]
"""A linear map of a token: the sum of matrix (rows, size) @ subspace; a number means that times the identity."""
Write = Mapping[str, float | Array]
"""Where a value goes: matrix (size, rows) @ value is added to each subspace; a number means the same as above."""

Coordinate = tuple[str, int]
"""One coordinate of a subspace."""


@dataclass(frozen=True)
class Stream:
    """The residual stream, split into named subspaces."""

    spaces: Mapping[str, int]
    """Size of each subspace by name, in order."""

    @property
    def width(self) -> int:
        """Width of the stream."""
        return sum(self.spaces.values())

    def at(self, name: str) -> slice:
        """The coordinates of a subspace."""
        if name not in self.spaces:
            raise ValueError(f"the stream has no subspace `{name}`; it has {list(self.spaces)}. Use one of them.")
        first = sum(list(self.spaces.values())[: list(self.spaces).index(name)])
        return slice(first, first + self.spaces[name])

    def read(self, read: Read) -> Float[Array, "rows width"]:
        """The matrix of a read."""
        blocks = {name: self._matrix(name, value) for name, value in read.items()}
        rows = {block.shape[0] for block in blocks.values()}
        if len(rows) != 1:
            shapes = {name: block.shape for name, block in blocks.items()}
            raise ValueError(f"all parts of a read must have the same number of rows; got {shapes}. Pad with zeros.")
        matrix = np.zeros((rows.pop(), self.width))
        for name, block in blocks.items():
            if block.shape[1] != self.spaces[name]:
                raise ValueError(
                    f"`{name}` has {self.spaces[name]} coordinates; got a matrix of shape {block.shape}. "
                    "Its columns must match a read's subspace, its rows a write's."
                )
            matrix[:, self.at(name)] += block
        return matrix

    def coordinate(self, coordinate: Coordinate) -> Float[Array, "1 width"]:
        """The matrix that reads one coordinate."""
        name, index = coordinate
        at = self.at(name)
        return np.eye(1, self.width, range(at.start, at.stop)[index])

    def write(self, write: Write) -> Float[Array, "width rows"]:
        """The matrix of a write."""
        return self.read({name: self._matrix(name, value).T for name, value in write.items()}).T

    def _matrix(self, name: str, value: float | Array) -> Array:
        at = self.at(name)
        size = at.stop - at.start
        matrix = np.asarray(value, dtype=np.float64)
        return matrix * np.eye(size) if matrix.ndim == 0 else np.atleast_2d(matrix)


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Hard attention, one head: fetch from the tokens that match best.

    z_i[to] += mean of value_j over the j whose <query_i, key_j> is largest
    """

    query: Read
    key: Read
    value: Read
    to: Write


@dataclass(frozen=True, kw_only=True)
class Match:
    """The tokens that a sum runs over: those j whose <query_i, key_j> reaches its largest possible value, `top`."""

    query: Read
    key: Read
    """Must read 0 at the anchor."""
    top: float


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Linear attention, two heads: a product of three quantities that depend on the data.

    z_i[to] += sum over j of <query_i, key_j> value_j
    """

    query: Read
    key: Read
    """Must read 0 at the anchor, and so must `value`."""
    value: Read
    to: Write
    anchor: str
    """A one-dimensional subspace: 1 at the token that takes the softmax's mass, 0 at all others."""
    match: Match | None = None
    """Restricts the sum to some tokens; None sums over all."""


@dataclass(frozen=True, kw_only=True)
class Put:
    """Rows of the MLP, two hidden units for each.

    z[to] += leaky(value) where every `unless` is 0, and 0 elsewhere;  leaky(v) = v for v > 0, slope v for v < 0
    """

    value: Read
    to: Write
    slope: float = 1.0
    """1 passes the value on unchanged, 0 is ReLU."""
    unless: tuple[Coordinate, ...] = ()
    """Coordinates that are 0 (pass) or at least 1 (block) at every token. A passed value is exact, because nothing is
    added to it and subtracted again; so the stream needs both an indicator and its opposite."""

    @classmethod
    def clear(cls, name: str, *unless: Coordinate) -> Put:
        """Set a subspace to 0 where every `unless` is 0."""
        return cls(value={name: -1.0}, to={name: 1.0}, unless=unless)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One transformer layer: everything in `attention` at once, then everything in `mlp` at once."""

    attention: tuple[Attend | Sum, ...] = ()
    mlp: tuple[Put, ...] = ()

    @property
    def heads(self) -> int:
        """How many attention heads it takes."""
        return sum(2 if isinstance(operation, Sum) else 1 for operation in self.attention)


ONE: Read = {"one": 1.0}
"""The constant 1, a coordinate of every token."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What an AlgoFormer does, in terms of its stream; every stream has a subspace `one`, which the positions fill."""

    stream: Stream
    inputs: Write
    """Where the coordinates of an input token go: subspace -> matrix (size, token width)."""
    positions: Mapping[str, Float[Array, "seq _"]]
    """What each position adds to the stream, by subspace."""
    marks: Mapping[str, Float[Array, "marked _"]] = field(default_factory=dict)
    """What is added to the query: the last token, or the last two where a pair is two tokens."""
    pre: tuple[Layer, ...] = ()
    loop: tuple[Layer, ...]
    post: tuple[Layer, ...] = ()
    output: Read = field(default_factory=lambda: {"out": 1.0})
    """The answer, read from the stream at the end."""
    d: int
    """Dimension of x, or of a token."""
    tokens: Literal["apart", "given"] = "given"
    query: Literal["every", "last"] = "last"
    read: Literal["x", "y"] = "x"
    causal: bool = False

    @property
    def seq(self) -> int:
        """Length of the longest prompt, in tokens."""
        return len(self.positions["one"])

    def counts(self) -> dict[str, tuple[int, int]]:
        """The number of layers of pre, loop and post, and of heads in their widest layer."""
        parts = {"pre": self.pre, "loop": self.loop, "post": self.post}
        return {name: (len(part), max((layer.heads for layer in part), default=0)) for name, part in parts.items()}

    def table(self) -> Float[Array, "seq width"]:
        """The positions as one table."""
        return self._fill(self.positions, self.seq)

    def mark_table(self) -> Float[Array, "marked width"]:
        """The query's marks as one table."""
        return self._fill(self.marks, 1 if self.tokens == "given" else 2)

    def _fill(self, parts: Mapping[str, Array], rows: int) -> Array:
        table = np.zeros((rows, self.stream.width))
        for name, value in parts.items():
            table[:, self.stream.at(name)] += np.asarray(value, dtype=np.float64).reshape(rows, -1)
        return table
