"""Ready-made constructions for linear regression with x ~ N(0, I): what `looped construct` offers.

Each takes the dimension, the number of examples before the query, and the number of loops. It chooses rates that are
safe for such prompts: the eigenvalues of X'X are about n (1 +- sqrt(d/n))^2 (Marchenko and Pastur), with some slack.
"""

from collections.abc import Callable

from looped.constructions import gradient_descent, newton
from looped.constructions.compiler import construct
from looped.constructions.gao24 import newton_regression, prefix_descent
from looped.models.base import LoopedModel

SLACK = 1.4
"""How far, as a factor, the eigenvalues of finite prompts may lie outside the limiting interval."""


def spectrum(d: int, examples: int) -> tuple[float, float]:
    """The interval that holds the eigenvalues of X'X for almost every prompt of `examples` pairs."""
    ratio = (d / examples) ** 0.5
    low = examples * max(1 - ratio, 0.1) ** 2
    return low / SLACK, SLACK * examples * (1 + ratio) ** 2


def gatmiry24_thm5(d: int, examples: int, loops: int) -> LoopedModel:
    """Gradient descent as a loop of linear attention (gatmiry24, Thm. 5)."""
    low, high = spectrum(d, examples)
    return gradient_descent.looped_descent(d=d, n=examples, loops=loops, rate=2 / (low + high))


def gatmiry24_thm2(d: int, examples: int, loops: int) -> LoopedModel:
    """Chebyshev's method as layers of linear attention (gatmiry24, Thm. 2); more loops than layers make no sense."""
    low, high = spectrum(d, examples)
    return gradient_descent.chebyshev_descent(d=d, n=examples, loops=loops, low=low, high=high)


def gatmiry24_thm4(d: int, examples: int, loops: int) -> LoopedModel:
    """Newton's method as a loop of linear attention (gatmiry24, Thm. 4, corrected)."""
    _, high = spectrum(d, examples)
    return newton.newton_loop(d=d, n=examples, loops=loops, alpha=1 / high**2)


def gao24_thm4_1(d: int, examples: int, loops: int) -> LoopedModel:
    """Newton's method as an AlgoFormer with softmax attention (gao24, Thm. 4.1)."""
    _, high = spectrum(d, examples)
    return construct(newton_regression.theorem_41(d=d, num_examples=examples, alpha=1 / high**2), loops=loops)


def gao24_thm4_2(d: int, examples: int, loops: int) -> LoopedModel:
    """Gradient descent as a causal AlgoFormer with softmax attention (gao24, Thm. 4.2)."""
    # the i-th prefix averages over i-1 pairs, so the rate is limited by the first one, whose |x|^2 is d on average
    rate = 1 / (SLACK * (d + 2 * d**0.5))
    return construct(prefix_descent.theorem_42(d=d, num_pairs=examples + 1, eta=rate), loops=loops)


READY: dict[str, Callable[[int, int, int], LoopedModel]] = {
    "gatmiry24.thm5": gatmiry24_thm5,
    "gatmiry24.thm2": gatmiry24_thm2,
    "gatmiry24.thm4": gatmiry24_thm4,
    "gao24.thm4.1": gao24_thm4_1,
    "gao24.thm4.2": gao24_thm4_2,
}
"""The constructions by the name of their theorem."""
