"""A figure of a paper, and the sentences of the paper about it, each turned into a check on measured numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

Data = dict[str, Any]
"""What was measured for a figure: plain JSON data."""
Verdict = Literal["holds", "fails", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The number a claim is about, with its spread."""

    value: float
    """The number, the mean over seeds where there are several."""
    low: float
    """Its smallest value over seeds, or the lower end of its interval."""
    high: float
    """Its largest value over seeds, or the upper end of its interval."""
    holds: bool | None
    """Whether the claim holds within its tolerance; None where this scale does not measure what it is about."""
    note: str = ""
    """What a reader must know: the reason where it fails, the scale at which it holds."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper as a check; the tolerance is stated here, before any run."""

    id: str
    """`paper.figure.what`."""
    statement: str
    """What the paper says, in plain words, with where it says so."""
    tolerance: str
    """When it counts as holding, in plain words with the number."""
    judge: Callable[[Data], Measured]
    """Measured data -> the number and whether it holds."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim after a run."""

    id: str
    statement: str
    value: float | None
    low: float | None
    high: float | None
    tolerance: str
    verdict: Verdict
    scale: str
    note: str = ""

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How large to measure, and where."""

    scale: str
    """smoke, cpu or paper."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where to compute."""
    progress: Callable[[str, float], None] = lambda what, share: None
    """Hears what is being done, and which share of the figure is done."""
    runs: Path = Path("runs")
    """Where the figure's training runs lie; finished ones are used again."""
    used: list[dict[str, Any]] = field(default_factory=list)
    """Run, commit, device and seconds of every training behind the figure; `trained` notes them."""

    def trained(self, run: Any) -> None:
        """Note a run whose weights the figure shows."""
        origin = run.provenance()
        facts = {key: origin.get(key) for key in ("commit", "device", "train_seconds")}
        self.used.append({"run": run.path.name, **facts})

    def training(self, share: float) -> dict[str, Any]:
        """What `train_grid` asks for: where runs lie, where to compute, who notes them, a progress up to `share`."""
        return {
            "out": self.runs,
            "device": self.device,
            "trained": self.trained,
            "progress": lambda what, done: self.progress(what, share * done),
        }


LEARNED = 0.5
"""The error of the best model, in units of predicting zero, above which nothing was learned that could be compared."""


def seeds_of(sizes: Mapping[str, Any]) -> range:
    """The seeds of a figure: `seeds` of them from `first_seed` on, 0 unless settings were tuned on the first ones."""
    first = sizes.get("first_seed", 0)
    return range(first, first + sizes["seeds"])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure or table of a paper: what to measure, how to draw it, and what the paper says about it.

    Found by import: a module-level `Figure` of a module in `looped.papers`.
    """

    name: str
    """`paper.figure`, such as `chen24.fig1`."""
    title: str
    """What the figure shows, in one line."""
    settings: Mapping[str, Mapping[str, Any]]
    """For each scale its sizes: everything that `measure` reads and that changes the result."""
    measure: Callable[[Mapping[str, Any], Settings], Data]
    """Run what is needed and give the numbers: (sizes of the scale, settings) -> data."""
    draw: Callable[[Any, Data], None]
    """Draw the data into an empty matplotlib figure, laid out as the paper has it."""
    claims: tuple[Claim, ...] = ()
    """What the paper says about it."""
    best_error: Callable[[Data], float] | None = None
    """The error of the best model; where it is above `LEARNED` the scale was too short, and no claim is judged."""

    def judge(self, data: Data, scale: str) -> list[Judged]:
        """Every claim against the data; at `smoke` scale, or where nothing was learned, nothing is judged."""
        if scale == "smoke":
            return [_judged(claim, None, scale) for claim in self.claims]
        error = 0.0 if self.best_error is None else self.best_error(data)
        found = [claim.judge(data) for claim in self.claims]
        if LEARNED < error < math.inf:  # a model that diverged is not one that had too few steps
            why = f"no model has learned at this scale: the best error is {error:.2f} of predicting zero"
            found = [replace(one, holds=None, note=f"{why}. {one.note}".strip()) for one in found]
        return [_judged(claim, one, scale) for claim, one in zip(self.claims, found, strict=True)]


def _judged(claim: Claim, found: Measured | None, scale: str) -> Judged:
    """A claim with what was measured, None for nothing; a number that is not finite never holds."""
    value = None if found is None else _finite(found.value)
    verdict: Verdict = "not judged"
    if found is not None and found.holds is not None:
        verdict = "holds" if found.holds and value is not None else "fails"
    return Judged(
        id=claim.id,
        statement=claim.statement,
        value=value,
        low=None if found is None else _finite(found.low),
        high=None if found is None else _finite(found.high),
        tolerance=claim.tolerance,
        verdict=verdict,
        scale=scale,
        note="" if found is None else found.note,
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
