"""The predictors for small tables against tuned baselines, on tables that are not random."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from looped.evaluation.bootstrap import bootstrap, resampled_means
from looped.experiment import Scale
from looped.models.base import LoopedModel
from looped.papers.tables import classifier, regressor
from looped.papers.tables.data import DEVELOPMENT, HELD_OUT, NUMBERS, NumericTable, Split, class_split, split, table
from looped.papers.tables.rivals import CLASSIFIERS, REGRESSORS, answers, chances
from looped.studies import Cell, Context, Learned, Panels, Study, Table, claim
from looped.studies.measures import RESAMPLES, trained
from looped.studies.panels import Axis
from looped.studies.quantities import curve
from looped.studies.study import Cells

LOOPED = "looped transformer"
LEAST_TESTS = 50
"""A table with fewer rows left is not asked about so many rows to learn from."""
LOOPS = (1, 2, 4, 8, 16, 32)
"""Loops after which answers are compared."""


@dataclass(frozen=True, kw_only=True)
class Splits(ABC):
    """Losses on random splits of every table, the same rows for all predictors.

    By rows to learn from, for every predictor: `loss`, the mean over tables, with its interval over splits; `rank`
    among all predictors, and `best_on`, the share of tables where its mean loss is the least. For every predictor and
    table `table_loss`. For the looped transformer `margin`, the loss of the baseline with the best mean minus its own,
    `ratio`, its own over that one, and `loss_by_loops`, on the first split.
    """

    tables: tuple[str, ...]
    """Which tables."""
    rows: tuple[int, ...] = (20, 40, 100)
    """Rows to learn from."""
    splits: int = 10
    """Random splits of every table."""
    tests: int = 500
    """Other rows to predict, at most."""
    folds: int = 5
    """Folds by which the baselines are tuned."""
    seed: int = 0
    """Of the training."""
    level: float = 0.9
    """Level of the intervals over splits."""

    RIVALS: ClassVar[tuple[str, ...]]

    @abstractmethod
    def split(self, whole: NumericTable, rows: int, seed: int) -> Split:
        """Rows to learn from and others to predict."""

    @abstractmethod
    def rival(self, name: str, rows: Split) -> Float[np.ndarray, "tests outputs"]:
        """A baseline's answers."""

    @abstractmethod
    def ours(self, model: LoopedModel, rows: Split, loops: int | None = None) -> Float[np.ndarray, "tests outputs"]:
        """Our answers, as users get them; first what the loss reads."""

    @abstractmethod
    def loss(self, rows: Split, values: Float[np.ndarray, "tests outputs"]) -> float:
        """The loss of answers, in units of what predicting without features costs."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train or load the model, then predict every split by everybody."""
        [(run,)] = trained(cells, (self.seed,), context, share=0.5).values()
        model = run.model(context.device).double()
        everyone = (LOOPED, *self.RIVALS)
        shape = (len(self.tables), len(self.rows), self.splits)
        loss = {who: np.full(shape, np.nan) for who in everyone}
        coverage, looped = np.full(shape, np.nan), np.full((len(LOOPS), *shape[:2]), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of rows far outside, which count like all others
            for place, drawn in self.places(context):
                answered = {LOOPED: self.ours(model, drawn)} | {who: self.rival(who, drawn) for who in self.RIVALS}
                for who, values in answered.items():
                    loss[who][place] = self.loss(drawn, values)
                coverage[place] = self.covered(drawn, answered[LOOPED])
                if place[-1] == 0:
                    for index, loops in enumerate(LOOPS):
                        looped[(index, *place[:2])] = self.loss(drawn, self.ours(model, drawn, loops))
        return self.collected(loss, coverage, looped)

    def places(self, context: Context):
        """(place in the arrays, split) for every table, number of rows and split."""
        count = 0
        for first, name in enumerate(self.tables):
            whole = table(name)
            for second, rows in enumerate(self.rows):
                for index in range(self.splits):
                    done = count / (len(self.tables) * len(self.rows) * self.splits)
                    context.progress(f"{name}, {rows} rows", 0.5 + 0.5 * done)
                    count += 1
                    if len(whole.ys) >= rows + min(self.tests, LEAST_TESTS):
                        yield (first, second, index), self.split(whole, rows, index)

    def covered(self, rows: Split, values: Float[np.ndarray, "tests outputs"]) -> float:
        """The share of labels inside the intervals; nan where there are none."""
        return float("nan")

    def collected(self, loss: Mapping[str, np.ndarray], coverage: np.ndarray, looped: np.ndarray) -> Table:
        """The table of numbers of shape (tables, rows, splits), nan where a table has too few rows."""
        measured = Table()
        stacked = np.stack(list(loss.values()))
        there = ~np.isnan(stacked[0])
        ranks = np.where(there, 1 + (stacked[:, None] > stacked[None]).sum(1), np.nan)
        winners = np.where(there.all(2), stacked.mean(3).argmin(0), -1)
        for index, who in enumerate(loss):
            cell, seed = Cell(model=who), self.seed if who == LOOPED else None
            self.add(measured, cell, "loss", np.nanmean(loss[who], 0), seed)
            self.add(measured, cell, "rank", np.nanmean(ranks[index], 0), seed)
            best_on = (winners == index).sum(0) / there.all(2).sum(0)
            measured.add(cell, "best_on", best_on.tolist(), x=self.rows, seed=seed)
            for name, values in zip(self.tables, loss[who], strict=True):
                counts = [count for count, row in zip(self.rows, values, strict=True) if not np.isnan(row).any()]
                means = [row.mean() for row in values if not np.isnan(row).any()]
                measured.add(Cell(model=who, table=name), "table_loss", means, x=counts, seed=seed)
        rivals = np.stack([np.nanmean(loss[rival], 0) for rival in self.RIVALS])
        best = rivals[rivals.mean(2).argmin(0), np.arange(len(self.rows))]
        own = np.nanmean(loss[LOOPED], 0)
        self.add(measured, Cell(model=LOOPED), "margin", best - own, self.seed)
        self.add(measured, Cell(model=LOOPED), "ratio", own / best, self.seed)
        if not np.isnan(coverage).all():
            self.add(measured, Cell(model=LOOPED), "coverage", np.nanmean(coverage, 0), self.seed)
        for count, values in zip(self.rows, np.nanmean(looped, 1).T, strict=True):
            cell = Cell(model=LOOPED, rows=count)
            measured.add(cell, "loss_by_loops", values.tolist(), x=LOOPS, seed=self.seed)
        return measured

    def add(
        self, measured: Table, cell: Cell, quantity: str, values: Float[np.ndarray, "rows splits"], seed: int | None
    ):
        """The mean over splits, its interval, and the means of resampled splits, the same for all predictors."""
        by_split = torch.from_numpy(values.T)
        mean, low, high = (part.tolist() for part in bootstrap(by_split, level=self.level))
        draws = resampled_means(by_split, resamples=RESAMPLES, seed=0).T.tolist()
        measured.add(cell, quantity, mean, x=self.rows, seed=seed, low=low, high=high, draws=draws)


@dataclass(frozen=True, kw_only=True)
class Regressions(Splits):
    """The loss is 1 - R2; classes are predicted as numbers. `coverage` is the share of labels in the 90% interval."""

    rows: tuple[int, ...] = (20, 40, 100, 300)
    """Rows to learn from."""

    RIVALS: ClassVar = REGRESSORS

    def split(self, whole: NumericTable, rows: int, seed: int) -> Split:
        """Labels are standardised."""
        return split(whole, rows, self.tests, seed)

    def rival(self, name: str, rows: Split) -> Float[np.ndarray, "tests outputs"]:
        """Its means."""
        return answers(name, rows, self.folds)

    def ours(self, model: LoopedModel, rows: Split, loops: int | None = None) -> Float[np.ndarray, "tests outputs"]:
        """The mean; after the trained loops the 5% and 95% quantiles too."""
        from looped.estimator import InContextRegressor

        fitted = InContextRegressor(model, loops=loops).fit(rows.xs, rows.ys)
        means = fitted.predict(rows.test_xs)[:, None]
        if loops is not None:
            return means
        return np.concatenate([means, fitted.predict(rows.test_xs, quantiles=(0.05, 0.95))], 1)

    def loss(self, rows: Split, values: Float[np.ndarray, "tests outputs"]) -> float:
        """sum (y - answer)^2 / sum (y - mean of the test labels)^2."""
        spread = np.square(rows.test_ys - rows.test_ys.mean()).sum()
        return float(np.square(rows.test_ys - values[:, 0]).sum() / spread)

    def covered(self, rows: Split, values: Float[np.ndarray, "tests outputs"]) -> float:
        """Between the quantiles."""
        return float(((rows.test_ys >= values[:, 1]) & (rows.test_ys <= values[:, 2])).mean())


@dataclass(frozen=True, kw_only=True)
class Classifications(Splits):
    """The loss is the log loss over that of the classes' shares; all chances are mixed with one row of these shares."""

    RIVALS: ClassVar = CLASSIFIERS

    def split(self, whole: NumericTable, rows: int, seed: int) -> Split:
        """Every class has its share of the rows."""
        return class_split(whole, rows, self.tests, seed)

    def rival(self, name: str, rows: Split) -> Float[np.ndarray, "tests outputs"]:
        """Its chances."""
        return chances(name, rows, self.folds)

    def ours(self, model: LoopedModel, rows: Split, loops: int | None = None) -> Float[np.ndarray, "tests outputs"]:
        """Chances."""
        from looped.estimator import InContextClassifier

        return InContextClassifier(model, loops=loops).fit(rows.xs, rows.ys).predict_proba(rows.test_xs)

    def loss(self, rows: Split, values: Float[np.ndarray, "tests outputs"]) -> float:
        """A chance of zero would cost infinitely much, so a row of the classes' shares is counted in for everybody."""
        classes, counts = np.unique(rows.ys, return_counts=True)
        shares, m = counts / counts.sum(), len(rows.ys)
        place = np.searchsorted(classes, rows.test_ys)
        mixed = (m * values + shares) / (m + 1)
        return float(np.log(mixed[np.arange(len(place)), place]).sum() / np.log(shares[place]).sum())


SMOKE: dict[str, Any] = {"splits": 1, "tests": 20, "folds": 2}
CLASSES = tuple(name for name in DEVELOPMENT if name not in NUMBERS)
OTHER_CLASSES = tuple(name for name in HELD_OUT if name not in NUMBERS)


def compared(
    name: str,
    title: str,
    recipe: Callable[[Scale], object],
    kind: type[Splits],
    tables: tuple[str, ...],
    claims: tuple = (),
    *,
    smoke: str,
) -> Study:
    """A study of one predictor on some tables; at smoke scale on one of them."""

    def measure(scale: Scale) -> Splits:
        if scale == "smoke":
            return kind(tables=(smoke,), **SMOKE)
        return kind(tables=tables)

    y = "1 - R², mean over tables" if kind is Regressions else "log loss / that of the shares"
    return Study(
        name=name,
        title=title,
        cells=lambda scale: {Cell(model=LOOPED): recipe(scale)},
        measure=measure,
        panels=(
            Panels(
                y="loss",
                axis=Axis(x="rows to learn from", y=y, log_x=True, places=True),
                colour="model",
                line="{model}",
                width=4.4,
                bottom=0.3,
                legend_columns=3,
            ),
            Panels(
                y="loss_by_loops",
                axis=Axis(x="loops", y=y, log_x=True, places=True),
                colour="rows",
                line="{rows} rows",
                width=4.4,
                bottom=0.3,
            ),
        ),
        judged="cpu",  # the scale of the models that ship
        learned=Learned(of="loss"),
        claims=claims,
    )


MARGIN = curve("margin", model=LOOPED)
RATIO = curve("ratio", model=LOOPED)
COVERAGE = curve("coverage", model=LOOPED)
BEST_ON = curve("best_on", model=LOOPED)


def ahead(rows: int, what: str, by: float):
    """The claim that with so many rows it is ahead of the best tuned baseline."""
    text = f"With {rows} rows its {what} is below that of the best tuned baseline, by at least {by:g}."
    return claim(f"rows_{rows}", text, MARGIN.at(rows) >= by)


def level(rows: int, what: str):
    """The claim that with so many rows it is at least as good as the best tuned baseline."""
    text = f"With {rows} rows its {what} is at most that of the best tuned baseline."
    return claim(f"rows_{rows}", text, RATIO.at(rows) <= 1)


UNEXPLAINED = "mean 1 - R²"
LOG_LOSS = "mean log loss"
DEVELOPMENT_TABLES = compared(
    "tables.development",
    "Small tables: numbers without training against tuned baselines, on the tables that the prior was tuned on",
    regressor,
    Regressions,
    DEVELOPMENT,
    (
        ahead(20, UNEXPLAINED, 0.04),
        ahead(40, UNEXPLAINED, 0.04),
        ahead(100, UNEXPLAINED, 0.02),
        level(300, UNEXPLAINED),
        claim(
            "best_on_half",
            "It is the best predictor on at least half of the tables, with 20 and with 40 rows.",
            (BEST_ON.at(20) >= 0.5) & (BEST_ON.at(40) >= 0.5),
        ),
        claim(
            "intervals_cover",
            "Its 90% intervals cover 85% to 95% of the labels, on average over tables.",
            (COVERAGE.least() >= 0.85) & (COVERAGE.largest() <= 0.95),
        ),
    ),
    smoke="friedman2",
)
HELD_OUT_TABLES = compared(
    "tables.held_out",
    "Small tables: numbers without training against tuned baselines, on tables that nothing was tuned on",
    regressor,
    Regressions,
    HELD_OUT,
    tuple(level(rows, UNEXPLAINED) for rows in (20, 40, 100)),
    smoke="friedman3",
)
CLASS_TABLES = compared(
    "tables.classes",
    "Small tables: classes without training against tuned baselines, on the tables that the prior was tuned on",
    classifier,
    Classifications,
    CLASSES,
    tuple(level(rows, LOG_LOSS) for rows in (20, 40, 100)),
    smoke="wine",
)
HELD_OUT_CLASSES = compared(
    "tables.held_out_classes",
    "Small tables: classes without training against tuned baselines, on tables that nothing was tuned on",
    classifier,
    Classifications,
    OTHER_CLASSES,
    tuple(level(rows, LOG_LOSS) for rows in (20, 40, 100)),
    smoke="iris",
)
