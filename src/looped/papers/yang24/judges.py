"""How sentences about curves become numbers: values by seed, ratios, gaps, and the loop where an error is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from looped.evaluation.claims import Data, Measured

FLAT = 1.5
"""Error far past the trained loops over the error at them that still counts as a fixed point."""
MATCHES = 0.05
"""Largest gap between two curves by examples, in units of predicting zero, that counts as a match."""
DIVERGED = 2.0
"""The same ratio from which on a model counts as diverging."""


def seeds(curve: Data) -> list[list[float]]:
    """The means of every seed, infinite where there is no number."""
    return [[math.inf if value is None else value for value in one] for one in curve["mean"]]


def at(curve: Data, x: int) -> list[float]:
    """The mean at one place of the axis, for each seed."""
    index = curve["x"].index(x)
    return [one[index] for one in seeds(curve)]


def last(curve: Data) -> list[float]:
    """The mean at the end of the axis, for each seed."""
    return at(curve, curve["x"][-1])


def area(curve: Data) -> list[float]:
    """The mean over the axis, for each seed."""
    return [statistics.fmean(one) for one in seeds(curve)]


def center(curve: Data) -> list[float]:
    """The mean over seeds, along the axis."""
    return [statistics.fmean(column) for column in zip(*seeds(curve), strict=True)]


def quotient(above: float, below: float) -> float:
    """above / below; infinite where that is no number, so that no claim holds by it."""
    value = above / below if below > 0 and math.isfinite(below) else math.inf
    return value if math.isfinite(value) else math.inf


def drift(model: Data) -> list[float]:
    """Error after the most loops over the error at the trained loops, for each seed; 1 is a fixed point."""
    curve = model["by_loops"]
    trained = min(model["trained_loops"], curve["x"][-1])
    return [quotient(far, near) for far, near in zip(last(curve), at(curve, trained), strict=True)]


def largest_gap(one: Data, other: Data) -> list[float]:
    """The largest excess of `one` over the mean of `other` along the axis, for each seed of `one`."""
    against = dict(zip(other["x"], center(other), strict=True))
    return [
        max(value - against[x] for x, value in zip(one["x"], seed, strict=True) if x in against) for seed in seeds(one)
    ]


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """`one` over `other`, seed by seed where both have as many, else over the mean of `other`."""
    below = other if len(other) == len(one) else [statistics.fmean(other)] * len(one)
    return [quotient(a, b) for a, b in zip(one, below, strict=True)]


def loops_to(curve: Data, error: float) -> float:
    """The first loop at which the mean over seeds is at most `error`."""
    return next((float(x) for x, value in zip(curve["x"], center(curve), strict=True) if value <= error), math.inf)


def measured(values: Sequence[float], holds: bool, note: str = "") -> Measured:
    """A number for each seed: their mean, and from the least to the greatest."""
    return Measured(value=statistics.fmean(values), low=min(values), high=max(values), holds=holds, note=note)


def at_most(values: Sequence[float], bound: float, note: str = "") -> Measured:
    """Holds where the mean over seeds is at most `bound`."""
    return measured(values, statistics.fmean(values) <= bound, note)


def at_least(values: Sequence[float], bound: float, note: str = "") -> Measured:
    """Holds where every number is a number and their mean is at least `bound`."""
    return measured(values, all(map(math.isfinite, values)) and statistics.fmean(values) >= bound, note)


def best_error(data: Data) -> float:
    """The least error at the end of any model's curve by examples or by prompts, mean over seeds."""
    found = [center(curve)[-1] for curve in _of_models(data)]
    return min(found) if found else 0.0


def _of_models(data: Any) -> Iterator[Data]:
    """Every curve of a figure but those of baselines and those by loops."""
    if isinstance(data, dict) and {"x", "mean"} <= set(data):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            if key not in ("baselines", "least_squares", "by_loops"):
                yield from _of_models(value)


def beside(published: str, ours: Sequence[float]) -> str:
    """A published number beside ours, for a note."""
    return f"published {published}, here {', '.join(f'{one:.3g}' for one in ours)}"
