"""Weights with which a looped or multilayer kernel transformer runs gradient descent.

Every function returns an ordinary model in float64.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.kernels import Kernel
from looped.functional.polynomials import chebyshev_roots
from looped.models.kernel_transformer import KernelTransformer, functional, restricted, vector


def preconditioned(matrices: Float[Tensor, "layers d d"], *, n: int, loops: int | None = None) -> KernelTransformer:
    """Preconditioned gradient descent on n examples: layer t has A_t = n times its matrix.

        y <- y - y'X'A_t X,  prediction = w'x_q - w' prod_t (I - XX' A_t) x_q

    Ref: gatmiry24, Eq. (5) and Lemma 4, which omit the 1/n of Eq. (2): the factor n cancels it.
    """
    layers, d, _ = matrices.shape
    model = restricted(d=d, layers=layers, loops=loops or layers).build().double()
    model.put(score=n * matrices)
    return model


def looped_descent(*, d: int, n: int, loops: int, rate: float) -> KernelTransformer:
    """Gradient descent as a loop.

        w <- w - rate X(X'w - y),  A = n rate I

    Ref: gatmiry24, Theorem 5, whose proof has rate = 1/(2 beta); the best rate is 2/(alpha + beta).
    """
    return preconditioned(rate * torch.eye(d, dtype=torch.float64)[None], n=n, loops=loops)


def chebyshev_descent(*, d: int, n: int, loops: int, low: float, high: float) -> KernelTransformer:
    """Gradient descent with one layer per rate; the rates are the reciprocal roots of a Chebyshev polynomial.

        A_t = (n / theta_t) I,  theta_t the roots in [low, high]

    Ref: gatmiry24, Theorem 2. The proof defines theta as the reciprocal of the root, but then divides by it; theta
    must be the root.
    """
    rates = 1 / chebyshev_roots(loops, low, high)
    return preconditioned(rates[:, None, None] * torch.eye(d, dtype=torch.float64), n=n)


def vector_descent(
    *, d: int, rates: Sequence[float] | Float[Tensor, "*models layers"], loops: int | None = None
) -> KernelTransformer:
    """Gradient descent in the last row: the answer to alpha after t loops is alpha times the weights after t steps.

        q <- q - rate (q'X'X + alpha y'X),  Q = I, P = rate diag(I, 0)

    Ref: chen24, Lemma 4.1 and Theorem 4.2. With a single rate and `loops` it is looped; several rates are eta^(t). A
    leading axis of `rates` stacks models side by side.
    """
    rates = torch.as_tensor(rates, dtype=torch.float64)
    config = vector(d=d, layers=rates.shape[-1], loops=loops or rates.shape[-1], models=_models(rates))
    model = config.build().double()
    value = torch.diag(torch.cat([torch.ones(d), torch.zeros(1)])).double()
    model.put(score=torch.eye(d + 1), value=rates[..., None, None] * value)
    return model


def functional_descent(
    *,
    d: int,
    rates: Sequence[float] | Float[Tensor, "*models layers"],
    kernel: Kernel | tuple[Kernel, ...] = kernels.linear,
    maps: Sequence[Float[Tensor, "d d"]] | None = None,
    loops: int | None = None,
) -> KernelTransformer:
    """Gradient descent in the function space of a kernel, or of a sum of kernels with one head each.

        V = diag(0, -rate), B = C = G_s:  f <- f + rate sum_i (y_i - f(x_i)) sum_s K_s(G_s x_i, G_s .)

    Ref: cheng24, Propositions 3.1 (one kernel, G = I) and D.1 (several). With a single rate and `loops` it is
    looped. A leading axis of `rates` stacks models side by side.
    """
    rates = torch.as_tensor(rates, dtype=torch.float64)
    layers, loops = rates.shape[-1], loops or rates.shape[-1]
    config = functional(d=d, layers=layers, loops=loops, kernel=kernel, transform=False, models=_models(rates))
    model = config.build().double()
    for s in range(len(model.heads)):
        through = torch.eye(d) if maps is None else maps[s]
        model.put(s, label=-rates, key=through, query=through)
    return model


def _models(rates: Tensor) -> int | None:
    return len(rates) if rates.ndim == 2 else None
