"""What loops and layers can compute: Theorem 2 (Chebyshev), Theorem 4 (Newton), Theorem 5 (gradient descent)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from looped.constructions.gradient_descent import chebyshev_descent, looped_descent
from looped.constructions.newton import NUM_BEFORE, newton_loop
from looped.functional.descent import newton_inverse
from looped.models.kernel_transformer import KernelTransformer
from looped.theorems.check import Finding, Plot, theorem, worst
from looped.theorems.gatmiry24.exactness import EXACT, relative
from looped.theorems.gatmiry24.instances import Instances, errors, realizable, seeded, with_covariance

KAPPAS = [4.0, 16.0, 64.0, 256.0]
NUM = 60
D, N = 5, 12


@theorem(
    "gatmiry24.thm2",
    "Restricted attention of depth L = ceil(ln(2/eps) sqrt(beta/alpha) / 2) has |TF - w'x_q| <= eps |w| |x_q| on every "
    "instance of S_{alpha,beta}.",
)
def thm2() -> Iterator[Finding]:
    """Chebyshev weights of that depth on random and on extreme instances."""
    cases = [(kappa, tolerance) for kappa in KAPPAS for tolerance in (0.1, 1e-3, 1e-6)]
    measured = [
        float(relative_errors(chebyshev_descent(d=D, n=N, loops=depth(*case), low=1, high=case[0]), case[0])[-1].max())
        for case in cases
    ]
    found, bound = worst(torch.tensor(measured), torch.tensor([tolerance for _, tolerance in cases]))
    at = [i for i, (_, tolerance) in enumerate(cases) if tolerance == 1e-3]
    yield Finding(
        measured=found,
        bound=bound,
        instance=f"kappa in {KAPPAS}, eps in 0.1, 1e-3, 1e-6; d={D}, n={N}, {NUM} random instances (seed 0) and one a "
        "grid point of [alpha, beta] with w and x_q along its eigenvector; the worst by measured / bound",
        plot=Plot(
            x_label="kappa",
            y_label="error / (|w| |x_q|) at eps = 1e-3",
            x=KAPPAS,
            lines={"measured": [measured[i] for i in at], "bound": [1e-3] * len(at)},
            log_x=True,
        ),
    )


@theorem(
    "gatmiry24.thm5",
    "The looped restricted model with A = (n / 2 beta) I has |TF - w'x_q| <= |w| |x_q| (1 - alpha / 2 beta)^L after L "
    "loops, so eps after O(ln(1/eps) beta/alpha).",
)
def thm5() -> Iterator[Finding]:
    """Gradient descent as a loop, every loop against the bound."""
    ratios, loops = [], 400
    for kappa in KAPPAS:
        got = relative_errors(looped_descent(d=D, n=N, loops=loops, rate=1 / (2 * kappa)), kappa).amax(1)
        bound = (1 - 1 / (2 * kappa)) ** torch.arange(1, loops + 1, dtype=torch.float64)
        ratios.append((got, bound))
    found, limit = worst(torch.stack([got for got, _ in ratios]), torch.stack([bound for _, bound in ratios]) + EXACT)
    got, bound = ratios[1]
    yield Finding(
        measured=found,
        bound=limit,
        instance=f"kappa in {KAPPAS}, L = 1..{loops}; d={D}, n={N}, {NUM} random instances (seed 0) and one a grid "
        f"point of [alpha, beta]; {EXACT} is allowed for rounding; the worst by measured / bound",
        plot=Plot(
            x_label="loops L (kappa = 16)",
            y_label="error / (|w| |x_q|)",
            x=list(range(1, loops + 1, 8)),
            lines={"measured": got[::8].tolist(), "bound": bound[::8].tolist()},
        ),
    )


@theorem(
    "gatmiry24.thm4",
    "A looped transformer with additional attention layers has, after L loops, the output x_q'M_L X y, with Newton's "
    "iterate M_j = 2 M_{j-1} - M_{j-1} Sigma M_{j-1}, M_0 = alpha Sigma.",
)
def thm4() -> Iterator[Finding]:
    """The construction against Newton's iteration, and the iteration as printed against the inverse."""
    kappa, loops = 16.0, 14
    made = _instances(kappa)
    alpha = 1 / kappa**2
    model = newton_loop(d=D, n=N, loops=NUM_BEFORE + loops, alpha=alpha)
    got = model(made.prompt, keep=loops + 1)[..., 0].detach()
    truth = newton_answers(made, newton_inverse(made.covariance, steps=loops, alpha=alpha))
    wrong = [alpha * made.covariance]
    for _ in range(loops):
        wrong.append(2 * wrong[-1] @ made.covariance @ wrong[-1])
    bound = (1 - 1 / kappa**2) ** (2.0 ** torch.arange(loops + 1, dtype=torch.float64))
    printed, error = (
        ((answers - made.answer[:, 0]).abs() / made.size[:, 0]).amax(1)
        for answers in (newton_answers(made, torch.stack(wrong)), got)
    )
    shown = 6  # later the printed iteration is beyond float64
    instance = (
        f"kappa={kappa:g}, alpha = 1/beta^2, {loops} loops after {NUM_BEFORE} further layers, {D} registers and {N} "
        f"position coordinates beside (x, y); d={D}, n={N}, {len(made.w)} instances (seed 0)"
    )
    yield Finding(
        measured=float(printed[shown]),
        bound=float(bound[shown]),
        form="as printed",
        statement="Newton's iterate M_j = 2 M_{j-1} Sigma M_{j-1}, M_0 = alpha Sigma, tends to Sigma^-1: after L loops "
        "its error is at most |w| |x_q| (1 - alpha lambda_min^2)^(2^L).",
        instance=f"{instance}, at L = {shown}",
        plot=_over_loops(printed[: shown + 1], bound),
    )
    yield Finding(
        measured=relative(got, truth),
        bound=EXACT,
        tolerance=True,
        form="as corrected",
        instance=instance,
        plot=_over_loops((got - truth).abs().amax(1) / truth.abs().max(), torch.full_like(bound, EXACT)),
    )
    found, limit = worst(error, bound + EXACT)
    yield Finding(
        measured=found,
        bound=limit,
        form="as corrected",
        statement="That output has |TF - w'x_q| <= |w| |x_q| (1 - alpha lambda_min^2)^(2^L): log(beta/alpha) loops do.",
        instance=f"{instance}; {EXACT} is allowed for rounding",
        plot=_over_loops(error, bound),
    )


@theorem(
    "gatmiry24.rates",
    "The least depth with error 1e-3 |w| |x_q| on S_{1,kappa} grows as kappa^(1/2) with Chebyshev weights, as kappa "
    "with gradient descent, and by 2 with every doubling of kappa with Newton's loop.",
)
def rates() -> Iterator[Finding]:
    """The least depth found by running the models, and straight lines fitted to it."""
    depths: dict[str, list[int]] = {"Chebyshev": [], "gradient descent": [], "Newton": []}
    for kappa in KAPPAS:
        depths["Chebyshev"].append(_least_layers(kappa))
        descent = looped_descent(d=D, n=N, loops=int(4 * kappa) + 8, rate=2 / (1 + kappa))
        depths["gradient descent"].append(_first(relative_errors(descent, kappa)))
        newton = newton_loop(d=D, n=N, loops=40, alpha=1 / kappa**2)
        depths["Newton"].append(_first(relative_errors(newton, kappa)) - NUM_BEFORE)
    logs = torch.tensor(KAPPAS, dtype=torch.float64).log2()
    fitted = {
        "Chebyshev": slope(logs, torch.tensor(depths["Chebyshev"]).double().log2()),
        "gradient descent": slope(logs, torch.tensor(depths["gradient descent"]).double().log2()),
        "Newton": slope(logs, torch.tensor(depths["Newton"]).double()),
    }
    target = {"Chebyshev": 0.5, "gradient descent": 1.0, "Newton": 2.0}
    yield Finding(
        measured=max(abs(fitted[name] / target[name] - 1) for name in target),
        bound=0.1,
        tolerance=True,
        instance="fitted " + ", ".join(f"{name} {fitted[name]:.3f} for {target[name]:g}" for name in target)
        + f"; kappa in {KAPPAS}, depths " + ", ".join(f"{name} {depths[name]}" for name in target)
        + f"; d={D}, n={N}, {NUM} random and {NUM} extreme instances; measured is the largest relative deviation",
        plot=Plot(
            x_label="kappa",
            y_label="least depth with error 1e-3",
            x=KAPPAS,
            lines={"measured": depths["Chebyshev"], "bound": [depth(kappa, 1e-3) for kappa in KAPPAS]}
            | {name: depths[name] for name in ("gradient descent", "Newton")},
            log_x=True,
        ),
    )  # fmt: skip


def depth(kappa: float, tolerance: float) -> int:
    """The depth of Theorem 2 with its constant: 1/T_L <= 2 exp(-2 L / sqrt(kappa)) makes it sufficient."""
    return math.ceil(math.log(2 / tolerance) * math.sqrt(kappa) / 2)


def newton_answers(made: Instances, inverses: Tensor) -> Tensor:
    """x_q'M X y for every iterate M."""
    moment = torch.einsum("bnd,bn->bd", made.prompt.xs[:, :-1], made.prompt.ys[:, :-1])
    return torch.einsum("bd,kbde,be->kb", made.prompt.xs[:, -1], inverses, moment)


def relative_errors(model: KernelTransformer, kappa: float) -> Tensor:
    """error / (|w| |x_q|) after every loop on random and extreme instances with eigenvalues in [1, kappa]."""
    made = _instances(kappa)
    return errors(model, made, model.config.loops) / made.size[:, 0]


def slope(x: Tensor, y: Tensor) -> float:
    """The slope of the least-squares line."""
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _instances(kappa: float) -> Instances:
    """Random eigenvalues in [1, kappa], and for a grid of them an instance with w and x_q along its eigenvector."""
    generator = seeded(0)
    random = 1 + (kappa - 1) * torch.rand(NUM, D, generator=generator, dtype=torch.float64)
    first = realizable(random, n=N, generator=generator)
    angles = torch.linspace(0, math.pi, NUM, dtype=torch.float64)  # denser at the ends, where polynomials are largest
    grid = 1 + (kappa - 1) * (1 - angles.cos()) / 2
    eye = torch.eye(D, dtype=torch.float64)[0].expand(len(grid), D)
    last = with_covariance(grid[:, None, None] * torch.eye(D).double(), eye, eye, n=N, generator=generator)
    prompt = type(first.prompt)(
        torch.cat([first.prompt.xs, last.prompt.xs]), torch.cat([first.prompt.ys, last.prompt.ys])
    )
    return Instances(prompt, *(torch.cat(pair) for pair in zip(first[1:], last[1:], strict=True)))


def _least_layers(kappa: float) -> int:
    """The least number of layers with error at most 1e-3, by bisection: the error falls with every layer more."""
    few, enough = 0, depth(kappa, 1e-3)
    while enough - few > 1:
        layers = (few + enough) // 2
        model = chebyshev_descent(d=D, n=N, loops=layers, low=1, high=kappa)
        few, enough = (few, layers) if relative_errors(model, kappa)[-1].max() <= 1e-3 else (layers, enough)
    return enough


def _over_loops(measured: Tensor, bound: Tensor) -> Plot:
    return Plot(
        x_label="loops L",
        y_label="error / (|w| |x_q|)",
        x=list(range(len(measured))),
        lines={"measured": measured.tolist(), "bound": bound[: len(measured)].tolist()},
    )


def _first(error: Tensor) -> int:
    """The first loop from which on every instance's error is at most 1e-3."""
    return int((error.amax(1) > 1e-3).nonzero().max()) + 2
