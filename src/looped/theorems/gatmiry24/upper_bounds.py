"""What loops and layers can compute: Theorem 2 (Chebyshev), Theorem 4 (Newton), Theorem 5 (gradient descent)."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.constructions.gradient_descent import chebyshev_descent, looped_descent
from looped.constructions.newton import NUM_BEFORE, newton_loop
from looped.functional.descent import newton_inverse
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt
from looped.theorems.check import EXACT, Finding, Plot, bound_plot, bounded, relative_difference, theorem
from looped.theorems.gatmiry24.realizable_prompts import (
    RealizablePrompts,
    prediction_errors,
    realizable,
    with_covariance,
)
from looped.theorems.sampling import uniform

KAPPAS = [4.0, 16.0, 64.0, 256.0]
NUM = 60
"""Random prompts, and as many extreme ones."""
D, N = 5, 12


@theorem(
    "gatmiry24.thm2",
    "Restricted attention of depth L = ceil(ln(2/eps) sqrt(beta/alpha) / 2) has |TF - w'x_q| <= eps |w| |x_q| on every "
    "instance of S_{alpha,beta}.",
)
def thm2() -> Iterator[Finding]:
    """Chebyshev weights of that depth on random and on extreme prompts."""
    cases = [(kappa, tolerance) for kappa in KAPPAS for tolerance in (0.1, 1e-3, 1e-6)]
    models = [chebyshev_descent(d=D, n=N, loops=depth(*case), low=1, high=case[0]) for case in cases]
    measured = [float(relative_errors(model, kappa)[-1].max()) for model, (kappa, _) in zip(models, cases, strict=True)]
    shown = [value for value, (_, tolerance) in zip(measured, cases, strict=True) if tolerance == 1e-3]
    instance = (
        f"kappa in {KAPPAS}, eps in 0.1, 1e-3, 1e-6; d={D}, n={N}, {NUM} random prompts (seed 0) and, for each point "
        "of a grid of [alpha, beta], one with w and x_q along its eigenvector; worst by measured / bound"
    )
    plot = bound_plot("kappa", KAPPAS, "error / (|w| |x_q|) at eps = 1e-3", shown, 1e-3, log_x=True)
    yield bounded(torch.tensor(measured), torch.tensor([tolerance for _, tolerance in cases]), instance, plot)


@theorem(
    "gatmiry24.thm5",
    "The looped restricted model with A = (n / 2 beta) I has |TF - w'x_q| <= |w| |x_q| (1 - alpha / 2 beta)^L after L "
    "loops, so eps after O(ln(1/eps) beta/alpha).",
)
def thm5() -> Iterator[Finding]:
    """Gradient descent as a loop, every loop against the bound."""
    errors, bounds, loops = [], [], 400
    for kappa in KAPPAS:
        model = looped_descent(d=D, n=N, loops=loops, rate=1 / (2 * kappa))
        errors.append(relative_errors(model, kappa).amax(1))
        bounds.append((1 - 1 / (2 * kappa)) ** torch.arange(1, loops + 1, dtype=torch.float64))
    instance = (
        f"kappa in {KAPPAS}, L = 1..{loops}; d={D}, n={N}, {NUM} random prompts (seed 0) and one for each point of a "
        f"grid of [alpha, beta]; {EXACT} is allowed for rounding; the worst by measured / bound"
    )
    x_label, x = "loops L (kappa = 16)", range(1, loops + 1, 8)
    plot = bound_plot(x_label, x, "error / (|w| |x_q|)", errors[1][::8], bounds[1][::8])
    yield bounded(torch.stack(errors), torch.stack(bounds) + EXACT, instance, plot)


@theorem(
    "gatmiry24.thm4",
    "A looped transformer with additional attention layers has, after L loops, the output x_q'M_L X y, with Newton's "
    "iterate M_j = 2 M_{j-1} - M_{j-1} Sigma M_{j-1}, M_0 = alpha Sigma.",
)
def thm4() -> Iterator[Finding]:
    """The construction against Newton's iteration, and the printed iteration against the inverse."""
    kappa, loops = 16.0, 14
    prompts = _prompts(kappa)
    alpha = 1 / kappa**2
    model = newton_loop(d=D, n=N, loops=NUM_BEFORE + loops, alpha=alpha)
    outputs = model(prompts.prompt, keep=loops + 1)[..., 0].detach()
    expected = newton_answers(prompts, newton_inverse(prompts.covariance, steps=loops, alpha=alpha))
    iterates = [alpha * prompts.covariance]
    for _ in range(loops):
        iterates.append(2 * iterates[-1] @ prompts.covariance @ iterates[-1])
    bound = (1 - 1 / kappa**2) ** (2.0 ** torch.arange(loops + 1, dtype=torch.float64))
    printed, error = (
        ((answers - prompts.answer[:, 0]).abs() / prompts.norms).amax(1)
        for answers in (newton_answers(prompts, torch.stack(iterates)), outputs)
    )
    shown = 6  # beyond this the printed iteration overflows float64
    instance = (
        f"kappa={kappa:g}, alpha = 1/beta^2, {loops} loops after {NUM_BEFORE} further layers, {D} registers and {N} "
        f"position coordinates beside (x, y); d={D}, n={N}, {len(prompts.w)} prompts (seed 0)"
    )
    plot = _over_loops(printed[: shown + 1], bound[: shown + 1])
    finding = Finding(float(printed[shown]), float(bound[shown]), f"{instance}, at L = {shown}", plot)
    yield finding.stated(
        "as printed",
        "Newton's iterate M_j = 2 M_{j-1} Sigma M_{j-1}, M_0 = alpha Sigma, tends to Sigma^-1: after L loops its error "
        "is at most |w| |x_q| (1 - alpha lambda_min^2)^(2^L).",
    )
    plot = _over_loops((outputs - expected).abs().amax(1) / expected.abs().max(), EXACT)
    finding = Finding(relative_difference(outputs, expected), EXACT, instance, plot, tolerance=True)
    yield finding.stated("as corrected")
    finding = bounded(error, bound + EXACT, f"{instance}; {EXACT} is allowed for rounding", _over_loops(error, bound))
    statement = "That output has |TF - w'x_q| <= |w| |x_q| (1 - alpha lambda_min^2)^(2^L): log(beta/alpha) loops do."
    yield finding.stated("as corrected", statement)


@theorem(
    "gatmiry24.rates",
    "The least depth with error 1e-3 |w| |x_q| on S_{1,kappa} grows as kappa^(1/2) with Chebyshev weights, as kappa "
    "with gradient descent, and by 2 with every doubling of kappa with Newton's loop.",
)
def rates() -> Iterator[Finding]:
    """The least depth, measured by running the models, and straight lines fitted to it."""
    depths: dict[str, list[int]] = {"Chebyshev": [], "gradient descent": [], "Newton": []}
    for kappa in KAPPAS:
        depths["Chebyshev"].append(_least_layers(kappa))
        descent = looped_descent(d=D, n=N, loops=int(4 * kappa) + 8, rate=2 / (1 + kappa))
        depths["gradient descent"].append(_least_loops(relative_errors(descent, kappa)))
        newton = newton_loop(d=D, n=N, loops=40, alpha=1 / kappa**2)
        depths["Newton"].append(_least_loops(relative_errors(newton, kappa)) - NUM_BEFORE)
    logs = torch.tensor(KAPPAS, dtype=torch.float64).log2()
    lines = {name: torch.tensor(depths[name]).double() for name in depths}
    fitted = {name: slope(logs, line if name == "Newton" else line.log2()) for name, line in lines.items()}
    chebyshev, others = depths["Chebyshev"], {name: depths[name] for name in ("gradient descent", "Newton")}
    theory = [depth(kappa, 1e-3) for kappa in KAPPAS]
    target = {"Chebyshev": 0.5, "gradient descent": 1.0, "Newton": 2.0}
    instance = (
        "fitted " + ", ".join(f"{name} {fitted[name]:.3f} for {target[name]:g}" for name in target)
        + f"; kappa in {KAPPAS}, depths " + ", ".join(f"{name} {depths[name]}" for name in target)
        + f"; d={D}, n={N}, {NUM} random and {NUM} extreme prompts; measured is the largest relative deviation"
    )  # fmt: skip
    plot = bound_plot("kappa", KAPPAS, "least depth with error 1e-3", chebyshev, theory, others, log_x=True)
    yield Finding(max(abs(fitted[name] / target[name] - 1) for name in target), 0.1, instance, plot, tolerance=True)


def depth(kappa: float, tolerance: float) -> int:
    """The depth of Theorem 2 with its constant; it is sufficient because 1/T_L <= 2 exp(-2 L / sqrt(kappa))."""
    return math.ceil(math.log(2 / tolerance) * math.sqrt(kappa) / 2)


def newton_answers(prompts: RealizablePrompts, inverses: Tensor) -> Tensor:
    """x_q'M X y for every iterate M."""
    moment = torch.einsum("bnd,bn->bd", prompts.prompt.xs[:, :-1], prompts.prompt.ys[:, :-1])
    return torch.einsum("bd,kbde,be->kb", prompts.prompt.xs[:, -1], inverses, moment)


def relative_errors(model: KernelTransformer, kappa: float) -> Tensor:
    """error / (|w| |x_q|) after every loop on random and extreme prompts with eigenvalues in [1, kappa]."""
    prompts = _prompts(kappa)
    return prediction_errors(model, prompts, model.config.loops) / prompts.norms


def slope(x: Tensor, y: Tensor) -> float:
    """The slope of the least-squares line."""
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _prompts(kappa: float) -> RealizablePrompts:
    """Random eigenvalues in [1, kappa]; then, for a grid of them, a prompt with w and x_q along the eigenvector."""
    generator = generator_of(0)
    random = realizable(1 + (kappa - 1) * uniform(NUM, D, generator=generator), n=N, generator=generator)
    angles = torch.linspace(0, math.pi, NUM, dtype=torch.float64)  # denser at the ends, where polynomials are largest
    grid = 1 + (kappa - 1) * (1 - angles.cos()) / 2
    eye = torch.eye(D, dtype=torch.float64)
    along = eye[0].expand(len(grid), D)
    extreme = with_covariance(grid[:, None, None] * eye, along, along, n=N, generator=generator)
    both = (random.prompt, extreme.prompt)
    prompt = Prompt(torch.cat([part.xs for part in both]), torch.cat([part.ys for part in both]))
    return RealizablePrompts(prompt, *(torch.cat(pair) for pair in zip(random[1:], extreme[1:], strict=True)))


def _least_layers(kappa: float) -> int:
    """The least number of layers with error at most 1e-3, by bisection: each further layer lowers the error."""
    few, enough = 0, depth(kappa, 1e-3)
    while enough - few > 1:
        layers = (few + enough) // 2
        model = chebyshev_descent(d=D, n=N, loops=layers, low=1, high=kappa)
        few, enough = (few, layers) if relative_errors(model, kappa)[-1].max() <= 1e-3 else (layers, enough)
    return enough


def _least_loops(error: Tensor) -> int:
    """The first loop from which on every prompt's error is at most 1e-3."""
    return int((error.amax(1) > 1e-3).nonzero().max()) + 2


def _over_loops(measured: Tensor, bound: Tensor | float) -> Plot:
    return bound_plot("loops L", range(len(measured)), "error / (|w| |x_q|)", measured, bound)
