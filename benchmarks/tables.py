"""Seconds to fit on a table and predict: our predictors beside tuned baselines, all in this run on one thread.

    python benchmarks/tables.py [--rows 100] [--tests 1000] [--features 10]

Each is the least of three. Exits 1 where one of ours takes more than a second for 1,000 rows from 100.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch
from sklearn.datasets import make_classification, make_friedman1

from looped import InContextClassifier, InContextRegressor
from looped.papers.tables.data import Split
from looped.papers.tables.rivals import CLASSIFIERS, REGRESSORS, classifiers, regressors, tuned, tuned_chances

LIMIT = 1.0


def least(action) -> float:
    """Seconds of the fastest of three."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--features", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.rows + options.tests
    numbers = make_friedman1(count, n_features=options.features, noise=1.0, random_state=0)
    classes = make_classification(count, n_features=options.features, random_state=0)
    slow = False
    for what, (X, y), ours, names, rivals, tune in (
        ("numbers", numbers, InContextRegressor, REGRESSORS, regressors(), tuned),
        ("classes", classes, InContextClassifier, CLASSIFIERS, classifiers(), tuned_chances),
    ):
        split = Split(X[: options.rows], np.asarray(y[: options.rows], float), X[options.rows :], y[options.rows :])
        took = least(lambda s=split, o=ours: o().fit(s.xs, s.ys).predict(s.test_xs))
        print(f"{what}: looped {took:.2f} s")
        slow = slow or took > LIMIT
        for name in names:
            estimator, grid = rivals[name]
            seconds = least(lambda s=split, e=estimator, g=grid, t=tune: t(e, g, s, 5))
            print(f"  {name}, tuned by 5 folds: {seconds:.2f} s, {seconds / took:.1f} times ours")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
