"""What a study measured, as one tidy table.

A row is (cell labels, seed, quantity, x, value, low, high). Rows that differ in x alone are stored as one `Series`. In
a file a number has seven significant digits, as float32 has; one that is not finite is stored as null and read as
infinity, so that no claim holds by it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Label = str | int | float | bool
X = int | float
"""A place on an axis."""
LARGEST = 1e150
"""Its square is finite in float64."""


class Cell(Mapping[str, Label]):
    """The labels that tell one cell of a study from the others: `Cell(b=20, T=15)`."""

    def __init__(self, labels: Mapping[str, Label] | None = None, /, **more: Label):
        self._labels = {**(labels or {}), **more}
        self._hash = hash(frozenset(self._labels.items()))

    def __getitem__(self, name: str) -> Label:
        return self._labels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        labels = other._labels if isinstance(other, Cell) else other
        return self._labels == labels

    def __str__(self) -> str:
        return ", ".join(f"{name} = {text(value)}" for name, value in self._labels.items())

    __repr__ = __str__


def text(value: Any) -> str:
    """A label or a number for people: three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One quantity of one cell and seed, along its axis."""

    cell: Cell
    """Whose it is."""
    quantity: str
    """What was measured, such as `by_loops`."""
    seed: int | None = None
    """The seed of the trained model; None for baselines, bounds and other numbers that no training stands behind."""
    x: tuple[X, ...] = ()
    """Places on the axis; empty for a single number."""
    value: tuple[float, ...]
    """The numbers, one for each place."""
    low: tuple[float, ...] | None = None
    """Lower ends of the intervals over prompts, where there are any."""
    high: tuple[float, ...] | None = None
    """Upper ends."""
    draws: tuple[tuple[float, ...], ...] | None = None
    """For each place the means over resampled prompts: the same resamples for all models that answered the same
    prompts, so that what is made of several has an interval of its own."""

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {"cell": dict(self.cell), "quantity": self.quantity}
        data |= {} if self.seed is None else {"seed": self.seed}
        data |= {"x": list(self.x)} if self.x else {}
        for name in ("value", "low", "high"):
            if (numbers := getattr(self, name)) is not None:
                data[name] = [float(f"{number:.7g}") if math.isfinite(number) else None for number in numbers]
        if self.draws is not None:
            data["draws"] = [_line(numbers) for numbers in self.draws]
        return data

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Series:
        """Read what `to_data` wrote."""
        names = [name for name in ("value", "low", "high") if name in data]
        for name in names:
            if not all(number is None or type(number) in (int, float) for number in data[name]):
                raise ValueError(f"`{name}` of a series holds something that is no number")
        numbers = {name: tuple(map(_finite_or_inf, data[name])) for name in names}
        draws = tuple(map(_numbers, data["draws"])) if "draws" in data else None
        x, seed = tuple(data.get("x", ())), data.get("seed")
        return Series(cell=Cell(data["cell"]), quantity=data["quantity"], seed=seed, x=x, draws=draws, **numbers)


def _finite_or_inf(number: float | None) -> float:
    """What is not finite is written as None; a number whose square is not finite counts as such."""
    return math.inf if number is None or abs(number) > LARGEST else number


def _line(numbers: Sequence[float]) -> str:
    """Draws of one place as text: `LEAST..LARGEST` and a byte for each, 0 for the least and 255 for the largest.

    They only make intervals, which this moves by less than .5% of their width. Where one is not finite: all to five
    digits.
    """
    least, largest = min(numbers), max(numbers)
    if not all(map(math.isfinite, numbers)):
        return " ".join(f"{number:.5g}" for number in numbers)
    step = (largest - least) / 255 or 1.0
    codes = bytes(round((number - least) / step) for number in numbers)
    return f"{least:.8g}..{largest:.8g} {base64.b64encode(codes).decode()}"


def _numbers(line: str) -> tuple[float, ...]:
    """Read what `_line` wrote."""
    ends, _, codes = line.partition(" ")
    if ".." not in ends:
        return tuple(map(float, line.split()))
    least, largest = map(float, ends.split(".."))
    return tuple(least + (largest - least) * code / 255 for code in base64.b64decode(codes, validate=True))


class Table:
    """All series of a study."""

    def __init__(self, series: Iterable[Series] = ()):
        self.series = list(series)

    def __len__(self) -> int:
        return len(self.series)

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series)

    def add(
        self,
        cell: Mapping[str, Label],
        quantity: str,
        value: float | Sequence[float],
        *,
        x: Sequence[X] = (),
        seed: int | None = None,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        draws: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Add a number, or with `x` a curve; `low`, `high` and `draws` are its intervals over prompts."""
        values = (float(value),) if isinstance(value, (int, float)) else tuple(map(float, value))
        if len(values) != (len(x) or 1):
            raise ValueError(f"`{quantity}` has {len(values)} values for {len(x)} places; give one for each.")
        sides = {"low": low, "high": high}
        ends = {name: tuple(map(float, side)) for name, side in sides.items() if side is not None}
        resampled = None if draws is None else tuple(map(tuple, draws))
        series = Series(
            cell=Cell(cell), quantity=quantity, seed=seed, x=tuple(x), value=values, draws=resampled, **ends
        )
        self.series.append(series)

    def where(self, quantity: str | None = None, /, **labels: Label) -> Table:
        """The series of a quantity whose cells have these labels."""
        return Table(
            series
            for series in self.series
            if quantity in (None, series.quantity)
            and all(name in series.cell and series.cell[name] == value for name, value in labels.items())
        )

    def cells(self) -> list[Cell]:
        """The cells, each once, in the order they were added."""
        return list(dict.fromkeys(series.cell for series in self.series))

    def labels(self, name: str) -> list[Label]:
        """The values of one label: numbers ascending, names in the order they were added."""
        values = list(dict.fromkeys(cell[name] for cell in self.cells() if name in cell))
        return values if any(isinstance(value, str) for value in values) else sorted(values)

    def seeds(self) -> list[int]:
        """The seeds of its trained models, or of its trials."""
        return sorted({series.seed for series in self.series if series.seed is not None})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Tidy rows, one for each number: `pandas.DataFrame(table.rows())`."""
        for series in self.series:
            for index, value in enumerate(series.value):
                columns = {"x": series.x, "low": series.low, "high": series.high}
                more = {name: column[index] for name, column in columns.items() if column}
                yield {**series.cell, "seed": series.seed, "quantity": series.quantity, "value": value, **more}

    def to_data(self) -> list[dict[str, Any]]:
        """As JSON data."""
        return [series.to_data() for series in self.series]

    @staticmethod
    def from_data(data: Iterable[Mapping[str, Any]]) -> Table:
        """Read what `to_data` wrote."""
        if not isinstance(data, list) or not data:
            raise ValueError("a table is a list of series")
        return Table(Series.from_data(entry) for entry in data)
