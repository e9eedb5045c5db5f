"""A model as a scikit-learn regressor: the training rows are the examples of its prompt."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
import torch
from torch import Tensor

from looped.experiment import Experiment, Setup
from looped.models.base import LoopedModel
from looped.models.loop import check_loops
from looped.models.query_stream import answer_all, can_share_examples
from looped.prompt import Prompt
from looped.training.run import Run

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError("InContextRegressor needs scikit-learn: pip install 'looped[baselines]'") from None


class InContextRegressor(RegressorMixin, BaseEstimator):
    """Regression by a trained model that reads the training rows as its prompt; no weight changes.

    `fit` stores the rows, without a gradient step; `predict` shows them to the model, followed by the row to predict.
    The answers are good where your function is like those that the model was trained on.

    model: a kept model's name, a run folder, or a model. loops: None for as many as trained. standardize: give every
    column mean 0 and variance 1, and y the variance that the model was trained with (1 if that is not known). batch:
    rows answered at once. contexts: if there are more rows than the model takes, average its answers over this many
    random subsets. random_state: draws the subsets, the same for every row to predict.
    """

    @no_type_check  # scikit-learn requires that anything is accepted here, and checked in `fit`
    def __init__(
        self,
        model: str | Path | LoopedModel = "yang24.linear",
        *,
        loops: int | None = None,
        standardize: bool = True,
        batch: int = 256,
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

    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store the rows as the model will read them."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        for name, value in {"batch": self.batch, "contexts": self.contexts}.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1; got {value}.")
        if self.loops is not None:
            check_loops(self.loops)
        self.model_, setup = self._opened()
        _check_model(self.model_)
        d = _width(self.model_)
        if X.shape[1] > d:
            raise ValueError(
                f"`X` may have at most {d} features, the d of this model; got {X.shape[1]}. Choose some, reduce them "
                f"(sklearn.decomposition.PCA({d})), or take a model of a larger d."
            )
        trained = setup.train.points - 1 if isinstance(setup, Experiment) else None
        limits = [limit for limit in (trained, self.model_.config.max_examples) if limit is not None]
        self.max_examples_ = min(limits, default=None)
        self._scaler = StandardScaler(with_mean=self.standardize, with_std=self.standardize).fit(X)
        self._mean, self._unit = 0.0, 1.0
        if self.standardize:
            self._mean, deviation = float(y.mean()), float(y.std())
            # a constant y is predicted by itself, whatever the model answers to labels of zero
            constant = deviation <= 10 * np.finfo(np.float64).eps * abs(self._mean)
            spread = 1.0 if setup is None else setup.task.label_variance**0.5
            self._unit = 0.0 if constant else deviation / spread
        self._xs = np.asarray(self._scaler.transform(X))
        self._ys = (y - self._mean) / (self._unit or 1.0)
        self._subsets = [np.arange(len(y))]
        if self.max_examples_ is not None and len(y) > self.max_examples_:
            draw = check_random_state(self.random_state).choice
            self._subsets = [np.sort(draw(len(y), self.max_examples_, replace=False)) for _ in range(self.contexts)]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The model's answers, in the units of y."""
        check_is_fitted(self)
        X = np.asarray(self._scaler.transform(validate_data(self, X, dtype=np.float64, reset=False)))
        xs, ys, queries = (self._tensor(values) for values in (self._xs, self._ys, X))
        total = np.zeros(len(X))
        for rows in self._subsets:
            answers = [self._answers(xs[rows], ys[rows], part) for part in queries.split(self.batch)]
            total += torch.cat(answers).double().cpu().numpy()
        if not np.isfinite(total).all():
            raise ValueError(
                f"{(~np.isfinite(total)).sum()} of {len(total)} predictions are not finite: the loops diverge. Use "
                "fewer `loops`, or `standardize=True`."
            )
        return self._mean + self._unit * total / len(self._subsets)

    @torch.no_grad()
    def _answers(self, xs: Tensor, ys: Tensor, queries: Tensor) -> Tensor:
        """The model's answer to every query after all examples."""
        if can_share_examples(self.model_):
            return answer_all(self.model_, xs, ys, queries, loops=self.loops)
        return self.model_(_prompt(xs, ys, queries), loops=self.loops)[-1][:, -1]

    def _opened(self) -> tuple[LoopedModel, Setup | None]:
        """The model and what it was trained on; a copy, so that the caller's model stays on its device."""
        if isinstance(self.model, LoopedModel):
            return copy.deepcopy(self.model).to(self.device).eval(), None
        if not isinstance(self.model, (str, Path)):
            raise ValueError(
                f"`model` must be a kept model's name, a run folder or a LoopedModel; got {type(self.model).__name__}."
            )
        run = Run.open(self.model)
        return run.model(self.device), run.setup

    def _tensor(self, values: np.ndarray) -> Tensor:
        """On the model's device, in its precision; missing features are zero."""
        weight = next(self.model_.parameters(), torch.empty(0, dtype=torch.float64))
        tensor = torch.tensor(values, dtype=weight.dtype, device=self.device)
        missing = _width(self.model_) - tensor.shape[-1] if tensor.ndim == 2 else 0
        return torch.nn.functional.pad(tensor, (0, missing))


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
