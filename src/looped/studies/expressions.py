"""The nodes of an expression over a table; `quantities` has the functions that make them."""

from __future__ import annotations

import contextlib
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
from looped.studies.values import Value, apply, exact, geometric_mean, over_seeds, quotient, reduce

Labels = Mapping[str, Any]
"""Label -> value, or the builtins `max` and `min`."""
Readings = dict[Label | None, Value]
"""Place -> value; a single number has the place None."""
Between = tuple[float, float] | None
"""A part of the axis; None: all of it."""
ANY: Labels = {}
"""No labels bound."""
WORDS = {"by_examples": "error by examples", "by_loops": "error by loops", "by_prompts": "error by prompts"}
"""How a quantity is called in a sentence, where that is not its name."""
MAX_LISTED = 12
"""Longest curve that a note lists."""


class NotMeasured(ValueError):
    """A cell that an expression reads is not in the table: this scale does not measure it."""


class Quantity(ABC):
    """An expression over a table."""

    @abstractmethod
    def read(self, table: Table, bound: Labels = ANY) -> Readings:
        """Its values; `bound` are labels that `along` sets for every leaf that can have them."""

    @abstractmethod
    def __str__(self) -> str: ...

    def leaves(self) -> Iterator[Curve]:
        """The leaves it reads."""
        return iter(())

    def cells(self, table: Table, bound: Labels = ANY) -> set[Cell]:
        """The cells it reads."""
        return set()

    def value(self, table: Table, bound: Labels = ANY) -> Value:
        """Its value, if it is a single number."""
        readings = self.read(table, bound)
        if list(readings) != [None]:
            raise ValueError(f"`{self}` is a curve of {len(readings)} places. Reduce it: .at(x), .last(), worst(...).")
        return readings[None]

    def details(self, table: Table) -> list[str]:
        """What a reader of the value wants to see beside it: the parts of a ratio, the values behind a worst case."""
        return []

    def called(self, name: str) -> Quantity:
        """The same under a name, which stands for it in texts."""
        return Derived(name, (self,), dict)

    def at(self, x: X | Curve) -> Quantity:
        """At one place of the axis; a place that is itself measured, such as the trained loops, is at most the last."""

        def read(readings: Readings, measured: Readings | None = None) -> Readings:
            place: Any = x if measured is None else min(int(measured[None].mean), list(readings)[-1])  # type: ignore
            if place not in readings:
                raise NotMeasured(f"`{self}` has no place {place}")
            return {None: readings[place]}

        if isinstance(x, Curve):
            return Derived(f"{bracketed(self)} at {x.noun}", (self, x), read)
        return Derived(f"{bracketed(self)} at {text(x)}", (self,), read)

    def first(self) -> Quantity:
        """At the first place of the axis."""
        words = f"{bracketed(self)} at the start"
        return Derived(words, (self,), lambda readings: {None: next(iter(readings.values()))})

    def last(self) -> Quantity:
        """At the last place of the axis."""
        return Derived(f"{bracketed(self)} at the end", (self,), lambda readings: {None: [*readings.values()][-1]})

    def mean(self, between: Between = None) -> Quantity:
        """The mean over the axis, or over a part of it."""
        return self._over_axis("mean", statistics.fmean, between)

    def geomean(self, between: Between = None) -> Quantity:
        """The geometric mean over the axis, or over a part of it."""
        return self._over_axis("geometric mean", geometric_mean, between)

    def least(self, between: Between = None) -> Quantity:
        """The least value along the axis; infinite where one is, so that no claim holds by what is left."""
        return self._over_axis("least", lambda numbers: min(numbers) if math.inf not in numbers else math.inf, between)

    def largest(self, between: Between = None) -> Quantity:
        """The largest value along the axis."""
        return self._over_axis("largest", max, between)

    def _over_axis(self, how: str, function: Callable[[Sequence[float]], float], between: Between) -> Quantity:
        low, high = between or (-math.inf, math.inf)
        part = f" from {low:g} on" if high == math.inf else f" from {low:g} to {high:g}"

        def read(readings: Readings) -> Readings:
            inside = [value for x, value in readings.items() if not isinstance(x, (int, float)) or low <= x <= high]
            if not inside:
                raise NotMeasured(f"`{self}` has no place between {low:g} and {high:g}")
            return {None: reduce(function, inside)}

        return Derived(f"{how} {self._as_axis()}{part if between else ''}", (self,), read)

    def _as_axis(self) -> str:
        return f"of {bracketed(self)}"

    def successive(self) -> Quantity:
        """The ratio of every value along the axis to the one before it."""

        def read(readings: Readings) -> Readings:
            if len(readings) < 2:
                raise NotMeasured(f"`{self}` has one place only")
            pairs = itertools.pairwise(readings.items())
            return {place: apply(quotient, value, before) for (_, before), (place, value) in pairs}

        return Derived(f"step ratios of {bracketed(self)}", (self,), read)

    def __add__(self, other: Quantity | float) -> Quantity:
        return arithmetic("+", operator.add, self, other)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return arithmetic("-", operator.sub, self, other)

    def __mul__(self, other: Quantity | float) -> Quantity:
        return arithmetic("*", operator.mul, self, other)

    def __rmul__(self, other: float) -> Quantity:
        return arithmetic("*", operator.mul, other, self)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return arithmetic("/", quotient, self, other)

    def __abs__(self) -> Quantity:
        return Derived(
            f"|{self}|", (self,), lambda readings: {place: absolute(value) for place, value in readings.items()}
        )

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

    def read(self, table: Table, bound: Labels = ANY) -> Readings:
        """The constant."""
        return {None: exact(self.number)}

    def __str__(self) -> str:
        return text(float(self.number))


@dataclass(frozen=True, eq=False)
class Curve(Quantity):
    """One quantity of the cell that the labels choose."""

    of: str
    """The quantity's name in the table."""
    labels: Labels = field(default_factory=dict)
    """Labels of the cell."""

    def matches(self, table: Table) -> list[Cell]:
        """The cells that have these labels."""
        cells = list(dict.fromkeys(series.cell for series in table if series.quantity == self.of))
        for name, wanted in self.labels.items():
            cells = [cell for cell in cells if name in cell]
            if cells and wanted in (min, max):
                wanted = wanted(cell[name] for cell in cells)
            cells = [cell for cell in cells if cell[name] == wanted]
        return cells

    def cell(self, table: Table, bound: Labels = ANY) -> Cell:
        """The one cell that has these labels, and the bound ones as far as it has them."""
        cells, model_asked = self.matches(table), "model" in {**self.labels, **bound}
        for name, wanted in bound.items():
            if name not in self.labels:
                # Where no cell has this value, a cell without the label counts for every value: a baseline. A leaf gets
                # a baseline only if it names a model: else one would stand in for a model that was not trained.
                exact = [cell for cell in cells if cell.get(name) == wanted]
                cells = exact or [cell for cell in cells if name not in cell and ("model" not in cell or model_asked)]
        if not cells:
            raise NotMeasured(f"no cell has `{self}`")
        if len(cells) > 1:
            raise ValueError(f"`{self}` means {len(cells)} cells ({cells[0]}; {cells[1]}; ...). Give more labels.")
        return cells[0]

    def cells(self, table: Table, bound: Labels = ANY) -> set[Cell]:
        """The one cell."""
        return {self.cell(table, bound)}

    def read(self, table: Table, bound: Labels = ANY) -> Readings:
        """Its values by place."""
        cell = self.cell(table, bound)
        runs = [series for series in table if series.quantity == self.of and series.cell == cell]
        places: tuple[X | None, ...] = runs[0].x or (None,)
        return {place: _over_runs(runs, index) for index, place in enumerate(places)}

    def leaves(self) -> Iterator[Curve]:
        """Itself."""
        return iter((self,))

    @property
    def noun(self) -> str:
        """The quantity in words."""
        return WORDS.get(self.of, self.of.replace("_", " "))

    def __str__(self) -> str:
        words: dict[Any, Any] = {max: "the largest", min: "the smallest"}
        labels = {name: words.get(value, value) for name, value in self.labels.items()}
        return f"{self.noun} ({Cell(labels)})" if labels else self.noun


def _over_runs(runs: Sequence[Series], index: int) -> Value:
    low, high = (None if ends is None else ends[index] for ends in (runs[0].low, runs[0].high))
    draws = () if runs[0].draws is None else runs[0].draws[index]
    seeds = sum(series.seed is not None for series in runs)
    return over_seeds([series.value[index] for series in runs], low, high, seeds=seeds, draws=draws)


@dataclass(frozen=True, eq=False)
class Along(Quantity):
    """A number for every value of a label, as a curve along that label."""

    inner: Quantity
    over: str
    among: tuple[Any, ...] | None = None

    def read(self, table: Table, bound: Labels = ANY) -> Readings:
        """One place for each value of the label for which the number was measured."""
        readings: Readings = {}
        for label in table.labels(self.over) if self.among is None else self.among:
            with contextlib.suppress(NotMeasured):
                readings[label] = self.inner.value(table, {**bound, self.over: label})
        if not readings:
            raise NotMeasured(f"`{self.inner}` is not measured for any {self.over}")
        return readings

    def leaves(self) -> Iterator[Curve]:
        """Those of the number."""
        return self.inner.leaves()

    def cells(self, table: Table, bound: Labels = ANY) -> set[Cell]:
        """Those of the number for every value of the label for which it was measured."""
        labels = self.read(table, bound)
        return set().union(*(self.inner.cells(table, {**bound, self.over: label}) for label in labels))

    def _as_axis(self) -> str:
        return f"over {self.over} of {bracketed(self.inner)}"

    def __str__(self) -> str:
        return f"{bracketed(self.inner)} by {self.over}"


@dataclass(frozen=True, eq=False)
class Derived(Quantity):
    """Made from the readings of its parts."""

    words: str
    parts: tuple[Quantity, ...]
    function: Callable[..., Readings]
    """The parts' readings -> its own."""
    compound: bool = False
    """Whether it goes in brackets within a longer text, and its parts are shown beside it."""

    def read(self, table: Table, bound: Labels = ANY) -> Readings:
        """The function of the parts' readings."""
        return self.function(*(part.read(table, bound) for part in self.parts))

    def leaves(self) -> Iterator[Curve]:
        """Those of its parts."""
        return itertools.chain.from_iterable(part.leaves() for part in self.parts)

    def cells(self, table: Table, bound: Labels = ANY) -> set[Cell]:
        """Those of its parts."""
        return set().union(*(part.cells(table, bound) for part in self.parts))

    def details(self, table: Table) -> list[str]:
        """The parts of a compound where they are numbers, the curve behind a reduction where it is short."""
        sides, behind = [], []
        for part in self.parts:
            readings = part.read(table)
            if list(readings) == [None]:
                sides += [f"{part}: {readings[None]}"] if self.compound and not isinstance(part, Number) else []
                behind += part.details(table)
            elif not self.compound and not isinstance(part, Curve) and len(readings) <= MAX_LISTED:
                behind.append(f"{part}: " + ", ".join(f"{text(x)}: {value.mean:.3g}" for x, value in readings.items()))
            else:
                behind += part.details(table)
        return list(dict.fromkeys([*sides, *behind]))

    def __str__(self) -> str:
        return self.words


def arithmetic(sign: str, function: Callable[..., float], *sides: Quantity | float) -> Quantity:
    """Two quantities added, subtracted, multiplied or divided."""
    first, second = (side if isinstance(side, Quantity) else Number(float(side)) for side in sides)

    def read(left: Readings, right: Readings) -> Readings:
        """Place by place; a single number goes with every place."""
        if list(left) == [None]:
            return {place: apply(function, left[None], value) for place, value in right.items()}
        if list(right) == [None]:
            return {place: apply(function, value, right[None]) for place, value in left.items()}
        return {place: apply(function, value, right[place]) for place, value in left.items() if place in right}

    return Derived(f"{bracketed(first)} {sign} {bracketed(second)}", (first, second), read, compound=True)


def bracketed(part: Quantity) -> str:
    """The text of a part, in brackets where it would be misread without."""
    return f"[{part}]" if isinstance(part, Along) or getattr(part, "compound", False) else str(part)


def absolute(value: Value) -> Value:
    """The absolute value."""
    result = apply(math.fabs, value)
    # not monotone: in an interval around zero the least absolute value is zero
    return replace(result, low=0.0) if len(value.by_seed) == 1 and value.low < 0 < value.high else result
