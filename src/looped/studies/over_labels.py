"""Expressions over the values of a label."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from looped.studies.checks import Condition
from looped.studies.expressions import Curve, Labels, NotMeasured, Quantity, Readings
from looped.studies.table import Table, text
from looped.studies.values import exact, geometric_mean, reduce

OVER_LABEL: dict[str, Callable[[Sequence[float]], float]] = {
    "worst": max, "best": min, "mean": statistics.fmean, "geometric mean": geometric_mean,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Along(Quantity):
    """A number for every value of a label, as a curve along that label."""

    inner: Quantity
    over: str
    among: tuple[Any, ...] | None = None

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """One place for each value of the label for which the number was measured."""
        labels = table.labels(self.over) if self.among is None else self.among
        readings: Readings = {}
        for label in labels:
            with contextlib.suppress(NotMeasured):
                readings[label] = self.inner.value(table, {**(bound or {}), self.over: label})
        if not readings:
            raise NotMeasured(f"`{self.inner}` is not measured for any {self.over}")
        return readings

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """The number for every label."""
        readings = self.read(table, bound)
        return [
            f"{self.inner} by {self.over}: "
            + ", ".join(f"{text(x)}: {value.mean:.3g}" for x, value in readings.items())
        ]

    def __str__(self) -> str:
        return f"{self.inner} by {self.over}"


@dataclass(frozen=True, eq=False)
class OverLabel(Quantity):
    """A worst, best or mean over the values of a label."""

    along: Quantity
    how: str

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The reduced value."""
        return {None: reduce(OVER_LABEL[self.how], list(self.along.read(table, bound).values()))}

    def __str__(self) -> str:
        return f"{self.how} {self.along}"


@dataclass(frozen=True, eq=False)
class Share(Quantity):
    """Of the values of a label, the share for which a condition holds by its whole interval."""

    condition: Condition
    over: str

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The share; values for which nothing was measured do not count."""
        values = Along(self.condition.quantity, self.over).read(table, bound).values()
        return {None: exact(statistics.fmean(self.condition.verdict(value) == "holds" for value in values))}

    def leaves(self) -> Iterator[Curve]:
        """The leaves of the condition."""
        return self.condition.quantity.leaves()

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """The number for every label."""
        return Along(self.condition.quantity, self.over).details(table, bound)

    def __str__(self) -> str:
        return f"share of all {self.over} with {self.condition}"
