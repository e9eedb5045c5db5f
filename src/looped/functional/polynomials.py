"""Chebyshev polynomials on an interval: their roots, and how small they are."""

import math

from jaxtyping import Float
from torch import Tensor

from looped.functional.quadrature import chebyshev_nodes


def chebyshev_roots(degree: int, low: float, high: float) -> Float[Tensor, " degree"]:
    """The roots of the Chebyshev polynomial scaled into [low, high], in an order that keeps partial products small.

        theta_i = (high + low)/2 + (high - low)/2 cos((2i - 1) pi / 2k),  i = 1 .. k

    Ref: gatmiry24, proof of Theorem 2. The order is Leja's. The paper's order, by size, loses digits: the partial
    products of (1 - lambda / theta_i) then grow like (high / low)^(k/2) before they shrink.
    """
    roots = chebyshev_nodes(degree, low, high)
    order, distance = [], roots.abs().log()
    for _ in range(degree):
        order.append(int(distance.argmax()))
        distance = distance + (roots - roots[order[-1]]).abs().log()
    return roots[order]


def extremal_size(degree: int, low: float, high: float) -> float:
    """The smallest that a polynomial of this degree with value 1 at 0 can be on [low, high], in absolute value.

        |R| <= 1 / T_k((high + low) / (high - low)),  R(x) = T_k(u(x)) / T_k(u(0)),  u maps [low, high] to [-1, 1]

    Ref: gatmiry24, proof of Lemma 3.
    """
    return 1 / math.cosh(degree * math.acosh((high + low) / (high - low)))
