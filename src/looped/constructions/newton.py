"""Newton's iteration for the inverse covariance, run by one linear-attention layer in a loop.

gatmiry24 cites a construction but does not give it; this one is ours. It holds m_i = M x_i in d registers beside each
x_i and turns labels into residuals. It needs a one-hot position of n coordinates: without an MLP, a layer can double
m_i only if each token attends to itself. A row is (x, y, m, position), of width 2d + 1 + n.
"""

import torch

from looped.models.kernel_transformer import Head, KernelTransformer, KernelTransformerConfig
from looped.models.patterns import FullScores, FullValue

NUM_BEFORE = 2
"""Layers before the loop: the first computes M_0 x_i, the second the residuals under M_0. The paper needs eight."""


def newton_loop(*, d: int, n: int, loops: int, alpha: float) -> KernelTransformer:
    """A float64 transformer whose answer after `NUM_BEFORE + j` loops is Newton's j-th iterate at the query.

        M_{j+1} = 2 M_j - M_j S M_j,  M_0 = alpha S,  S = XX',  answer = y'X'M_j x_q

    Three linear heads act in parallel on the layer's input:
        double   m_j += m_j                                      (positions select the token itself)
        correct  m_j -= sum_i <x_i, m_j> m_i                     = M S M x_j
        answer   y_j -= sum_i <m_i, x_j> y_i                     residuals: (I - X'MX)^2 = I - X'(2M - MSM)X

    Ref: gatmiry24, Theorem 4, corrected: it prints M_{j+1} = 2 M_j S M_j. `loops` includes the layers before.
    """
    head = Head(value=FullValue(), scores=FullScores())
    config = KernelTransformerConfig(
        d=d, loops=loops, layers=NUM_BEFORE + 1, heads=(head, head, head), registers=d, positions=n
    )
    x, y, m, position = slice(0, d), d, slice(d + 1, 2 * d + 1), slice(2 * d + 1, 2 * d + 1 + n)
    value, score = torch.zeros(2, 3, config.layers, config.width, config.width, dtype=torch.float64)
    eye = torch.eye(d, dtype=torch.float64)
    double, correct, answer = range(3)
    value[double, 2, m, m], score[double, 2, position, position] = eye, torch.eye(n, dtype=torch.float64)
    value[correct, 0, m, x], score[correct, 0, x, x] = eye, alpha * eye  # the first layer writes m_j = alpha S x_j
    value[correct, 2, m, m], score[correct, 2, x, m] = -eye, eye
    value[answer, 1:, y, y], score[answer, 1:, m, x] = -1.0, eye
    model = config.build().double()
    for which in (double, correct, answer):
        model.put(which, value=value[which], score=score[which])
    return model
