"""The default of InContextRegressor on tables: missing values, categories, quantiles, order, odd tables."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from looped.estimator import InContextRegressor
from looped.models.query_stream import can_share_examples
from looped.table_columns import MOST_CATEGORIES, Categories, Columns


def table(n=60, d=6, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] - np.abs(X[:, 1]) + noise * rng.normal(size=n)


class Frame:
    """What a DataFrame is to us: columns with names and types, and which values are missing."""

    def __init__(self, values, dtypes):
        self.values = np.array(values, dtype=object)
        self.dtypes = [np.dtype(dtype) for dtype in dtypes]
        self.columns = [f"column {index}" for index in range(len(dtypes))]
        self.shape = self.values.shape

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return self.values.astype(dtype)

    def isna(self):
        return np.array([[value is None or value != value for value in row] for row in self.values])


def test_it_is_better_than_ridge_on_rows_that_it_has_not_seen():
    X, y = load_diabetes(return_X_y=True)
    scores = {"ours": [], "ridge": []}
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:40], order[40:]
        ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 9)))
        for name, model in {"ours": InContextRegressor(), "ridge": ridge}.items():
            scores[name].append(model.fit(X[train], y[train]).score(X[test], y[test]))
    assert np.mean(scores["ours"]) > np.mean(scores["ridge"]) - 0.02
    assert np.mean(scores["ours"]) > 0.3


def test_the_order_of_rows_does_not_matter():
    X, y = table()
    order = np.random.default_rng(1).permutation(40)
    answers, again = (InContextRegressor().fit(X[:40][o], y[:40][o]).predict(X[40:]) for o in (np.arange(40), order))
    np.testing.assert_allclose(answers, again, atol=1e-8)
    assert not can_share_examples(InContextRegressor().fit(X, y).model_)


def test_missing_values_are_means():
    X, y = table()
    holes = X.copy()
    holes[::7, 2] = np.nan
    filled = np.where(np.isnan(holes), np.nanmean(holes[:40], 0), holes)
    answers, expected = (InContextRegressor().fit(rows[:40], y[:40]).predict(rows[40:]) for rows in (holes, filled))
    np.testing.assert_allclose(answers, expected, rtol=0.2, atol=0.2)  # a filled column has less variance
    X[:, 3] = np.nan
    assert np.isfinite(InContextRegressor().fit(X[:40], y[:40]).predict(X[40:])).all()


def test_quantiles():
    X, y = table(n=400, noise=1.0)
    ours = InContextRegressor().fit(X[:100], y[:100])
    low, middle, high = ours.predict(X[100:], quantiles=(0.05, 0.5, 0.95)).T
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert 0.8 < ((y[100:] > low) & (y[100:] < high)).mean() < 0.99
    with pytest.raises(ValueError, match=r"`quantiles` must be in \[0.05, 0.95\]; got \[0.99\]"):
        ours.predict(X, quantiles=[0.99])
    with pytest.raises(ValueError, match="gives no quantiles"):
        InContextRegressor("yang24.linear", loops=1).fit(X[:9], y[:9]).predict(X, quantiles=[0.5])


def test_categories_of_a_data_frame():
    rng = np.random.default_rng(0)
    colours, sizes = rng.choice(["red", "green", "blue"], 80), rng.normal(size=80)
    yes = rng.choice(["yes", "no"], 80)
    y = 2.0 * (colours == "red") + sizes - (yes == "no")
    values = [list(row) for row in zip(colours, sizes, yes, strict=True)]
    values[3][0] = values[5][1] = None
    frame, rest = (Frame(part, ["O", "f8", "O"]) for part in (values[:60], values[60:]))
    encoded = Categories(frame)(frame)
    assert encoded.shape == (60, 4 + 1 + 1)  # three colours and none, yes or no, a size
    ours = InContextRegressor().fit(frame, y[:60])
    assert ours.score(rest, y[60:]) > 0.8
    # a colour that comes up later is an answer, not an error
    assert np.isfinite(ours.predict(Frame([["violet", 0.0, "yes"]], ["O", "f8", "O"]))).all()
    many = Frame([[str(index)] for index in range(30)], ["O"])
    assert Categories(many)(many).shape[1] == MOST_CATEGORIES


def test_of_more_columns_than_the_model_reads_the_strongest_stay():
    X, y = table(d=30)
    columns = Columns(X, y, most=5, standardize=True)
    strength = [abs(np.corrcoef(column, y)[0, 1]) for column in X.T]
    assert set(columns.chosen) == set(np.argsort(strength)[-5:])
    assert InContextRegressor().fit(X[:40], y[:40]).predict(X[40:]).shape == (20,)


def test_odd_tables_have_an_answer_or_one_clear_line():
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(60):
        n, d = int(rng.integers(1, 40)), int(rng.integers(1, 30))
        X, y = rng.normal(size=(n, d)), rng.normal(size=n)
        X = X * 10.0 ** rng.choice([-200, -3, 0, 3, 200]) if trial % 3 == 0 else X
        X[:, 0] = rng.choice([1.0, np.nan, 0.0]) if trial % 4 == 0 else X[:, 0]
        X = np.repeat(X[:1], n, 0) if trial % 7 == 0 else X
        y = y * 10.0 ** rng.choice([-300, 0, 300]) if trial % 5 == 0 else y
        said = complaint(X, y)
        assert said is None or ("\n" not in said and "too large" in said), trial
        refused += said is not None
    assert 0 < refused < 20


def complaint(X, y):
    """What is said of a table that is refused; None where it has finite answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(InContextRegressor().fit(X, y).predict(X)).all()
    except ValueError as error:
        return str(error)
    return None
