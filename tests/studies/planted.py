"""Tables for which a claim holds, fails and is undecided: numbers of our own in the form of a study's table."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from looped.studies.claims import Claim, judge
from looped.studies.expressions import Curve, NotMeasured
from looped.studies.study import Study
from looped.studies.table import Cell, Series, Table

DRAWS = 400
FACTOR = 1e6
"""How far a planted failure is from the numbers for which the claim holds."""
SIGNED, SHARES = ("difference", "behind_looped", "excess"), ("accuracy",)
"""Quantities that may be negative, and those that are at most 1; the others are errors, distances, rates and sizes."""
PAPER_AXES = {"by_examples": range(41), "by_loops": (*range(1, 41), 500)}
"""Places of a curve that claims name and that smaller scales may not have."""


@dataclass(frozen=True)
class Plant:
    """A planted failure: what is changed in a table for which the claim holds."""

    change: str
    """What the numbers do: see `CHANGES`."""
    leaf: Curve
    """Which numbers: a quantity of all cells with some labels."""

    def __call__(self, table: Table) -> Table:
        """The table with these numbers changed, and nothing else."""
        cells = self.leaf.matches(table)
        change = CHANGES[self.change]
        return Table(
            replace(series, value=tuple(map(change, series.value, _along_axis(series))))
            if series.quantity == self.leaf.of and series.cell in cells
            else series
            for series in table
        )

    def __str__(self) -> str:
        return f"{self.leaf} {self.change}"


CHANGES: Mapping[str, Callable[[float, float], float]] = {
    "is larger": lambda number, _: number * FACTOR,
    "is smaller": lambda number, _: number / FACTOR,
    "rises": lambda number, share: number * FACTOR**share,
    "falls": lambda number, share: number / FACTOR**share,
    "has the other sign": lambda number, _: -number,
}
"""Name -> the new number, from the old one and the share of the axis that lies before it."""


def plant(change: str, of: str, **labels: Any) -> Plant:
    """How the list of planted failures is written."""
    assert change in CHANGES
    return Plant(change, Curve(of, labels))


def _along_axis(series: Series) -> list[float]:
    return [index / max(1, len(series.value) - 1) for index in range(len(series.value))]


def verdict(claim: Claim, table: Table) -> str:
    """The verdict by the numbers alone."""
    return claim.check.verdict(claim.check.values(table))


def guarded(claim: Claim, table: Table, study: Study) -> str:
    """The verdict as the study has it, with its guard against models that have not learned."""
    return judge(claim, table, study=study.name, scale="paper", preview=False, learned=study.learned).verdict


def holding(claim: Claim, table: Table, numbers: Mapping[str, Callable[[float], float]]) -> Table:
    """A table of this form for which the claim holds, all seeds of a cell alike; `numbers` by place are not drawn."""
    for other in _tables(claim, table):
        exact = Table(
            replace(series, value=tuple(map(numbers[series.quantity], series.x)))
            if series.quantity in numbers
            else series
            for series in other
        )
        if verdict(claim, exact) == "holds":
            return exact
    raise AssertionError(f"no table was found for which `{claim.name}` holds")


def _tables(claim: Claim, table: Table):
    """The table with other numbers in the quantities that the claim reads."""
    quantities = {leaf.of for leaf in claim.check.leaves()} - {"trained_loops"}
    first: dict[tuple[Cell, str], float] = {}
    for series in table:
        first.setdefault((series.cell, series.quantity), series.value[0])
    for draw in range(DRAWS):
        yield Table(
            _other(series, draw, first[series.cell, series.quantity]) if series.quantity in quantities else series
            for series in table
        )


def _other(series: Series, draw: int, first: float) -> Series:
    """The same numbers for all seeds of a cell, up or down by a factor and a slope along the axis, without spread."""
    source = random.Random(f"{draw} {series.cell} {series.quantity}")
    width = (0.05, 0.5, 3.0)[draw % 3]
    factor, slope = source.gauss(0, width), source.gauss(0, width)
    start = (abs(first) or 1.0, source.choice((1.0, 0.1)), 0.1, 0.01, 0.001)[draw % 5]
    sign = source.choice((1, -1)) if series.quantity in SIGNED else 1
    values = tuple(sign * start * math.exp(factor + slope * share) for share in _along_axis(series))
    values = tuple(min(1.0, value) for value in values) if series.quantity in SHARES else values
    return replace(series, value=values, low=None, high=None, draws=None)


def by_two_seeds(first: Table, second: Table) -> Table:
    """Trained models with the numbers of one table as the first seed, and of the other as the second."""
    both = Table(series for series in first if series.seed is None)
    for seed, table in enumerate((first, second)):
        seen = set()
        for series in table:
            if series.seed is not None and (series.cell, series.quantity) not in seen:
                seen.add((series.cell, series.quantity))
                both.series.append(replace(series, seed=seed))
    return both


def with_errors(study: Study, table: Table, error: Callable[[Table, Cell], float]) -> Table:
    """The table with this error of every trained model, in the numbers by which the study tells who has learned."""
    return Table(
        replace(series, value=(error(table, series.cell),) * len(series.value), low=None, high=None, draws=None)
        if series.quantity == study.learned.of and series.seed is not None
        else series
        for series in table
    )


def with_one_diverged(claim: Claim, study: Study, table: Table) -> Table:
    """The table with an infinite error of one model that the claim reads, of one of two seeds."""
    cells = claim.check.cells(table)
    of, controls = study.learned.of, study.learned.controls.items()
    diverged = by_two_seeds(table, table)
    index, series = next(
        (index, series)
        for index, series in enumerate(diverged)
        if series.quantity == of and series.seed == 1 and any(series.cell.items() <= cell.items() for cell in cells)
        if not controls or not controls <= series.cell.items()
    )
    diverged.series[index] = replace(series, value=(math.inf,) * len(series.value))
    return diverged


def readable(claim: Claim, study: Study, table: Table) -> Table:
    """The table, with the places and the cells that the claim names and that are measured at paper scale only."""
    try:
        claim.check.values(table)
        return table
    except NotMeasured:
        longer = Table(map(_longer, table))
    for leaf in claim.check.leaves():
        if not leaf.matches(longer) and not any(wanted in (min, max) for wanted in leaf.labels.values()):
            for quantity in {leaf.of, study.learned.of if study.learned else leaf.of}:
                longer.series.append(_longer(Series(cell=Cell(leaf.labels), quantity=quantity, seed=0, value=(1.0,))))
    return longer


def _longer(series: Series) -> Series:
    """The series with the places that its quantity has at paper scale; its last number goes on."""
    places = tuple(PAPER_AXES.get(series.quantity, series.x))
    values = (*series.value, *series.value[-1:] * (len(places) - len(series.value)))
    return replace(series, x=places, value=values[: max(1, len(places))], low=None, high=None, draws=None)
