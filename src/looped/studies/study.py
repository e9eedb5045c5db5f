"""A study: cells, how they are measured, how they are drawn, and what a paper says about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from looped.config import encode, nearest
from looped.experiment import SCALES
from looped.studies.claims import Claim, JudgedClaim, Learned, judge
from looped.studies.panels import Panels, draw
from looped.studies.table import Cell, Table

Cells = Mapping[Cell, Any]
"""The cells of a study at one scale, each with what is to be measured: mostly an `Experiment`."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where to measure, and who is told about it."""

    scale: str
    """smoke, cpu or paper."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where to compute."""
    progress: Callable[[str, float], None] = lambda what, share: None
    """Called with what is being done and which share of the study is done."""
    runs: Path = Path("runs")
    """Where training runs lie; finished ones are used again."""
    again: bool = False
    """Measure anew what was read from a model before; its training is used again."""
    trainings: list[dict[str, Any]] = field(default_factory=list)
    """Run, commit, device and seconds of every training behind the study, each once; `note_training` fills it."""

    def note_training(self, run: Any) -> None:
        """Record a training whose weights the study shows: anything with a `path` and a `provenance()`.

        It counts whether it was trained just now or before, by another figure.
        """
        if all(training["run"] != run.path.name for training in self.trainings):
            origin = run.provenance()
            facts = {key: origin.get(key) for key in ("commit", "device", "train_seconds")}
            further = ("earlier_commits", "models_in_one_batch", "side_by_side", "measured")
            facts |= {key: origin[key] for key in further if key in origin}
            self.trainings.append({"run": run.path.name, **facts})

    def part(self, what: str, index: int, count: int) -> Context:
        """The same for one of `count` parts of the study, whose progress goes from 0 to 1."""
        return replace(self, progress=lambda _, share: self.progress(what, (index + share) / count))


def device_seconds(training: Mapping[str, Any]) -> float:
    """A training's part of the seconds of its device, which it may have shared.

    Models that trained in one batch have the batch's seconds in each folder, and so have trainings side by side.
    """
    shared_by = training.get("models_in_one_batch", 1) * training.get("side_by_side", 1)
    return (training.get("train_seconds") or 0.0) / shared_by


def training_facts(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The trainings behind a study as its provenance has them: all of them, their seconds, and their commits."""
    if not trainings:
        return {}
    seconds = [device_seconds(entry) for entry in trainings]
    commits = [commit for entry in trainings for commit in (*entry.get("earlier_commits", ()), entry["commit"])]
    return {
        "training_seconds": round(sum(seconds), 2),
        "training_commits": [commit for commit in dict.fromkeys(commits) if commit is not None],
        "trainings": list(trainings),
    }


class Measure(Protocol):
    """Trains what is missing and gives the numbers; a frozen dataclass whose fields are the study's settings."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Measure all cells."""
        ...


@dataclass(frozen=True, kw_only=True)
class Study:
    """One figure or table.

    Found by import: a module-level `Study` of a module in `looped.papers`, or of a file that the user names.
    """

    name: str
    """`paper.figure`, such as `chen24.fig1`."""
    title: str
    """What it shows, in one line."""
    cells: Callable[[Any], Cells]
    """Scale -> cells."""
    measure: Callable[[Any], Measure]
    """Scale -> how the cells are measured; everything that changes the numbers is in the cells or in its fields."""
    panels: Panels | Sequence[Panels] | Callable[[Any, Table], None]
    """How it is drawn; a function draws into an empty matplotlib figure by itself."""
    claims: Sequence[Claim] = ()
    """What the paper says about it."""
    learned: Learned | None = None
    """When its models count as trained; None where nothing is trained."""
    scales: Sequence[str] = SCALES
    """At which scales it can be measured."""
    judged: str = "paper"
    """The scale at which claims get a verdict; the others are previews."""

    def settings(self, scale: str) -> Any:
        """All that changes the numbers, as JSON data."""
        if scale not in self.scales:
            raise ValueError(f"{self.name} has no scale `{scale}`. {nearest(scale, self.scales)}")
        cells = [[dict(cell), encode(content, without="defaults")] for cell, content in self.cells(scale).items()]
        return {"cells": cells, "measure": encode(self.measure(scale), without="defaults")}

    def settings_hash(self, scale: str) -> str:
        """The same for a kept result and for today's study, if the result has today's settings."""
        return hashlib.sha256(json.dumps(self.settings(scale), sort_keys=True).encode()).hexdigest()[:10]

    def judge(self, table: Table, scale: str) -> list[JudgedClaim]:
        """Every claim against the numbers."""
        options = {"study": self.name, "scale": scale, "preview": scale != self.judged, "learned": self.learned}
        return [judge(claim, table, **options) for claim in self.claims]

    def draw(self, figure: Any, table: Table) -> None:
        """Draw into an empty matplotlib figure."""
        if callable(self.panels):
            self.panels(figure, table)
        else:
            draw(figure, table, [self.panels] if isinstance(self.panels, Panels) else self.panels)
