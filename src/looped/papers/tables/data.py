"""The tables that predictors are compared on: numbers from scikit-learn, and those of yang24 from files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from looped.tasks.data import data_folder
from looped.tasks.tables import OPENML, read

DEVELOPMENT = (*OPENML, "diabetes", "wine", "friedman1", "friedman2")
"""The tables that the prior was tuned on: what is measured on them flatters the model. Others judge."""
FRIEDMAN_ROWS = 2000


class NumericTable(NamedTuple):
    """A table of numbers; of a classification the labels are 0, 1, ..."""

    xs: Float[np.ndarray, "rows features"]
    ys: Float[np.ndarray, " rows"]


class Split(NamedTuple):
    """Rows of one table to learn from, and others to predict; labels standardised by the former."""

    xs: Float[np.ndarray, "rows features"]
    ys: Float[np.ndarray, " rows"]
    test_xs: Float[np.ndarray, "tests features"]
    test_ys: Float[np.ndarray, " tests"]

    def r2(self, answers: Float[np.ndarray, " tests"]) -> float:
        """1 - sum (y - answer)^2 / sum (y - mean of the test labels)^2."""
        spread = np.square(self.test_ys - self.test_ys.mean()).sum()
        return float(1 - np.square(self.test_ys - answers).sum() / spread)


def table(name: str) -> NumericTable:
    """A table by name."""
    if name in OPENML:
        return NumericTable(*read(data_folder("openml"), name))
    return NumericTable(*(np.asarray(part, dtype=np.float64) for part in _scikit_learns()[name]()))


def split(whole: NumericTable, rows: int, tests: int, seed: int) -> Split:
    """`rows` random rows to learn from, and at most `tests` others; drawn again while all labels are the same."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(whole.ys))
        train, test = order[:rows], order[rows : rows + tests]
        if whole.ys[train].std() > 0 and whole.ys[test].std() > 0:
            mean, unit = whole.ys[train].mean(), whole.ys[train].std()
            ys = (whole.ys - mean) / unit
            return Split(whole.xs[train], ys[train], whole.xs[test], ys[test])


def _scikit_learns() -> dict[str, Callable[[], Any]]:
    """Tables that come with scikit-learn, or are drawn by it; none is downloaded."""
    try:
        from sklearn import datasets
    except ImportError:
        raise ValueError("the comparison needs scikit-learn: pip install 'looped[baselines]'.") from None
    return {
        "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
        "wine": lambda: datasets.load_wine(return_X_y=True),
        "friedman1": lambda: datasets.make_friedman1(FRIEDMAN_ROWS, n_features=10, noise=1.0, random_state=0),
        "friedman2": lambda: datasets.make_friedman2(FRIEDMAN_ROWS, noise=100.0, random_state=0),
    }
