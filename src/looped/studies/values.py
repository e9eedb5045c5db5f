"""A number with its spread: over seeds where there are several, else over prompts."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from looped.evaluation.bootstrap import bootstrap

LEVEL = 0.9
"""Level of an interval over resampled prompts."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One number for each seed, and the interval that a verdict must respect."""

    by_seed: tuple[float, ...]
    """One number for each seed; one number alone for a baseline or a bound."""
    low: float
    """Lower end: the least seed, or of one seed the lower end of its interval over prompts."""
    high: float
    """Upper end."""
    seeds: int
    """Trained models behind it; 0 for baselines, bounds and other numbers without training."""
    draws: tuple[float, ...] = ()
    """Of a lone number: what it would be on each resample of the prompts, where that is known."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed)

    @property
    def basis(self) -> str:
        """What the interval is: the range over seeds, or an interval over prompts."""
        if self.seeds > 1:
            return f"mean of {self.seeds} seeds"
        models = "one seed" if self.seeds else "no trained model"
        return models + (", 90% interval over prompts" if self.low != self.high else "")

    def __str__(self) -> str:
        known = self.low != self.high and math.isfinite(self.mean)
        spread = f" [{self.low:.3g}, {self.high:.3g}]" if known else ""
        return f"{self.mean:.3g}{spread}"


def exact(number: float) -> Value:
    """A number without spread."""
    return Value(by_seed=(number,), low=number, high=number, seeds=0)


def over_seeds(
    numbers: Sequence[float],
    low: float | None = None,
    high: float | None = None,
    *,
    seeds: int,
    draws: Sequence[float] = (),
) -> Value:
    """A number for each seed; `low` and `high` are the interval of a lone one, `draws` its resamples."""
    if len(numbers) == 1 and low is not None and high is not None:
        return Value(by_seed=tuple(numbers), low=low, high=high, seeds=seeds, draws=tuple(draws))
    return Value(by_seed=tuple(numbers), low=min(numbers), high=max(numbers), seeds=seeds)


def apply(function: Callable[..., float], *values: Value) -> Value:
    """The function of several values, seed by seed; a value of one number goes with every seed of the others.

    Where no value has several seeds, the interval is that of the function over the same resamples of all values. Where
    these are not known, it is that over all combinations of ends: wider than a joint bootstrap would give, never
    narrower; the function must then be monotone in each argument.
    """
    corners = itertools.product(*((value.low, value.high) for value in values))
    return combine(function, values, [function(*corner) for corner in corners])


def reduce(function: Callable[[Sequence[float]], float], values: Sequence[Value]) -> Value:
    """A mean, least or largest over several values, seed by seed; a lone seed's ends are reduced alike."""
    ends = [function([getattr(value, end) for value in values]) for end in ("low", "high")]
    return combine(lambda *numbers: function(numbers), values, ends)


def combine(function: Callable[..., float], values: Sequence[Value], ends: Sequence[float]) -> Value:
    """The function seed by seed; `ends` are the interval where there is one seed."""
    several = max(len(value.by_seed) for value in values)
    columns = [value.by_seed if len(value.by_seed) == several else (value.mean,) * several for value in values]
    numbers = [function(*numbers) for numbers in zip(*columns, strict=True)]
    draws = _draws(function, values)
    if draws:
        ordered, tail = sorted(draws), round((1 - LEVEL) / 2 * len(draws))
        ends = ordered[tail], ordered[-1 - tail]
    return over_seeds(numbers, min(ends), max(ends), seeds=max(value.seeds for value in values), draws=draws)


def _draws(function: Callable[..., float], values: Sequence[Value]) -> list[float]:
    """The function on every resample; none where a value with an interval has no resamples, or others than the rest."""
    counts = {len(value.draws) for value in values if value.draws or value.low != value.high}
    if len(counts) != 1 or 0 in counts or any(len(value.by_seed) > 1 for value in values):
        return []
    columns = [value.draws or (value.mean,) * max(counts) for value in values]
    return [function(*numbers) for numbers in zip(*columns, strict=True)]


def averaged(value: Value) -> Value:
    """The mean over seeds as one number, with its 90% bootstrap interval over seeds."""
    if len(value.by_seed) == 1:
        return value
    _, low, high = bootstrap(torch.tensor(value.by_seed, dtype=torch.float64))
    return replace(value, by_seed=(value.mean,), low=float(low), high=float(high))


def quotient(above: float, below: float) -> float:
    """above / below; infinite unless `below` is positive and both are finite, so that no claim holds by it."""
    ratio = above / below if below > 0 and math.isfinite(below) else math.inf
    return ratio if math.isfinite(ratio) else math.inf


def geometric_mean(numbers: Sequence[float]) -> float:
    """The geometric mean; infinite where a number is not finite or not positive."""
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        return math.inf
    return math.exp(statistics.fmean(map(math.log, numbers)))
