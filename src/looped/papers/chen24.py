"""chen24, Bypassing the exponential dependency: figures. Nothing is trained: the weights are Theorem 4.2's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import DASHES, finish, reference_line
from looped.theorems.chen24.vector_prompts import draw_prompts as draw_instances

PAPER_KAPPA = {16: 4.57, 32: 3.13, 64: 2.07, 128: 1.62}
"""The mean condition numbers that Section 6 prints."""
FLOOR = 1e-28
"""Squared relative errors below it are rounding: float64's 1e-14, squared."""
KAPPA_TOLERANCE = 0.25
BOUND = DASHES[1]


def measure(sizes: Mapping[str, Any], settings: Settings) -> Data:
    """|theta^(T) - theta*|^2 over its first value for the looped transformer, and Theorem 5.8's bound, per trial."""
    data: Data = {"n": list(sizes["n"]), "kappa": [], "error": [], "bound": []}
    for index, n in enumerate(sizes["n"]):
        settings.progress(f"n = {n}", index / len(sizes["n"]))
        made = draw_instances(sizes["trials"], n, sizes["d"], sizes["seed"] + index, started=True)
        answers = made.answer(1 / made.highest[:, None], sizes["loops"]) / made.alpha[:, None]
        start = (-made.query / made.alpha[:, None] - made.theta).square().sum(-1)
        error = torch.cat([start[None], (answers - made.theta).square().sum(-1)]) / start
        steps = torch.arange(sizes["loops"] + 1, dtype=torch.float64)[:, None]
        data["kappa"].append(made.kappa.tolist())
        data["error"].append(error.T.tolist())
        data["bound"].append((-steps / made.kappa).exp().T.tolist())
    return data


def _curves(data: Data) -> tuple[Tensor, Tensor]:
    """Errors and bounds, (n, trials, loops + 1)."""
    return torch.tensor(data["error"], dtype=torch.float64), torch.tensor(data["bound"], dtype=torch.float64)


def below_bound(data: Data) -> Measured:
    """The largest error / bound over n, trials and T at which the bound is above the rounding floor."""
    error, bound = _curves(data)
    ratio = torch.where(bound > FLOOR, error / bound, 0.0)[..., 1:]
    each = ratio.amax((0, 2))
    compared = int((bound > FLOOR)[..., 1:].sum())
    return Measured(
        value=float(ratio.max()),
        low=float(each.min()),
        high=float(each.max()),
        holds=bool(ratio.max() <= 1),
        note=f"{compared} of {ratio.numel()} points are above the floor of {FLOOR:g}; spread over trials",
    )


def faster_with_examples(data: Data) -> Measured:
    """The least factor between the mean decay rates of successive n."""
    rates = decay_rates(data)
    means = rates.mean(1)
    factors = means[1:] / means[:-1]
    shown = ", ".join(f"{n}: {rate:.2f}" for n, rate in zip(data["n"], means.tolist(), strict=True))
    return Measured(
        value=float(factors.min()),
        low=float(factors.min()),
        high=float(factors.max()),
        holds=bool(factors.min() > 1),
        note=f"nats a loop by n: {shown}; spread over the successive pairs of n",
    )


def decay_rates(data: Data) -> Tensor:
    """How many nats the squared error falls a loop, from the start to the rounding floor, (n, trials)."""
    error, _ = _curves(data)
    above = error > FLOOR
    last = above.long().cumprod(-1).sum(-1) - 1
    final = error.gather(-1, last[..., None])[..., 0]
    return -final.log() / last


def gap_narrows(data: Data) -> Measured:
    """Measured rate over the bound's rate, largest n against smallest."""
    kappa = torch.tensor(data["kappa"], dtype=torch.float64)
    trials = decay_rates(data) * kappa
    ratio, change = trials.mean(1), trials[-1] / trials[0]
    shown = ", ".join(f"{n}: {value:.2f}" for n, value in zip(data["n"], ratio.tolist(), strict=True))
    return Measured(
        value=float(ratio[-1] / ratio[0]),
        low=float(change.min()),
        high=float(change.max()),
        holds=bool(ratio[-1] < ratio[0]),
        note=f"measured rate / bound's rate by n: {shown}. With eta = 1/L the slowest mode has rate -2 ln(1 - 1/kappa) "
        "> 2/kappa, twice the bound's at any n and more as kappa falls to 1: as a ratio the gap widens",
    )


def kappa_in_range(data: Data) -> Measured:
    """The largest relative deviation of the mean kappa from the paper's, over n."""
    means = [sum(one) / len(one) for one in data["kappa"]]
    apart = [abs(mean / PAPER_KAPPA[n] - 1) for n, mean in zip(data["n"], means, strict=True)]
    shown = ", ".join(f"{n}: {mean:.2f} ({PAPER_KAPPA[n]})" for n, mean in zip(data["n"], means, strict=True))
    return Measured(
        value=max(apart),
        low=min(apart),
        high=max(apart),
        holds=max(apart) <= KAPPA_TOLERANCE,
        note=f"mean kappa by n (paper's): {shown}; {len(data['kappa'][0])} trials",
    )


def draw(figure: Any, data: Data) -> None:
    """log(error / first error) against T, the median trial solid, its bound dashed, all trials as a band."""
    figure.set_size_inches(5.2, 3.5)
    ax = figure.subplots()
    error, bound = (curve.clamp_min(FLOOR).log() for curve in _curves(data))
    steps = range(error.shape[-1])
    for index, (n, kappas) in enumerate(zip(data["n"], data["kappa"], strict=True)):
        colour = f"C{index}"
        ax.plot(steps, error[index].median(0).values, color=colour, label=f"n={n}, κ={sum(kappas) / len(kappas):.2f}")
        ax.fill_between(steps, error[index].amin(0), error[index].amax(0), color=colour, alpha=0.15, linewidth=0)
        ax.plot(steps, bound[index].median(0).values, color=colour, linestyle=BOUND)
    reference_line(ax, [], [], "bound, Theorem 4.4 squared", linestyle=BOUND, linewidth=1.6)
    ax.set(xlabel="loops T", ylabel="log(error / first error)", xlim=(0, error.shape[-1] - 1), ylim=(-66, 2))
    finish(figure, columns=3)


SIZES = {"d": 4, "n": [16, 32, 64, 128], "loops": 200, "trials": 10, "seed": 0}

fig1 = Figure(
    name="chen24.fig1",
    title="Convergence of the linear looped transformer, measured and bound, for more and more examples",
    settings={"smoke": {**SIZES, "loops": 20, "trials": 3}, "cpu": SIZES, "paper": SIZES},
    measure=measure,
    draw=draw,
    claims=(
        Claim(
            id="chen24.fig1.below_bound",
            statement="Empirical convergence consistently outperforms the theoretical upper bound, at every n and T "
            "(Section 6, Figure 1).",
            tolerance=f"largest error / bound at most 1, wherever the bound is above rounding ({FLOOR:g})",
            judge=below_bound,
        ),
        Claim(
            id="chen24.fig1.faster",
            statement="The error falls faster for larger n (Section 6, Figure 1).",
            tolerance="mean decay rate larger by a factor above 1 for each n than for the one before",
            judge=faster_with_examples,
        ),
        Claim(
            id="chen24.fig1.kappa",
            statement="The mean condition numbers are 4.57, 3.13, 2.07, 1.62 for n = 16, 32, 64, 128 (Section 6).",
            tolerance=f"each within {KAPPA_TOLERANCE:.0%} of the paper's: 10 trials of a skewed number",
            judge=kappa_in_range,
        ),
        Claim(
            id="chen24.fig1.gap",
            statement="The gap between empirical and theoretical performance narrows as n increases (Section 6).",
            tolerance="measured rate / bound's rate at the largest n below that at the smallest",
            judge=gap_narrows,
        ),
    ),
)
