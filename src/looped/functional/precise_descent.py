"""Gradient descent in as many digits as asked: in float64 an error stops falling at the rounding of its start."""

import decimal
import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor


def log_distances(
    xs: Float[Tensor, "batch n d"],
    theta: Float[Tensor, "batch d"],
    rates: Float[Tensor, " batch"],
    *,
    steps: int,
    digits: int,
) -> Float[np.ndarray, "batch steps_and_start"]:
    """ln |w_t - theta|^2 of descent from w = 0; the labels y = X theta have all digits too.

        w <- w - rate (X'X w - X'y)

    Ref: chen24, Eq. (2). As in `descent`, the distance is a difference of w and theta, so it ends at their last digit.
    """
    with decimal.localcontext(prec=digits):
        inputs, target, sizes = _decimals(xs), _decimals(theta)[..., None], _decimals(rates)[:, None, None]
        gram, moment = inputs.swapaxes(-1, -2) @ inputs, inputs.swapaxes(-1, -2) @ (inputs @ target)
        w, logs = 0 * target, []
        for _ in range(steps + 1):
            logs.append([_log(square) for square in ((w - target) ** 2).sum((-1, -2))])
            w = w - sizes * (gram @ w - moment)
    return np.array(logs).T


def _decimals(values: Tensor) -> NDArray[np.object_]:
    """The same numbers, exactly, as decimals."""
    return np.vectorize(decimal.Decimal, otypes=[object])(values.double().numpy())


def _log(value: decimal.Decimal) -> float:
    """The natural logarithm as a float, also where the value itself is too small for one."""
    if not value:
        return -math.inf
    exponent = value.adjusted()
    return math.log(float(value.scaleb(-exponent))) + exponent * math.log(10)
