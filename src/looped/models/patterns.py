"""Which entries of a head's matrices are free: the papers' sparsity patterns as parameterisations, never as masks.

`weights` maps the names in `shapes` to tensors `(*models, 1, *shape)`, with a 1 where the rows have their batch.
A row is (x, y, ...): x is in the first d coordinates and y in coordinate d.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

Weights = Mapping[str, Tensor]
Axes = Mapping[str, tuple[Literal["d", "width"], ...]]
RowsIn = Float[Tensor, "*batch n width"]


@dataclass(frozen=True)
class Pattern(ABC):
    """The form of some of a head's matrices."""

    @property
    @abstractmethod
    def free(self) -> Axes:
        """The free weights by name, each with the lengths of its axes: `d`, or `width` for a whole row."""

    def shapes(self, d: int, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the free weights by name."""
        lengths = {"d": d, "width": width}
        return {name: tuple(lengths[axis] for axis in axes) for name, axes in self.free.items()}


@dataclass(frozen=True)
class ValuePattern(Pattern):
    """The form of V, the value matrix: an example with row z_i contributes V z_i."""

    @abstractmethod
    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """V z_i for every row."""


@dataclass(frozen=True)
class FullValue(ValuePattern):
    """V is any matrix, `value`.

    Ref: gatmiry24, Eq. (2), its P; chen24, Definition 3.5, the transpose of its P.
    """

    free: ClassVar[Axes] = {"value": ("width", "width")}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """V z_i."""
        return rows @ weights["value"].mT


@dataclass(frozen=True)
class LabelValue(ValuePattern):
    """V = diag(0, r), where r is `label`: covariates never change.

    Ref: cheng24, Proposition 3.1 and Theorem 4.5 (A = 0).
    """

    free: ClassVar[Axes] = {"label": ()}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, r y_i)."""
        return pad(rows[..., d : d + 1] * weights["label"][..., None, None], (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class BlockValue(LabelValue):
    """V = diag(A, r); the weights are A, `transform`, and r, `label`.

    Ref: cheng24, Assumption 4.4.
    """

    free: ClassVar[Axes] = {"transform": ("d", "d"), "label": ()}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(A x_i, r y_i)."""
        covariates = pad(rows[..., :d] @ weights["transform"].mT, (0, rows.shape[-1] - d))
        return covariates + super().values(rows, weights, d)


@dataclass(frozen=True)
class UnitValue(ValuePattern):
    """V = (0; 0, 1): nothing is free and only labels change.

    Ref: gatmiry24, Eq. (5) with u = 0, as in its Theorems 2 to 8.
    """

    free: ClassVar[Axes] = {}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, y_i)."""
        return pad(rows[..., d : d + 1], (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class RestrictedValue(ValuePattern):
    """V = (0; u', 1), where u is `tilt`: only labels change.

    Ref: gatmiry24, Eq. (5), its P.
    """

    free: ClassVar[Axes] = {"tilt": ("d",)}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, <u, x_i> + y_i)."""
        labels = rows[..., :d] @ weights["tilt"][..., None] + rows[..., d : d + 1]
        return pad(labels, (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class ScorePattern(Pattern):
    """The form of B and C: the kernel reads keys B z_i and queries C z_j."""

    whole_rows: ClassVar[bool] = False
    """Whether B and C act on whole rows; else on the covariates alone."""

    def keys(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """B z_i for every row; B is `key`, or the identity."""
        read = rows if self.whole_rows else rows[..., :d]
        return read @ weights["key"].mT if "key" in weights else read

    def queries(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """C z_j for every row; C is `query` beside a `key`, and `score` alone."""
        read = rows if self.whole_rows else rows[..., :d]
        return read @ weights["query" if "key" in weights else "score"].mT


@dataclass(frozen=True)
class FullScores(ScorePattern):
    """The kernel reads whole rows through one matrix Q, `score`: h(z_i, Q z_j).

    Ref: gatmiry24, Eq. (2), its Q; chen24, Definition 3.5, the transpose of its Q.
    """

    free: ClassVar[Axes] = {"score": ("width", "width")}
    whole_rows: ClassVar[bool] = True


@dataclass(frozen=True)
class CovariateScores(ScorePattern):
    """The kernel reads covariates only, through one matrix A, `score`: h(x_i, A x_j), that is Q = diag(A, 0).

    Ref: gatmiry24, Eq. (5).
    """

    free: ClassVar[Axes] = {"score": ("d", "d")}


@dataclass(frozen=True)
class FactoredScores(ScorePattern):
    """The kernel reads covariates only, keys through B, `key`, and queries through C, `query`: h(B x_i, C x_j).

    Ref: cheng24, Eq. (2), Assumption 2.1. B acts on the examples that the sum is over, so it is the key here; the
    paper calls it the query.
    """

    free: ClassVar[Axes] = {"key": ("d", "d"), "query": ("d", "d")}
