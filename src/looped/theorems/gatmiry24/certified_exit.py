"""Theorem 3, the residual certificate, and the loops it saves."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.constructions.gradient_descent import looped_descent, preconditioned
from looped.functional.streams import generator_of
from looped.models.exit_rules import ResidualCertificate
from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt
from looped.theorems.check import Finding, Form, bound_plot, bounded, theorem
from looped.theorems.gatmiry24.realizable_prompts import RealizablePrompts, prediction_errors, realizable
from looped.theorems.sampling import normal, uniform

D, N = 5, 9
WIDE_D, WIDE_N = 10, 20
"""The sizes of the paper's experiments."""
NOISES = [0.0, 1e-4, 1e-3, 1e-2, 1e-1]


@theorem(
    "gatmiry24.thm3",
    "|w'x_q - TF| <= |y^(l)| |x_q|_{(XX')^-1} after every layer l, for linear attention with u = 0 and realizable "
    "labels: exit when the right side is at most eps.",
)
def thm3() -> Iterator[Finding]:
    """The printed and the corrected bound at every layer of several models over eigenvalues from 1e-3 to 1e3."""
    errors, printed, corrected = [], [], []
    for seed, model in enumerate(_models()):
        prompts = wide_prompts(2500, seed)
        query, context = prompts.prompt.xs[:, -1], model.embed(prompts.prompt)
        states, rule = model.states(prompts.prompt), ResidualCertificate(d=D, tolerance=1e-3)
        residual = torch.stack([rows[:, :-1, D].norm(dim=-1) for rows in states])
        errors.append(prediction_errors(model, prompts, model.config.loops))
        printed.append(residual * torch.einsum("bd,bde,be->b", query, prompts.covariance, query))
        corrected.append(torch.stack([rule.bound(rows, context) for rows in states]))
    statement = (
        "If |y^(l)| <= eps / |x_q|_{XX'} then |w'x_q - TF| <= eps |x_q|_{XX'}; that is, the error is at most |y^(l)| "
        "|x_q|_{XX'}^2."
    )
    instance = (
        f"10,000 prompts, eigenvalues log-uniform in [1e-3, 1e3], d={D}, n={N}; 2,500 each (seeds 0-3) for gradient "
        "descent (20 loops), random A not symmetric (8 layers, small and large), random diagonal A (12 layers)"
    )
    forms: list[tuple[Form, list[Tensor], str]] = [("as printed", printed, statement), ("as corrected", corrected, "")]
    for form, bounds, statement in forms:
        ratio = (errors[0] / bounds[0]).amax(1)
        plot = bound_plot("loop of gradient descent", range(1, len(ratio) + 1), "largest error / bound", ratio, 1.0)
        yield bounded(torch.cat(errors), torch.cat(bounds), instance, plot).stated(form, statement)


@theorem(
    "gatmiry24.exit",
    "At tolerance 1e-3 and eigenvalues in [1, 8], the certified exit of Theorem 3 saves at least 20% of the loops that "
    "the worst case needs, ceil(ln(1e-3) / ln((beta - alpha) / (beta + alpha))), and no error exceeds the tolerance.",
)
def exit_saves() -> Iterator[Finding]:
    """The share of loops that exact certificates save, that an oracle would save, and the effect of label noise."""
    budget, rule = worst_case_loops(1, 8, 1e-3), ResidualCertificate(d=WIDE_D, tolerance=1e-3)
    model = looped_descent(d=WIDE_D, n=WIDE_N, loops=budget, rate=2 / 9)
    prompts, full_spectrum = mild_prompts(0.0), mild_prompts(0.0, ends=True)
    settled = [model.settle(mild_prompts(noise).prompt, rule, max_loops=budget) for noise in NOISES]
    mean_loops = [float(result.loops.double().mean()) for result in settled]
    saved = [1 - loops / budget for loops in mean_loops]
    certified = [float(result.finished.double().mean()) for result in settled]
    error = float((settled[0].predictions - prompts.answer).abs()[settled[0].finished].max())
    oracle = (prediction_errors(model, prompts, budget) <= 1e-3).double().argmax(0).double().mean() + 1
    hard = 1 - float(model.settle(full_spectrum.prompt, rule, max_loops=budget).loops.double().mean()) / budget
    instance = (
        f"1,000 prompts, eigenvalues uniform in [1, 8], |w| = |x_q| = 1, d={WIDE_D}, n={WIDE_N}, gradient "
        f"descent at the best rate, seed 7; {mean_loops[0]:.1f} of {budget} loops on average, an oracle "
        f"{oracle:.1f}; largest error at a certified exit {error:.1e}; if every prompt has the eigenvalues 1 and 8, "
        f"{hard:.0%} is saved; certified exits by label noise: "
        + ", ".join(f"{noise:g}: {share:.0%}" for noise, share in zip(NOISES, certified, strict=True))
    )
    x_label, others = "standard deviation of label noise", {"certified exits": certified}
    plot = bound_plot(x_label, NOISES, "share of loops saved", saved, 0.2, others, log_y=False)
    yield Finding(saved[0] if error <= 1e-3 else 0.0, 0.2, instance, plot, at_least=True)


def worst_case_loops(low: float, high: float, tolerance: float) -> int:
    """How many loops gradient descent at its best rate needs for every prompt with |w| |x_q| = 1."""
    return math.ceil(math.log(tolerance) / math.log((high - low) / (high + low)))


def wide_prompts(batch: int, seed: int) -> RealizablePrompts:
    """Realizable prompts with eigenvalues log-uniform in [1e-3, 1e3]."""
    generator = generator_of(seed)
    exponents = 6 * uniform(batch, D, generator=generator) - 3
    return realizable(10**exponents, n=N, generator=generator, unit=False)


def _models() -> list[KernelTransformer]:
    generator = generator_of(11)
    diagonal = uniform(12, 1, 1, generator=generator) * torch.eye(D).double()
    return [
        looped_descent(d=D, n=N, loops=20, rate=1e-3),
        preconditioned(1e-3 * normal(8, D, D, generator=generator), n=N),
        preconditioned(normal(8, D, D, generator=generator), n=N),
        preconditioned(1e-2 * diagonal, n=N),
    ]


def mild_prompts(noise: float, *, ends: bool = False) -> RealizablePrompts:
    """Eigenvalues uniform in [1, 8], including 1 and 8 if `ends`; unit w and query; noise on the examples' labels."""
    generator = generator_of(7)
    values = 1 + 7 * uniform(1000, WIDE_D, generator=generator)
    if ends:
        values[:, 0], values[:, -1] = 1, 8
    prompts = realizable(values, n=WIDE_N, generator=generator)
    labels = prompts.prompt.ys + noise * normal(*prompts.prompt.ys.shape, generator=generator)
    return prompts._replace(prompt=Prompt(prompts.prompt.xs, labels))
