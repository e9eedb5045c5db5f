"""What the introduction says: how many examples make kappa a constant, and how hard vector generation is."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.theorems.check import EXACT, Finding, bound_plot, bounded, exact, theorem
from looped.theorems.chen24.vector_prompts import draw_prompts


@theorem("chen24.sec1", "For normal X and n = d / eps^2 the mean kappa of X'X is at most ((1 + eps) / (1 - eps))^2.")
def sec1() -> Iterator[Finding]:
    """Section 1: kappa is 1 + O(eps) from n = Omega(d / eps^2) on, so O(d) examples do for any dimension."""
    sizes, ratios = (4, 16, 64), (0.5, 0.25, 0.125)
    means = torch.stack([torch.stack([_mean_kappa(d, round(d / eps**2)) for d in sizes]) for eps in ratios])
    bounds = torch.tensor([[((1 + eps) / (1 - eps)) ** 2] for eps in ratios], dtype=torch.float64)
    shown = "; ".join(
        f"{eps:g}: " + ", ".join(f"{mean:.2f}" for mean in row) for eps, row in zip(ratios, means, strict=True)
    )
    nearly_square = ", ".join(f"{_mean_kappa(d, d + 1, median=True):.0f}" for d in sizes)
    yield bounded(
        means,
        bounds,
        f"d = {', '.join(map(str, sizes))}, 2^19 entries of X or 12 prompts each; mean kappa by eps: {shown}",
        bound_plot("d", sizes, "mean kappa, eps = 1/4", means[1], bounds[1], log_x=True, log_y=False),
    ).stated(
        "as stated",
        remark="The bound is the limit for large d (Marchenko and Pastur), 1 + 4 eps + O(eps^2), and is neared from "
        f"below. The factor in n = O(d) must exceed 1: at n = d + 1 the median kappa is {nearly_square}.",
    )
    kappa, sizes = float(bounds[0]), (4, 8, 16, 32)
    loops = math.ceil(math.log(1e-6) / math.log(1 - 1 / kappa))
    errors = torch.stack([_mean_error(d, loops) for d in sizes])
    yield bounded(
        errors,
        1e-6,
        f"d = {', '.join(map(str, sizes))}, n = 4 d, where kappa is about {kappa:g}: T = {loops}, the least with "
        f"(1 - 1/kappa)^T <= 10^-6; eta = 1/L, 60 prompts each; Theorem 4.5 would need n of {_digits(4, loops)} digits",
        bound_plot("d", sizes, "mean error over |alpha|", errors, 1e-6, log_x=True),
    ).stated("as stated", "With n = 4 d examples the loops to a mean error of 10^-6 |alpha| do not grow with d.")


@theorem("chen24.def3.3", "Solving vector generation requires to estimate theta*: it is as hard as linear regression.")
def def3_3() -> Iterator[Finding]:
    """X'y alpha / |y|^2 has the inner product alpha with theta*, since y = X theta*; it is one step of descent."""
    sizes, distances, errors = [(1, 6), (3, 6), (24, 6)], [], []
    for seed, (n, d) in enumerate(sizes):
        prompts = draw_prompts(100, n, d, 30 + seed)
        answers = prompts.answer(1 / prompts.ys.square().sum(-1, keepdim=True), 1)
        distances.append((answers[0] / prompts.alpha[:, None] - prompts.theta).norm(dim=-1))
        errors.append((prompts.error(answers)[0] / prompts.alpha.abs()).max())
    setting = f"(n, d) in {sizes}, 100 prompts each (seeds 30-32), q = 0, T = 1, eta = 1/|y|^2"
    yield bounded(torch.stack(distances), EXACT, f"{setting}: |answer / alpha - theta*|").stated("as printed")
    yield exact(torch.stack(errors), f"{setting}: error over |alpha|").stated(
        "as corrected",
        "One loop with eta = 1/|y|^2 solves vector generation without error from a single example on.",
        "Labels have no noise (Definition 3.2). Linear regression does need theta*, and that is what T loops find.",
    )


def _mean_kappa(d: int, n: int, *, median: bool = False) -> Tensor:
    kappa = draw_prompts(max(12, 2**19 // (n * d)), n, d, 40).kappa
    return kappa.median() if median else kappa.mean()


def _mean_error(d: int, loops: int) -> Tensor:
    prompts = draw_prompts(60, 4 * d, d, 41)
    return (prompts.error(prompts.answer(1 / prompts.highest[:, None], loops))[-1] / prompts.alpha.abs()).mean()


def _digits(d: int, loops: int) -> int:
    """Digits of the fewest examples that Theorem 4.5 allows, (8 T d^2 4^T)^2."""
    return len(str((8 * loops * d**2 * 4**loops) ** 2))
