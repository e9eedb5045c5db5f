"""Models as scikit-learn predictors: the training rows are the examples of a prompt."""

from __future__ import annotations

import copy
import numbers
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, no_type_check

import numpy as np
import scipy.special
import torch
from torch import Tensor

from looped.experiment import Experiment, Setup
from looped.functional.quantiles import quantile_levels
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.models.query_stream import answer_all, can_share_examples
from looped.models.table_transformer import TableTransformer, answer_rows
from looped.prompt import Prompt
from looped.training.run import Run

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

    from looped.table_columns import Categories, Columns
except ImportError:
    raise ImportError("the predictors for tables need scikit-learn: pip install 'looped[baselines]'") from None

ROWS_PER_TRAINED = 4
"""A model without positions takes this many times the examples that it was trained on (docs/scikit_learn.md)."""


class InContextEstimator(BaseEstimator):
    """What the regressor and the classifier have in common: `fit` stores the rows, and the model reads them.

    `fit` takes no gradient step; `predict` shows the rows to the model as its prompt, followed by the rows to predict.
    Missing values and categories of a DataFrame are allowed.

    model: a kept model's name, a run folder, or a model (None: the kept one, which was trained on random tables).
    loops: None for as many as trained; "auto" until a row's answer stays. standardize: give every column mean 0 and
    variance 1, and a number y the variance that the model was trained with (1 if that is not known). batch: rows
    answered at once. contexts: if there are more rows than the model takes, average its answers over this many random
    subsets. random_state: draws the subsets, the same for every row to predict.
    """

    DEFAULT: ClassVar[str]
    """The kept model that is read unless another is named."""

    @no_type_check  # scikit-learn requires that anything is accepted here, and checked in `fit`
    def __init__(
        self,
        model: str | Path | LoopedModel | None = None,
        *,
        loops: int | Literal["auto"] | None = None,
        standardize: bool = True,
        batch: int = 1024,
        device: str = "cpu",
        random_state: Any = 0,
        contexts: int = 8,
    ):
        self.model = model
        self.loops = loops
        self.standardize = standardize
        self.batch = batch
        self.device = device
        self.random_state = random_state
        self.contexts = contexts

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may give it: missing values too."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _accepted(self, X: Any, y: Any, *, y_numeric: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels as arrays of numbers, categories replaced; labels of a classification as they are."""
        self._check_parameters()
        self._categories = Categories(X)
        if self._categories.columns:
            validate_data(self, X, skip_check_array=True)  # takes down the columns' names
            X, y = check_X_y(self._categories(X), y, **ACCEPTED, y_numeric=y_numeric)
        else:
            X, y = validate_data(self, X, y, **ACCEPTED, y_numeric=y_numeric)
        return X, y

    def _open(self, X: np.ndarray) -> Setup | None:
        """Open the model, which must be able to read X; what it was trained on."""
        self.model_, setup = self._opened()
        _check_model(self.model_)
        d = _width(self.model_)
        if X.shape[1] > d and not isinstance(self.model_, TableTransformer):
            raise ValueError(
                f"`X` may have at most {d} features, the d of this model; got {X.shape[1]}. Choose some, reduce them "
                f"(sklearn.decomposition.PCA({d})), or take a model of a larger d."
            )
        self.max_examples_ = self._most_examples(setup)
        return setup

    def _store(self, X: np.ndarray, ys: np.ndarray) -> None:
        """Keep the rows as the model will read them; `ys` has a row for every number that is predicted."""
        self._columns = Columns(X, ys, most=_width(self.model_), standardize=self.standardize)
        self._xs, self._ys = self._columns(X), ys
        self._subsets = [np.arange(len(X))]
        if self.max_examples_ is not None and len(X) > self.max_examples_:
            draw = check_random_state(self.random_state).choice
            self._subsets = [np.sort(draw(len(X), self.max_examples_, replace=False)) for _ in range(self.contexts)]

    def _outputs(self, X: Any) -> Iterator[np.ndarray]:
        """The model's answers of shape (ys, rows, outputs), once for every subset of the examples."""
        check_is_fitted(self)
        if self._categories.columns:
            validate_data(self, X, skip_check_array=True, reset=False)
            X = check_array(self._categories(X), **ACCEPTED)
        else:
            X = validate_data(self, X, reset=False, **ACCEPTED)
        read = self._columns(X)
        if isinstance(self.model_, TableTransformer):  # a decoder or a construction may grow as the function does
            _warn_of_far_rows(self._xs, read)
        ys, xs, queries = self._tensor(self._ys), self._features(self._xs), self._features(read)
        for rows in self._subsets:
            answers = [self._answers(xs[rows], ys[:, rows], part) for part in queries.split(self.batch)]
            outputs = torch.cat(answers, 1).double().cpu().numpy()
            if not np.isfinite(outputs).all():
                raise ValueError(
                    f"{(~np.isfinite(outputs).all((0, 2))).sum()} of {len(X)} predictions are not finite: the loops "
                    "diverge. Use fewer `loops`, or `standardize=True`."
                )
            yield outputs

    @torch.no_grad()
    def _answers(self, xs: Tensor, ys: Tensor, queries: Tensor) -> Tensor:
        """The model's answers to every query after all examples, for every row of ys."""
        if isinstance(self.model_, TableTransformer):
            return answer_rows(self.model_, xs, ys, queries, loops=self.loops)
        if self.loops == "auto":
            raise ValueError(f'`loops="auto"` is for the default models; got a {type(self.model_).__name__}.')
        if can_share_examples(self.model_):
            return answer_all(self.model_, xs, ys[0], queries, loops=self.loops)[None, :, None]
        return self.model_(_prompt(xs, ys[0], queries), loops=self.loops)[-1][None, :, -1:]

    def _check_parameters(self) -> None:
        """One clear line for a parameter of the wrong kind."""
        whole: dict[str, Any] = {"batch": self.batch, "contexts": self.contexts}
        if self.loops is not None and self.loops != "auto":
            whole["loops"] = self.loops
        for name, value in whole.items():
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{name}` must be a whole number, at least 1; got {value!r}.")
        if "loops" in whole:
            check_loops(whole["loops"])
        if not isinstance(self.standardize, (bool, np.bool_)):
            raise ValueError(f"`standardize` must be True or False; got {self.standardize!r}.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError):
            raise ValueError(f"`device` must be one that torch has here, such as 'cpu'; got {self.device!r}.") from None
        check_random_state(self.random_state)

    def _opened(self) -> tuple[LoopedModel, Setup | None]:
        """The model and what it was trained on; a copy, so that the caller's model stays on its device.

        On a CPU a model of a run computes in float64: answers then depend neither on batches nor on the rows' order.
        """
        model = self.DEFAULT if self.model is None else self.model
        if isinstance(model, LoopedModel):
            return copy.deepcopy(model).to(self.device).eval(), None
        if not isinstance(model, (str, Path)):
            raise ValueError(
                f"`model` must be a kept model's name, a run folder or a LoopedModel; got {type(model).__name__}."
            )
        run = Run.open(model)
        opened = run.model(self.device).eval()
        return opened.double() if torch.device(self.device).type == "cpu" else opened, run.setup

    def _most_examples(self, setup: Setup | None) -> int | None:
        """As many as in training, and as the model has positions for; more where it has none."""
        trained = setup.train.points - 1 if isinstance(setup, Experiment) else None
        if trained is not None and isinstance(self.model_, TableTransformer):
            trained *= ROWS_PER_TRAINED
        limits = [limit for limit in (trained, self.model_.config.max_examples) if limit is not None]
        return min(limits, default=None)

    def _features(self, xs: np.ndarray) -> Tensor:
        """With zeros for the features that there are not."""
        return torch.nn.functional.pad(self._tensor(xs), (0, _width(self.model_) - xs.shape[1]))

    def _tensor(self, values: np.ndarray) -> Tensor:
        """On the model's device, in its precision."""
        weight = next(self.model_.parameters(), torch.empty(0, dtype=torch.float64))
        return torch.tensor(values, dtype=weight.dtype, device=self.device)


class InContextRegressor(RegressorMixin, InContextEstimator):
    """Regression by a trained model that reads the training rows as its prompt; parameters: `InContextEstimator`."""

    DEFAULT = "tables.regressor"

    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store the rows as the model will read them."""
        X, y = self._accepted(X, y, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        setup = self._open(X)
        self._mean, self._unit = 0.0, 1.0
        if self.standardize:
            with np.errstate(over="ignore", invalid="ignore"):
                self._mean, deviation = float(y.mean()), float(y.std())
            if not np.isfinite(deviation):
                raise ValueError("`y` has numbers too large to standardise. Rescale it.")
            # a constant y is predicted by itself, whatever the model answers to labels of zero
            constant = deviation <= 10 * np.finfo(np.float64).eps * abs(self._mean)
            spread = 1.0 if setup is None else setup.task.label_variance**0.5
            self._unit = 0.0 if constant else deviation / spread
        self._store(X, (y[None] - self._mean) / (self._unit or 1.0))
        return self

    def predict(self, X: Any, quantiles: Sequence[float] | None = None) -> np.ndarray:
        """The mean of y at every row; or with `quantiles`, such as (0.05, 0.5, 0.95), a column for each of them."""
        check_is_fitted(self)
        levels = self._levels(quantiles)
        outputs = self._mean + self._unit * np.mean([answers[0] for answers in self._outputs(X)], axis=0)
        if levels is None:
            return outputs[:, 0]
        known = quantile_levels(outputs.shape[1] - 1)
        ascending = np.sort(outputs[:, 1:], axis=1)
        return np.stack([[np.interp(level, known, row) for level in levels] for row in ascending])

    def _levels(self, quantiles: Sequence[float] | None) -> Sequence[float] | None:
        if quantiles is None:
            return None
        count = getattr(self.model_.config, "quantiles", 0)
        if not count:
            raise ValueError(f"this {type(self.model_).__name__} gives no quantiles. Use the default model.")
        lowest, *_, highest = quantile_levels(count)
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        if not ((levels >= lowest) & (levels <= highest)).all():
            raise ValueError(f"`quantiles` must be in [{lowest:g}, {highest:g}]; got {quantiles!r}.")
        return levels.tolist()


class InContextClassifier(ClassifierMixin, InContextEstimator):
    """Classification by a trained model that reads the training rows as its prompt; parameters: `InContextEstimator`.

    Every class is asked for against the rest, and the chances are divided by their sum. `model` must be a
    TableTransformer whose answers are log-odds.
    """

    DEFAULT = "tables.classifier"

    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Store the rows as the model will read them."""
        X, y = self._accepted(X, y, y_numeric=False)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"`y` must have at least two classes; got one class, {self.classes_.tolist()[0]!r}.")
        self._open(X)
        if not (isinstance(self.model_, TableTransformer) and self.model_.config.answers == "log_odds"):
            raise ValueError(
                f"this {type(self.model_).__name__} does not answer with log-odds. Use the default model, or train a "
                "TableTransformer with `answers=log_odds`, such as the recipe tables.classifier."
            )
        self._store(X, (places == np.arange(len(self.classes_))[:, None]).astype(np.float64))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The chance of every class at every row, in the order of `classes_`."""
        chances = np.mean([scipy.special.expit(log_odds[..., 0]) for log_odds in self._outputs(X)], axis=0)
        return (chances / chances.sum(0)).T

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class at every row."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]


ACCEPTED: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
"""What scikit-learn checks in X."""


def _prompt(xs: Tensor, ys: Tensor, queries: Tensor) -> Prompt:
    """A prompt for every query: all examples, then the query with a label of 0, which is not read."""
    count = len(queries)
    all_xs = torch.cat([xs.expand(count, -1, -1), queries[:, None]], 1)
    return Prompt(all_xs, torch.cat([ys.expand(count, -1), ys.new_zeros(count, 1)], 1))


def _warn_of_far_rows(xs: np.ndarray, queries: np.ndarray) -> None:
    """Warn of rows that lie further outside the range of a feature than that range is wide."""
    low, high = xs.min(0), xs.max(0)
    room = np.where(high > low, high - low, np.inf)
    far = int(((queries < low - room) | (queries > high + room)).any(1).sum())
    if far:
        warnings.warn(
            f"{far} of {len(queries)} rows have a feature far outside the training rows, by more than their range: "
            "answers hardly grow there. Use a model that extrapolates, such as ridge, for such rows.",
            stacklevel=4,
        )


def _width(model: LoopedModel) -> int:
    """The dimension of x that a model reads."""
    d = model.config.d
    if d is None:
        raise ValueError(f"{type(model).__name__} does not say what x it reads. Give its config a field `d`.")
    return d


def _check_model(model: LoopedModel) -> None:
    """Refuse a model that does not answer each query with one number; measured on a prompt of zeros."""
    weight = next(model.parameters(), torch.empty(0, dtype=torch.float64))
    zeros = torch.zeros(2, _width(model), dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        shape = tuple(model(_prompt(zeros[:1], zeros[:1, 0], zeros[1:]), loops=1)[-1].shape)
    if not model.config.hides_labels or shape not in ((1, 1), (1, 2)) or (shape == (1, 2) and not model.causal):
        raise ValueError(
            f"this {type(model).__name__} does not answer each query with one number from the pairs before it. Use a "
            "causal model of pairs, such as a LoopedDecoder, or one that reads the last pair as its query."
        )
