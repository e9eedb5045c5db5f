"""The nodes of an expression over a table; `quantities` has the functions that make them."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from looped.studies.checks import Check, Condition
from looped.studies.table import Cell, Label, Series, Table, X, text
from looped.studies.values import Value, apply, averaged, exact, geometric_mean, quotient, reduce, seeded

Labels = Mapping[str, Any]
"""Label -> value, or the builtins `max` and `min`."""
Readings = dict[Label | None, Value]
"""Place -> value; a single number has the place None."""


class NotMeasured(ValueError):
    """A cell that an expression reads is not in the table: this scale does not measure it."""


class Quantity(ABC):
    """An expression over a table."""

    @abstractmethod
    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Its values; `bound` are labels that `over` sets for every leaf that can have them."""

    @abstractmethod
    def __str__(self) -> str: ...

    def leaves(self) -> Iterator[Curve]:
        """The leaves it reads."""
        for part in vars(self).values():
            if isinstance(part, Quantity):
                yield from part.leaves()

    def value(self, table: Table, bound: Labels | None = None) -> Value:
        """Its value, if it is a single number."""
        readings = self.read(table, bound)
        if list(readings) != [None]:
            raise ValueError(f"`{self}` is a curve of {len(readings)} places. Reduce it: .at(x), .last(), worst(...).")
        return readings[None]

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """What a reader of the value wants to see beside it: the parts of a ratio, the values behind a worst case."""
        lines: list[str] = []
        for part in vars(self).values():
            if isinstance(part, Quantity):
                lines += part.details(table, bound)
        return list(dict.fromkeys(lines))

    def at(self, x: X | Quantity) -> Quantity:
        """At one place of the axis."""
        return Place(self, x)

    def first(self) -> Quantity:
        """At the first place of the axis."""
        return Place(self, 0, by_index=True)

    def last(self) -> Quantity:
        """At the last place of the axis."""
        return Place(self, -1, by_index=True)

    def mean(self, between: tuple[float, float] | None = None) -> Quantity:
        """The mean over the axis, or over a part of it."""
        return OverAxis(self, "mean", between)

    def geomean(self, between: tuple[float, float] | None = None) -> Quantity:
        """The geometric mean over the axis, or over a part of it."""
        return OverAxis(self, "geometric mean", between)

    def least(self, between: tuple[float, float] | None = None) -> Quantity:
        """The least value along the axis."""
        return OverAxis(self, "least", between)

    def largest(self, between: tuple[float, float] | None = None) -> Quantity:
        """The largest value along the axis."""
        return OverAxis(self, "largest", between)

    def successive(self) -> Quantity:
        """The ratio of every value along the axis to the one before it."""
        return Successive(self)

    def __add__(self, other: Quantity | float) -> Quantity:
        return Arithmetic("+", self, quantity(other))

    def __sub__(self, other: Quantity | float) -> Quantity:
        return Arithmetic("-", self, quantity(other))

    def __mul__(self, other: Quantity | float) -> Quantity:
        return Arithmetic("*", self, quantity(other))

    def __rmul__(self, other: float) -> Quantity:
        return Arithmetic("*", quantity(other), self)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return Arithmetic("/", self, quantity(other))

    def __abs__(self) -> Quantity:
        return Function("size of", abs, self)

    def __le__(self, number: float) -> Check:
        return Check((Condition(self, "at most", number),))

    def __ge__(self, number: float) -> Check:
        return Check((Condition(self, "at least", number),))

    def __lt__(self, number: float) -> Check:
        return Check((Condition(self, "below", number),))

    def __gt__(self, number: float) -> Check:
        return Check((Condition(self, "above", number),))


@dataclass(frozen=True, eq=False)
class Number(Quantity):
    """A constant."""

    number: float

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The constant."""
        return {None: exact(self.number)}

    def __str__(self) -> str:
        return text(float(self.number))


def bracketed(part: Quantity) -> str:
    """The text of a part, in brackets where it is not a single reading."""
    return str(part) if isinstance(part, (Curve, Number, Place)) else f"[{part}]"


def quantity(value: Quantity | float) -> Quantity:
    """The expression itself, or a number as one."""
    return value if isinstance(value, Quantity) else Number(float(value))


@dataclass(frozen=True, eq=False)
class Curve(Quantity):
    """One quantity of the cell that the labels choose."""

    of: str
    """The quantity's name in the table."""
    labels: Labels = field(default_factory=dict)
    """Labels of the cell."""

    def cell(self, table: Table, bound: Labels | None = None) -> Cell:
        """The one cell that has these labels, and the bound ones as far as it has them."""
        cells = [series.cell for series in table if series.quantity == self.of]
        cells = list(dict.fromkeys(cells))
        for name, wanted in self.labels.items():
            cells = [cell for cell in cells if name in cell]
            if cells and wanted in (min, max):
                wanted = wanted(cell[name] for cell in cells)  # type: ignore[operator]
            cells = [cell for cell in cells if cell[name] == wanted]
        for name, wanted in (bound or {}).items():
            if name not in self.labels:
                # a baseline that lacks the label goes with all its values, unless a cell has just this one
                exact = [cell for cell in cells if cell.get(name) == wanted]
                cells = exact or [cell for cell in cells if name not in cell]
        if not cells:
            raise NotMeasured(f"no cell has `{self}`")
        if len(cells) > 1:
            raise ValueError(f"`{self}` means {len(cells)} cells ({cells[0]}; {cells[1]}; ...). Give more labels.")
        return cells[0]

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Its values by place."""
        cell = self.cell(table, bound)
        runs = [series for series in table if series.cell == cell and series.quantity == self.of]
        places: tuple[X | None, ...] = runs[0].x or (None,)
        return {place: _over_runs(runs, index) for index, place in enumerate(places)}

    def leaves(self) -> Iterator[Curve]:
        """Itself."""
        yield self

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """Nothing: a curve is too long."""
        return []

    def __str__(self) -> str:
        chosen = {
            name: "the largest" if value is max else "the smallest" if value is min else value
            for name, value in self.labels.items()
        }
        where = f" ({Cell(chosen)})" if chosen else ""
        return WORDS.get(self.of, self.of.replace("_", " ")) + where


WORDS = {"by_examples": "error by examples", "by_loops": "error by loops"}
"""How a quantity is called in a sentence, where that is not its name."""


def _over_runs(runs: Sequence[Series], index: int) -> Value:
    numbers = [series.value[index] for series in runs]
    lone = runs[0]
    low, high = (None if ends is None else ends[index] for ends in (lone.low, lone.high))
    return seeded(numbers, low, high, seeds=sum(series.seed is not None for series in runs))


@dataclass(frozen=True, eq=False)
class Place(Quantity):
    """A curve at one place."""

    curve: Quantity
    x: X | Quantity
    by_index: bool = False

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The value there; of a place that is itself measured, such as the trained loops, at most the last one."""
        readings = self.curve.read(table, bound)
        place: Any = self.x
        if isinstance(self.x, Quantity):
            place = min(int(self.x.value(table, bound).mean), list(readings)[-1])  # type: ignore[type-var]
        elif self.by_index:
            place = list(readings)[int(self.x)]
        if place not in readings:
            raise NotMeasured(f"`{self.curve}` has no place {place}")
        return {None: readings[place]}

    def __str__(self) -> str:
        if self.by_index:
            return f"{'last' if self.x == -1 else 'first'} {bracketed(self.curve)}"
        return (
            f"{bracketed(self.curve)} at {self.x.of.replace('_', ' ') if isinstance(self.x, Curve) else text(self.x)}"
        )


OVER_AXIS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "geometric mean": geometric_mean, "least": min, "largest": max,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class OverAxis(Quantity):
    """A mean, geometric mean, least or largest along the axis."""

    curve: Quantity
    how: str
    between: tuple[float, float] | None = None

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The reduced value."""
        readings = self.curve.read(table, bound)
        low, high = self.between or (-math.inf, math.inf)
        inside = [
            value for place, value in readings.items() if isinstance(place, (str, type(None))) or low <= place <= high
        ]
        if not inside:
            raise NotMeasured(f"`{self.curve}` has no place between {low:g} and {high:g}")
        return {None: reduce(OVER_AXIS[self.how], inside)}

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """The curve, where it is short."""
        readings = self.curve.read(table, bound)
        if len(readings) > MAX_LISTED or isinstance(self.curve, Curve):
            return self.curve.details(table, bound)
        return [f"{self.curve}: " + ", ".join(f"{text(x)}: {value.mean:.3g}" for x, value in readings.items())]

    def __str__(self) -> str:
        low, high = self.between or (-math.inf, math.inf)
        part = f" from {low:g} on" if high == math.inf else f" from {low:g} to {high:g}"
        return f"{self.how} of {bracketed(self.curve)}" + (part if self.between else "")


MAX_LISTED = 12
"""Longest curve that a note lists."""
OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": quotient,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Arithmetic(Quantity):
    """Two quantities added, subtracted, multiplied or divided."""

    operator: str
    left: Quantity
    right: Quantity

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Place by place; a single number goes with every place."""
        left, right = self.left.read(table, bound), self.right.read(table, bound)
        function = OPERATORS[self.operator]
        if list(left) == [None]:
            return {place: apply(function, left[None], value) for place, value in right.items()}
        if list(right) == [None]:
            return {place: apply(function, value, right[None]) for place, value in left.items()}
        return {place: apply(function, value, right[place]) for place, value in left.items() if place in right}

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """Both sides, where they are numbers, and what lies behind them."""
        lines = []
        for side in (self.left, self.right):
            readings = side.read(table, bound)
            if list(readings) == [None] and not isinstance(side, Number):
                lines.append(f"{side}: {readings[None]}")
        return list(dict.fromkeys([*lines, *super().details(table, bound)]))

    def __str__(self) -> str:
        return f"{bracketed(self.left)} {self.operator} {bracketed(self.right)}"


@dataclass(frozen=True, eq=False)
class Function(Quantity):
    """A monotone function, or a size, of a quantity."""

    name: str
    function: Callable[[float], float]
    inner: Quantity

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Place by place."""
        return {place: self._of(value) for place, value in self.inner.read(table, bound).items()}

    def _of(self, value: Value) -> Value:
        result = apply(self.function, value)
        # a size is not monotone: an interval around zero has the least size zero
        if self.function is abs and value.low < 0 < value.high:
            return replace(result, low=0.0 if len(value.by_seed) == 1 else result.low)
        return result

    def __str__(self) -> str:
        return f"{self.name} {bracketed(self.inner)}"


@dataclass(frozen=True, eq=False)
class Average(Quantity):
    """The mean over seeds as one number, with a bootstrap interval over seeds."""

    inner: Quantity

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Place by place."""
        return {place: averaged(value) for place, value in self.inner.read(table, bound).items()}

    def __str__(self) -> str:
        return f"mean {self.inner}"


@dataclass(frozen=True, eq=False)
class Successive(Quantity):
    """The ratio of every value along the axis to the one before it."""

    curve: Quantity

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """One place less than the curve has."""
        readings = list(self.curve.read(table, bound).items())
        if len(readings) < 2:
            raise NotMeasured(f"`{self.curve}` has one place only")
        return {place: apply(quotient, value, before) for (_, before), (place, value) in itertools.pairwise(readings)}

    def __str__(self) -> str:
        return f"step ratios of {bracketed(self.curve)}"


@dataclass(frozen=True, eq=False)
class PlaceWhere(Quantity):
    """The first place at which a curve falls to a level."""

    curve: Quantity
    level: Quantity
    interpolate: bool = False

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """That place, seed by seed; infinite where the level is never reached."""
        readings = self.curve.read(table, bound)
        level = self.level.value(table, bound)
        places = [float(place) for place in readings if isinstance(place, (int, float))]
        columns = list(zip(*(value.by_seed for value in readings.values()), strict=True))
        levels = level.by_seed if len(level.by_seed) == len(columns) else (level.mean,) * len(columns)
        reached = [
            first_place(places, column, target, interpolate=self.interpolate)
            for column, target in zip(columns, levels, strict=True)
        ]
        return {None: seeded(reached, seeds=max(value.seeds for value in readings.values()))}

    def __str__(self) -> str:
        return f"place where {self.curve} falls to {self.level}"


def first_place(places: Sequence[float], values: Sequence[float], level: float, *, interpolate: bool) -> float:
    """The first place with at most this value; between places its logarithm is taken as straight, if asked."""
    for index, value in enumerate(values):
        if value <= level:
            if index == 0 or not interpolate or value == level:
                return places[index]
            before = math.log(values[index - 1] / level)
            share = before / (before + math.log(level / value))
            return places[index - 1] + share * (places[index] - places[index - 1])
    return math.inf
