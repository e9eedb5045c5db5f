"""Least squares, ridge and averaging for every prefix of every prompt, in one batched pass."""

from __future__ import annotations

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

    The rows of B are an orthonormal basis of what the x so far span; R and z follow by plane rotations, one new row at
    a time, which is as stable as a QR of each prefix: one that was nearly singular does not spoil those after it.
    Computed in float64. An x of float32 numbers whose part outside that span is within their rounding counts as inside
    it, so that float32 examples in a subspace have the rank of the subspace.
    """
    xs, ys = prompt.xs.double(), prompt.ys.double()
    most = min(xs.shape[1:])
    basis, rank = _basis(xs)
    met = torch.arange(most, device=xs.device) < rank[..., None]
    rows = torch.where(met, xs @ basis.mT, 0.0).permute(1, 2, 0)
    return _answers(rows, ys.T, xs.new_zeros(most, most + 1, len(xs)), met=0).T


@checked
def ridge(prompt: Prompt, penalty: float) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = (X'X + penalty I)^-1 X'y over the pairs before it, in float64.

    With noise of variance s^2 and w ~ N(0, I), penalty = s^2 is the Bayes estimator: nothing does better.
    """
    return ridge_path(prompt, [penalty])[0]


@checked
def ridge_path(prompt: Prompt, penalties: Sequence[float]) -> Float[Tensor, "penalties batch n"]:
    """`ridge` for several penalties at once.

    Ridge is least squares with sqrt(penalty) I as the first d rows of X and 0 as their labels: R begins with them.
    """
    if not penalties or min(penalties) <= 0:
        got = min(penalties, default="none")
        raise ValueError(f"`penalty` must be above 0; got {got}. Use least squares for no penalty.")
    xs, ys = prompt.xs.double(), prompt.ys.double()
    batch, n, d = xs.shape
    count = len(penalties)
    roots = torch.tensor(penalties, dtype=xs.dtype, device=xs.device).sqrt().repeat_interleave(batch)
    factor = xs.new_zeros(d, d + 1, count * batch)
    factor[:, :d].diagonal(dim1=0, dim2=1).copy_(roots[:, None])
    answers = _answers(xs.permute(1, 2, 0).repeat(1, 1, count), ys.T.repeat(1, count), factor, met=d)
    return answers.T.reshape(count, batch, n)


@checked
def averaging(prompt: Prompt) -> Float[Tensor, "batch n"]:
    """Predict y_i by w = mean of x_j y_j over the pairs before it (0 before the first)."""
    xs, ys = prompt.xs.double(), prompt.ys.double()
    sums = (xs[:, :-1] * ys[:, :-1, None]).cumsum(1)
    counts = torch.arange(1, xs.shape[1], device=xs.device, dtype=xs.dtype)
    return torch.nn.functional.pad((sums * xs[:, 1:]).sum(-1) / counts, (1, 0))


def _answers(
    rows: Float[Tensor, "n k batch"],
    labels: Float[Tensor, "n batch"],
    factor: Float[Tensor, "k k_and_label batch"],
    *,
    met: int,
) -> Float[Tensor, "n batch"]:
    """What the fit to the rows before it says at each row, while `factor`, the R and z of those rows, takes it in.

        rotating the row (x, 0) into (R, z) leaves (0, a):  x'w = -a / (the product of the cosines),  R w = z

    So w itself is never needed. Ref: McWhirter (1983), for the residual. The row is rotated with the label 0 for the
    answer, beside its own label for the update: an answer computed from its own label would know it. `met` directions
    are in `factor` already, and a row brings at most one new one, the next. The batch is the last axis, so that the
    long loops run over memory in order.
    """
    n, k, _ = rows.shape
    tiny = torch.finfo(rows.dtype).tiny
    answers = torch.zeros_like(labels)
    for i in range(n):
        here = torch.cat((rows[i], labels[i, None]))
        left, cosines = torch.zeros_like(labels[i]), torch.ones_like(labels[i])
        for j in range(min(k, met + i + 1)):
            above = factor[j, j:]
            inverse = torch.hypot(above[0], here[0]).clamp_min_(tiny).reciprocal_()
            cosine, sine = above[0] * inverse, here[0] * inverse
            # a pivot of 0 is a direction that no row before this one has: the answer cannot lean on it
            turn = torch.where(above[0] > 0, cosine, 1.0)
            left.mul_(turn).addcmul_(sine, above[-1], value=-1)
            cosines.mul_(turn)
            after = (cosine * here[1:]).addcmul_(sine, above[1:], value=-1)
            above.mul_(cosine).addcmul_(sine, here)
            here = after
        answers[i] = -left / cosines
    return answers


def _basis(xs: Float[Tensor, "batch n d"]) -> tuple[Float[Tensor, "batch most d"], Int[Tensor, "batch n"]]:
    """An orthonormal basis of the rows in the order in which they bring new directions, and the rank after each row.

        outside = x - sum_k c_k b_k,  new if |outside| > noise = u |x| + sum_k |c_k| t_k,  then b = outside / |outside|

    The unit u is the rounding of the row's own numbers: float32 numbers keep theirs when they are handed over as
    float64. A direction from a small part outside is tilted by that part's noise, t = noise / |outside|, and so are the
    parts that are left of later rows: without t, one near-dependent row in a subspace would make more.
    """
    batch, n, d = xs.shape
    most = min(n, d)
    single = (xs == xs.float().double()).all(-1)
    unit = torch.where(single, torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps)
    # where the first rows are independent, which is the rule, one QR gives them all
    directions, triangle = torch.linalg.qr(xs[:, :most].mT)
    basis = directions.mT.contiguous()
    ranks = torch.arange(1, n + 1, device=xs.device).clamp(max=most).repeat(batch, 1)
    tilt, plain = xs.new_zeros(batch, most), torch.ones(batch, dtype=torch.bool, device=xs.device)
    for i in range(most):
        size, noise, least = _new_part(triangle[:, : i + 1, i], xs[:, i], unit[:, i], tilt[:, :i])
        plain &= size > least
        tilt[:, i] = noise / size.clamp_min(1e-300)
    rest = (~plain).nonzero().flatten()
    if len(rest):
        basis[rest], ranks[rest] = _gram_schmidt(xs[rest], unit[rest])
    return basis, ranks


def _gram_schmidt(xs: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """`_basis` row by row, twice over each, for rows that may depend on those before them."""
    batch, n, d = xs.shape
    most = min(n, d)
    basis, tilt = xs.new_zeros(batch, most, d), xs.new_zeros(batch, most)
    rank = torch.zeros(batch, dtype=torch.int64, device=xs.device)
    ranks = torch.full((batch, n), most, dtype=torch.int64, device=xs.device)
    for i in range(n):
        met, x = basis[:, :i], xs[:, i]
        parts = met @ x[..., None]
        outside = x[..., None] - met.mT @ parts
        outside = (outside - met.mT @ (met @ outside))[..., 0]
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
    """The size of the part outside, its noise, and from which size on it counts; `column` is (c_1, ..., |outside|)."""
    length = x.norm(dim=1)
    noise = unit * length + (column[:, :-1].abs() * tilt).sum(1)
    return column[:, -1].abs(), noise, torch.maximum(noise, 1e-9 * length)
