"""Least squares, ridge and averaging for every prefix of every prompt, in one batched pass."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.baselines.checked import checked
from looped.prompt import Prompt


@checked
def least_squares(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by the least-norm least-squares fit to the i-1 pairs before it.

        w = B'u,  R u = z,  X B' = Q R,  z = Q'y

    The rows of B are an orthonormal basis of the span of the x so far; R and z are updated by plane rotations, one row
    at a time. That is as stable as a QR of each prefix: a nearly singular prefix does not spoil those after it.
    Computed in float64. An x of float32 numbers counts as inside that span if its part outside is within their
    rounding, so float32 examples in a subspace have the rank of the subspace.
    """
    xs, ys = prompt.xs.double(), prompt.ys.double()
    most = min(xs.shape[1:])
    basis, rank = _basis(xs)
    in_span = torch.arange(most, device=xs.device) < rank[..., None]
    rows = torch.where(in_span, xs @ basis.mT, 0.0).permute(1, 2, 0)
    return _answers(rows, ys.T, xs.new_zeros(most, most + 1, len(xs)), rank=0).T


@checked
def ridge(prompt: Prompt, penalty: float) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = (X'X + penalty I)^-1 X'y over the pairs before it, in float64.

    With noise of variance s^2 and w ~ N(0, I), penalty = s^2 is the Bayes estimator, the best possible.
    """
    return ridge_path(prompt, [penalty])[0]


@checked
def ridge_path(prompt: Prompt, penalties: Sequence[float]) -> Float[Tensor, "penalties batch n"]:
    """`ridge` for several penalties at once.

    Ridge is least squares with sqrt(penalty) I as the first d rows of X and labels 0: R starts from these rows.
    """
    if not penalties or min(penalties) <= 0:
        got = min(penalties, default="none")
        raise ValueError(f"`penalty` must be above 0; got {got}. For no penalty use `least_squares`.")
    xs, ys = prompt.xs.double(), prompt.ys.double()
    batch, n, d = xs.shape
    count = len(penalties)
    roots = torch.tensor(penalties, dtype=xs.dtype, device=xs.device).sqrt().repeat_interleave(batch)
    factor = xs.new_zeros(d, d + 1, count * batch)
    factor[:, :d].diagonal(dim1=0, dim2=1).copy_(roots[:, None])
    answers = _answers(xs.permute(1, 2, 0).repeat(1, 1, count), ys.T.repeat(1, count), factor, rank=d)
    return answers.T.reshape(count, batch, n)


@checked
def averaging(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = mean of x_j y_j over the pairs before it; 0 at the first position."""
    xs, ys = prompt.xs.double(), prompt.ys.double()
    sums = (xs[:, :-1] * ys[:, :-1, None]).cumsum(1)
    counts = torch.arange(1, xs.shape[1], device=xs.device, dtype=xs.dtype)
    return torch.nn.functional.pad((sums * xs[:, 1:]).sum(-1) / counts, (1, 0))


def _answers(
    rows: Float[Tensor, "n k batch"],
    labels: Float[Tensor, "n batch"],
    factor: Float[Tensor, "k k_and_label batch"],
    *,
    rank: int,
) -> Float[Tensor, "n batch"]:
    """At each row the prediction of the fit to the rows before it; then the row is added to `factor`, their R and z.

        rotating the row (x, 0) into (R, z) leaves (0, a):  x'w = -a / (the product of the cosines),  R w = z

    So w itself is never needed. Ref: McWhirter (1983), for the residual. The answer comes from rotating the row with
    the label 0, so it cannot depend on the row's label; the update rotates the true label. `factor` starts with `rank`
    directions, and a row adds at most one, the next. The batch is the last axis, so long loops read memory in order.
    """
    n, k, _ = rows.shape
    tiny = torch.finfo(rows.dtype).tiny
    answers = torch.zeros_like(labels)
    for i in range(n):
        here = torch.cat((rows[i], labels[i, None]))
        left, cosines = torch.zeros_like(labels[i]), torch.ones_like(labels[i])
        for j in range(min(k, rank + i + 1)):
            above = factor[j, j:]
            inverse = torch.hypot(above[0], here[0]).clamp_min_(tiny).reciprocal_()
            cosine, sine = above[0] * inverse, here[0] * inverse
            # a pivot of 0 is a direction that no earlier row has: the answer must not use it
            turn = torch.where(above[0] > 0, cosine, 1.0)
            left.mul_(turn).addcmul_(sine, above[-1], value=-1)
            cosines.mul_(turn)
            after = (cosine * here[1:]).addcmul_(sine, above[1:], value=-1)
            above.mul_(cosine).addcmul_(sine, here)
            here = after
        answers[i] = -left / cosines
    return answers


def _basis(xs: Float[Tensor, "batch n d"]) -> tuple[Float[Tensor, "batch most d"], Int[Tensor, "batch n"]]:
    """An orthonormal basis of the rows, in the order in which they add directions, and the rank after each row.

        outside = x - sum_k c_k b_k,  new if |outside| > noise = u |x| + sum_k |c_k| t_k,  then b = outside / |outside|

    The unit u is the rounding of the row's numbers; float32 numbers have float32 rounding even when converted to
    float64. A direction from a small part outside is tilted by that part's noise, t = noise / |outside|, and it tilts
    the parts outside of later rows: without t, one nearly dependent row in a subspace would produce more of them.
    """
    batch, n, d = xs.shape
    most = min(n, d)
    single = (xs == xs.float().double()).all(-1)
    unit = torch.where(single, torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)
    # where the first rows are independent, as is usual, one QR gives the whole basis
    directions, triangle = torch.linalg.qr(xs[:, :most].mT)
    basis = directions.mT.contiguous()
    ranks = torch.arange(1, n + 1, device=xs.device).clamp(max=most).repeat(batch, 1)
    tilt, plain = xs.new_zeros(batch, most), torch.ones(batch, dtype=torch.bool, device=xs.device)
    for i in range(most):
        size, noise, least = _new_part(triangle[:, : i + 1, i], xs[:, i], unit[:, i], tilt[:, :i])
        plain &= size > least
        tilt[:, i] = noise / size.clamp_min(1e-300)
    dependent = (~plain).nonzero().flatten()
    if len(dependent):
        basis[dependent], ranks[dependent] = _gram_schmidt(xs[dependent], unit[dependent])
    return basis, ranks


def _gram_schmidt(xs: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """`_basis` by Gram-Schmidt, twice for each row, for rows that may depend on earlier ones."""
    batch, n, d = xs.shape
    most = min(n, d)
    basis, tilt = xs.new_zeros(batch, most, d), xs.new_zeros(batch, most)
    rank = torch.zeros(batch, dtype=torch.int64, device=xs.device)
    ranks = torch.full((batch, n), most, dtype=torch.int64, device=xs.device)
    for i in range(n):
        before, x = basis[:, :i], xs[:, i]
        parts = before @ x[..., None]
        outside = x[..., None] - before.mT @ parts
        outside = (outside - before.mT @ (before @ outside))[..., 0]
        column = torch.cat((parts[..., 0], outside.norm(dim=1, keepdim=True)), 1)
        size, noise, least = _new_part(column, x, unit[:, i], tilt[:, :i])
        new = (size > least) & (rank < most)
        inverse = torch.where(new, 1 / size.clamp_min(1e-300), 0.0)
        place = rank.clamp(max=most - 1)[:, None]
        basis.scatter_add_(1, place[..., None].expand(-1, 1, d), (outside * inverse[:, None])[:, None])
        tilt.scatter_add_(1, place, (noise * inverse)[:, None])
        rank = rank + new
        ranks[:, i] = rank
    return basis, ranks


def _new_part(column: Tensor, x: Tensor, unit: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The size of the part outside, its noise, and the least size that counts; `column` is (c_1, ..., |outside|)."""
    length = x.norm(dim=1)
    noise = unit * length + (column[:, :-1].abs() * tilt).sum(1)
    return column[:, -1].abs(), noise, torch.maximum(noise, 1e-9 * length)
