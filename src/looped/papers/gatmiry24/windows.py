"""Figure 2: trained on k covariances in [1, 8], tested on windows around them; looped against multilayer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, reference_line, seeds_line
from looped.papers.gatmiry24.best import Nodes, best_rate, best_rates, loss_of, windows
from looped.papers.gatmiry24.depth import SETTINGS, listed
from looped.papers.gatmiry24.sizes import WINDOWS
from looped.papers.gatmiry24.training import Kind, Member, Sizes, losses_on_windows, mixture, product, spectrum, train

KINDS: tuple[Kind, ...] = ("multilayer", "looped")
ROUNDING = 1e-20
"""A loss below it is zero to rounding, and counts as it in a ratio."""
ROBUST = 1.1
"""Growth of the loss from no window to the widest that counts as perfectly robust."""


def measure(sizes: Sizes, settings: Settings) -> Data:
    """The loss of every k, seed and window, `[k][seed][half]`, for both kinds in both settings, and the best."""
    data: Data = {"counts": sizes["counts"], "halves": sizes["halves"], "depth": sizes["depth"]}
    jobs: list[tuple[str, Kind]] = [(setting, kind) for setting in SETTINGS for kind in KINDS]
    grid = [(count, seed) for count in sizes["counts"] for seed in range(sizes["seeds"])]
    members = [Member(depth=sizes["depth"], seed=seed, **mixture(count)) for count, seed in grid]
    for index, (setting, kind) in enumerate(jobs):
        each = {**sizes, **sizes[setting]}

        def report(done: float, what: str = f"{setting}, {kind}", index: int = index) -> None:
            settings.progress(what, (index + done) / len(jobs))

        score = train(kind, setting, members, each, settings, report)
        losses = losses_on_windows(setting, score, members, sizes["halves"], each)
        shaped = losses.T.reshape(len(sizes["counts"]), sizes["seeds"], -1)
        best = [best_curve(kind, setting, count, each) for count in sizes["counts"]]
        data.setdefault(setting, {})[kind] = {"loss": listed(shaped), "best": best}
    return data


def best_curve(kind: Kind, setting: str, count: int, sizes: Sizes) -> list[float]:
    """The loss on every window of the best weights for no window, A_t = a_t I."""
    centres, depth = mixture(count)["centres"], sizes["depth"]
    within = spectrum(setting, sizes, nodes=2 * depth)

    def nodes(half: float) -> Nodes:
        return product(windows(centres, half, nodes=depth + 1), within)

    trained = nodes(0.0)
    rates = best_rates(trained, depth) if kind == "multilayer" else torch.full((depth,), best_rate(trained, depth))
    return [loss_of(rates.double(), nodes(half)) for half in sizes["halves"]]


def growth(losses: list[float | None]) -> float:
    """The loss at the widest window over that at none."""
    first, last = losses[0], losses[-1]
    return math.inf if first is None or last is None else max(last, ROUNDING) / max(first, ROUNDING)


def grows_more(setting: str, place: int) -> Callable[[Data], Measured]:
    """A judge: the multilayer loss grows by a larger factor than the looped one."""

    def judge(data: Data) -> Measured:
        many, one = ([growth(run) for run in data[setting][kind]["loss"][place]] for kind in KINDS)
        ratios = [_ratio(a, b) for a, b in zip(many, one, strict=True)]
        best = growth(data[setting]["multilayer"]["best"][place]) / growth(data[setting]["looped"]["best"][place])
        zero = data[setting]["multilayer"]["best"][place][0] < ROUNDING
        note = (
            f"growth multilayer {_span(many)}, looped {_span(one)}; with the best weights the ratio would be {best:.3g}"
        )
        if zero:
            note += "; the best multilayer loss at w = 0 is zero to rounding, so the ratio says how far training got"
        return Measured(value=_middle(ratios), low=min(ratios), high=max(ratios), holds=_middle(ratios) > 1, note=note)

    return judge


def lower_loss(setting: str, place: int) -> Callable[[Data], Measured]:
    """A judge: at the widest window the looped loss is the lower one."""

    def judge(data: Data) -> Measured:
        runs = [data[setting][kind]["loss"][place] for kind in KINDS]
        many, one = ([math.inf if run[-1] is None else run[-1] for run in each] for each in runs)
        ratios = [_ratio(b, a) for a, b in zip(many, one, strict=True)]
        return Measured(
            value=_middle(ratios),
            low=min(ratios),
            high=max(ratios),
            holds=_middle(ratios) < 1,
            note=f"loss at the widest window: multilayer {_span(many)}, looped {_span(one)}",
        )

    return judge


def perfectly_robust(setting: str) -> Callable[[Data], Measured]:
    """A judge: with the most covariances the looped loss hardly grows."""

    def judge(data: Data) -> Measured:
        found = [growth(run) for run in data[setting]["looped"]["loss"][-1]]
        other = "sampled" if setting == "exact" else "exact"
        there = _middle([growth(run) for run in data[other]["looped"]["loss"][-1]])
        return Measured(
            value=_middle(found),
            low=min(found),
            high=max(found),
            holds=_middle(found) <= ROBUST,
            note=f"in the {other} setting it is {there:.3g}: the paper's flat curve resembles the "
            + ("sampled" if min((_middle(found), setting), (there, other))[1] == "sampled" else "exact")
            + " setting",
        )

    return judge


def draw(figure: Any, data: Data) -> None:
    """Loss against w: a row for each setting, a panel for each k."""
    figure.set_size_inches(8.2, 5.2)
    axes = figure.subplots(2, len(data["counts"]), sharex=True, sharey="row", squeeze=False)
    for row, setting in zip(axes, SETTINGS, strict=True):
        for place, (ax, count) in enumerate(zip(row, data["counts"], strict=True)):
            for index, kind in enumerate(KINDS):
                curve = data[setting][kind]
                seeds_line(ax, index, data["halves"], curve["loss"][place], kind, marker="o", markersize=3)
                name = "best weights for w = 0" if index == 0 else "_"
                reference_line(ax, data["halves"], curve["best"][place], name, color=f"C{index}")
            log_y(ax, floor=1e-8)
            ax.set(title=f"{setting}, k = {count}")
            if setting == SETTINGS[-1]:
                ax.set(xlabel="half-width w of the test windows")
        row[0].set(ylabel="test loss (predicting zero = 1)")
    finish(figure, columns=3)


def _ratio(above: float, below: float) -> float:
    """Infinite, and so no evidence, where either model diverged."""
    return above / below if math.isfinite(above) and math.isfinite(below) else math.inf


def _middle(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if all(map(math.isfinite, values)) else math.inf


def _span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"


def _claims() -> tuple[Claim, ...]:
    counts = WINDOWS["paper"]["counts"]
    depth = WINDOWS["paper"]["depth"]
    made = []
    for setting in SETTINGS:
        for place, count in enumerate(counts):
            made += [
                Claim(
                    id=f"gatmiry24.fig2.{setting}.k{count}.grows_more",
                    statement=f"Trained on {count} covariances, the multilayer model's loss grows by a larger factor "
                    f"from w = 0 to 0.5 than the looped model's (Figure 2), depth {depth}, {setting}.",
                    tolerance="growth of multilayer / growth of looped above 1, geometric mean over seeds",
                    judge=grows_more(setting, place),
                ),
                Claim(
                    id=f"gatmiry24.fig2.{setting}.k{count}.looped_lower",
                    statement=f"Trained on {count} covariances, the looped model generalises better in absolute terms: "
                    f"its loss at w = 0.5 is the lower one (Section 5), depth {depth}, {setting}.",
                    tolerance="looped / multilayer loss at w = 0.5 below 1, geometric mean over seeds",
                    judge=lower_loss(setting, place),
                ),
            ]
        made.append(
            Claim(
                id=f"gatmiry24.fig2.{setting}.perfectly_robust",
                statement=f"As k increases the looped model becomes perfectly robust (Section 5), k = 9, {setting}.",
                tolerance=f"looped loss at w = 0.5 at most {ROBUST:g} times that at w = 0",
                judge=perfectly_robust(setting),
            )
        )
    return tuple(made)


fig2 = Figure(
    name="gatmiry24.fig2",
    title="Test loss against the width of windows around k training covariances, looped and multilayer",
    settings=WINDOWS,
    measure=measure,
    draw=draw,
    claims=_claims(),
)
