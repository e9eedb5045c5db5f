"""The predictor for small tables against tuned baselines, on tables that are not random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap, resampled_means
from looped.models.table_transformer import TableTransformer, answer_rows
from looped.papers.tables import Scale, regressor
from looped.papers.tables.data import DEVELOPMENT, Split, split, table
from looped.papers.tables.rivals import RIVALS, Answers, answers, cached
from looped.studies import Cell, Context, Learned, Panels, Study, Table, claim
from looped.studies.measures import RESAMPLES, trained
from looped.studies.panels import Axis
from looped.studies.quantities import curve
from looped.studies.study import Cells
from looped.tasks.tables import OPENML
from looped.training.run import digest

LOOPED = "looped transformer"


@dataclass(frozen=True, kw_only=True)
class Splits:
    """R2 on random splits of every table: classes are predicted as numbers, and all predictors get the same rows.

    By rows to learn from, for every predictor: `unexplained`, 1 - R2, the mean over tables, with its interval over
    splits; `rank` among all predictors, and `best_on`, the share of tables where its mean R2 is the highest; `seconds`
    from the rows to the answers, tuning included. For every predictor and table `r2`. For the looped transformer
    `margin`, its R2 minus that of the baseline with the best mean, and `coverage`, the share of labels between its 5%
    and its 95% quantile.
    """

    tables: tuple[str, ...]
    """Which tables."""
    rows: tuple[int, ...] = (20, 40, 100)
    """Rows to learn from."""
    splits: int = 5
    """Random splits of every table."""
    tests: int = 500
    """Other rows to predict, at most."""
    folds: int = 5
    """Folds by which the baselines are tuned."""
    seed: int = 0
    """Of the training."""
    level: float = 0.9
    """Level of the intervals over splits."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train or load the model, then predict every split by everybody."""
        [(run,)] = trained(cells, (self.seed,), context, share=0.5).values()
        model = run.model(context.device).eval().double()
        assert isinstance(model, TableTransformer)
        weights = digest(model.state_dict())
        places = [(name, count, index) for name in self.tables for count in self.rows for index in range(self.splits)]
        r2, seconds = (
            {who: np.zeros((len(self.tables), len(self.rows), self.splits)) for who in EVERYONE} for _ in "12"
        )
        coverage = np.zeros_like(r2[LOOPED])
        wholes = {name: table(name) for name in self.tables}
        for index, (name, count, seed) in enumerate(places):
            context.progress(f"{name}, {count} rows", 0.5 + 0.5 * index / len(places))
            drawn = split(wholes[name], count, self.tests, seed)
            place = np.unravel_index(index, coverage.shape)
            answered: dict[str, Answers] = {LOOPED: cached(weights, drawn, lambda rows: predicted(model, rows))}
            answered |= {rival: answers(rival, drawn, self.folds) for rival in RIVALS}
            for who, entry in answered.items():
                r2[who][place], seconds[who][place] = drawn.r2(entry.values[:, 0]), entry.seconds
            low, high = answered[LOOPED].values[:, 1], answered[LOOPED].values[:, -1]
            coverage[place] = ((drawn.test_ys >= low) & (drawn.test_ys <= high)).mean()
        return self.collected(r2, seconds, coverage)

    def collected(self, r2: Mapping[str, np.ndarray], seconds: Mapping[str, np.ndarray], coverage: np.ndarray) -> Table:
        """The table of numbers of shape (tables, rows, splits)."""
        measured = Table()
        stacked = np.stack(list(r2.values()))
        ranks = 1 + (stacked[:, None] < stacked[None]).sum(1)
        winners = stacked.mean(3).argmax(0)
        for index, who in enumerate(r2):
            cell, seed = Cell(model=who), self.seed if who == LOOPED else None
            self.add(measured, cell, "unexplained", 1 - r2[who].mean(0), seed)
            self.add(measured, cell, "rank", ranks[index].mean(0), seed)
            self.add(measured, cell, "seconds", seconds[who].mean(0), seed)
            measured.add(cell, "best_on", (winners == index).mean(0).tolist(), x=self.rows, seed=seed)
            for name, values in zip(self.tables, r2[who], strict=True):
                measured.add(Cell(model=who, table=name), "r2", values.mean(1).tolist(), x=self.rows, seed=seed)
        means = np.stack([r2[rival].mean(0) for rival in RIVALS])
        best = means.mean(2).argmax(0)
        margin = r2[LOOPED].mean(0) - means[best, np.arange(len(self.rows))]
        self.add(measured, Cell(model=LOOPED), "margin", margin, self.seed)
        self.add(measured, Cell(model=LOOPED), "coverage", coverage.mean(0), self.seed)
        return measured

    def add(
        self, measured: Table, cell: Cell, quantity: str, values: Float[np.ndarray, "rows splits"], seed: int | None
    ):
        """The mean over splits, its interval, and the means of resampled splits, the same for all predictors."""
        by_split = torch.from_numpy(values.T)
        mean, low, high = (part.tolist() for part in bootstrap(by_split, level=self.level))
        draws = resampled_means(by_split, resamples=RESAMPLES, seed=0).T.tolist()
        measured.add(cell, quantity, mean, x=self.rows, seed=seed, low=low, high=high, draws=draws)


def predicted(model: TableTransformer, rows: Split) -> Float[np.ndarray, "tests outputs"]:
    """The mean and the quantiles of the model at the test rows, as `InContextRegressor` asks for them."""
    from looped.table_columns import Columns

    columns = Columns(rows.xs, rows.ys[None], most=model.config.d, standardize=True)
    weight = next(model.parameters())

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(weight)

    def filled(xs: np.ndarray) -> Tensor:
        read = tensor(columns(xs))
        return torch.nn.functional.pad(read, (0, model.config.d - read.shape[1]))

    outputs = answer_rows(model, filled(rows.xs), tensor(rows.ys), filled(rows.test_xs)).cpu().numpy()
    return np.concatenate([outputs[:, :1], np.sort(outputs[:, 1:], axis=1)], axis=1)


EVERYONE = (LOOPED, *RIVALS)
MEASURES = {
    "smoke": Splits(tables=(OPENML[0], "wine"), rows=(20, 40), splits=1, tests=20, folds=2),
    "cpu": Splits(tables=DEVELOPMENT, splits=3),
    "paper": Splits(tables=DEVELOPMENT, rows=(20, 40, 100, 300), splits=10),
}


def cells(scale: Scale) -> Cells:
    """The predictor at this scale."""
    return {Cell(model=LOOPED): regressor(scale)}


DEVELOPMENT_TABLES = Study(
    name="tables.development",
    title="Small tables: R2 without training against tuned baselines, on the tables that the prior was tuned on",
    cells=cells,
    measure=lambda scale: MEASURES[scale],
    panels=Panels(
        y="unexplained",
        axis=Axis(x="rows to learn from", y="1 - R², mean over tables", log_x=True, places=True),
        colour="model",
        line="{model}",
        width=4.4,
        bottom=0.45,
        legend_columns=3,
    ),
    learned=Learned(of="unexplained"),
    claims=(
        claim(
            "twenty_rows",
            "With 20 rows its mean R2 is at least .04 above that of the best tuned baseline.",
            curve("margin", model=LOOPED).at(20) >= 0.04,
        ),
        claim(
            "forty_rows",
            "With 40 rows its mean R2 is at least .04 above that of the best tuned baseline.",
            curve("margin", model=LOOPED).at(40) >= 0.04,
        ),
        claim(
            "best_on_half",
            "It is the best predictor on at least half of the tables, with 20 and with 40 rows.",
            (curve("best_on", model=LOOPED).at(20) >= 0.5) & (curve("best_on", model=LOOPED).at(40) >= 0.5),
        ),
        claim(
            "intervals_cover",
            "Its 90% intervals cover 85% to 95% of the labels, on average over tables.",
            (curve("coverage", model=LOOPED).least() >= 0.85) & (curve("coverage", model=LOOPED).largest() <= 0.95),
        ),
    ),
)
