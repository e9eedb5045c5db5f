"""Lasso for every prefix of every prompt, by a batched solver."""

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.prompt import Prompt

TOLERANCE = 1e-13
"""By how much the optimality conditions may be violated beyond rounding, in units of the largest |X'y|."""
ROUNDS = 2000
"""Rounds after which a fit counts as not converging."""
RIDGE = 1e-13
"""Added to G_SS, in units of G's largest entry. Along dependent columns a step is long, and stops where one is 0."""
SWEEPS = 2
"""Sweeps of coordinate descent in a round: they find the nonzero entries, whose values the Newton step then sets."""


@checked
def lasso(prompt: Prompt, alpha: float = 0.01) -> Float[Tensor, "batch n"]:
    """Predict y_i by the Lasso fit to the i-1 pairs before it, without intercept, in float64.

        w = argmin (1/2i) |y - X w|^2 + alpha |w|_1

    Ref: yang24, Sec. 5.2, which searched alpha from 1e-4 to 1 and draws 0.01; scikit-learn's objective, as in the
    released program. Exact: every fit meets the optimality conditions to `TOLERANCE`.
    """
    weights = lasso_weights(prompt, alpha)
    return (weights * prompt.xs.double()).sum(-1)


def lasso_weights(prompt: Prompt, alpha: float = 0.01) -> Float[Tensor, "batch n d"]:
    """The Lasso's w at each position, fitted to the pairs before it; 0 at the first.

    Each prefix starts from the solution of the previous one, which shares most of its nonzero entries.
    """
    if alpha <= 0:
        raise ValueError(f"`alpha` must be above 0; got {alpha}. For no penalty use `least_squares`.")
    xs, ys = prompt.xs.double(), prompt.ys.double()
    batch, n, d = xs.shape
    gram, moment = xs.new_zeros(d, d, batch), xs.new_zeros(d, batch)
    weights = xs.new_zeros(n, d, batch)
    for i in range(1, n):
        x, y = xs[:, i - 1].T, ys[:, i - 1]
        gram.addcmul_(x[:, None], x[None])
        moment.addcmul_(x, y)
        weights[i] = _solve(gram, moment, i * alpha, weights[i - 1])
    return weights.permute(2, 0, 1)


def _solve(
    gram: Float[Tensor, "d d batch"], moment: Float[Tensor, "d batch"], penalty: float, start: Float[Tensor, "d batch"]
) -> Float[Tensor, "d batch"]:
    """argmin w'Gw/2 - c'w + penalty |w|_1 for every problem of the batch, which is the last axis.

    Each round does coordinate descent and a Newton step on the nonzero entries; both only lower the objective. Solved
    problems leave the batch. With the right nonzero entries and signs, one Newton step reaches the solution.
    """
    solution = torch.empty_like(start)
    size = moment.abs().amax(0).clamp_min(penalty)
    unsolved = torch.arange(moment.shape[1], device=moment.device)
    w, full_step = start, torch.ones_like(unsolved, dtype=torch.bool)
    for _ in range(ROUNDS):
        # where the last step stopped at a zero, the other nonzero entries are not right yet: no new ones until they are
        w = torch.where(full_step, _descend(gram, moment, penalty, w), w)
        w, full_step = _newton(gram, moment, penalty, w)
        residual = moment - _times(gram, w)
        # at the solution c - G w is penalty sign(w) where w is not 0, and within penalty of 0 where it is
        violation = torch.where(w == 0, residual.abs() - penalty, (residual - penalty * w.sign()).abs()).amax(0)
        rounding = 1e-15 * gram.diagonal().amax(-1) * w.abs().sum(0)
        done = violation <= TOLERANCE * size + rounding
        solution[:, unsolved[done]] = w[:, done]
        left = ~done
        if not bool(left.any()):
            return solution
        if bool(done.any()):
            unsolved, size = unsolved[left], size[left]
            gram, moment, w, full_step = gram[..., left], moment[:, left], w[:, left], full_step[left]
    raise ValueError(
        f"{len(unsolved)} Lasso fits did not converge in {ROUNDS} rounds with a penalty of {penalty:g}: "
        "their examples are too nearly dependent. Raise `alpha`."
    )


def _descend(gram: Tensor, moment: Tensor, penalty: float, w: Tensor) -> Tensor:
    """`SWEEPS` sweeps of coordinate descent.

    w_j <- soft(c_j - sum_{k != j} G_jk w_k, penalty) / G_jj
    """
    w, residual = w.clone(), moment - _times(gram, w)
    for _ in range(SWEEPS):
        for j in range(len(w)):
            curvature = gram[j, j]
            raw = torch.addcmul(residual[j], curvature, w[j])
            soft = torch.nn.functional.softshrink(raw, penalty)
            # a column of zeros has raw = 0, and its weight stays 0
            new = soft / curvature.masked_fill(curvature == 0, 1.0)
            residual.addcmul_(gram[j], new - w[j], value=-1)
            w[j] = new
    return w


def _newton(gram: Tensor, moment: Tensor, penalty: float, w: Tensor) -> tuple[Tensor, Tensor]:
    """The best point on the Newton step of the nonzero entries: its end, or where an entry becomes 0; whether its end.

    p = -(G_SS)^-1 (G w - c + penalty sign(w))_S
    """
    support = w != 0
    gradient = torch.where(support, _times(gram, w) - moment + penalty * w.sign(), 0.0)
    both = support[:, None] & support[None]
    matrix = torch.where(both, gram, 0.0).permute(2, 0, 1)
    largest = gram.diagonal().amax(-1).clamp_min(torch.finfo(gram.dtype).tiny)
    diagonal = torch.where(support, RIDGE, 1.0).T * largest[:, None]
    factor, failed = torch.linalg.cholesky_ex(matrix + torch.diag_embed(diagonal))
    step = -torch.cholesky_solve(gradient.T[..., None], factor)[..., 0].T
    step = torch.where(support & (failed == 0) & step.isfinite().all(0), step, 0.0)
    crossing = torch.where(support & (step != 0), -w / torch.where(step == 0, 1.0, step), -1.0)
    crossing = torch.where((crossing > 0) & (crossing < 1), crossing, 1.0)
    lengths = torch.cat((crossing, torch.ones_like(crossing[:1])))
    places = w + lengths[:, None] * step
    # the entry that crosses zero there is exactly 0, not just to rounding
    places[:-1].diagonal()[:] = torch.where(crossing < 1, 0.0, places[:-1].diagonal().T).T
    linear = ((_times(gram, w) - moment) * step).sum(0)
    curvature = (step * _times(gram, step)).sum(0)
    values = lengths * linear + lengths.square() / 2 * curvature + penalty * places.abs().sum(1)
    best = values.argmin(0)
    return places.gather(0, best.expand(1, *w.shape))[0], lengths.gather(0, best[None])[0] == 1


def _times(gram: Tensor, w: Tensor) -> Tensor:
    return (gram * w).sum(1)
