"""The default predictors on tables: classes, missing values, categories, quantiles, order, odd tables."""

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from looped.estimator import InContextClassifier, InContextRegressor
from looped.models.query_stream import can_share_examples
from looped.models.table_transformer import answer_rows
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


def test_of_more_columns_than_the_model_reads_the_strongest_stay_beside_principal_components():
    X, y = table(d=30)
    X[:, 9] *= 100.0
    columns = Columns(X, y[None], most=6, standardize=True)
    strength = [abs(np.corrcoef(column, y)[0, 1]) for column in X.T]
    assert set(columns.chosen) == set(np.argsort(strength)[-4:])
    scaled = StandardScaler().fit_transform(X)
    expected, components = PCA(2).fit_transform(scaled), columns(X)[:, 4:]
    np.testing.assert_allclose(np.abs(components), np.abs(expected), atol=1e-8)
    np.testing.assert_allclose(columns(X)[:, :4], scaled[:, columns.chosen], atol=1e-12)
    wild = X[:1].copy()
    wild[0, 9] = 1e12
    assert np.abs(columns(wild)[:, 4:]).max() < 30
    assert InContextRegressor().fit(X[:40], y[:40]).predict(X[40:]).shape == (20,)


@pytest.mark.parametrize("predictor", [InContextRegressor, InContextClassifier])
def test_odd_tables_have_an_answer_or_one_clear_line(predictor):
    rng = np.random.default_rng(0)
    refused = Counter()
    for trial in range(150):
        n, d = int(rng.integers(1, 40)), int(rng.integers(1, 60))
        X, y = rng.normal(size=(n, d)), rng.normal(size=n)
        X = X * 10.0 ** rng.choice([-200, -3, 0, 3, 200]) if trial % 3 == 0 else X
        X[:, 0] = rng.choice([1.0, np.nan, 0.0]) if trial % 4 == 0 else X[:, 0]
        X = np.full_like(X, np.nan) if trial % 11 == 0 else X
        X = np.repeat(X[:1], n, 0) if trial % 7 == 0 else X
        X = X.astype(object) if trial % 13 == 0 else X
        X[0, 0] = "text" if trial % 13 == 0 else X[0, 0]
        y = y * 10.0 ** rng.choice([-300, 0, 300]) if trial % 5 == 0 else y
        y = rng.integers(0, rng.integers(1, 12), size=n) if predictor is InContextClassifier else y
        said = complaint(predictor(), X, y)
        if said is not None:
            assert "\n" not in said, trial
            [reason] = [words for words in REASONS if words in said]
            refused[reason] += 1
    assert refused.total() < 60
    assert {"too large", "could not convert"} <= set(refused)


REASONS = ("too large", "could not convert", "at least two classes")


def complaint(predictor, X, y):
    """What is said of a table that is refused; None where it has finite answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(predictor.fit(X, y).predict(X)).all()
    except ValueError as error:
        return str(error)
    return None


def test_rows_far_outside_are_told():
    X, y = table()
    fitted = InContextRegressor().fit(X[:40], y[:40])
    with pytest.warns(UserWarning, match="2 of 5 rows have a feature far outside"):
        fitted.predict(np.vstack([X[40:43], 100 * X[43:44], X[44:45] - 20]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict(X[:40])
        # of a column that was constant nothing is known
        X[:, 0] = 1.0
        InContextRegressor().fit(X, y).predict(X + np.eye(1, 6))


@pytest.mark.parametrize("predictor", [InContextRegressor, InContextClassifier])
def test_loops_until_answers_stay(predictor):
    X, y = table(n=240)
    y = y > 0 if predictor is InContextClassifier else y
    auto, fixed = (predictor(loops=loops).fit(X[:40], y[:40]).score(X[40:], y[40:]) for loops in ("auto", None))
    assert auto == pytest.approx(fixed, abs=0.03)
    with pytest.raises(ValueError, match=r"`loops=\"auto\"` is for the default models; got a LoopedDecoder"):
        InContextRegressor("yang24.linear", loops="auto").fit(X[:40], y[:40]).predict(X)
    with pytest.raises(ValueError, match="`loops` must be a whole number, at least 1; got 'all'"):
        predictor(loops="all").fit(X, y)


def test_classes_are_asked_for_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:60], order[60:]
    fitted = InContextClassifier().fit(X[train], names[train])
    assert fitted.score(X[test], names[test]) > 0.9
    chances = fitted.predict_proba(X[test])
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-12)
    xs, queries = (torch.nn.functional.pad(torch.from_numpy(X[part]), (0, 26)) for part in (train, test))
    alone = [
        answer_rows(fitted.model_, xs, torch.from_numpy(names[train] == name).double(), queries)[:, 0].sigmoid()
        for name in fitted.classes_
    ]
    np.testing.assert_allclose(chances, torch.stack(alone, 1) / sum(alone)[:, None], atol=1e-6)
    # names of classes mean nothing
    renamed = InContextClassifier().fit(X[train], -y[train]).predict_proba(X[test])
    np.testing.assert_allclose(renamed[:, ::-1], chances, atol=1e-9)


def test_two_classes_are_each_others_rest():
    losses = {"ours": [], "logistic": []}
    for seed in range(5):
        X, y = table(n=250, noise=1.0, seed=seed)
        classes = y > np.median(y)
        for name, model in {"ours": InContextClassifier(), "logistic": LogisticRegression()}.items():
            chances = model.fit(X[:50], classes[:50]).predict_proba(X[50:])[:, 1]
            losses[name].append(log_loss(classes[50:], chances))
    assert np.mean(losses["ours"]) < np.mean(losses["logistic"])
    chances = InContextClassifier().fit(X[:50], classes[:50]).predict_proba(X[50:])[:, 1]
    assert chances.mean() == pytest.approx(classes[50:].mean(), abs=0.1)
    turned = InContextClassifier().fit(X[:50], ~classes[:50]).predict_proba(X[50:])[:, 0]
    np.testing.assert_allclose(turned, chances, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "said"),
    [("tables.regressor", "does not answer with log-odds"), ("yang24.linear", "does not answer with log-odds")],
)
def test_models_that_give_no_chances_are_refused(model, said):
    X, y = table()
    with pytest.raises(ValueError, match=said) as error:
        InContextClassifier(model).fit(X, y > 0)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="at least two classes; got one class, 3"):
        InContextClassifier().fit(X, np.full(60, 3))
