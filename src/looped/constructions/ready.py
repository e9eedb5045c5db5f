"""Constructions made ready for plain linear regression, x ~ N(0, I): what `looped construct` offers.

Each takes the dimension, the number of examples before the query, and the loops, and chooses rates that are safe for
the spectrum of such prompts, S = X'X with eigenvalues about n (1 +- sqrt(d/n))^2 (Marchenko and Pastur), with
some slack.
"""

from __future__ import annotations

from collections.abc import Callable

from looped.constructions import gao24, gradient_descent, newton
from looped.models.base import LoopedModel

SLACK = 1.4
"""Finite prompts have eigenvalues somewhat outside the limiting interval."""


def spectrum(d: int, examples: int) -> tuple[float, float]:
    """Where the eigenvalues of X'X lie for almost every prompt of `examples` pairs."""
    ratio = (d / examples) ** 0.5
    low = examples * max(1 - ratio, 0.1) ** 2
    return low / SLACK, SLACK * examples * (1 + ratio) ** 2


def gatmiry24_thm5(d: int, examples: int, loops: int) -> LoopedModel:
    """Gradient descent as a loop of linear attention (gatmiry24, Thm. 5)."""
    low, high = spectrum(d, examples)
    return gradient_descent.looped_descent(d=d, n=examples, loops=loops, rate=2 / (low + high))


def gatmiry24_thm2(d: int, examples: int, loops: int) -> LoopedModel:
    """Chebyshev's method as layers of linear attention (gatmiry24, Thm. 2); no more loops than layers make sense."""
    low, high = spectrum(d, examples)
    return gradient_descent.chebyshev_descent(d=d, n=examples, loops=loops, low=low, high=high)


def gatmiry24_thm4(d: int, examples: int, loops: int) -> LoopedModel:
    """Newton's method as a loop of linear attention (gatmiry24, Thm. 4, corrected)."""
    _, high = spectrum(d, examples)
    return newton.newton_loop(d=d, n=examples, loops=loops, alpha=1 / high**2)


def gao24_thm4_1(d: int, examples: int, loops: int) -> LoopedModel:
    """Newton's method as an AlgoFormer with softmax attention (gao24, Thm. 4.1)."""
    _, high = spectrum(d, examples)
    return gao24.construct(gao24.theorem_41(d=d, num_examples=examples, alpha=1 / high**2), loops=loops)


def gao24_thm4_2(d: int, examples: int, loops: int) -> LoopedModel:
    """Gradient descent as a causal AlgoFormer with softmax attention (gao24, Thm. 4.2)."""
    # at the i-th place the mean runs over i-1 pairs, so the first prefix, |x|^2, bounds the rate: E|x|^2 = d
    rate = 1 / (SLACK * (d + 2 * d**0.5))
    return gao24.construct(gao24.theorem_42(d=d, num_pairs=examples + 1, eta=rate), loops=loops)


READY: dict[str, Callable[[int, int, int], LoopedModel]] = {
    "gatmiry24.thm5": gatmiry24_thm5,
    "gatmiry24.thm2": gatmiry24_thm2,
    "gatmiry24.thm4": gatmiry24_thm4,
    "gao24.thm4.1": gao24_thm4_1,
    "gao24.thm4.2": gao24_thm4_2,
}
"""By the name of the theorem whose weights they are."""
