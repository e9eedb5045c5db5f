"""How the cells of a study are measured: train each, evaluate each, on the same prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.bootstrap import resampled_means
from looped.evaluation.curves import Curve as EvaluatedCurve
from looped.evaluation.errors import Baseline, Errors, measure_errors
from looped.experiment import Experiment, training
from looped.models.base import LoopedModel
from looped.studies.readings import Wanted
from looped.studies.study import Cells, Context
from looped.studies.table import Cell, Label, Table
from looped.tasks.task import Task
from looped.training.grid import train_grid
from looped.training.run import Run

TRAINING_SHARE = 0.9
"""Share of a study's progress bar that training takes."""
RESAMPLES = 200
"""Resamples of the prompts that the table keeps: 1.6 kB for each place of a curve."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Error by examples and by loops of trained models, and of baselines, on the same prompts.

    For every cell and seed: `by_examples`, `by_loops`, `trained_loops`, `layers_applied`, `parameters`.
    Baselines are cells with the label `model` and no seed.
    """

    seeds: tuple[int, ...] = (0,)
    """One training for each."""
    prompts: int = 1280
    """Prompts for the errors."""
    prompt_seed: int = 1
    """Names the prompts."""
    level: float = 0.9
    """Level of the intervals over prompts."""
    loops: int = 500
    """Looped models are read up to this many loops."""
    at_own_loops: bool = False
    """Whether the curve by examples is read after the model's own loops, not after `loops`."""
    baselines: Callable[[Task], Mapping[str, Baseline]] | None = None
    """What a person would use instead on a task, by label; a module-level function."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Take the readings that are there; train and evaluate the others."""
        every = self.readings(cells, context.runs)
        present = {} if context.again else {entry.file: reading for entry in every if (reading := entry.read())}
        absent = [entry for entry in every if entry.file not in present]
        runs = train_grid([entry.experiment for entry in absent], **training_options(context)) if absent else []
        for index, (entry, run) in enumerate(zip(absent, runs, strict=True)):
            context.progress(f"evaluating {entry.cell}", TRAINING_SHARE + (1 - TRAINING_SHARE) * index / len(absent))
            present[entry.file] = entry.make(run, context.device)
        table = Table()
        for entry in every:
            context.note_training(present[entry.file])
            table.series += present[entry.file].series
        self.add_baselines(table, cells, context)
        # one seed has an interval over prompts, several have their range
        return table if len(self.seeds) == 1 else Table(replace(series, draws=None) for series in table)

    def readings(self, cells: Cells, runs: Path) -> list[Wanted]:
        """All that is read from trained models; a measure that reads something else from their weights has none."""
        same = replace(self, seeds=(0,), baselines=None)
        return [
            Wanted(measure=same, cell=cell, experiment=training(experiment, seed=seed), runs=runs)
            for cell, experiment in cells.items()
            for seed in self.seeds
        ]

    @property
    def evaluations(self) -> int:
        """How often a model is evaluated for a reading: what a reading costs."""
        return 1

    def far(self, experiment: Experiment) -> int:
        """The most loops that a model of this experiment is read after."""
        b = experiment.model.loops
        return max(self.loops, b if self.at_own_loops else 1) if b > 1 else 1

    def add_model(self, table: Table, cell: Cell, seed: int, experiment: Experiment, model: LoopedModel) -> None:
        """One model's curves and sizes."""
        far, most_trained = self.far(experiment), trained_loops(experiment)
        loops = experiment.model.loops if self.at_own_loops else far
        errors = self.errors(model, experiment, loops=loops, max_loops=far)
        self.add_errors(table, cell, errors, experiment.task, seed=seed)
        shown = shown_loops(far, most_trained)
        by_loop = errors.by_loop[:, [loop - 1 for loop in shown]]
        curve = EvaluatedCurve.over_prompts(str(cell), shown, by_loop, level=self.level, seed=self.prompt_seed)
        add_curve(table, cell, "by_loops", curve, seed=seed, draws=self.draws(by_loop))
        table.add(cell, "trained_loops", most_trained, seed=seed)
        table.add(cell, "layers_applied", experiment.model.layers_applied, seed=seed)
        table.add(cell, "parameters", model.num_parameters, seed=seed)

    def example_curve(self, curve: EvaluatedCurve, task: Task) -> EvaluatedCurve:
        """The curve by examples as the study shows it; a task whose examples are several tokens may join them."""
        return curve

    def add_baselines(self, table: Table, cells: Cells, context: Context) -> None:
        """The baselines of every task among the cells, on the prompts of the models."""
        if self.baselines is None:
            return
        for labels, experiment in tasks_of(cells):
            for name, baseline in self.baselines(experiment.task).items():
                context.progress(name, 1 - 0.05 * (1 - TRAINING_SHARE))
                errors = self.errors(baseline, experiment, dtype=torch.float64)
                self.add_errors(table, {**labels, "model": name}, errors, experiment.task)

    def errors(self, predict: LoopedModel | Baseline, experiment: Experiment, **options: Any) -> Errors:
        """Errors of a model or a baseline on the study's prompts; `options` are those of `measure_errors`."""
        options = {"points": experiment.train.points, "prompts": self.prompts, "seed": self.prompt_seed, **options}
        return measure_errors(predict, experiment.task, **options)

    def add_errors(
        self, table: Table, cell: Mapping[str, Label], errors: Errors, task: Task, *, seed: int | None = None
    ) -> None:
        """Errors as a curve by examples, with its interval over prompts."""
        options = {"level": self.level, "seed": self.prompt_seed}
        curve = EvaluatedCurve.over_prompts(str(cell), errors.positions, errors.values, **options)
        shown = self.example_curve(curve, task)
        draws = self.draws(errors.values) if shown is curve else None
        add_curve(table, cell, "by_examples", shown, seed=seed, draws=draws)

    def draws(self, errors: Float[Tensor, "prompts places"]) -> list[list[float]]:
        """Means over resampled prompts for each place."""
        return resampled_means(errors, resamples=RESAMPLES, seed=self.prompt_seed).T.tolist()


def trained(
    cells: Mapping[Cell, Experiment], seeds: Sequence[int], context: Context, *, share: float = TRAINING_SHARE
) -> dict[Cell, list[Run]]:
    """The runs of every cell, one for each seed; `share` of the study's progress."""
    grid = [training(experiment, seed=seed) for experiment in cells.values() for seed in seeds]
    runs = iter(train_grid(grid, trained=context.note_training, **training_options(context, share)))
    return {cell: [next(runs) for _ in seeds] for cell in cells}


def training_options(context: Context, share: float = TRAINING_SHARE) -> dict[str, Any]:
    """Where to train, and whom to tell; `share` of the study's progress."""

    def report(what: str, done: float) -> None:
        context.progress(what, share * done)

    return {"out": context.runs, "device": context.device, "progress": report}


def tasks_of(cells: Mapping[Cell, Experiment]) -> list[tuple[dict[str, Label], Experiment]]:
    """Each task once: the labels that all its cells share, `model` aside, and an experiment on it."""
    groups: dict[tuple[Task, int], list[Cell]] = {}
    for cell, experiment in cells.items():
        groups.setdefault((experiment.task, experiment.train.points), []).append(cell)
    tasks = []
    for first, *others in groups.values():
        shared = {name for name in first if name != "model" and all(cell.get(name) == first[name] for cell in others)}
        tasks.append(({name: first[name] for name in first if name in shared}, cells[first]))
    return tasks


def add_curve(
    table: Table,
    cell: Mapping[str, Label],
    quantity: str,
    curve: EvaluatedCurve,
    *,
    seed: int | None = None,
    draws: Sequence[Sequence[float]] | None = None,
) -> None:
    """An evaluated curve."""
    table.add(cell, quantity, curve.mean, x=curve.x, low=curve.low, high=curve.high, draws=draws, seed=seed)


def shown_loops(most: int, trained: int) -> list[int]:
    """Every loop up to 50, then every fifth, and always the trained and the last."""
    return sorted({*range(1, min(most, 50) + 1), *range(50, most + 1, 5), min(trained, most), most} - {0})


def trained_loops(experiment: Experiment) -> int:
    """The most loops that a step of its training takes."""
    train = experiment.train
    return experiment.model.loops + (0 if train.depth is None else int(train.depth.bounds(train.steps)[1]))
