"""Nodes that reduce over seeds, or over neighbouring values of a label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from looped.evaluation.bootstrap import bootstrap
from looped.studies.expressions import Labels, NotMeasured, OverLabel, Quantity, Readings
from looped.studies.table import Table
from looped.studies.values import Value, apply, quotient, reduce


@dataclass(frozen=True, eq=False)
class Average(Quantity):
    """The mean over seeds as one number with a bootstrap interval over seeds."""

    inner: Quantity

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """Place by place."""
        return {place: _averaged(value) for place, value in self.inner.read(table, bound).items()}

    def __str__(self) -> str:
        return f"mean {self.inner}"


def _averaged(value: Value) -> Value:
    if len(value.by_seed) == 1:
        return value
    _, low, high = bootstrap(torch.tensor(value.by_seed, dtype=torch.float64))
    return replace(value, by_seed=(value.mean,), low=float(low), high=float(high))


@dataclass(frozen=True, eq=False)
class LeastRise(OverLabel):
    """The least ratio between the quantity at one value of a label and at the value before."""

    def read(self, table: Table, bound: Labels | None = None) -> Readings:
        """The ratio, seed by seed."""
        values = [readings[None] for _, readings in self.by_label(table, bound)]
        if len(values) < 2:
            raise NotMeasured(f"`{self.inner}` is measured for one {self.over} only")
        ratios = [apply(quotient, after, before) for before, after in pairwise(values)]
        return {None: reduce(min, ratios)}

    def __str__(self) -> str:
        return f"{self.inner}, least factor from one {self.over} to the next"
