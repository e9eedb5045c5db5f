"""gatmiry24's extremal polynomial, by NumPy: a reference for several tests."""

import numpy as np
from numpy.polynomial.chebyshev import chebval


def extremal(degree: int, low: float, high: float, at: np.ndarray) -> np.ndarray:
    """The polynomial of its degree that is 1 at 0 and smallest on [low, high]. Ref: gatmiry24, proof of Lemma 3."""
    chebyshev = [0] * degree + [1]
    unit = (2 * np.asarray(at) - (low + high)) / (high - low)
    return chebval(unit, chebyshev) / chebval(-(low + high) / (high - low), chebyshev)
