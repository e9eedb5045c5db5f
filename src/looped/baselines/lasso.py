"""Lasso for every prefix of every prompt, by one batched solver."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.prompt import Prompt

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The penalties that yang24 searched; 0.01 is the one it draws."""
TOLERANCE = 1e-13
"""How far the optimality conditions may be missed, in units of the largest |X'y|, beyond rounding."""
ROUNDS = 2000
"""Rounds after which a fit is given up as not converging."""
RIDGE = 1e-13
"""Added to G_SS, in units of G's largest entry: along dependent columns a step is long, and ends where one is 0."""
SWEEPS = 2
"""Sweeps of coordinate descent in a round: they find the nonzero entries, the Newton step then places them."""


@checked
def lasso(prompt: Prompt, alpha: float = 0.01) -> Float[Tensor, "batch n"]:
    """Predict y_i by the Lasso fit to the i-1 pairs before it, without intercept, in float64.

        w = argmin (1/2i) |y - X w|^2 + alpha |w|_1

    Ref: yang24, Sec. 5.2, with scikit-learn's objective, as in the released program. Exact: every fit meets the
    optimality conditions to `TOLERANCE`.
    """
    weights = lasso_weights(prompt, alpha)
    return (weights * prompt.xs.double()).sum(-1)


def lasso_path(prompt: Prompt, alphas: Sequence[float] = ALPHAS) -> Float[Tensor, "alphas batch n"]:
    """`lasso` for several penalties."""
    return torch.stack([lasso(prompt, alpha) for alpha in alphas])


def best_alpha(prompt: Prompt, alphas: Sequence[float] = ALPHAS) -> float:
    """The penalty with the least mean squared error over all positions of these prompts. Ref: yang24, Sec. 5.2."""
    errors = (lasso_path(prompt, alphas) - prompt.ys.double()).square().mean((1, 2))
    return alphas[int(errors.argmin())]


def lasso_weights(prompt: Prompt, alpha: float = 0.01) -> Float[Tensor, "batch n d"]:
    """The Lasso's w at each position, from the pairs before it; 0 at the first.

    Each prefix starts from the solution of the one before, which shares most of its nonzero entries.
    """
    if alpha <= 0:
        raise ValueError(f"`alpha` must be above 0; got {alpha}. Use least squares for no penalty.")
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

    Rounds of coordinate descent and a Newton step on the nonzero entries, both of which only descend; a problem leaves
    once it is solved. With the right nonzero entries and signs one Newton step ends on the solution.
    """
    solution = torch.empty_like(start)
    scale = moment.abs().amax(0).clamp_min(penalty)
    open_ = torch.arange(moment.shape[1], device=moment.device)
    w, placed = start, torch.ones_like(open_, dtype=torch.bool)
    for _ in range(ROUNDS):
        # where the last step ended at a zero, the nonzero entries left are not placed yet: no new ones before they are
        w = torch.where(placed, _descend(gram, moment, penalty, w), w)
        w, placed = _newton(gram, moment, penalty, w)
        missed = _missed(moment - _times(gram, w), w, penalty)
        rounding = 1e-15 * gram.diagonal().amax(-1) * w.abs().sum(0)
        done = missed <= TOLERANCE * scale + rounding
        solution[:, open_[done]] = w[:, done]
        left = ~done
        if not bool(left.any()):
            return solution
        if bool(done.any()):
            open_, scale = open_[left], scale[left]
            gram, moment, w, placed = gram[..., left], moment[:, left], w[:, left], placed[left]
    raise ValueError(
        f"{len(open_)} Lasso fits did not converge in {ROUNDS} rounds with a penalty of {penalty:g}; "
        "their examples are too nearly dependent for it. Raise `alpha`."
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
    """The best of the Newton step on the nonzero entries and the places before it where one becomes 0; whether whole.

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
    # the entry that crosses there is 0 exactly, not to rounding
    places[:-1].diagonal()[:] = torch.where(crossing < 1, 0.0, places[:-1].diagonal().T).T
    linear = ((_times(gram, w) - moment) * step).sum(0)
    curvature = (step * _times(gram, step)).sum(0)
    values = lengths * linear + lengths.square() / 2 * curvature + penalty * places.abs().sum(1)
    best = values.argmin(0)
    return places.gather(0, best.expand(1, *w.shape))[0], lengths.gather(0, best[None])[0] == 1


def _missed(residual: Tensor, w: Tensor, penalty: float) -> Tensor:
    """How far c - G w is from penalty sign(w) where w is not 0, and above penalty where it is."""
    return torch.where(w == 0, residual.abs() - penalty, (residual - penalty * w.sign()).abs()).amax(0)


def _times(gram: Tensor, w: Tensor) -> Tensor:
    return (gram * w).sum(1)
