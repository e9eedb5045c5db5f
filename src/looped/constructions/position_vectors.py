"""Position vectors that a head can tell apart in few dimensions, and shift by a linear map."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float

Array = np.ndarray
Vectors = TypeVar("Vectors")


def quasi_orthogonal(count: int, *, gap: float = 0.5, seed: int = 0) -> Float[Array, "count dim"]:
    """Unit vectors of random signs in O(log count) dimensions.

        <p_i, p_i> >= <p_i, p_j> + gap  for all j other than i

    Ref: gao24, Lemma A.1; its vectors may have any length, so any gap can be reached by scaling. A random draw succeeds
    with probability above 1/2 once dim = 4 ln(count) / (1 - gap)^2 (Hoeffding's bound over all pairs), so repeated
    draws soon succeed; fewer dimensions are tried first.
    """
    draws = np.random.default_rng(seed)
    return _fewest(count, gap, lambda dim: draws.choice([-1.0, 1.0], size=(count, dim)) / math.sqrt(dim), smallest_gap)


def smallest_gap(vectors: Float[Array, "count dim"]) -> float:
    """The smallest <p_i, p_i> - <p_i, p_j> over all i and j != i."""
    products = vectors @ vectors.T
    gaps = np.diag(products)[:, None] - products
    np.fill_diagonal(gaps, math.inf)
    return float(gaps.min())


@dataclass(frozen=True)
class Rotations:
    """Unit vectors p_t = (cos w_k t, sin w_k t)_k / sqrt(K): a shift by s rotates every plane, a linear map.

    Ref: gao24, Lemma A.3, which needs p_t -> p_{t-i} as a matrix; the random vectors of Lemma A.1 have none.
    """

    frequencies: Float[Array, "planes"]
    """The angles w_k, in radians per position."""

    @property
    def dim(self) -> int:
        """Dimension of a position vector: two for each plane."""
        return 2 * len(self.frequencies)

    def table(self, times: Float[Array, "seq"] | range) -> Float[Array, "seq dim"]:
        """p_t for each t."""
        angles = np.outer(np.asarray(times, dtype=np.float64), self.frequencies)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / math.sqrt(len(self.frequencies))

    def shift(self, steps: int) -> Float[Array, "dim dim"]:
        """The matrix that takes every p_t to p_{t+steps}."""
        cos, sin = np.diag(np.cos(steps * self.frequencies)), np.diag(np.sin(steps * self.frequencies))
        return np.block([[cos, -sin], [sin, cos]])

    def gap(self, count: int) -> float:
        """1 - the largest <p_s, p_t> over 0 < t - s < count; the product depends on t - s alone."""
        if count < 2:
            return 1.0
        return 1.0 - float(np.cos(np.outer(np.arange(1, count), self.frequencies)).mean(1).max())


def rotations(count: int, *, gap: float = 0.5, seed: int = 0) -> Rotations:
    """Rotations with the given gap between positions less than `count` apart, in O(log count) dimensions.

    The same argument as for random signs: the mean of K independent cos(w_k t) exceeds 1 - gap for some t with
    probability below count exp(-K (1 - gap)^2 / 2).
    """
    draws = np.random.default_rng(seed)
    return _fewest(
        count, gap, lambda planes: Rotations(draws.uniform(0.0, 2.0 * math.pi, planes)), lambda turns: turns.gap(count)
    )


def _fewest(count: int, gap: float, draw: Callable[[int], Vectors], reached: Callable[[Vectors], float]) -> Vectors:
    """The first draw with that gap, in one more dimension after each draw without."""
    if count < 1 or not 0 < gap < 1:
        raise ValueError(f"`count` must be at least 1 and `gap` in (0, 1); got {count} and {gap}.")
    dim = max(1, math.ceil(math.log(max(count, 2)) / (1 - gap) ** 2))
    while reached(vectors := draw(dim)) < gap:
        dim += 1
    return vectors
