"""gao24, Lemma A.4 and Theorem 4.1: Newton's method for linear regression."""

import math

import numpy as np
from jaxtyping import Float

from looped.constructions.gao24.gradient import fetch, pair_positions
from looped.constructions.language import Array, Layer, Match, Program, Put, Stream, Sum
from looped.constructions.position_vectors import rotations

EXAMPLE, OTHER = ("example", 0), ("other", 0)
"""Flags: 1 only at the x tokens of the examples, and 1 everywhere else."""


def newton_layer() -> Layer:
    """One Newton step, as its effect on `mx` = M x_i at every example.

        M_{k+1} x_i = 2 M_k x_i - sum_j M_k x_j (x_j' M_k x_i)

    Ref: gao24, Lemma A.4. The heads subtract half of the sum; the MLP doubles the result at the examples and sets it to
    0 at the other tokens. x_j' M x_i lies within (-1, 2), so c needs no scaling.
    """
    step = Sum(query={"mx": 1.0}, key={"x": 1.0}, value={"mx": 1.0}, to={"mx": -0.5}, anchor="last")
    double = Put(value={"mx": 1.0}, to={"mx": 1.0}, unless=(OTHER,))
    return Layer(attention=(step,), mlp=(double, Put.clear("mx", EXAMPLE)))


def lemma_a4(*, d: int, num_examples: int) -> Program:
    """A layer of two heads that takes one Newton step; tokens are (x, M x), as the lemma has them.

        M_{k+1} = 2 M_k - M_k S M_k,  S = X'X

    Ref: gao24, Lemma A.4. M x_i is at the examples' x tokens; it is 0 at x_test, at the label tokens and at the anchor.
    """
    turns = np.tile([[1.0], [0.0]], (num_examples + 1, 1))
    turns[-2:] = 0.0
    last = np.eye(len(turns))[:, -1:]
    return Program(
        stream=Stream({"x": d, "mx": d, "example": 1, "other": 1, "last": 1, "one": 1}),
        inputs={"x": np.eye(d, 2 * d), "mx": np.eye(d, 2 * d, d)},
        positions={"example": turns, "other": 1.0 - turns, "last": last, "one": np.ones_like(turns)},
        loop=(newton_layer(),),
        output={"mx": 1.0},
        d=2 * d,
        query="every",
    )


def lemma_a4_tokens(xs: Float[Array, "batch n d"], start: Float[Array, "batch d d"]) -> Float[Array, "batch seq token"]:
    """The prompt of Lemma A.4 at M_0 = `start`; x_test and the labels are not used and are 0."""
    batch, n, d = xs.shape
    tokens = np.zeros((batch, 2 * n + 2, 2 * d))
    tokens[:, 0:-2:2] = np.concatenate([xs, xs @ start.swapaxes(-1, -2)], axis=-1)
    return tokens


def theorem_41(*, d: int, num_examples: int, alpha: float) -> Program:
    """Newton's method for linear regression: pre computes M_0 x, the loop iterates, post computes w'x_test.

        answer = x_test' M_T X'y,  M_0 = alpha S,  M_{k+1} = 2 M_k - M_k S M_k,  S = X'X

    Ref: gao24, Theorem 4.1: pre and loop have one layer, post has two, with two heads each. alpha must be below
    2/|S|^2; at 2/|S|^2, which the paper allows, M_1 is 0 along the largest eigenvector. The paper does not say how pre
    excludes the query from S: here its score is lowered.
    """
    place = rotations(num_examples + 1)
    root = math.sqrt(alpha)
    at_x, at_y = np.eye(2)[:, :, None]
    flags = {"position": place.dim, "example": 1, "other": 1, "test": 1, "last": 1, "one": 1}
    seen = Match(query={"one": 1.0}, key={"test": -1.0}, top=0.0)
    first = Sum(query={"x": 1.0}, key={"x": root}, value={"x": 1.0}, to={"mx": root}, anchor="last", match=seen)
    answer = Sum(query={"x": 1.0}, key={"mx": 1.0}, value={"label": 1.0}, to={"out": 1.0}, anchor="last")
    return Program(
        stream=Stream({"x": d, "y": 1, "mx": d, "label": 1, "out": 1} | flags),
        inputs={"x": np.eye(d, d + 1), "y": np.eye(1, d + 1, d)},
        positions=pair_positions(place, num_examples + 1, x="example", y="other"),
        marks={"example": -at_x, "other": at_x, "test": at_x, "last": at_y},
        pre=(Layer(attention=(first,), mlp=(Put.clear("mx", EXAMPLE),)),),
        loop=(newton_layer(),),
        post=(Layer(attention=(fetch(value={"y": 2.0}, to={"label": 1.0}),)), Layer(attention=(answer,))),
        d=d,
        tokens="apart",
    )
