"""What claims are made of: functions that give expressions over a study's table.

    at(20, model="looped") / at(20, model="transformer") <= 1.5
    worst(drift(T=15), over="b") <= 1.5

A leaf reads one curve or number of one cell, chosen by labels; `b=max` and `b=min` mean the largest and smallest b that
was measured. Arithmetic is seed by seed and, between curves, place by place. A comparison with a number is a `Check`.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from looped.studies.checks import Check
from looped.studies.expressions import Along, Between, Curve, Derived, Number, Quantity, Readings, bracketed
from looped.studies.table import X
from looped.studies.values import averaged, combine, over_seeds, reduce


def curve(of: str = "by_examples", **labels: Any) -> Curve:
    """One quantity of the cell with these labels, along its axis."""
    return Curve(of, labels)


def at(x: X | Curve, of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at one place of its axis."""
    return Curve(of, labels).at(x)


def last(of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at the end of its axis."""
    return Curve(of, labels).last()


def area(of: str = "by_examples", between: Between = None, **labels: Any) -> Quantity:
    """The mean of the quantity over its axis."""
    return Curve(of, labels).mean(between)


def drift(of: str = "by_loops", **labels: Any) -> Quantity:
    """Error after the most loops over the error at the trained loops; 1 is a fixed point."""
    errors = Curve(of, labels)
    ratio = errors.last() / errors.at(Curve("trained_loops", labels))
    return ratio.called(f"drift past the trained loops of {errors}")


def loops_to(error: Quantity | float, of: str = "by_loops", *, interpolate: bool = False, **labels: Any) -> Quantity:
    """Loops, or layers, at which the error first falls to `error`; infinite where it never does."""
    errors, target_error = Curve(of, labels), error if isinstance(error, Quantity) else Number(error)

    def read(readings: Readings, target: Readings) -> Readings:
        places = [float(place) for place in readings if isinstance(place, (int, float))]

        def reached(*numbers: float) -> float:
            return first_place(places, numbers[:-1], numbers[-1], interpolate=interpolate)

        values = [*readings.values(), target[None]]
        return {None: combine(reached, values, [reached(*(value.mean for value in values))])}

    return Derived(
        f"place where {errors} falls to {bracketed(target_error)}", (errors, target_error), read, compound=True
    )


def first_place(places: Sequence[float], values: Sequence[float], level: float, *, interpolate: bool) -> float:
    """The first place with at most this value, which must be finite; between places the logarithm is taken as straight.

    Only with `interpolate` is a place between two measured ones given.
    """
    if not math.isfinite(level):
        return math.inf
    for index, value in enumerate(values):
        if value <= level:
            if index == 0 or not interpolate or value == level:
                return places[index]
            before = math.log(values[index - 1] / level)
            share = before / (before + math.log(level / value))
            return places[index - 1] + share * (places[index] - places[index - 1])
    return math.inf


def gap(above: Quantity, below: Quantity) -> Quantity:
    """The largest excess of one curve over another, along the axis."""
    return (above - below).largest()


def along(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Along:
    """The number for every value of a label, as a curve along that label."""
    return Along(inner, over, None if among is None else tuple(among))


def worst(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The largest value over all values of a label."""
    return along(inner, over, among).largest()


def best(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The least value over all values of a label."""
    return along(inner, over, among).least()


def mean(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The mean over all values of a label."""
    return along(inner, over, among).mean()


def share(check: Check, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The share of a label's values for which a condition holds; of a lone seed, with its whole interval."""
    [condition] = check.conditions

    def read(readings: Readings) -> Readings:
        values = list(readings.values())
        if all(len(value.by_seed) == 1 for value in values):
            holding = fmean(condition.verdict(value) == "holds" for value in values)
            return {None: over_seeds([holding], seeds=max(value.seeds for value in values))}
        return {None: reduce(lambda numbers: fmean(map(condition.holds, numbers)), values)}

    return Derived(f"share of {over}s with [{condition}]", (along(condition.quantity, over, among),), read)


def average(inner: Quantity) -> Quantity:
    """The mean over seeds as one number, with its 90% bootstrap interval: for claims about a mean over trials."""
    words = f"mean over seeds of {bracketed(inner)}"
    return Derived(words, (inner,), lambda readings: {place: averaged(value) for place, value in readings.items()})


def within_factor(inner: Quantity, factor: float) -> Check:
    """The quantity lies within a factor of 1, either way."""
    return (inner <= factor) & (inner >= 1 / factor)
