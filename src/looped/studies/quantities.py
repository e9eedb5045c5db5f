"""What claims are made of: functions that give expressions over a study's table.

    at(20, model="looped") / at(20, model="transformer") <= 1.5
    worst(drift(T=15), over="b") <= 1.5

A leaf reads one curve or number of one cell, chosen by labels; `b=max` and `b=min` mean the largest and smallest b that
was measured. Arithmetic is seed by seed and, between curves, place by place. A comparison with a number is a `Check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looped.studies.checks import Check, Condition
from looped.studies.expressions import Average, Curve, PlaceWhere, Quantity, quantity
from looped.studies.over_labels import Along, OverLabel, Share
from looped.studies.table import X


def curve(of: str = "by_examples", **labels: Any) -> Quantity:
    """One quantity of the cell with these labels, along its axis."""
    return Curve(of, labels)


def at(x: X | Quantity, of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at one place of its axis."""
    return Curve(of, labels).at(x)


def last(of: str = "by_examples", **labels: Any) -> Quantity:
    """The quantity at the end of its axis."""
    return Curve(of, labels).last()


def area(of: str = "by_examples", between: tuple[float, float] | None = None, **labels: Any) -> Quantity:
    """The mean of the quantity over its axis."""
    return Curve(of, labels).mean(between)


def drift(of: str = "by_loops", **labels: Any) -> Quantity:
    """Error after the most loops over the error at the trained loops; 1 is a fixed point."""
    errors = Curve(of, labels)
    return errors.last() / errors.at(Curve("trained_loops", labels))


def loops_to(error: Quantity | float, of: str = "by_loops", *, interpolate: bool = False, **labels: Any) -> Quantity:
    """Loops, or layers, at which the error first falls to `error`."""
    return PlaceWhere(Curve(of, labels), quantity(error), interpolate)


def gap(above: Quantity, below: Quantity) -> Quantity:
    """The largest excess of one curve over another, along the axis."""
    return (above - below).largest()


def along(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Along:
    """The number for every value of a label, as a curve along that label."""
    return Along(inner, over, None if among is None else tuple(among))


def worst(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The largest value over all values of a label."""
    return OverLabel(along(inner, over, among), "worst")


def best(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The least value over all values of a label."""
    return OverLabel(along(inner, over, among), "best")


def mean(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The mean over all values of a label."""
    return OverLabel(along(inner, over, among), "mean")


def geomean(inner: Quantity, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The geometric mean over all values of a label."""
    return OverLabel(along(inner, over, among), "geometric mean")


def share(check: Check, over: str, among: Sequence[Any] | None = None) -> Quantity:
    """The share of a label's values for which a condition holds."""
    [condition] = check.conditions
    return Share(along(condition.quantity, over, among), condition)


def average(inner: Quantity) -> Quantity:
    """The mean over seeds as one number, with its 90% bootstrap interval: for claims about a mean over trials."""
    return Average(inner)


def within_factor(inner: Quantity, factor: float) -> Check:
    """The quantity lies within a factor of 1, either way."""
    return Check((Condition(inner, "at most", factor), Condition(inner, "at least", 1 / factor)))
