"""A model as a scikit-learn regressor: the training rows are the examples of its prompt."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
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
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data

    from looped.table_columns import Categories, Columns
except ImportError:
    raise ImportError("InContextRegressor needs scikit-learn: pip install 'looped[baselines]'") from None

DEFAULT = "tables.regressor"
ROWS_PER_TRAINED = 4
"""A model without positions takes this many times the examples that it was trained on (docs/scikit_learn.md)."""


class InContextRegressor(RegressorMixin, BaseEstimator):
    """Regression by a trained model that reads the training rows as its prompt; no weight changes.

    `fit` stores the rows, without a gradient step; `predict` shows them to the model, followed by the rows to predict.
    Missing values and categories of a DataFrame are allowed. The default model was trained on random tables.

    model: a kept model's name, a run folder, or a model. loops: None for as many as trained. standardize: give every
    column mean 0 and variance 1, and y the variance that the model was trained with (1 if that is not known). batch:
    rows answered at once. contexts: if there are more rows than the model takes, average its answers over this many
    random subsets. random_state: draws the subsets, the same for every row to predict.
    """

    @no_type_check  # scikit-learn requires that anything is accepted here, and checked in `fit`
    def __init__(
        self,
        model: str | Path | LoopedModel = DEFAULT,
        *,
        loops: int | None = None,
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

    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store the rows as the model will read them."""
        self._check_parameters()
        self._categories = Categories(X)
        if self._categories.columns:
            validate_data(self, X, skip_check_array=True)  # takes down the columns' names
            X, y = check_X_y(self._categories(X), y, **ACCEPTED, y_numeric=True)
        else:
            X, y = validate_data(self, X, y, **ACCEPTED, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self.model_, setup = self._opened()
        _check_model(self.model_)
        d = _width(self.model_)
        if X.shape[1] > d and not isinstance(self.model_, TableTransformer):
            raise ValueError(
                f"`X` may have at most {d} features, the d of this model; got {X.shape[1]}. Choose some, reduce them "
                f"(sklearn.decomposition.PCA({d})), or take a model of a larger d."
            )
        self.max_examples_ = self._most_examples(setup)
        self._columns = Columns(X, y, most=d, standardize=self.standardize)
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
        self._xs = self._columns(X)
        self._ys = (y - self._mean) / (self._unit or 1.0)
        self._subsets = [np.arange(len(y))]
        if self.max_examples_ is not None and len(y) > self.max_examples_:
            draw = check_random_state(self.random_state).choice
            self._subsets = [np.sort(draw(len(y), self.max_examples_, replace=False)) for _ in range(self.contexts)]
        return self

    def predict(self, X: Any, quantiles: Sequence[float] | None = None) -> np.ndarray:
        """The mean of y at every row; or with `quantiles`, such as (0.05, 0.5, 0.95), a column for each of them."""
        check_is_fitted(self)
        levels = self._levels(quantiles)
        if self._categories.columns:
            validate_data(self, X, skip_check_array=True, reset=False)
            X = check_array(self._categories(X), **ACCEPTED)
        else:
            X = validate_data(self, X, reset=False, **ACCEPTED)
        xs, ys, queries = (self._tensor(values) for values in (self._xs, self._ys, self._columns(X)))
        total = 0.0
        for rows in self._subsets:
            answers = [self._answers(xs[rows], ys[rows], part) for part in queries.split(self.batch)]
            total = total + torch.cat(answers).double().cpu().numpy()
        outputs = self._mean + self._unit * np.asarray(total) / len(self._subsets)
        if not np.isfinite(outputs).all():
            raise ValueError(
                f"{(~np.isfinite(outputs).all(1)).sum()} of {len(outputs)} predictions are not finite: the loops "
                "diverge. Use fewer `loops`, or `standardize=True`."
            )
        if levels is None:
            return outputs[:, 0]
        known = quantile_levels(outputs.shape[1] - 1)
        ascending = np.sort(outputs[:, 1:], axis=1)
        return np.stack([[np.interp(level, known, row) for level in levels] for row in ascending])

    @torch.no_grad()
    def _answers(self, xs: Tensor, ys: Tensor, queries: Tensor) -> Tensor:
        """The model's answers to every query after all examples: a mean, and quantiles if it gives some."""
        if isinstance(self.model_, TableTransformer):
            return answer_rows(self.model_, xs, ys, queries, loops=self.loops)
        if can_share_examples(self.model_):
            return answer_all(self.model_, xs, ys, queries, loops=self.loops)[:, None]
        return self.model_(_prompt(xs, ys, queries), loops=self.loops)[-1][:, -1:]

    def _check_parameters(self) -> None:
        """One clear line for a parameter of the wrong kind."""
        whole = {
            "batch": self.batch,
            "contexts": self.contexts,
            **({} if self.loops is None else {"loops": self.loops}),
        }
        for name, value in whole.items():
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{name}` must be a whole number, at least 1; got {value!r}.")
        if self.loops is not None:
            check_loops(self.loops)
        if not isinstance(self.standardize, (bool, np.bool_)):
            raise ValueError(f"`standardize` must be True or False; got {self.standardize!r}.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError):
            raise ValueError(f"`device` must be one that torch has here, such as 'cpu'; got {self.device!r}.") from None
        check_random_state(self.random_state)

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

    def _opened(self) -> tuple[LoopedModel, Setup | None]:
        """The model and what it was trained on; a copy, so that the caller's model stays on its device.

        On a CPU a model of a run computes in float64: answers then depend neither on batches nor on the rows' order.
        """
        if isinstance(self.model, LoopedModel):
            return copy.deepcopy(self.model).to(self.device).eval(), None
        if not isinstance(self.model, (str, Path)):
            raise ValueError(
                f"`model` must be a kept model's name, a run folder or a LoopedModel; got {type(self.model).__name__}."
            )
        run = Run.open(self.model)
        model = run.model(self.device).eval()
        return model.double() if torch.device(self.device).type == "cpu" else model, run.setup

    def _most_examples(self, setup: Setup | None) -> int | None:
        """As many as in training, and as the model has positions for; more where it has none."""
        trained = setup.train.points - 1 if isinstance(setup, Experiment) else None
        if trained is not None and isinstance(self.model_, TableTransformer):
            trained *= ROWS_PER_TRAINED
        limits = [limit for limit in (trained, self.model_.config.max_examples) if limit is not None]
        return min(limits, default=None)

    def _tensor(self, values: np.ndarray) -> Tensor:
        """On the model's device, in its precision; features that there are not are zero."""
        weight = next(self.model_.parameters(), torch.empty(0, dtype=torch.float64))
        tensor = torch.tensor(values, dtype=weight.dtype, device=self.device)
        lacking = _width(self.model_) - tensor.shape[-1] if tensor.ndim == 2 else 0
        return torch.nn.functional.pad(tensor, (0, lacking))


ACCEPTED: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
"""What scikit-learn checks in X."""


def _prompt(xs: Tensor, ys: Tensor, queries: Tensor) -> Prompt:
    """A prompt for every query: all examples, then the query with a label of 0, which is not read."""
    count = len(queries)
    all_xs = torch.cat([xs.expand(count, -1, -1), queries[:, None]], 1)
    return Prompt(all_xs, torch.cat([ys.expand(count, -1), ys.new_zeros(count, 1)], 1))


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
