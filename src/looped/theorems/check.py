"""A theorem as a check: the measured quantity, the bound that its statement gives, and a verdict."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import math
import pkgutil
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import looped.theorems
from looped.files import finite
from looped.training.threads import at_threads

Form = Literal["as stated", "as printed", "as corrected", "in the proof"]
"""The paper's statement, a misprint in it, our correction of that misprint, or a step of a proof as it is printed."""
Verdict = Literal["holds", "fails as printed", "holds as corrected", "fails in the proof", "fails"]
EXACT = 1e-10
"""The largest relative difference allowed between two float64 computations of the same number."""

Numbers = TypeVar("Numbers", Tensor, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The data of one small plot: lines over a common x."""

    x_label: str
    """What the x axis shows."""
    y_label: str
    """What the y axis shows."""
    x: Sequence[float]
    """The x values, common to all lines."""
    lines: Mapping[str, Sequence[float]]
    """The values of each line by its name; most plots have `measured` and `bound`."""
    log_x: bool = False
    """Whether the x axis is logarithmic."""
    log_y: bool = True
    """Whether the y axis is logarithmic."""


@dataclass(frozen=True)
class Finding:
    """The result of a check, before a verdict."""

    measured: float
    """The measured quantity, at the instance that comes closest to breaking its bound."""
    bound: float
    """The bound that the statement gives for that instance, or a numerical tolerance."""
    instance: str
    """What was checked: sizes, seeds and the number of cases."""
    plot: Plot | None = None
    """One small plot."""
    _: KW_ONLY
    at_least: bool = False
    """Whether the statement is measured >= bound; otherwise it is measured <= bound."""
    tolerance: bool = False
    """Whether the bound is a numerical tolerance for an exact statement."""
    form: Form = "as stated"
    """Whether this is the paper's statement, a misprint, its correction, or a step of a proof."""
    statement: str = ""
    """The statement of this form, where it differs from the theorem's."""
    remark: str = ""
    """What a reader must know to weigh the row, such as how far the bound is from what is possible at all."""

    def stated(self, form: Form, statement: str = "", remark: str = "") -> Finding:
        """The same finding for another form or statement of the theorem."""
        return replace(self, form=form, statement=statement, remark=remark)

    @property
    def holds(self) -> bool:
        """Whether the measured quantity obeys the bound; NaN never does."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def margin(self) -> float:
        """The factor by which the bound is met: above 1 it holds. Infinite where the smaller side is 0."""
        small, large = (self.bound, self.measured) if self.at_least else (self.measured, self.bound)
        return large / small if small else math.inf

    @property
    def verdict(self) -> Verdict:
        """The verdict in words; a misprint that happens to hold gets `holds`."""
        if self.holds:
            return "holds as corrected" if self.form == "as corrected" else "holds"
        if self.form == "as printed":
            return "fails as printed"
        return "fails in the proof" if self.form == "in the proof" else "fails"


@dataclass(frozen=True, kw_only=True)
class Row(Finding):
    """A finding with its theorem's name: one line of `looped verify`."""

    name: str
    """Name of the theorem."""
    seconds: float
    """How long the check took."""

    @property
    def paper(self) -> str:
        """The paper's key."""
        return self.name.split(".")[0]

    @property
    def bound_is(self) -> str:
        """Where the bound comes from: `numerical tolerance` or `from the statement`."""
        return "numerical tolerance" if self.tolerance else "from the statement"

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON data; numbers that are not finite become null."""
        words = ("name", "paper", "form", "statement", "instance", "remark")
        results = ("measured", "at_least", "bound", "bound_is", "margin", "verdict", "seconds")
        plain = {key: getattr(self, key) for key in words + results}
        return finite(plain | {"plot": None if self.plot is None else vars(self.plot)})


@dataclass(frozen=True)
class Theorem:
    """A named result and the function that checks it."""

    name: str
    """Name, `paper.result`, such as `gatmiry24.thm2`."""
    statement: str
    """One plain sentence with the formula."""
    check: Callable[[], Iterator[Finding]] = field(repr=False)
    """Yields the findings; where the paper has a misprint, one as printed and one as corrected."""

    @property
    def paper(self) -> str:
        """The paper's key."""
        return self.name.split(".")[0]

    def __call__(self) -> list[Row]:
        """Run the check; torch's global random state is fixed meanwhile and restored afterwards.

        Checks run on one thread: their tensors are small, and waiting threads made them up to ten times slower.
        """
        rows = []
        with at_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            start = time.perf_counter()
            for finding in self.check():
                seconds, start = time.perf_counter() - start, time.perf_counter()
                fields: dict[str, Any] = vars(finding) | {"statement": finding.statement or self.statement}
                rows.append(Row(**fields, name=self.name, seconds=seconds))
        return rows


def theorem(name: str, statement: str) -> Callable[[Callable[[], Iterator[Finding]]], Theorem]:
    """Decorate a generator of findings as the check of `name`."""
    return lambda check: Theorem(name, statement, check)


def theorems() -> dict[str, Theorem]:
    """Every theorem in the modules of `looped.theorems` by name, in natural order (thm2 before thm10)."""
    known: dict[str, Theorem] = {}
    for module in pkgutil.walk_packages(looped.theorems.__path__, "looped.theorems."):
        members = vars(importlib.import_module(module.name)).values()
        known |= {member.name: member for member in members if isinstance(member, Theorem)}
    return dict(sorted(known.items(), key=lambda item: _natural(item[0])))


def select(names: Sequence[str] | None = None) -> list[Theorem]:
    """The theorems with these names, papers or patterns (`gatmiry24`, `gatmiry24.lem*`); all by default."""
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
    """Check theorems, as in `select`; `progress` is called with (name, number done, total)."""
    chosen, rows = select(names), []
    for num_done, result in enumerate(chosen):
        if progress:
            progress(result.name, num_done, len(chosen))
        rows += result()
    if progress:
        progress("", len(chosen), len(chosen))
    return rows


def worst(
    measured: Float[Tensor, "*shape"], bound: Float[Tensor, "*#shape"] | float, *, at_least: bool = False
) -> tuple[float, float]:
    """The measured value and bound whose ratio is closest to breaking the bound, or breaks it most; NaN is worst."""
    bounds = torch.as_tensor(bound, dtype=measured.dtype).expand(measured.shape).flatten()
    values = measured.flatten()
    ratio = torch.where(values > 0, bounds / values, math.inf) if at_least else values / bounds
    at = int(ratio.nan_to_num(nan=math.inf).argmax())
    return float(values[at]), float(bounds[at])


def bounded(
    measured: Float[Tensor, "*shape"],
    bound: Float[Tensor, "*#shape"] | float,
    instance: str,
    plot: Plot | None = None,
    *,
    at_least: bool = False,
) -> Finding:
    """The finding for many measured values and their bounds: that of the worst one."""
    return Finding(*worst(measured, bound, at_least=at_least), instance, plot, at_least=at_least)


def exact(differences: Sequence[float] | Tensor, instance: str, x_label: str = "case") -> Finding:
    """The finding for an identity: its relative differences, over cases 1, 2, .. of `x_label`, must be rounding."""
    largest = float(torch.as_tensor(differences, dtype=torch.float64).max())
    plot = bound_plot(x_label, range(1, len(differences) + 1), "relative difference", differences, EXACT)
    return Finding(largest, EXACT, instance, plot, tolerance=True)


def relative_difference(got: Numbers, expected: Numbers) -> float:
    """max |got - expected| / max |expected|."""
    return float(abs(got - expected).max() / abs(expected).max())


def bound_plot(
    x_label: str,
    x: Sequence[float],
    y_label: str,
    measured: Sequence[float] | Tensor,
    bound: Sequence[float] | Tensor | float,
    others: Mapping[str, Sequence[float] | Tensor] | None = None,
    **scales: bool,
) -> Plot:
    """The plot of measured values and their bound over x, with `others` as further lines."""
    bounds = torch.as_tensor(bound, dtype=torch.float64).expand(len(x))
    lines = {"measured": measured, "bound": bounds} | dict(others or {})
    plain = {name: torch.as_tensor(line, dtype=torch.float64).tolist() for name, line in lines.items()}
    return Plot(x_label=x_label, y_label=y_label, x=list(x), lines=plain, **scales)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts thm2 before thm10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
