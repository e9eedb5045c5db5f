"""A predictor for small tables: `fit` stores the rows, and no weight changes.

pip install 'looped[baselines]'
python examples/scikit_learn.py
"""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import looped


def main(splits=10):
    """Compare it with tuned ridge regression, with 40 of the rows of a table that it has never seen."""
    X, y = load_diabetes(return_X_y=True)
    rows = ShuffleSplit(splits, train_size=40, test_size=200, random_state=0)
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 9)))
    for name, model in {"in context": looped.InContextRegressor(), "ridge": ridge}.items():
        print(f"{name}: R2 {cross_val_score(model, X, y, cv=rows).mean():.3f}")


if __name__ == "__main__":
    main()
