"""What people use on small tables, tuned by cross-validation over fixed grids of at most 8 settings."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from looped.files import read_json, write_json
from looped.papers.tables.data import Split
from looped.tasks.data import cache_folder

Rivals = Mapping[str, tuple[Any, Mapping[str, Sequence[Any]]]]
"""By name: an estimator of scikit-learn's kind, and the grid that it is tuned over."""
Values = Float[np.ndarray, "tests outputs"]
"""What a predictor answers for the test rows of a split."""
REGRESSORS = ("ridge", "lasso", "neighbours", "random forest", "boosting", "Gaussian process")
CLASSIFIERS = ("logistic regression", "neighbours", "random forest", "boosting", "Gaussian process")


def regressors() -> Rivals:
    """For numbers."""
    try:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
        from sklearn.linear_model import Lasso, Ridge
        from sklearn.neighbors import KNeighborsRegressor
        from xgboost import XGBRegressor
    except ImportError:
        raise ValueError("the comparison needs its baselines: pip install 'looped[baselines]'.") from None
    smooth = ConstantKernel() * RBF(3.0, (0.3, 100.0)) + WhiteKernel(0.3, (1e-3, 10.0))
    with_linear = smooth + ConstantKernel(0.1) * DotProduct(1.0, "fixed")
    boosted = XGBRegressor(n_estimators=100, n_jobs=1, random_state=0, subsample=0.8)
    return {
        "ridge": (Ridge(), {"alpha": [0.1, 0.3, 1, 3, 10, 30, 100, 300]}),
        "lasso": (Lasso(max_iter=10_000), {"alpha": [0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]}),
        "neighbours": (KNeighborsRegressor(), {"n_neighbors": [3, 5, 8, 14], "weights": ["uniform", "distance"]}),
        "random forest": (RandomForestRegressor(100, random_state=0), {"max_features": [0.33, 1.0]}),
        "boosting": (boosted, {"max_depth": [2, 4], "learning_rate": [0.03, 0.1]}),
        "Gaussian process": (GaussianProcessRegressor(random_state=0), {"kernel": [smooth, with_linear]}),
    }


def classifiers() -> Rivals:
    """For classes."""
    try:
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.gaussian_process import GaussianProcessClassifier
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier
        from xgboost import XGBClassifier
    except ImportError:
        raise ValueError("the comparison needs its baselines: pip install 'looped[baselines]'.") from None
    smooth = ConstantKernel() * RBF(3.0, (0.3, 100.0))
    with_linear = smooth + ConstantKernel(0.1) * DotProduct(1.0, "fixed")
    boosted = XGBClassifier(n_estimators=100, n_jobs=1, random_state=0, subsample=0.8)
    return {
        "logistic regression": (LogisticRegression(max_iter=2000), {"C": [0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]}),
        "neighbours": (KNeighborsClassifier(), {"n_neighbors": [3, 5, 8, 14], "weights": ["uniform", "distance"]}),
        "random forest": (RandomForestClassifier(100, random_state=0), {"max_features": [0.33, 1.0, "sqrt"]}),
        "boosting": (boosted, {"max_depth": [2, 4], "learning_rate": [0.03, 0.1]}),
        "Gaussian process": (GaussianProcessClassifier(random_state=0), {"kernel": [smooth, with_linear]}),
    }


def cached(about: str, split: Split, compute: Callable[[Split], Values]) -> Values:
    """What was computed before `about` the same split is read from `cache_folder()` / tables."""
    key = hashlib.sha256(about.encode())
    for part in split:
        key.update(np.ascontiguousarray(part).tobytes())
    file = cache_folder() / "tables" / f"{key.hexdigest()[:32]}.json"
    if file.is_file():
        return np.array(read_json(file)["values"])
    values = np.asarray(compute(split), dtype=np.float64)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"about": about, "values": values.tolist()})
    return values


def answers(name: str, split: Split, folds: int) -> Values:
    """A regressor's answers to a split, tuned by as many folds."""
    estimator, grid = regressors()[name]
    about = f"{name} {estimator!r} {sorted(grid.items())!r} {folds}"
    return cached(about, split, lambda split: tuned(estimator, grid, split, folds)[:, None])


def chances(name: str, split: Split, folds: int) -> Values:
    """The chances of the classes by a classifier, tuned by as many folds."""
    estimator, grid = classifiers()[name]
    about = f"chances {name} {estimator!r} {sorted(grid.items())!r} {folds}"
    return cached(about, split, lambda split: tuned_chances(estimator, grid, split, folds))


def tuned(estimator: Any, grid: Mapping[str, Sequence[Any]], split: Split, folds: int) -> Float[np.ndarray, " tests"]:
    """Choose a setting by the squared error over the folds, and fit it to all rows."""
    from sklearn.model_selection import KFold

    shuffled = KFold(folds, shuffle=True, random_state=0)
    return _searched(estimator, grid, split, shuffled, "neg_mean_squared_error").predict(split.test_xs)


def tuned_chances(estimator: Any, grid: Mapping[str, Sequence[Any]], split: Split, folds: int) -> Values:
    """Choose a setting by the log loss over the folds, each with its share of every class, and fit it to all rows."""
    from sklearn.metrics import log_loss, make_scorer
    from sklearn.model_selection import StratifiedKFold

    classes, counts = np.unique(split.ys, return_counts=True)
    shuffled = StratifiedKFold(min(folds, counts.min()), shuffle=True, random_state=0)
    score = make_scorer(log_loss, greater_is_better=False, response_method="predict_proba", labels=classes)
    return _searched(estimator, grid, split, shuffled, score).predict_proba(split.test_xs)


def _searched(estimator: Any, grid: Mapping[str, Sequence[Any]], split: Split, folds: Any, scoring: Any) -> Any:
    """The best setting, fitted to standardised columns."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), estimator)
    settings = {f"{pipeline.steps[-1][0]}__{key}": values for key, values in grid.items()}
    search = GridSearchCV(pipeline, settings, cv=folds, scoring=scoring)
    with warnings.catch_warnings():  # a Gaussian process at the edge of its bounds, a lasso that has not converged
        warnings.simplefilter("ignore")
        return search.fit(split.xs, split.ys)
