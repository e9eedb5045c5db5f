"""The predictor with scikit-learn's interface: against direct calls, least squares, and scikit-learn's own checks."""

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import looped
from looped.constructions.gradient_descent import looped_descent, vector_descent
from looped.estimator import InContextClassifier, InContextRegressor
from looped.models.algoformer import AlgoFormerConfig
from looped.models.blocks import stack
from looped.models.query_stream import answer_all, can_share_examples
from looped.training.run import save_model


def descent(d=8, loops=50, rate=0.2):
    """Gradient descent on any number of standardised examples, exact in float64."""
    return looped_descent(d=d, n=1, loops=loops, rate=rate)


def decoder(**fields):
    """A small untrained decoder in float64."""
    torch.manual_seed(0)
    config = looped.DecoderConfig(d=5, width=16, heads=2, positions=22, loops=3, **fields)
    return config.build().double()


LINEAR = "yang24.linear"
MODELS = st.sampled_from([decoder(), descent(d=5, loops=5)])


@pytest.fixture(scope="module")
def rows():
    """60 rows of one noise-free linear function from the distribution of `yang24.linear`."""
    prompt = looped.LinearRegression(d=20).sample(batch=1, n=60, generator=torch.Generator().manual_seed(1))
    return prompt.xs[0].numpy(), prompt.ys[0].numpy()


def linear(n=30, d=5, seed=0, noise=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + noise * rng.normal(size=n)


@parametrize_with_checks([InContextRegressor(), InContextClassifier()])
def test_scikit_learns_own_checks_as_shipped(estimator, check):
    check(estimator)


def test_equals_the_model_on_the_same_prompt(rows):
    X, y = rows
    answers = InContextRegressor(LINEAR, standardize=False).fit(X[:40], y[:40]).predict(X[40:46])
    xs, ys = torch.from_numpy(X), torch.from_numpy(y)
    each = torch.stack([torch.cat([xs[:40], query[None]]) for query in xs[40:46]])
    labels = torch.cat([ys[:40], torch.zeros(1)]).expand(6, -1)
    direct = looped.load("yang24.linear").predict(looped.Prompt(each, labels))[:, -1]
    np.testing.assert_allclose(answers, direct.numpy(), atol=1e-5)


def test_the_kept_model_is_near_least_squares(rows):
    X, y = rows
    assert InContextRegressor(LINEAR, standardize=False).fit(X[:40], y[:40]).score(X[40:], y[40:]) > 0.99
    # other columns, units and offsets
    rng = np.random.default_rng(0)
    X, y = X[:, rng.permutation(20)] * rng.uniform(0.01, 100, 20) + rng.normal(size=20), 30 * y - 1000
    ours, exact = (one.fit(X[:40], y[:40]) for one in (InContextRegressor(LINEAR), LinearRegression()))
    assert ours.score(X[40:], y[40:]) > 0.9
    assert np.corrcoef(ours.predict(X[40:]), exact.predict(X[40:]))[0, 1] > 0.99


def test_looped_descent_ends_at_least_squares():
    X, y = linear(noise=0.5)
    ours = InContextRegressor(descent(loops=300)).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), LinearRegression().fit(X, y).predict(X), atol=1e-8)


@pytest.mark.parametrize("fields", [{}, {"layers": 2}, {"inside": False}, {"inject": "none"}, {"inject": "multiply"}])
@pytest.mark.parametrize("loops", [None, 1, 5])
def test_one_pass_for_all_queries_equals_a_prompt_each(fields, loops):
    model, (X, y) = decoder(**fields), linear(n=14)
    ours = InContextRegressor(model, loops=loops, standardize=False, batch=3).fit(X[:10], y[:10])
    xs = torch.stack([torch.from_numpy(np.vstack([X[:10], query])) for query in X[10:]])
    ys = torch.from_numpy(np.append(y[:10], 0)).expand(4, -1)
    direct = model.predict(looped.Prompt(xs, ys), loops=loops)[:, -1]
    np.testing.assert_allclose(ours.predict(X[10:]), direct, atol=1e-12)


def test_only_decoders_that_read_positions_with_the_prompt_share():
    assert can_share_examples(decoder())
    assert can_share_examples(decoder(inject="none", inside=False))
    assert not can_share_examples(decoder(inject="multiply"))
    assert not can_share_examples(descent())
    own = type("Own", (looped.LoopedDecoder,), {})(decoder().config)
    assert not can_share_examples(own)
    model = decoder()
    with torch.no_grad():
        answer_all(model, torch.zeros(3, 5).double(), torch.zeros(3).double(), torch.ones(2, 5).double())
    assert "mix" not in vars(model.blocks[0].attention)  # type: ignore[operator]


@given(data=st.data(), n=st.integers(2, 25), batch=st.integers(1, 9), model=MODELS)
@settings(max_examples=15, deadline=None)
def test_answers_do_not_depend_on_batches_or_order(data, n, batch, model):
    (X, y), queries = linear(n=n), linear(seed=1, n=7)[0]
    order = data.draw(st.permutations(range(7)))
    whole = InContextRegressor(model, contexts=2).fit(X, y).predict(queries)
    parts = InContextRegressor(model, contexts=2, batch=batch).fit(X, y).predict(queries[order])
    np.testing.assert_allclose(parts, whole[order], rtol=1e-9, atol=1e-11)


@given(scale=st.floats(1e-6, 1e6), shift=st.floats(-100, 100), model=MODELS)
@settings(max_examples=15, deadline=None)
def test_scaling_y_scales_the_answers(scale, shift, model):
    (X, y), queries = linear(n=9), linear(seed=1, n=4)[0]
    ours = InContextRegressor(model)
    plain, scaled = ours.fit(X, y).predict(queries), ours.fit(X, scale * (y + shift)).predict(queries)
    np.testing.assert_allclose(scaled, scale * (plain + shift), rtol=1e-7, atol=1e-7 * scale)


def test_more_rows_than_the_model_takes_are_shown_as_random_subsets(tmp_path):
    X, y = linear(n=50, noise=1.0)
    ours = InContextRegressor(decoder(), contexts=3).fit(X, y)
    assert ours.max_examples_ == 10  # 22 positions, 11 pairs, one of them the query
    again = InContextRegressor(decoder(), contexts=3).fit(X, y).predict(X)
    np.testing.assert_array_equal(ours.predict(X), again)
    assert not np.array_equal(InContextRegressor(decoder(), contexts=3, random_state=1).fit(X, y).predict(X), again)
    # the mean over the subsets, each of which is asked about every row
    alone = [InContextRegressor(decoder(), standardize=False).fit(X[rows], y[rows]).predict(X) for rows in _subsets(3)]
    np.testing.assert_allclose(
        InContextRegressor(decoder(), contexts=3, standardize=False).fit(X, y).predict(X), np.mean(alone, 0), atol=1e-12
    )
    assert InContextRegressor(LINEAR).fit(X, y).max_examples_ == 40  # trained on 41 points, though it has 203 positions
    assert InContextRegressor(descent()).fit(X, y).max_examples_ is None
    save_model(tmp_path / "run", decoder(), looped.LinearRegression(d=5), name="made")
    assert InContextRegressor(tmp_path / "run").fit(X, y).max_examples_ == 10


def _subsets(count):
    random = np.random.RandomState(0)
    return [np.sort(random.choice(50, 10, replace=False)) for _ in range(count)]


def test_constant_columns_and_labels():
    X, y = linear(n=20)
    X[:, 2] = 3.0
    assert np.isfinite(InContextRegressor(decoder()).fit(X, y).predict(X + 1)).all()
    np.testing.assert_allclose(InContextRegressor(decoder()).fit(X, np.full(20, 7.1)).predict(X), 7.1, rtol=1e-14)


def test_pipeline_cross_validation_and_grid():
    X, y = linear(n=40)
    pipe = make_pipeline(MinMaxScaler(), InContextRegressor(descent(d=6)))
    assert cross_val_score(pipe, X, y, cv=4).min() > 0.99
    grid = GridSearchCV(InContextRegressor(descent(d=6)), {"loops": [1, 3, 60]}, cv=3).fit(X, y)
    assert grid.best_params_ == {"loops": 60}


def test_a_name_stays_a_name_and_a_fitted_one_travels(rows):
    X, y = rows
    ours = InContextRegressor("yang24.linear", loops=2).fit(X[:40], y[:40])
    assert ours.get_params()["model"] == "yang24.linear"
    assert not hasattr(clone(ours), "model_")
    unfitted, fitted = io.BytesIO(), io.BytesIO()
    joblib.dump(clone(ours), unfitted)
    assert unfitted.tell() < 2000
    joblib.dump(ours, fitted)
    fitted.seek(0)
    np.testing.assert_array_equal(joblib.load(fitted).predict(X[40:]), ours.predict(X[40:]))


def test_threads_may_share_one_predictor_and_the_users_model_is_left_alone():
    model, (X, y) = decoder(), linear(n=10)
    model.train()
    ours = InContextRegressor(model, batch=4).fit(X, y)
    assert model.training
    assert ours.model_ is not model
    queries = [linear(n=size, seed=size)[0] for size in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ours.predict, queries))
    for answers, query in zip(together, queries, strict=True):
        np.testing.assert_allclose(answers, ours.predict(query), atol=1e-12)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (vector_descent(d=5, rates=[0.1]), "one number"),
        (vector_descent(d=1, rates=[0.1]), "one number"),
        (stack([decoder(), decoder()]), "one number"),
        (AlgoFormerConfig(d=5, width=8, tokens="given").build(), "reads a sequence; got pairs"),
        ("yang24.liner", "yang24.linear"),
        (7, "`model` must be a kept model's name, a run folder or a LoopedModel; got int"),
    ],
)
def test_other_models_are_refused_in_one_line(model, said):
    X, y = linear(d=1)
    with pytest.raises(ValueError, match=said) as error:
        InContextRegressor(model).fit(X, y)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"loops": 0}, "`loops` must be a whole number, at least 1; got 0"),
        ({"loops": 1.5}, "`loops` must be a whole number, at least 1; got 1.5"),
        ({"batch": "a"}, "`batch` must be a whole number, at least 1; got 'a'"),
        ({"contexts": True}, "`contexts` must be a whole number, at least 1; got True"),
        ({"standardize": "no"}, "`standardize` must be True or False; got 'no'"),
        ({"device": "gpu"}, "`device` must be one that torch has here, such as 'cpu'; got 'gpu'"),
        ({"model": descent(d=4)}, "at most 4 features, the d of this model; got 5"),
    ],
)
def test_bad_parameters(params, said):
    with pytest.raises(ValueError, match=said):
        InContextRegressor(**{"model": descent(), **params}).fit(*linear())


def test_diverging_loops_are_told():
    X, y = linear()
    model = descent(d=5, loops=60, rate=1e8)
    with pytest.raises(ValueError, match="not finite: the loops diverge"):
        InContextRegressor(model).fit(X, y).predict(X)


def test_an_algoformer_that_reads_the_last_pair_as_its_query():
    torch.manual_seed(0)
    model = AlgoFormerConfig(d=5, width=16, positions=40, query="last", causal=False, loops=2).build()
    X, y = linear()
    assert InContextRegressor(model).fit(X, y).predict(X).shape == (30,)


def test_scikit_learn_is_imported_only_when_asked_for():
    lines = [
        "import sys, looped; assert 'sklearn' not in sys.modules",
        "sys.modules['sklearn'] = None",
        "from looped import *",
        "try: looped.InContextRegressor",
        "except ImportError as error: print(error)",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert found.stdout == "the predictors for tables need scikit-learn: pip install 'looped[baselines]'\n"
    assert looped.InContextRegressor is InContextRegressor
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        looped.Nothing  # noqa: B018
