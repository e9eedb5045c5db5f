"""The run that a command is given: how `evaluate`, `diagnose`, `identify` and `keep` open it and write beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from looped.cli.options import load_user_code, pick_device
from looped.evaluation.diagnosis import Diagnosis
from looped.evaluation.identify import Identification
from looped.files import finite, write_json
from looped.models.base import LoopedModel
from looped.report.drawing import save_figure
from looped.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_SAVED = "Not saved: nothing is written into a kept model's folder. `--json` prints the numbers."


@dataclass(frozen=True, kw_only=True)
class ChosenRun:
    """A run folder or kept model with the options that all these commands take."""

    name: str
    """As it was typed."""
    run: Run
    """The run."""
    points: int
    """Pairs in a prompt: as asked, else as trained."""
    best: bool
    """Whether to use the weights of the lowest logged loss."""

    def model(self, device: str) -> LoopedModel:
        """The model on a device, with the last weights or the best ones."""
        if self.best and not self.run.by_loss(self.run.steps):
            raise ValueError(f"`--best` needs checkpoints with a logged loss; {self.run.path} has none. Leave it out.")
        return self.run.model(pick_device(device), best=self.best)

    def save_findings(
        self, stem: str, findings: Diagnosis | Identification, draw: Callable[[], Figure] | None = None
    ) -> tuple[dict[str, Any], str]:
        """Write RUN/STEM.json, and what `draw` draws as STEM.png; returns the data and a remark that says where."""
        data = finite({"run": self.name, "weights": "best" if self.best else "last", **asdict(findings)})
        if self.run.kept:
            return data, NOT_SAVED
        file = self.run.path / f"{stem}{'.best' * self.best}.json"
        write_json(file, data)
        files = [file] if draw is None else [file, save_figure(draw(), file.with_suffix(".png"))]
        return data, f"Saved in {' and '.join(map(str, files))}."


def open_run(name: str, *, points: int | None, best: bool, code: list[str] | None) -> ChosenRun:
    """The run folder or kept model of that name."""
    run = Run.open(name, load_user_code(code))
    points = run.points if points is None else points
    if points < 1:
        raise ValueError(f"`--points` must be at least 1; got {points}.")
    return ChosenRun(name=name, run=run, points=points, best=best)
