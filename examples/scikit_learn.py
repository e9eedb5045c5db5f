"""A trained model as a scikit-learn regressor: `fit` stores the rows, and no weight changes.

pip install 'looped[baselines]'
python examples/scikit_learn.py
"""

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import ShuffleSplit, cross_val_score

import looped


def main(splits=3):
    """Compare it with ridge on linear data without noise, which is what `yang24.linear` was trained on."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 10))
    y = X @ rng.normal(size=10)
    rows = ShuffleSplit(splits, train_size=40, test_size=20, random_state=0)
    for name, model in {"in context": looped.InContextRegressor(loops=20), "ridge": RidgeCV()}.items():
        print(f"{name}: R2 {cross_val_score(model, X, y, cv=rows).mean():.4f}")


if __name__ == "__main__":
    main()
