"""A theorem as a check: what is measured, the bound its statement gives, and a verdict."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import math
import pkgutil
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

import looped.theorems

Form = Literal["as stated", "as printed", "as corrected"]
"""Whether the statement is the paper's, a misprint of the paper's, or that misprint put right."""
Verdict = Literal["holds", "fails as printed", "holds as corrected", "fails"]
TOLERANCE = "numerical tolerance"


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The data of one small plot: lines over a common x."""

    x_label: str
    """What x is."""
    y_label: str
    """What the lines are."""
    x: Sequence[float]
    """The points, common to all lines."""
    lines: Mapping[str, Sequence[float]]
    """Each line's values by its name; `measured` and `bound` among them."""
    log_x: bool = False
    """Whether x is drawn on a logarithmic scale."""
    log_y: bool = True
    """Whether y is."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found, before a verdict."""

    measured: float
    """The measured quantity, at the instance that fits its bound worst."""
    bound: float
    """What the statement says of that quantity there, or a numerical tolerance."""
    instance: str
    """What was checked: sizes, seeds, how many."""
    at_least: bool = False
    """Whether the statement is measured >= bound; otherwise it is measured <= bound."""
    tolerance: bool = False
    """Whether the bound is a numerical tolerance for an exact statement."""
    form: Form = "as stated"
    """Whether this is the statement of the paper, a misprint, or the misprint put right."""
    statement: str = ""
    """The statement of this form, where it differs from the theorem's own."""
    plot: Plot | None = None
    """One small plot."""

    @property
    def holds(self) -> bool:
        """Whether the measured quantity obeys the bound; one that is not a number never does."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def margin(self) -> float:
        """How many times over the bound is met: above 1 it holds; infinite where what must be small is 0."""
        small, large = (self.bound, self.measured) if self.at_least else (self.measured, self.bound)
        return large / small if small else math.inf

    @property
    def verdict(self) -> Verdict:
        """The verdict in words; a misprint that happens to hold is said to hold."""
        if self.form == "as corrected":
            return "holds as corrected" if self.holds else "fails"
        if self.holds:
            return "holds"
        return "fails as printed" if self.form == "as printed" else "fails"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of `looped verify`."""

    name: str
    paper: str
    form: Form
    statement: str
    instance: str
    measured: float
    bound: float
    bound_is: str
    """`numerical tolerance`, or `from the statement`."""
    margin: float
    verdict: Verdict
    seconds: float
    plot: Plot | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON can hold it: numbers that are not finite become null."""
        plain = {name: _finite(getattr(self, name)) for name in self.__dataclass_fields__ if name != "plot"}
        if self.plot is None:
            return plain | {"plot": None}
        lines = {name: [_finite(value) for value in line] for name, line in self.plot.lines.items()}
        return plain | {"plot": dict(vars(self.plot)) | {"x": [_finite(x) for x in self.plot.x], "lines": lines}}


@dataclass(frozen=True)
class Theorem:
    """A named result and the function that checks it."""

    name: str
    """`paper.result`, such as `gatmiry24.thm2`."""
    statement: str
    """One plain sentence with the formula."""
    check: Callable[[], Iterator[Finding]] = field(repr=False)
    """Yields one finding, or two where the print is wrong: as printed and as corrected."""

    @property
    def paper(self) -> str:
        """The paper's key."""
        return self.name.split(".", 1)[0]

    def __call__(self) -> list[Row]:
        """Check it; torch's global random state is fixed for the check and put back after it.

        Checks run on one thread: their tensors are small, and threads that wait for each other cost up to ten times.
        """
        rows, threads = [], torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                start = time.perf_counter()
                for found in self.check():
                    seconds, start = time.perf_counter() - start, time.perf_counter()
                    rows.append(self._row(found, seconds))
        finally:
            torch.set_num_threads(threads)
        return rows

    def _row(self, found: Finding, seconds: float) -> Row:
        return Row(
            name=self.name,
            paper=self.paper,
            form=found.form,
            statement=found.statement or self.statement,
            instance=found.instance,
            measured=found.measured,
            bound=found.bound,
            bound_is=TOLERANCE if found.tolerance else "from the statement",
            margin=found.margin,
            verdict=found.verdict,
            seconds=seconds,
            plot=found.plot,
        )


def theorem(name: str, statement: str) -> Callable[[Callable[[], Iterator[Finding]]], Theorem]:
    """Mark a generator of findings as the check of `name`."""
    return lambda check: Theorem(name, statement, check)


def theorems() -> dict[str, Theorem]:
    """Every theorem of every module of `looped.theorems` by name, papers and results in their natural order."""
    found: dict[str, Theorem] = {}
    for module in pkgutil.walk_packages(looped.theorems.__path__, "looped.theorems."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {member.name: member for member in members if isinstance(member, Theorem)}
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def select(names: Sequence[str] | None = None) -> list[Theorem]:
    """The theorems of that name, of that paper or that pattern (`gatmiry24`, `gatmiry24.lem*`); all without names."""
    known = theorems()
    chosen: dict[str, Theorem] = {}
    for name in names or ["*"]:
        hits = {key: value for key, value in known.items() if fnmatch.fnmatchcase(key, name) or value.paper == name}
        if not hits:
            papers = {value.paper for value in known.values()}
            near = difflib.get_close_matches(name, [*known, *papers], n=1, cutoff=0.0)
            raise ValueError(f"no theorem is called `{name}`. The nearest is `{near[0]}`; `looped list` shows all.")
        chosen |= hits
    return [value for key, value in known.items() if key in chosen]


def verify(names: Sequence[str] | None = None, progress: Callable[[str, int, int], None] | None = None) -> list[Row]:
    """Check theorems by name, all without names; `progress` hears (name, how many are done, how many there are)."""
    chosen, rows = select(names), []
    for done, one in enumerate(chosen):
        if progress:
            progress(one.name, done, len(chosen))
        rows += one()
    if progress:
        progress("", len(chosen), len(chosen))
    return rows


def worst(
    measured: Float[Tensor, "*shape"], bound: Float[Tensor, "*#shape"] | float, *, at_least: bool = False
) -> tuple[float, float]:
    """Measured value and bound at the instance that fits worst, by their ratio; one that is not a number is worst."""
    bounds = torch.as_tensor(bound, dtype=measured.dtype).expand(measured.shape).flatten()
    values = measured.flatten()
    ratio = torch.where(values > 0, bounds / values, math.inf) if at_least else values / bounds
    at = int(ratio.nan_to_num(nan=math.inf).argmax())
    return float(values[at]), float(bounds[at])


def curve(
    x_label: str,
    x: Sequence[float],
    y_label: str,
    measured: Sequence[float] | Tensor,
    bound: Sequence[float] | Tensor | float,
    others: Mapping[str, Sequence[float] | Tensor] | None = None,
    **scales: bool,
) -> Plot:
    """The plot of measured values against their bound over x, and of whatever else belongs beside them."""
    bounds = torch.as_tensor(bound, dtype=torch.float64).expand(len(x))
    lines = {"measured": measured, "bound": bounds} | dict(others or {})
    plain = {name: torch.as_tensor(line, dtype=torch.float64).tolist() for name, line in lines.items()}
    return Plot(x_label=x_label, y_label=y_label, x=list(x), lines=plain, **scales)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts thm2 before thm10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
