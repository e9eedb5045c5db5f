"""Kernel ridge regression of many small tables at once, each example answered from the others."""

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels

NUM_REGRESSIONS = 12
"""How many `regressions` answer."""
NEWTON_STEPS = 26
"""Steps that invert a matrix whose largest eigenvalue is up to 1e6 times its smallest."""


def regressions(
    xs: Float[Tensor, "*batch m d"], ys: Float[Tensor, "*batch m"], queries: Float[Tensor, "*batch q d"]
) -> tuple[Float[Tensor, "*batch m answers"], Float[Tensor, "*batch q answers"]]:
    """What twelve kernel regressions answer at every row; at an example without having seen it.

    Columns and ys are standardised. Linear, Gaussian, additive: with every column alike, and with columns that count as
    much as they correlate with y.
    """
    rows = torch.cat([xs, queries], -2)
    counted = (xs.abs().amax(-2, keepdim=True) > 0) if xs.shape[-2] else torch.ones_like(rows[..., :1, :]) > 0
    columns = counted.to(xs.dtype).sum(-1, keepdim=True).clamp(min=1.0)
    alike = rows / columns.sqrt()
    strength = (xs * ys[..., None]).sum(-2, keepdim=True).square()
    total = strength.sum(-1, keepdim=True)
    weighed = rows * torch.where(total > 0, strength / total.clamp(min=torch.finfo(ys.dtype).tiny), 1 / columns).sqrt()
    m = xs.shape[-2]
    linear, weighed_linear = _gram(kernels.linear, alike, m), _gram(kernels.linear, weighed, m)
    smooth, weighed_smooth = _gram(kernels.rbf, alike, m), _gram(kernels.rbf, weighed, m)
    additive = sum(
        (_gram(kernels.rbf, rows[..., j : j + 1], m) * counted[..., j : j + 1] for j in range(rows.shape[-1])),
        torch.zeros_like(linear),
    )
    pairs = [
        *((linear, noise) for noise in (0.01, 0.2, 4.0)),
        (weighed_linear, 0.1),
        (smooth**0.25, 0.02),  # of twice the width
        *((smooth, noise) for noise in (0.05, 0.5)),
        (smooth**4, 0.2),  # of half the width
        (weighed_smooth, 0.1),
        (weighed_smooth**4, 0.1),
        (additive / columns, 0.1),
        (linear + smooth, 0.1),
    ]
    grams = torch.stack([gram for gram, _ in pairs])
    noise = grams.new_tensor([noise for _, noise in pairs]).view(-1, *[1] * (grams.ndim - 1))
    examples, queries = grams[..., :m, :], grams[..., m:, :]
    inverse = inverted(examples + noise * torch.eye(m, dtype=grams.dtype, device=grams.device))
    dual = inverse @ ys[..., None]
    left_out = ys - dual[..., 0] / inverse.diagonal(dim1=-2, dim2=-1)
    return left_out.movedim(0, -1), (queries @ dual)[..., 0].movedim(0, -1)


def inverted(matrices: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch m m"]:
    """The inverses of positive definite matrices.

    Where the program is exported or captured, by Newton's iteration, which is products alone:

        X <- X (2 I - A X),  X_0 = I / |A|

    Ref: gao24, Sec. 4.2 (the iteration).
    """
    captured = matrices.is_cuda and torch.cuda.is_current_stream_capturing()
    if not (captured or torch.compiler.is_exporting()):
        return torch.linalg.inv(matrices)
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    inverse = eye / matrices.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)
    for _ in range(NEWTON_STEPS):
        inverse = inverse @ (2 * eye - matrices @ inverse)
    return inverse


def _gram(kernel: kernels.Kernel, rows: Float[Tensor, "*batch rows d"], m: int) -> Float[Tensor, "*batch rows m"]:
    """Of every row with the first m."""
    return kernel(rows, rows[..., :m, :])
