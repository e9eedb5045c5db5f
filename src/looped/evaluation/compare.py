"""Several models on the same prompts: their errors, and the paired differences to the first of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from looped.evaluation.curves import Curve, Findings, resolve_loops
from looped.evaluation.diagnosis import Estimate
from looped.evaluation.errors import Predictor, Progress, check_prompts, draw_questions, errors_of, weight_of
from looped.models.base import LoopedModel
from looped.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model or baseline of a comparison."""

    label: str
    """What it is called."""
    loops: int
    """The loops behind `error`; 0 for a baseline."""
    max_loops: int
    """The loops behind `late`; 0 for a baseline."""
    error: Estimate
    """Error at the last pair, or over all scored tokens of a sequence, after `loops` loops."""
    late: Estimate
    """The same after `max_loops` loops."""
    difference: Estimate | None
    """`error` minus that of the first model, paired over prompts; None for the first itself."""
    late_difference: Estimate | None
    """The same for `late`."""
    verdict: str
    """better or worse than the first where the paired interval says so, else undecided; of the first: reference."""
    by_examples: Curve
    """Error by the number of examples, after `loops` loops."""
    by_loops: Curve
    """Error at the last pair by loop."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Findings):
    """Models on the same prompts; the first is what the others are compared with."""

    entries: list[Entry]
    """In the order given."""

    def rows(self) -> list[dict[str, Any]]:
        """One row for every point of every curve, for a table."""
        return [
            {"model": entry.label, "axis": axis, "x": x, "error": mean, "low": low, "high": high}
            for entry in self.entries
            for axis, curve in (("examples", entry.by_examples), ("loops", entry.by_loops))
            for x, mean, low, high in zip(curve.x, curve.mean, curve.low, curve.high, strict=True)
        ]

    def latex(self) -> str:
        """The errors and paired differences as a table for a paper, which needs the package booktabs."""
        lines = [
            r"\begin{tabular}{lrrrr}",
            r"\toprule",
            r"model & loops & error & minus " + _escaped(self.entries[0].label) + r" & error far past \\",
            r"\midrule",
        ]
        for entry in self.entries:
            difference = "" if entry.difference is None else _cell(entry.difference)
            cells = (_escaped(entry.label), str(entry.loops or ""), _cell(entry.error), difference, _cell(entry.late))
            lines.append(" & ".join(cells) + r" \\")
        note = f"% {self.prompts} prompts of {self.task}; {self.level:.0%} intervals, differences paired over prompts"
        return "\n".join([note, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def compare(
    models: Mapping[str, Predictor],
    task: Task,
    *,
    points: int,
    loops: int | None = None,
    max_loops: int | None = None,
    prompts: int = 1280,
    seed: int = 0,
    level: float = 0.9,
    progress: Progress | None = None,
) -> Comparison:
    """Judge models, and baselines, on the same fresh prompts of `points` pairs; the first one is the reference.

    Each is run for `loops` loops (default: its trained ones) and up to `max_loops` (default: four times those).
    """
    if len(models) < 2:
        raise ValueError(f"a comparison needs at least 2 models; got {len(models)}. Name another one.")
    check_prompts(prompts)
    questions = draw_questions(task, points=points, prompts=prompts, seed=seed)
    entries: list[Entry] = []
    first: tuple[torch.Tensor, torch.Tensor] | None = None
    for label, model in models.items():
        like, at, last = torch.empty(0), 0, 0
        if isinstance(model, LoopedModel):
            at, last = resolve_loops(model.config.loops, loops, max_loops, prompts)
            like = weight_of(model)
        asked = questions.to(like.device).to(like.dtype)
        shown = None if progress is None else lambda _, share, label=label: progress(label, share)
        errors = errors_of(model, task, asked, loops=at or None, max_loops=last or None, progress=shown)
        by_loop = errors.by_loop.cpu().double()
        error, late = by_loop[:, at - 1], by_loop[:, -1]
        options = {"level": level, "seed": seed}
        first = first or (error, late)
        paired = [
            Estimate.of(mine - reference, **options) for mine, reference in zip((error, late), first, strict=True)
        ]
        entries.append(
            Entry(
                label=label,
                loops=at,
                max_loops=last,
                error=Estimate.of(error, **options),
                late=Estimate.of(late, **options),
                difference=paired[0] if entries else None,
                late_difference=paired[1] if entries else None,
                verdict=_verdict(paired[0]) if entries else "reference",
                by_examples=Curve.over_prompts(label, errors.positions, errors.values, **options),
                by_loops=Curve.over_prompts(label, range(1, max(last, 1) + 1), by_loop, **options),
            )
        )
    return Comparison(task=repr(task), prompts=prompts, level=level, entries=entries)


def _verdict(difference: Estimate) -> str:
    return "better" if difference.high < 0 else "worse" if difference.low > 0 else "undecided"


def _cell(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "_&%#$" else letter for letter in text)
