"""A sentence of a paper as a check on measured numbers, and its verdict."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal

from looped.studies.checks import Check
from looped.studies.expressions import Curve, NotMeasured, Quantity
from looped.studies.table import Cell, Label, Series, Table, X

Verdict = Literal["holds", "fails", "undecided", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number in print, shown beside ours."""

    what: str
    """What it is of: "12 layers, k = 20"."""
    number: str
    """The number as printed."""
    ours: Quantity
    """Our quantity."""


@dataclass(frozen=True)
class Claim:
    """What a paper says, and what must be measured for it to hold."""

    name: str
    """Its name within the study."""
    statement: str
    """What the paper says, in plain words, with where it says so."""
    check: Check
    """When it holds; the text of what is asked is made from it."""
    _: KW_ONLY
    remark: str = ""
    """What a reader must know beyond the numbers: why it fails, what was read into the sentence."""
    published: Sequence[Published] = ()
    """Numbers in print, to be shown beside ours."""
    beside: Mapping[str, Quantity] = field(default_factory=dict)
    """Further quantities to be shown: "with the best weights" -> what it would be then."""


claim = Claim
"""How studies write it: `claim("name", "what the paper says", check)`."""


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim after a run."""

    id: str
    """`paper.figure.name`."""
    statement: str
    """What the paper says."""
    asked: str
    """What must be measured for it to hold."""
    value: float | None
    """What the first condition measured, the mean over seeds; None where there is no finite number."""
    low: float | None
    """Lower end of its interval."""
    high: float | None
    """Upper end of its interval."""
    seeds: int
    """Trained models behind the number, for each cell."""
    bound: float
    """What the first condition compares it with."""
    verdict: Verdict
    """Whether it holds, as far as that was judged."""
    scale: str
    """At which scale it was measured."""
    note: str = ""
    """Why it was not judged, the parts of the number, published numbers, and remarks."""

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """When a model counts as trained: it is at least halfway from predicting zero to the best known predictor.

    A claim is not judged where none of the models that it reads has learned, or where one of them, of any seed,
    predicts worse than zero.
    """

    of: str = "by_examples"
    """The curve that has the model's error."""
    at: X | str | None = None
    """At which place: a number, the name of a quantity of the cell (`trained_loops`), or None for the last one."""
    zero: float | str = 1.0
    """What predicting zero costs: a number, or the name of a quantity of the cell."""
    best: float | str | None = None
    """The error of the best known predictor: a number, the name of a quantity of the cell, or None for the least error
    among the study's baselines (cells without a seed) at the same place."""
    way: float = 0.5
    """How much of the way from predicting zero to the best known predictor it must have gone."""
    every_place: bool = False
    """Whether every place of the curve is a model of its own, such as one for every number of layers: then none of them
    may predict worse than zero."""
    controls: Mapping[str, Label] = field(default_factory=dict)
    """Labels of models that are not meant to learn."""

    def obstacle(self, table: Table, cells: Collection[Cell]) -> str:
        """Why the models of these cells cannot be judged; empty where they can, or where none was trained."""
        by_cell: dict[Cell, list[Series]] = {}
        for series in table.where(self.of):
            if series.seed is not None and any(series.cell.items() <= cell.items() for cell in cells):
                by_cell.setdefault(series.cell, []).append(series)
        if self.controls:
            by_cell = {cell: runs for cell, runs in by_cell.items() if not self.controls.items() <= cell.items()}
        for cell, runs in by_cell.items():
            zero = self.zero_error(table, cell)
            for series in runs:
                error = max(series.value) if self.every_place else self._error(table, series)
                if not error <= zero:
                    return f"a model predicts worse than zero: {cell}, seed {series.seed}: {error:.3g}, zero {zero:.3g}"
        trained = [
            (fmean(self._error(table, series) for series in runs), self.needed(table, cell), cell)
            for cell, runs in by_cell.items()
        ]
        if not trained or any(error <= needed for error, needed, _ in trained):
            return ""
        error, needed, nearest = min(trained, key=lambda entry: entry[0] - entry[1])
        return f"no model has learned: the best ({nearest}) has error {error:.3g}, needed {needed:.3g}"

    def zero_error(self, table: Table, cell: Cell) -> float:
        """The error of predicting zero."""
        return self._number(table, cell, self.zero)

    def needed(self, table: Table, cell: Cell) -> float:
        """The largest error of a model that has learned."""
        zero = self.zero_error(table, cell)
        if self.best is not None:
            return zero - self.way * (zero - self._number(table, cell, self.best))
        baselines = [series for series in table.where(self.of) if series.seed is None and series.x]
        shared = [
            series for series in baselines if all(cell.get(k, v) == v or k == "model" for k, v in series.cell.items())
        ]
        return zero - self.way * (zero - min((self._error(table, series) for series in shared), default=0.0))

    def _error(self, table: Table, series: Series) -> float:
        if self.at is None:
            return series.value[-1]
        if isinstance(self.at, str):
            return series.value[series.x.index(min(int(self._number(table, series.cell, self.at)), series.x[-1]))]
        return series.value[series.x.index(self.at)]

    def _number(self, table: Table, cell: Cell, source: float | str) -> float:
        return Curve(source).last().read(table, cell)[None].mean if isinstance(source, str) else source


def judge(claim: Claim, table: Table, *, study: str, scale: str, preview: bool, learned: Learned | None) -> JudgedClaim:
    """The verdict on a claim, by the interval of what was measured; a preview gives the number alone."""
    conditions, values, notes = claim.check.conditions, [], []
    try:
        values = claim.check.values(table)
        for condition, value in zip(conditions, values, strict=True):
            notes += [f"{condition.quantity}, {value.basis}: {value}", *condition.quantity.details(table)]
        why = "" if learned is None else learned.obstacle(table, claim.check.cells(table))
        why = f"a preview at {scale} scale" if preview else why
    except NotMeasured as error:
        values, why = [], f"not measured at {scale} scale: {error}"
    verdict: Verdict = claim.check.verdict(values) if values and not why else "not judged"
    notes += [f"{what}: {_shown(further, table)}" for what, further in claim.beside.items()]
    notes += [f"{entry.what}: published {entry.number}, here {_shown(entry.ours, table)}" for entry in claim.published]
    numbers = (values[0].mean, values[0].low, values[0].high) if values else (math.inf,) * 3
    value, low, high = (number if math.isfinite(number) else None for number in numbers)
    return JudgedClaim(
        id=f"{study}.{claim.name}",
        statement=claim.statement,
        asked=str(claim.check),
        value=value,
        low=low,
        high=high,
        seeds=values[0].seeds if values else 0,
        bound=float(claim.check.conditions[0].bound),
        verdict=verdict,
        scale=scale,
        note="; ".join(dict.fromkeys(part for part in (why, *notes, claim.remark) if part)),
    )


def _shown(ours: Quantity, table: Table) -> str:
    try:
        return str(ours.value(table))
    except NotMeasured:
        return "not measured"
