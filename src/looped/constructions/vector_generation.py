"""Weights for vector generation whose rate is safe for x ~ N(0, I), so that no prompt's eigenvalues are needed."""

from looped.constructions.gradient_descent import vector_descent
from looped.models.kernel_transformer import KernelTransformer

SLACK = 3.0
"""How far above its mean, which is at most sqrt(n) + sqrt(d), the largest singular value of X may lie.

P(above by t) <= exp(-t^2 / 2) (Davidson and Szarek), so it is exceeded in 1.1% of all prompts or fewer; those converge
too, up to twice the square.
"""


def safe_rate(d: int, examples: int) -> float:
    """1 / (sqrt(n) + sqrt(d) + 3)^2, below 1/L for nearly every prompt."""
    return (examples**0.5 + d**0.5 + SLACK) ** -2


def gaussian_generator(d: int, examples: int, loops: int) -> KernelTransformer:
    """Gradient descent as a loop that answers alpha with alpha theta^(T).

        q <- q - eta (q'X'X + alpha y'X),  eta = 1 / (sqrt(n) + sqrt(d) + 3)^2

    Ref: chen24, Theorem 4.2, with a step in place of the 1/L of Theorem 5.8 that does not depend on the prompt.
    """
    return vector_descent(d=d, rates=[safe_rate(d, examples)], loops=loops)
