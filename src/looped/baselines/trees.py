"""Greedy and boosted trees, fitted by scikit-learn and XGBoost for each prompt and prefix."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.baselines.positions import Report, chosen
from looped.functional.counts import check_at_least
from looped.prompt import Prompt

Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
"""(examples, labels, query of shape (1, d)) -> prediction."""


@checked
def greedy_tree(
    prompt: Prompt,
    *,
    depth: int | None = None,
    at: Sequence[int] | None = None,
    progress: Report | None = None,
    seed: int = 0,
) -> Float[Tensor, "batch n"]:
    """Predict y_i by scikit-learn's regression tree fitted to the i-1 pairs before it.

    Ref: yang24, Fig. 10b. Its released program uses `depth` 2 on x and 4 on sign(x); None grows until every leaf is
    pure. `seed` chooses between equally good splits. Positions not in `at` are NaN.
    """
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError:
        raise _missing("scikit-learn") from None
    check_at_least(1, depth=depth)

    def fit(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
        return float(DecisionTreeRegressor(max_depth=depth, random_state=seed).fit(xs, ys).predict(query)[0])

    return _by_prefix(prompt, fit, at, progress, workers=1)


@checked
def boosted(
    prompt: Prompt,
    *,
    depth: int = 4,
    trees: int = 50,
    rate: float = 0.1,
    at: Sequence[int] | None = None,
    progress: Report | None = None,
    workers: int = 1,
) -> Float[Tensor, "batch n"]:
    """Predict y_i by XGBoost fitted to the i-1 pairs before it. Ref: yang24, Fig. 10b (depth 4, 50 trees, rate 0.1).

    The booster is called directly, with the same results as `xgboost.XGBRegressor`, which spends most of its time on
    checks when examples are few. XGBoost computes in float32; `workers` threads can run it at once.
    """
    try:
        import xgboost
    except ImportError:
        raise _missing("xgboost-cpu") from None
    check_at_least(1, depth=depth, trees=trees)
    settings = {"max_depth": depth, "learning_rate": rate, "objective": "reg:squarederror", "nthread": 1}

    def fit(xs: np.ndarray, ys: np.ndarray, query: np.ndarray) -> float:
        data = xgboost.DMatrix(xs, ys, nthread=1)
        return float(xgboost.train(settings, data, trees).inplace_predict(query)[0])

    return _by_prefix(prompt, fit, at, progress, workers=workers)


def _by_prefix(
    prompt: Prompt, fit: Fit, at: Sequence[int] | None, progress: Report | None, *, workers: int
) -> Float[Tensor, "batch n"]:
    """One fit for each prompt and position in `at`; `workers` threads share the prompts."""
    check_at_least(1, workers=workers)
    xs, ys = prompt.xs.detach().cpu().double().numpy(), prompt.ys.detach().cpu().double().numpy()
    batch, n = ys.shape
    predictions = np.full((batch, n), np.nan)
    positions = chosen(at, n)
    counter, lock, total = itertools.count(1), threading.Lock(), batch * max(1, len(positions))

    def fit_prompt(row: int) -> None:
        for i in positions:
            predictions[row, i] = fit(xs[row, :i], ys[row, :i], xs[row, i : i + 1]) if i else 0.0
            with lock:
                done = next(counter)
                if progress and (done % 100 == 0 or done == total):
                    progress(done / total)

    if workers == 1:
        for row in range(batch):
            fit_prompt(row)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(fit_prompt, range(batch)))
    return torch.from_numpy(predictions).to(prompt.ys.device)


def _missing(package: str) -> ValueError:
    return ValueError(f"this baseline needs {package}, which is not installed: pip install 'looped[baselines]'")
