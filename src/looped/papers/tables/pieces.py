"""What the parts of the predictor for numbers are worth: the same short training without each of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from looped.evaluation.bootstrap import bootstrap, resampled_means
from looped.experiment import Experiment, Scale, training
from looped.papers.tables import regressor
from looped.papers.tables.comparison import Regressions
from looped.papers.tables.data import DEVELOPMENT
from looped.studies import Cell, Context, Learned, Panels, Study, Table, claim
from looped.studies.measures import RESAMPLES, trained
from looped.studies.panels import Axis
from looped.studies.quantities import curve
from looped.studies.study import Cells
from looped.tasks.table_pieces import Function, Network, Noise, Prototypes, Trees
from looped.tasks.table_prior import FUNCTIONS, TablePrior

NOTHING = "nothing"
STEPS = 1000
"""Of every training at `cpu` scale, a twelfth of the kept model's."""


@dataclass(frozen=True, kw_only=True)
class Without:
    """The loss, 1 - R2, by rows to learn from, on the same splits for all models.

    `loss` is the mean over tables, with its interval over splits; `ratio` is that loss over the loss of the model that
    lacks nothing.
    """

    splits: Regressions
    """Which tables, and how they are split."""
    seed: int = 0
    """Of the trainings."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train every model, then predict every split with each."""
        models = {
            cell: run.model(context.device).double() for cell, (run,) in trained(cells, (self.seed,), context).items()
        }
        shape = (len(self.splits.tables), len(self.splits.rows), self.splits.splits)
        losses = {cell: np.full(shape, np.nan) for cell in models}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of rows far outside, which count like all others
            for place, drawn in self.splits.places(context):
                for cell, model in models.items():
                    losses[cell][place] = self.splits.loss(drawn, self.splits.ours(model, drawn, model.config.loops))
        return self.collected({cell: np.nanmean(loss, 0) for cell, loss in losses.items()})

    def collected(self, losses: Mapping[Cell, np.ndarray]) -> Table:
        """The table of mean losses of shape (rows, splits)."""
        measured, whole = Table(), losses[Cell(without=NOTHING)]
        for cell, loss in losses.items():
            for quantity, values in {"loss": loss, "ratio": loss / whole}.items():
                by_split = torch.from_numpy(values.T)
                mean, low, high = (part.tolist() for part in bootstrap(by_split, level=self.splits.level))
                draws = resampled_means(by_split, resamples=RESAMPLES, seed=0).T.tolist()
                measured.add(cell, quantity, mean, x=self.splits.rows, seed=self.seed, low=low, high=high, draws=draws)
        return measured


def lacking(scale: Scale) -> dict[Cell, Experiment]:
    """The recipe, and the recipe without each of its parts."""
    whole = training(regressor(scale), steps=4 if scale == "smoke" else STEPS)
    task = whole.task
    assert isinstance(task, TablePrior)

    def functions(*kinds: type[Function]) -> Experiment:
        left = tuple(function for function in FUNCTIONS if not isinstance(function, kinds))
        return replace(whole, task=replace(task, functions=left))

    def columns(**shares: float) -> Experiment:
        return replace(whole, task=replace(task, columns=replace(task.columns, **shares)))

    return {
        Cell(without=NOTHING): whole,
        Cell(without="kernel regressions"): replace(whole, model=replace(whole.model, regressions=False)),
        Cell(without="several answers"): replace(whole, task=replace(task, answers=1)),
        Cell(without="tables without noise"): replace(whole, task=replace(task, noise=Noise())),
        Cell(without="networks"): functions(Network),
        Cell(without="trees"): functions(Trees),
        Cell(without="prototypes"): functions(Prototypes),
        Cell(without="odd columns"): columns(plain=1.0),
        Cell(without="groups of rows"): columns(clustered=0.0),
    }


def measure(scale: Scale) -> Without:
    """On the tables that the prior was tuned on."""
    if scale == "smoke":
        return Without(splits=Regressions(tables=("friedman2",), rows=(20, 40), splits=2, tests=20))
    return Without(splits=Regressions(tables=DEVELOPMENT, rows=(20, 40, 100), splits=5))


PIECES = Study(
    name="tables.pieces",
    title="Small tables: what the parts of the predictor for numbers are worth, by short trainings without each",
    cells=lacking,
    measure=measure,
    scales=("smoke", "cpu"),
    judged="cpu",
    panels=Panels(
        y="loss",
        axis=Axis(x="rows to learn from", y="1 - R², mean over tables", log_x=True, places=True),
        colour="without",
        line="without {without}",
        width=4.4,
        bottom=0.3,
        legend_columns=2,
    ),
    learned=Learned(of="loss"),
    claims=(
        claim(
            "regressions_help",
            "Without the answers of kernel regressions its error is larger, with 20, 40 and 100 rows.",
            curve("ratio", without="kernel regressions").least() > 1,
        ),
    ),
)
