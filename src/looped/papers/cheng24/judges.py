"""The paper's sentences about its figures as numbers; every function reads measured data alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looped.evaluation.claims import Data, Measured

TIE = 1.02
"""A loss counts as the best when it is at most this many times the best of the others."""
NEAR = 1 / 3
"""The excess over Bayes at the largest depth, in units of that at one layer, that counts as approaching."""
CLOSE = 0.1
"""A ratio within 10% of 1 is `as well as`, or a gap that is `very small`."""
SMALL = 0.1
"""A distance to a multiple of the identity below this is `converged`."""
Losses = Sequence[Sequence[float | None]]
"""(seeds, places along the axis); None where training diverged."""


def panel(data: Data, /, **wanted: Any) -> Mapping[str, Any]:
    """The panel, or the extra measurement, with these fields."""
    every = [*data["panels"], *data.get("extra", [])]
    return next(one for one in every if all(one[name] == value for name, value in wanted.items()))


def over_seeds(ratios: Sequence[Sequence[float]], *, worst: Callable = max) -> tuple[float, float, float]:
    """The worst entry of the means over seeds, and the worst entry of the best and of the worst seed."""
    means = [sum(column) / len(column) for column in zip(*ratios, strict=True)]
    each = [worst(row) for row in ratios]
    return worst(means), min(each), max(each)


def ratios(
    one: Mapping[str, Any], top: str, bottoms: Sequence[str], keep: Sequence[int] | None = None
) -> list[list[float]]:
    """The loss of `top` over the least loss of `bottoms`, by seed and by the places to keep, None for all.

    A model that diverged, which has no loss, counts as infinitely bad; on top that is an infinite ratio.
    """
    lines = one["lines"]
    keep = range(len(one["x"])) if keep is None else keep
    seeds = range(len(lines[top]))
    least = [[min(_real(lines[name][s][k]) for name in bottoms) for k in keep] for s in seeds]
    found = [[_real(lines[top][s][k]) for k in keep] for s in seeds]
    return [
        [a / b if a < float("inf") else float("inf") for a, b in zip(*pair, strict=True)]
        for pair in zip(found, least, strict=True)
    ]


def best(data_name: str, *, where: Sequence[Mapping[str, Any]]) -> Callable[[Data], Measured]:
    """The matching h against the better of the other two, at the end of the axis of some panels, the worst one told."""
    others = [name for name in ("linear", "relu", "exp") if name != data_name]

    def judge(data: Data) -> Measured:
        found, told = [], []
        for fields in where:
            one = panel(data, **fields)
            value = ratios(one, data_name, others, [len(one["x"]) - 1])
            found.append(value)
            told.append(
                _told(f"n = {one['n']}" if one["axis"] == "L" else "L = 3", one, ratios(one, data_name, others))
            )
            lost = [name for name in others if any(seed[-1] is None for seed in one["lines"][name])]
            told += [f"h = {name} diverged there for a seed, which the ratio leaves out" for name in lost]
        joined = [[v for row in rows for v in row] for rows in zip(*found, strict=True)]
        value, low, high = over_seeds(joined)
        return Measured(value=value, low=low, high=high, holds=value <= TIE, note="; ".join(told))

    return judge


def softmax_wins(least: int) -> Callable[[Data], Measured]:
    """Softmax over exp on exp data, the worst n from `least` on."""

    def judge(data: Data) -> Measured:
        one = panel(data, data="exp")
        keep = [k for k, n in enumerate(one["x"]) if n >= least]
        rows = ratios(one, "softmax", ["exp"], keep)
        value, low, high = over_seeds(rows)
        note = _told("softmax / exp", one, ratios(one, "softmax", ["exp"]))
        return Measured(value=value, low=low, high=high, holds=value < 1, note=note)

    return judge


def approaches_bayes(data: Data) -> Measured:
    """The exp model's excess over Bayes on exp data at the largest depth over that at the least, the worst n."""
    rows, told = [], []
    for one in (one for one in data["panels"] if one["data"] == "exp"):
        excess = [
            [_real(line[k]) - bayes[k] for k in range(len(one["x"]))]
            for line, bayes in zip(one["lines"]["exp"], one["bayes"], strict=True)
        ]
        rows.append([[row[-1] / row[0]] for row in excess])
        told.append(_told(f"n = {one['n']}, loss / Bayes", one, _over_bayes(one, "exp")))
    joined = [[v for part in parts for v in part] for parts in zip(*rows, strict=True)]
    value, low, high = over_seeds(joined)
    return Measured(value=value, low=low, high=high, holds=value <= NEAR, note="; ".join(told))


def softmax_gap(data: Data) -> Measured:
    """|softmax / exp - 1| on exp data at n = 14, the worst L from 6 on."""
    one = panel(data, data="exp", n=14)
    rows = [[abs(v - 1) for v in row] for row in ratios(one, "softmax", ["exp"], _from(one, 6))]
    value, low, high = over_seeds(rows)
    note = _told("softmax / exp", one, ratios(one, "softmax", ["exp"]))
    return Measured(value=value, low=low, high=high, holds=value <= CLOSE, note=note)


def exp_wins(data: Data) -> Measured:
    """Exp over softmax on exp data at n = 6, the worst L from 5 on."""
    one = panel(data, data="exp", n=6)
    value, low, high = over_seeds(ratios(one, "exp", ["softmax"], _from(one, 5)))
    note = _told("exp / softmax", one, ratios(one, "exp", ["softmax"]))
    return Measured(value=value, low=low, high=high, holds=value < 1, note=note)


def relu_gap(data: Data) -> Measured:
    """The relu model's loss over Bayes on relu data at n = 14, the least over L from 3 on."""
    one = panel(data, data="relu", n=14)
    every = _over_bayes(one, "relu")
    value, low, high = over_seeds([[row[k] for k in _from(one, 3)] for row in every], worst=min)
    note = _told("loss / Bayes", one, every)
    return Measured(value=value, low=low, high=high, holds=value >= 1 + CLOSE, note=note)


def two_heads(data_name: str, *, most: float) -> Callable[[Data], Measured]:
    """The two-head model over the better single head at the largest depth."""

    def judge(data: Data) -> Measured:
        one = panel(data, data=data_name)
        rows = ratios(one, "linear+exp", ["linear", "exp"])
        value, low, high = over_seeds([row[-1:] for row in rows])
        holds = value < 1 if most == 1 else value <= most
        return Measured(value=value, low=low, high=high, holds=holds, note=_told("ratio", one, rows))

    return judge


def converged(data: Data) -> Measured:
    """The share of panels whose final distance, a mean over matrices, is below 0.1."""
    finals = [[_mean(row[-1]) for row in one["distances"]] for one in data["panels"]]
    shares = [sum(final[s] < SMALL for final in finals) / len(finals) for s in range(len(finals[0]))]
    means = [_mean(final) for final in finals]
    value = sum(mean < SMALL for mean in means) / len(means)
    told = ", ".join(f"{one['title']}: {mean:.2f}" for one, mean in zip(data["panels"], means, strict=True))
    ends = [
        [_mean(column) for column in zip(*(row[-1] for row in one["distances"]), strict=True)] for one in data["panels"]
    ]
    below = ", ".join(str(sum(end < SMALL for end in column)) for column in zip(*ends, strict=True))
    note = f"{told}; panels below {SMALL} by matrix, B'C of layers 0 to 2, then A where it is free: {below}"
    return Measured(value=value, low=min(shares), high=max(shares), holds=value > 0.5, note=note)


def largest_distance(data: Data) -> Measured:
    """The final distance, a mean over matrices, in the worse panel."""
    rows = [[_mean(row[-1]) for row in one["distances"]] for one in data["panels"]]
    value, low, high = over_seeds(list(zip(*rows, strict=True)))
    return Measured(value=value, low=low, high=high, holds=value < SMALL)


def _over_bayes(one: Mapping[str, Any], name: str) -> list[list[float]]:
    """The loss of h = `name` over that of the Bayes estimator, by seed and place."""
    pairs = zip(one["lines"][name], one["bayes"], strict=True)
    return [[_real(loss) / best for loss, best in zip(line, bayes, strict=True)] for line, bayes in pairs]


def _told(what: str, one: Mapping[str, Any], rows: Sequence[Sequence[float]]) -> str:
    """The means over seeds along the axis, in words."""
    means = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    return f"{what} by {one['axis']}: " + ", ".join(f"{x}: {mean:.3g}" for x, mean in zip(one["x"], means, strict=True))


def _from(one: Mapping[str, Any], least: int) -> list[int]:
    return [k for k, layers in enumerate(one["x"]) if layers >= least]


def _mean(values: Sequence[float | None]) -> float:
    return sum(map(_real, values)) / len(values)


def _real(value: float | None) -> float:
    return float("inf") if value is None else value
