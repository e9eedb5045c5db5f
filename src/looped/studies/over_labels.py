"""Expressions over the values of a label."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from looped.studies.checks import Condition
from looped.studies.expressions import Labels, NotMeasured, Quantity, Readings, bracketed
from looped.studies.table import Table, text
from looped.studies.values import geometric_mean, reduce

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

    along: Along
    how: str

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The reduced value."""
        return {None: reduce(OVER_LABEL[self.how], list(self.along.read(table, bound).values()))}

    def __str__(self) -> str:
        return f"{self.how} over {self.along.over} of {bracketed(self.along.inner)}"


@dataclass(frozen=True, eq=False)
class Share(Quantity):
    """The share of a label's values for which a condition holds."""

    along: Along
    condition: Condition

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The share, seed by seed; of a lone seed, of the values whose whole interval satisfies the condition."""
        values = list(self.along.read(table, bound).values())
        if all(len(value.by_seed) == 1 for value in values):
            holds = [self.condition.verdict(value) == "holds" for value in values]
            return {None: replace(values[0], by_seed=(statistics.fmean(holds),), low=statistics.fmean(holds),
                                  high=statistics.fmean(holds))}  # fmt: skip
        return {None: reduce(lambda numbers: statistics.fmean(map(self.condition.holds, numbers)), values)}

    def __str__(self) -> str:
        return f"share over {self.along.over} with {self.condition}"
