"""What claims are made of: functions that give expressions over a study's table.

    at(20, model="looped") / at(20, model="transformer") <= 1.5
    worst(drift(T=15), over="b") <= 1.5

A leaf reads one curve or number of one cell, chosen by labels; `b=max` and `b=min` mean the largest and smallest b that
was measured. Arithmetic is seed by seed and, between curves, place by place. A comparison with a number is a `Check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looped.studies.by_loops import AtTrainedLoops, Drift, PlaceWhere
from looped.studies.checks import Check, Condition
from looped.studies.expressions import Curve, OverLabel, Quantity, Share, quantity
from looped.studies.table import X


def curve(of: str = "by_examples", **labels: Any) -> Quantity:
    """One quantity of the cell with these labels, along its axis."""
    return Curve(of, labels)


def at(x: X, of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at one place of its axis."""
    return Curve(of, labels).at(x)


def last(of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at the end of its axis."""
    return Curve(of, labels).last()


def area(of: str = "by_examples", between: tuple[float, float] | None = None, **labels: Any) -> Quantity:
    """The mean of the quantity over its axis."""
    return Curve(of, labels).mean(between)


def drift(of: str = "by_loops", **labels: Any) -> Quantity:
    """Error after the most loops over the error at the trained loops."""
    return Drift(labels, of)


def at_trained_loops(of: str = "by_loops", **labels: Any) -> Quantity:
    """Error at the most loops of the model's training."""
    return AtTrainedLoops(labels, of)


def loops_to(error: Quantity | float, of: str = "by_loops", *, interpolate: bool = False, **labels: Any) -> Quantity:
    """Loops, or layers, at which the error first falls to `error`."""
    return PlaceWhere(Curve(of, labels), quantity(error), interpolate)


def gap(above: Quantity, below: Quantity) -> Quantity:
    """The largest excess of one curve over another, along the axis."""
    return (above - below).largest()


def worst(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The largest value over all values of a label."""
    return OverLabel(inner, "worst", over, None if among is None else tuple(among))


def best(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The least value over all values of a label."""
    return OverLabel(inner, "best", over, None if among is None else tuple(among))


def mean(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The mean over all values of a label."""
    return OverLabel(inner, "mean", over, None if among is None else tuple(among))


def geomean(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The geometric mean over all values of a label."""
    return OverLabel(inner, "geometric mean", over, None if among is None else tuple(among))


def share(check: Check, over: str) -> Quantity:
    """Of all values of a label, the share for which the check holds by its whole interval."""
    return Share(check, over)


def within_factor(inner: Quantity, factor: float) -> Check:
    """The quantity lies within a factor of 1, either way."""
    return Check((Condition(inner, "at most", factor), Condition(inner, "at least", 1 / factor)))
