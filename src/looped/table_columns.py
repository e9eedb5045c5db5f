"""Columns of a user's table as numbers: categories, missing values, more columns than a model reads."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder

Numbers = Float[np.ndarray, "rows columns"]
MOST_CATEGORIES = 8
"""Columns that one column of categories becomes at most; rarer categories share one."""
WILD = 10.0
"""Standardised numbers enter principal components up to this size."""


class Categories:
    """Categories of a DataFrame as columns of 0 and 1; numbers, and arrays, pass as they are.

    Two categories are one column. Rare categories share a column, and so do those that come up only later. A missing
    value is a category of its own.
    """

    def __init__(self, X: Any):
        dtypes = X.dtypes if hasattr(X, "columns") and hasattr(X, "dtypes") else ()
        self.columns = [index for index, dtype in enumerate(dtypes) if getattr(dtype, "kind", "O") not in "buif"]
        encoder = OneHotEncoder(
            drop="if_binary",
            handle_unknown="infrequent_if_exist",
            max_categories=MOST_CATEGORIES,
            sparse_output=False,
        )
        self.transformer = ColumnTransformer([("categories", encoder, self.columns)], remainder="passthrough")
        if self.columns:
            self.transformer.fit(_objects(X))

    def __call__(self, X: Any) -> Any:
        """The table with numbers alone."""
        with warnings.catch_warnings():  # what an unknown category becomes is said above
            warnings.filterwarnings("ignore", message="Found unknown categories")
            return self.transformer.transform(_objects(X))


def _objects(X: Any) -> np.ndarray:
    """A DataFrame as an array, with one kind of missing value."""
    values = np.array(X, dtype=object)
    values[np.asarray(X.isna(), dtype=bool)] = np.nan
    return values


class Columns:
    """At most `most` columns of numbers without gaps, standardised.

    A missing value becomes the mean of its column. Of more columns than `most` those stay that correlate most with a
    row of `ys`; a third of the places goes to the first principal components of all.
    """

    def __init__(self, X: Numbers, ys: Float[np.ndarray, "labels rows"], *, most: int, standardize: bool):
        filled = np.where(np.isnan(X), 0.0, X)
        count = np.maximum((~np.isnan(X)).sum(0), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            self.fill = filled.sum(0) / count
            deviation = np.sqrt(np.where(np.isnan(X), 0.0, np.square(X - self.fill)).sum(0) / count)
        if not (np.isfinite(deviation).all() and np.isfinite(self.fill).all()):
            column = int((~np.isfinite(deviation + self.fill)).argmax())
            raise ValueError(f"column {column} of `X` has numbers too large to standardise. Rescale it.")
        constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(self.fill)
        self.deviation = np.where(constant, 1.0, deviation)
        self.standardize = standardize
        self.chosen, self.components = np.arange(X.shape[1]), np.zeros((0, X.shape[1]))
        if X.shape[1] > most:
            scaled = self._scaled(X)
            strength = np.abs((ys - ys.mean(1, keepdims=True)) @ scaled).max(0)
            self.components = np.linalg.svd(scaled, full_matrices=False)[2][: most // 3]
            self.chosen = np.sort(np.argsort(-strength, kind="stable")[: most - len(self.components)])

    def __call__(self, X: Numbers) -> Float[np.ndarray, "rows chosen"]:
        """The columns that the model reads."""
        scaled = self._scaled(X)
        columns = scaled if self.standardize else self._filled(X)
        # one wild number must not spoil all components
        components = np.clip(scaled, -WILD, WILD) @ self.components.T
        return np.hstack([columns[:, self.chosen], components])

    def _filled(self, X: Numbers) -> Numbers:
        return np.where(np.isnan(X), self.fill, X)

    def _scaled(self, X: Numbers) -> Numbers:
        return (self._filled(X) - self.fill) / self.deviation
