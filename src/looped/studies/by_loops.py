"""Expressions about curves by loops: where they reach a level, at the trained loops, and far past them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from looped.studies.expressions import Curve, Labels, Quantity, Readings
from looped.studies.table import Table
from looped.studies.values import apply, quotient, seeded


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


@dataclass(frozen=True, eq=False)
class AtTrainedLoops(Quantity):
    """A curve by loops at the most loops of the model's training."""

    labels: Labels
    of: str = "by_loops"

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The value there, or at the most loops that were measured."""
        readings = Curve(self.of, self.labels).read(table, bound)
        most = list(readings)[-1]
        trained = self.loops(table, bound)
        return {None: readings[min(trained, most) if isinstance(most, int) else trained]}

    def loops(self, table: Table, bound: Labels | None = None) -> int:
        """The most loops in training."""
        return int(Curve("trained_loops", self.labels).value(table, bound).mean)

    def leaves(self) -> Iterator[Curve]:
        """The curve it reads."""
        yield Curve(self.of, self.labels)

    def __str__(self) -> str:
        return f"{Curve(self.of, self.labels)} at the trained loops"


@dataclass(frozen=True, eq=False)
class Drift(AtTrainedLoops):
    """Error after the most loops over the error at the trained loops; 1 is a fixed point."""

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The ratio."""
        [near] = super().read(table, bound).values()
        far = list(Curve(self.of, self.labels).read(table, bound).values())[-1]
        return {None: apply(quotient, far, near)}

    def details(self, table: Table, bound: Labels | None = None) -> list[str]:
        """Where its two ends lie."""
        most = list(Curve(self.of, self.labels).read(table, bound))[-1]
        return [f"error after {most} loops over the error after {self.loops(table, bound)}, the most in training"]

    def __str__(self) -> str:
        return str(Curve("error far past the trained loops over the error at them", self.labels))
