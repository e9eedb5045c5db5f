"""Chebyshev polynomials on an interval: values, roots, the extremal polynomial and the degree it needs."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def chebyshev(degree: int, at: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The Chebyshev polynomial of the first kind, anywhere on the real line.

    T_k(cos a) = cos(k a),  T_k(cosh a) = cosh(k a),  T_k(-x) = (-1)^k T_k(x)
    """
    inside = (degree * at.clamp(-1, 1).arccos()).cos()
    outside = (degree * at.abs().clamp_min(1).arccosh()).cosh() * at.sign() ** degree
    return torch.where(at.abs() <= 1, inside, outside)


def to_unit(at: Float[Tensor, "*shape"], low: float, high: float) -> Float[Tensor, "*shape"]:
    """The affine map of [low, high] to [-1, 1]."""
    return (2 * at - (low + high)) / (high - low)


def chebyshev_roots(degree: int, low: float, high: float) -> Float[Tensor, " degree"]:
    """The roots of the Chebyshev polynomial scaled into [low, high], in an order that keeps partial products small.

        theta_i = (high + low)/2 + (high - low)/2 cos((2i - 1) pi / 2k),  i = 1 .. k

    Ref: gatmiry24, proof of Theorem 2. The order is Leja's; the paper's, by size, loses digits: the partial products
    of (1 - lambda / theta_i) then grow like (high / low)^(k/2) before they shrink.
    """
    angles = (2 * torch.arange(1, degree + 1, dtype=torch.float64) - 1) * (math.pi / (2 * degree))
    roots = (high + low) / 2 + (high - low) / 2 * angles.cos()
    order, distance = [], roots.abs().log()
    for _ in range(degree):
        order.append(int(distance.argmax()))
        distance = distance + (roots - roots[order[-1]]).abs().log()
    return roots[order]


def extremal(degree: int, low: float, high: float, at: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The polynomial of its degree that is 1 at 0 and smallest on [low, high].

        R(x) = T_k(u(x)) / T_k(u(0)),  u the map of [low, high] to [-1, 1]

    Ref: gatmiry24, proof of Lemma 3.
    """
    return chebyshev(degree, to_unit(at, low, high)) / chebyshev(degree, to_unit(torch.zeros_like(at), low, high))


def extremal_size(degree: int, low: float, high: float) -> float:
    """The largest absolute value of `extremal` on [low, high]: 1 / T_k((high + low) / (high - low))."""
    return 1 / math.cosh(degree * math.acosh((high + low) / (high - low)))


def chebyshev_depth(low: float, high: float, tolerance: float) -> int:
    """The least degree whose extremal polynomial is at most `tolerance` on [low, high]."""
    return max(1, math.ceil(math.acosh(1 / tolerance) / math.acosh((high + low) / (high - low)) - 1e-12))
