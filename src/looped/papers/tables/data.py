"""The tables that predictors are compared on: numbers from scikit-learn, and those of yang24 from files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from looped.tasks.data import data_folder
from looped.tasks.tables import OPENML, read

DEVELOPMENT = (*OPENML, "diabetes", "wine", "friedman1", "friedman2")
"""The tables that the prior was tuned on: what is measured on them flatters the model. Others judge."""
HELD_OUT = ("iris", "breast cancer", "digits", "friedman3")
"""Tables of scikit-learn that nothing was tuned on."""
NUMBERS = ("diabetes", "friedman1", "friedman2", "friedman3")
"""Tables whose labels are numbers; the others have classes."""
FRIEDMAN_ROWS = 2000


class NumericTable(NamedTuple):
    """A table of numbers; of a classification the labels are 0, 1, ..."""

    xs: Float[np.ndarray, "rows features"]
    ys: Float[np.ndarray, " rows"]


class Split(NamedTuple):
    """Rows of one table to learn from, and others to predict."""

    xs: Float[np.ndarray, "rows features"]
    ys: Float[np.ndarray, " rows"]
    test_xs: Float[np.ndarray, "tests features"]
    test_ys: Float[np.ndarray, " tests"]


def table(name: str) -> NumericTable:
    """A table by name."""
    if name in OPENML:
        return NumericTable(*read(data_folder("openml"), name))
    return NumericTable(*(np.asarray(part, dtype=np.float64) for part in _scikit_learns()[name]()))


def split(whole: NumericTable, rows: int, tests: int, seed: int) -> Split:
    """`rows` random rows to learn from, and at most `tests` others; drawn again while all labels are the same.

    Labels are standardised by the rows to learn from.
    """
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(whole.ys))
        train, test = order[:rows], order[rows : rows + tests]
        if whole.ys[train].std() > 0 and whole.ys[test].std() > 0:
            mean, unit = whole.ys[train].mean(), whole.ys[train].std()
            ys = (whole.ys - mean) / unit
            return Split(whole.xs[train], ys[train], whole.xs[test], ys[test])


def class_split(whole: NumericTable, rows: int, tests: int, seed: int) -> Split:
    """The same for classes, each of which has its share of the rows to learn from."""
    from sklearn.model_selection import train_test_split

    places, tests = np.arange(len(whole.ys)), min(tests, len(whole.ys) - rows)
    train, test = train_test_split(places, train_size=rows, test_size=tests, stratify=whole.ys, random_state=seed)
    return Split(whole.xs[train], whole.ys[train], whole.xs[test], whole.ys[test])


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
        "iris": lambda: datasets.load_iris(return_X_y=True),
        "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
        "digits": lambda: datasets.load_digits(return_X_y=True),
        "friedman2": lambda: datasets.make_friedman2(FRIEDMAN_ROWS, noise=100.0, random_state=0),
        "friedman3": lambda: datasets.make_friedman3(FRIEDMAN_ROWS, noise=0.1, random_state=0),
    }
