"""Figure 1: loss against layers and against loops, for s uniform on [1, kappa]."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, reference_line, seeds_line
from looped.papers.gatmiry24.best import Nodes, best_rate, best_rates, interval, loss_of
from looped.papers.gatmiry24.sizes import DEPTH
from looped.papers.gatmiry24.training import (
    Kind,
    Member,
    Sizes,
    losses_on_windows,
    product,
    spectrum,
    spread,
    train,
)

SETTINGS = ("exact", "sampled")
THRESHOLD = {"exact": 5e-3, "sampled": 0.25}
"""The loss that counts as solved; predicting zero costs 1."""
CLOSE = 1.5
"""Loops over layers that counts as close."""
COMPETITIVE = 2.0
"""Looped loss over multilayer loss that counts as competitive."""
_done: dict[str, Any] = {}


def curves(kind: Kind, setting: str, sizes: Sizes, settings: Settings, start: float, share: float) -> Data:
    """Test loss of every kappa, seed and depth, `[kappa][seed][depth]`, and the best possible, `[kappa][depth]`."""
    key = json.dumps([kind, setting, sizes, str(settings.device)])
    if key not in _done:
        each = {**sizes, **sizes[setting]}
        grid = [(kappa, seed) for kappa in sizes["kappas"] for seed in range(sizes["seeds"])]
        depths = sorted(sizes["depths"], reverse=True)
        members = [Member(depth=L, seed=seed, **spread(kappa)) for L in depths for kappa, seed in grid]
        score = train(
            kind,
            setting,
            members,
            each,
            settings,
            lambda done: settings.progress(f"{setting}, {kind}", start + share * done),
        )
        losses = losses_on_windows(setting, score, members, [None], each)[0].view(len(depths), len(grid)).flip(0).T
        shaped = losses.reshape(len(sizes["kappas"]), sizes["seeds"], len(depths))
        deep = 2 * depths[0]
        within = [
            product(interval(1, kappa, nodes=deep), spectrum(setting, each, nodes=deep)) for kappa in sizes["kappas"]
        ]
        best = [[best_loss(kind, L, nodes) for L in sizes["depths"]] for nodes in within]
        _done[key] = {"loss": listed(shaped), "best": best}
    return _done[key]


def best_loss(kind: Kind, depth: int, nodes: Nodes) -> float:
    """The least loss with A_t = a_t I, layer by layer or shared."""
    rates = best_rates(nodes, depth) if kind == "multilayer" else torch.full((depth,), best_rate(nodes, depth)).double()
    return loss_of(rates, nodes)


def listed(values: Tensor) -> Any:
    """Nested lists, None where a model diverged."""
    if values.ndim == 0:
        return float(values) if values.isfinite() else None
    return [listed(one) for one in values]


def measure_1a(sizes: Sizes, settings: Settings) -> Data:
    """Multilayer models in both settings."""
    data: Data = {"kappas": sizes["kappas"], "depths": sizes["depths"]}
    for index, setting in enumerate(SETTINGS):
        data[setting] = {"multilayer": curves("multilayer", setting, sizes, settings, index / 2, 0.5)}
    return data


def measure_1b(sizes: Sizes, settings: Settings) -> Data:
    """Looped models in both settings, and the multilayer models they are compared with."""
    data = measure_1a(sizes, settings)
    for index, setting in enumerate(SETTINGS):
        data[setting]["looped"] = curves("looped", setting, sizes, settings, index / 2, 0.5)
    return data


def means(curve: Data) -> list[list[float]]:
    """The mean over seeds, `[kappa][depth]`; a diverged model makes it infinite."""
    return [
        [sum(math.inf if one is None else one for one in column) / len(column) for column in zip(*seeds, strict=True)]
        for seeds in curve["loss"]
    ]


def needed(depths: Sequence[int], losses: Sequence[float], threshold: float) -> float:
    """The depth at which the loss first falls to the threshold, its logarithm taken as straight between depths."""
    for index, loss in enumerate(losses):
        if loss <= threshold:
            if index == 0:
                return float(depths[0])
            before = math.log(losses[index - 1] / threshold)
            share = before / (before + math.log(threshold / loss)) if loss < threshold else 1.0
            return depths[index - 1] + share * (depths[index] - depths[index - 1])
    return math.inf


def more_with_kappa(kind: Kind, setting: str):
    """A judge: the depth needed rises with kappa."""

    def judge(data: Data) -> Measured:
        found = [needed(data["depths"], one, THRESHOLD[setting]) for one in means(data[setting][kind])]
        best = [needed(data["depths"], one, THRESHOLD[setting]) for one in data[setting][kind]["best"]]
        steps = [after - before for before, after in itertools.pairwise(found)]
        shown = ", ".join(f"{k:g}: {a:.2f} ({b:.2f})" for k, a, b in zip(data["kappas"], found, best, strict=True))
        return Measured(
            value=min(steps),
            low=min(steps),
            high=max(steps),
            holds=min(steps) > 0,
            note=f"depth needed by kappa (with the best weights): {shown}; spread over successive kappas",
        )

    return judge


def loops_over_layers(data: Data, setting: str, read: Callable[[Data], list[list[float]]]) -> list[list[float]]:
    """Layers needed, loops needed and their ratio, each by kappa; infinite where the threshold is never reached."""
    depths, threshold = data["depths"], THRESHOLD[setting]
    layers, loops = (
        [needed(depths, one, threshold) for one in read(data[setting][kind])] for kind in ("multilayer", "looped")
    )
    return [layers, loops, [b / a if math.isfinite(a) else math.inf for a, b in zip(layers, loops, strict=True)]]


def loops_close(setting: str):
    """A judge: about as many loops as layers are needed."""

    def judge(data: Data) -> Measured:
        layers, loops, ratios = loops_over_layers(data, setting, means)
        ideal = loops_over_layers(data, setting, lambda curve: curve["best"])[2]
        both = {one: max(loops_over_layers(data, one, means)[2]) for one in SETTINGS}
        shown = ", ".join(f"{k:g}: {b:.2f} for {a:.2f}" for k, a, b in zip(data["kappas"], layers, loops, strict=True))
        return Measured(
            value=max(ratios),
            low=min(ratios),
            high=max(ratios),
            holds=max(ratios) <= CLOSE,
            note=f"loops for layers by kappa: {shown}; with the best weights the ratio is at most {max(ideal):.2f}; "
            f"the paper's curves, called very close, resemble the {min(both, key=both.__getitem__)} setting more; "
            "spread over kappas",
        )

    return judge


def competitive(setting: str):
    """A judge: at the largest kappa and depth the looped loss is near the multilayer one."""

    def judge(data: Data) -> Measured:
        pairs = zip(data[setting]["looped"]["loss"][-1], data[setting]["multilayer"]["loss"][-1], strict=True)
        ratios = [math.inf if a[-1] is None or b[-1] is None else a[-1] / b[-1] for a, b in pairs]
        best = data[setting]["looped"]["best"][-1][-1] / data[setting]["multilayer"]["best"][-1][-1]
        mean = sum(ratios) / len(ratios)
        why = ": the loop itself costs this, not its training" if best > COMPETITIVE else ": training costs the rest"
        return Measured(
            value=mean,
            low=min(ratios),
            high=max(ratios),
            holds=mean <= COMPETITIVE,
            note=f"with the best weights it is {best:.3g}" + (why if mean > COMPETITIVE else ""),
        )

    return judge


def draw_1a(figure: Any, data: Data) -> None:
    """Loss against layers, a panel for each setting, a line for each kappa."""
    _draw(figure, data, "multilayer", "layers L")


def draw_1b(figure: Any, data: Data) -> None:
    """Loss against loops, and the multilayer models beside them, thin."""
    _draw(figure, data, "looped", "loops L")
    for ax, setting in zip(figure.axes, SETTINGS, strict=True):
        for index, seeds in enumerate(data[setting]["multilayer"]["loss"]):
            seeds_line(
                ax, index, data["depths"], seeds, "multilayer, as many layers" if index == 0 else "_",
                linewidth=0.9, linestyle="-", marker="s", markersize=2.4, alpha=0.75,
            )  # fmt: skip
    for legend in figure.legends:
        legend.remove()
    finish(figure, columns=3)


def _draw(figure: Any, data: Data, kind: Kind, label: str) -> None:
    figure.set_size_inches(7.2, 3.4)
    for ax, setting in zip(figure.subplots(1, 2), SETTINGS, strict=True):
        curve = data[setting][kind]
        for index, (kappa, seeds) in enumerate(zip(data["kappas"], curve["loss"], strict=True)):
            name = f"κ = {kappa:g}" + (", looped" if kind == "looped" else "")
            seeds_line(ax, index, data["depths"], seeds, name, marker="o", markersize=3.5)
            reference_line(ax, data["depths"], curve["best"][index], "best possible" if index == 0 else "_")
        log_y(ax)
        title = "exact: XX'/n = Σ" if setting == "exact" else "sampled: n Gaussian examples"
        ax.set(xlabel=label, ylabel="test loss (predicting zero = 1)", title=title, xticks=data["depths"])
    finish(figure, columns=4)


def _more(figure: str, kind: Kind, what: str, setting: str) -> Claim:
    return Claim(
        id=f"gatmiry24.{figure}.{setting}.more_with_kappa",
        statement=f"The larger kappa, the more {what} are needed for a small loss (Section 5, Figure 1); {setting}.",
        tolerance=f"{what} needed for loss {THRESHOLD[setting]:g}, interpolated, rise from each kappa to the next",
        judge=more_with_kappa(kind, setting),
    )


fig1a = Figure(
    name="gatmiry24.fig1a",
    title="Test loss against layers for three ranges of covariances, multilayer",
    settings=DEPTH,
    measure=measure_1a,
    draw=draw_1a,
    claims=tuple(_more("fig1a", "multilayer", "layers", setting) for setting in SETTINGS),
)

fig1b = Figure(
    name="gatmiry24.fig1b",
    title="Test loss against loops for three ranges of covariances, looped",
    settings=DEPTH,
    measure=measure_1b,
    draw=draw_1b,
    claims=tuple(_more("fig1b", "looped", "loops", setting) for setting in SETTINGS)
    + tuple(
        Claim(
            id=f"gatmiry24.fig1b.{setting}.loops_close",
            statement=f"The number of loops needed is very close to the number of layers (Figure 1b); {setting}.",
            tolerance=f"at most {CLOSE:g} times as many loops as layers for loss {THRESHOLD[setting]:g}, at each kappa",
            judge=loops_close(setting),
        )
        for setting in SETTINGS
    )
    + tuple(
        Claim(
            id=f"gatmiry24.fig1b.{setting}.competitive",
            statement="L loops are very competitive with L layers even in the most diverse setting (Section 5); "
            f"{setting}.",
            tolerance=f"looped / multilayer loss at most {COMPETITIVE:g} at the largest kappa and depth",
            judge=competitive(setting),
        )
        for setting in SETTINGS
    ),
)
