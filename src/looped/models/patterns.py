"""Which entries of a head's matrices are free: the papers' sparsity patterns as parameterisations, never as masks.

`weights` maps the names in `shapes` to tensors `(*models, 1, *shape)`, with a 1 where the rows have their batch.
A row is (x, y, ...): x is in the first d coordinates and y in coordinate d.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
RowsIn = Float[Tensor, "*batch n width"]


@dataclass(frozen=True)
class ValuePattern(ABC):
    """The form of V, the value matrix: an example with row z_i contributes V z_i."""

    @abstractmethod
    def shapes(self, d: int, width: int) -> Shapes:
        """The free weights by name."""

    @abstractmethod
    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """V z_i for every row."""


@dataclass(frozen=True)
class FullValue(ValuePattern):
    """V is any matrix, `value`.

    Ref: gatmiry24, Eq. (2), its P; chen24, Definition 3.5, the transpose of its P.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """The whole matrix."""
        return {"value": (width, width)}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """V z_i."""
        return rows @ weights["value"].mT


@dataclass(frozen=True)
class BlockValue(ValuePattern):
    """V = diag(A, r); the weights are A, `transform`, and r, `label`.

    Ref: cheng24, Assumption 4.4.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """A block and a number."""
        return {"transform": (d, d), "label": ()}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(A x_i, r y_i)."""
        covariates = pad(rows[..., :d] @ weights["transform"].mT, (0, rows.shape[-1] - d))
        return covariates + LabelValue().values(rows, weights, d)


@dataclass(frozen=True)
class LabelValue(ValuePattern):
    """V = diag(0, r), where r is `label`: covariates never change.

    Ref: cheng24, Proposition 3.1 and Theorem 4.5 (A = 0).
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """A number."""
        return {"label": ()}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, r y_i)."""
        return pad(rows[..., d : d + 1] * weights["label"][..., None, None], (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class RestrictedValue(ValuePattern):
    """V = (0; u', 1), where u is `tilt`: only labels change.

    Ref: gatmiry24, Eq. (5), its P.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """A vector."""
        return {"tilt": (d,)}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, <u, x_i> + y_i)."""
        labels = rows[..., :d] @ weights["tilt"][..., None] + rows[..., d : d + 1]
        return pad(labels, (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class UnitValue(ValuePattern):
    """V = (0; 0, 1): nothing is free and only labels change.

    Ref: gatmiry24, Eq. (5) with u = 0, as in its Theorems 2 to 8.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """Nothing."""
        return {}

    def values(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n width"]:
        """(0, y_i)."""
        return pad(rows[..., d : d + 1], (d, rows.shape[-1] - d - 1))


@dataclass(frozen=True)
class ScorePattern(ABC):
    """The form of B and C: the kernel reads keys B z_i and queries C z_j."""

    @abstractmethod
    def shapes(self, d: int, width: int) -> Shapes:
        """The free weights by name."""

    @abstractmethod
    def keys(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """B z_i for every row."""

    @abstractmethod
    def queries(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """C z_j for every row."""


@dataclass(frozen=True)
class FullScores(ScorePattern):
    """The kernel reads whole rows through one matrix Q, `score`: h(z_i, Q z_j).

    Ref: gatmiry24, Eq. (2), its Q; chen24, Definition 3.5, the transpose of its Q.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """The whole matrix."""
        return {"score": (width, width)}

    def keys(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """z_i."""
        return rows

    def queries(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """Q z_j."""
        return rows @ weights["score"].mT


@dataclass(frozen=True)
class CovariateScores(ScorePattern):
    """The kernel reads covariates only, through one matrix A, `score`: h(x_i, A x_j), that is Q = diag(A, 0).

    Ref: gatmiry24, Eq. (5).
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """One block."""
        return {"score": (d, d)}

    def keys(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """x_i."""
        return rows[..., :d]

    def queries(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """A x_j."""
        return rows[..., :d] @ weights["score"].mT


@dataclass(frozen=True)
class FactoredScores(ScorePattern):
    """The kernel reads covariates only, keys through B, `key`, and queries through C, `query`: h(B x_i, C x_j).

    Ref: cheng24, Eq. (2), Assumption 2.1. B acts on the examples that the sum is over, so it is the key here; the
    paper calls it the query.
    """

    def shapes(self, d: int, width: int) -> Shapes:
        """Two blocks."""
        return {"key": (d, d), "query": (d, d)}

    def keys(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """B x_i."""
        return rows[..., :d] @ weights["key"].mT

    def queries(self, rows: RowsIn, weights: Weights, d: int) -> Float[Tensor, "*all n r"]:
        """C x_j."""
        return rows[..., :d] @ weights["query"].mT
