"""Quantities compared with numbers, and the verdict that an interval allows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from looped.studies.table import Cell, Table, text
from looped.studies.values import Value

if TYPE_CHECKING:
    from looped.studies.expressions import Curve, Quantity

Decided = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True)
class Condition:
    """A quantity and the number it is compared with."""

    quantity: Quantity
    relation: str
    bound: float

    def holds(self, number: float) -> bool:
        """Whether a number satisfies it; one that is not finite never does."""
        compare = {"at most": operator.le, "at least": operator.ge, "below": operator.lt, "above": operator.gt}
        return math.isfinite(number) and compare[self.relation](number, self.bound)

    def verdict(self, value: Value) -> Decided:
        """By the whole interval: holds, fails, or undecided where the interval straddles the bound."""
        ends = [self.holds(value.low), self.holds(value.high), *map(self.holds, value.by_seed)]
        return "holds" if all(ends) else "undecided" if any(ends) else "fails"

    @property
    def asked(self) -> str:
        """What is asked of the quantity: "at most 1.5"."""
        return f"{self.relation} {text(float(self.bound))}"

    def __str__(self) -> str:
        return f"{self.quantity} {self.asked}"


@dataclass(frozen=True)
class Check:
    """Conditions that must all hold."""

    conditions: tuple[Condition, ...]

    def __and__(self, other: Check) -> Check:
        return Check((*self.conditions, *other.conditions))

    def values(self, table: Table) -> list[Value]:
        """The value of every condition's quantity."""
        return [condition.quantity.value(table) for condition in self.conditions]

    def verdict(self, values: Sequence[Value]) -> Decided:
        """By the values of its conditions: fails where one fails, holds where all hold."""
        verdicts = [condition.verdict(value) for condition, value in zip(self.conditions, values, strict=True)]
        return "fails" if "fails" in verdicts else "undecided" if "undecided" in verdicts else "holds"

    def leaves(self) -> Iterator[Curve]:
        """Every leaf that it reads."""
        for condition in self.conditions:
            yield from condition.quantity.leaves()

    def cells(self, table: Table) -> set[Cell]:
        """Every cell that it reads."""
        return set().union(*(condition.quantity.cells(table) for condition in self.conditions))

    def __str__(self) -> str:
        by_quantity: dict[Quantity, list[str]] = {}
        for condition in self.conditions:
            by_quantity.setdefault(condition.quantity, []).append(condition.asked)
        return ", and ".join(f"{quantity} {' and '.join(asked)}" for quantity, asked in by_quantity.items())
