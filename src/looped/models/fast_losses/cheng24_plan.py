"""A kernel transformer's two passes on a CPU, derived by hand and recorded as calls on fixed memory.

Prompts pass through in chunks that fit the cache, and there a call from Python costs as much as its arithmetic. So
everything that depends only on the shape is done once: memory is allocated, views are made, and every call is recorded
with its arguments. A chunk then copies its rows in and runs the calls, and two threads hardly wait for each other.

Ref: cheng24, Eq. (3), (5) and (26).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.fast_losses.batch_last import matrix_times, outer, product


class HeadWeights(NamedTuple):
    """The free weights of one head, by layer; B and C enter only as their product."""

    score: Float[Tensor, "models layers d d"]
    """M = B'C."""
    transform: Float[Tensor, "models layers d d"] | None
    """A; None where it is 0."""
    label: Float[Tensor, "models layers"]
    """r."""


class _HeadViews(NamedTuple):
    """A head's weights, or their gradients, as views of one long tensor."""

    score: Float[Tensor, "layers models d d"]
    """M."""
    value: Float[Tensor, "layers models width width"]
    """V = diag(A, r), or r alone where A is 0; it acts on the last `width` coordinates."""


def pack(weights: Sequence[HeadWeights]) -> Float[Tensor, " size"]:
    """All weights as the one long tensor that a plan reads."""
    flat = weights[0].score.new_zeros(_size(weights))
    for views, head in zip(_views(flat, weights), weights, strict=True):
        views.score.copy_(head.score.transpose(0, 1))
        views.value[..., -1, -1] = head.label.mT
        if head.transform is not None:
            views.value[..., :-1, :-1] = head.transform.transpose(0, 1)
    return flat


def unpack(flat: Float[Tensor, " size"], like: Sequence[HeadWeights]) -> list[HeadWeights]:
    """The inverse of `pack`, for weights or for gradients of the shapes of `like`."""
    weights = []
    for views in _views(flat, like):
        score, value = views.score.transpose(0, 1), views.value.transpose(0, 1)
        weights.append(HeadWeights(score, value[..., :-1, :-1] if value.shape[-1] > 1 else None, value[..., -1, -1]))
    return weights


def _views(flat: Tensor, like: Sequence[HeadWeights]) -> list[_HeadViews]:
    views, left = [], flat
    for head in like:
        models, layers, d, _ = head.score.shape
        width = _value_width(head)
        score, value, left = left.tensor_split((head.score.numel(), _size([head])))
        views.append(_HeadViews(score.view(layers, models, d, d), value.view(layers, models, width, width)))
    return views


def _value_width(head: HeadWeights) -> int:
    return 1 if head.transform is None else head.score.shape[-1] + 1


def _size(like: Sequence[HeadWeights]) -> int:
    return sum(head.score.numel() + head.label.numel() * _value_width(head) ** 2 for head in like)


class _SavedActivations(NamedTuple):
    """What a head's backward pass reads of its forward pass in one layer."""

    queries: Float[Tensor, "models d queries c"]
    scores: Tensor
    """(models, queries, keys, c); for a linear head the sum over keys of value and key, (models, width, d, c)."""
    sums: Float[Tensor, "models width queries c"]


class Plan:
    """Both passes over chunks of one shape. Tokens are columns, as in the paper; the query is the last one."""

    def __init__(
        self, rows: Float[Tensor, "models width tokens c"], heads: Sequence[Kernel], like: Sequence[HeadWeights]
    ):
        """Only the shapes of `rows` and `like` are read."""
        models, width, tokens, count = rows.shape
        self._d, self._n, self._layers, self._heads = width - 1, tokens - 1, like[0].label.shape[1], tuple(heads)
        self._packed, self._gradient = (rows.new_zeros(_size(like) + more) for more in (0, models))
        self._weight_views, self._gradient_views = _views(self._packed, like), _views(self._gradient, like)
        self._rows = [torch.empty_like(rows) for _ in range(self._layers)]
        self._label, self._target, self._error = (rows.new_empty(models, 1, 1, count) for _ in range(3))
        self._grad_rows = torch.empty_like(rows)
        """The gradient along a layer's rows, from the last layer to the first."""
        self._grad_sums = [rows.new_empty(models, head.value.shape[-1], tokens, count) for head in self._weight_views]
        self._workspace: dict[tuple, Tensor] = {}
        self._calls: list[Callable[[], object]] = []
        self._product, self._matrix_times, self._outer = (
            partial(call, do=self._record) for call in (product, matrix_times, outer)
        )
        saved = [self._record_forward(layer) for layer in range(self._layers - 1)]
        last = self._record_last_forward()
        self._forward, self._calls = self._calls, []
        self._record_last_backward(last)
        for layer in range(self._layers - 2, -1, -1):
            self._record_backward(layer, saved[layer])
        self._backward = self._calls

    def predict(self, packed: Tensor, rows: Float[Tensor, "models width tokens c"]) -> Float[Tensor, "models c"]:
        """The query's label coordinate after all layers, in memory that the next chunk overwrites."""
        self._packed.copy_(packed)
        self._rows[0].copy_(rows)
        for call in self._forward:
            call()
        return self._label[:, 0, 0]

    def learn(
        self, packed: Tensor, rows: Float[Tensor, "models width tokens c"], target: Float[Tensor, "models c"]
    ) -> Float[Tensor, " size_and_models"]:
        """Half the gradient of the summed squared errors, packed, then each model's sum of squared errors."""
        self._target[:, 0, 0] = target
        self.predict(packed, rows)
        for call in self._backward:
            call()
        return self._gradient.clone()

    def _record(self, call: Callable[..., object], *args: object, **named: object) -> None:
        self._calls.append(partial(call, *args, **named))

    def _scratch(self, name: str, *shape: int) -> Tensor:
        """Memory that layers and heads use in turn, so that it stays in the cache."""
        return self._workspace.setdefault((name, shape), self._grad_rows.new_empty(shape))

    def _record_forward(self, layer: int) -> list[_SavedActivations]:
        """Z <- Z + V Z h(Z, M Z); only examples are keys."""
        rows, after = self._rows[layer : layer + 2]
        examples, saved = rows[:, :, : self._n], []
        xs = examples[:, : self._d]
        self._record(after.copy_, rows)
        for head, kernel in zip(self._weight_views, self._heads, strict=True):
            width = head.value.shape[-1]
            queries = self._matrix_times(head.score[layer], rows[:, : self._d])
            if kernel is kernels.linear:
                scores = self._product(examples[:, -width:], xs.transpose(1, 2))
                sums = self._product(scores, queries)
            else:
                scores = self._apply_kernel(self._product(queries.transpose(1, 2), xs), kernel)
                sums = self._product(examples[:, -width:], scores.transpose(1, 2))
            self._matrix_times(head.value[layer], sums, after[:, -width:], add=True)
            saved.append(_SavedActivations(queries, scores, sums))
        return saved

    def _record_last_forward(self) -> list[_SavedActivations]:
        """The last layer, computed only for the query's label."""
        xs, ys = self._rows[-1].split([self._d, 1], 1)
        label, saved = ys[:, :, self._n :], []
        for head, kernel in zip(self._weight_views, self._heads, strict=True):
            query = self._matrix_times(head.score[-1], xs[:, :, self._n :])
            scores = self._apply_kernel(self._product(query.transpose(1, 2), xs[:, :, : self._n]), kernel)
            sums = self._product(scores, ys[:, :, : self._n].transpose(1, 2))
            self._record(torch.addcmul, label, head.value[-1, :, -1:, -1:, None], sums, out=self._label)
            label = self._label
            saved.append(_SavedActivations(query, scores, sums))
        return saved

    def _record_last_backward(self, saved: Sequence[_SavedActivations]) -> None:
        xs, ys = self._rows[-1].split([self._d, 1], 1)
        grad_x, grad_y = self._grad_rows.split([self._d, 1], 1)
        self._record(torch.add, self._label, self._target, out=self._error)
        self._outer(self._error, self._error, self._gradient[-len(self._error) :].view(-1, 1, 1))
        self._record(self._grad_rows.zero_)
        self._record(grad_y[:, :, self._n :].copy_, self._error)
        for head, head_grad, kernel, (query, scores, sums) in zip(
            self._weight_views, self._gradient_views, self._heads, saved, strict=True
        ):
            self._record(head_grad.value[-1, :, -1:, -1:].copy_, self._outer(self._error, sums))
            grad_sums, grad_raw = torch.empty_like(self._error), torch.empty_like(scores)
            self._record(torch.mul, self._error, head.value[-1, :, -1:, -1:, None], out=grad_sums)
            self._record(torch.mul, grad_sums, ys[:, :, : self._n], out=grad_raw)
            if kernel is softmax:
                self._record(grad_raw.addcmul_, grad_sums, sums, value=-1)
            self._through_kernel(grad_raw, scores, kernel)
            grad_queries = self._product(xs[:, :, : self._n], grad_raw.transpose(1, 2))
            self._outer(grad_queries, xs[:, :, self._n :], head_grad.score[-1])
            if self._layers > 1:
                self._record(grad_y[:, :, : self._n].addcmul_, grad_sums, scores)
                self._record(grad_x[:, :, : self._n].addcmul_, query, grad_raw)
                self._matrix_times(head.score[-1].mT, grad_queries, grad_x[:, :, self._n :], add=True)

    def _record_backward(self, layer: int, saved: Sequence[_SavedActivations]) -> None:
        """Take `_grad_rows` from the rows after a layer to the rows before it."""
        rows, grad_rows = self._rows[layer], self._grad_rows
        xs, grad_xs = rows[:, : self._d, : self._n], grad_rows[:, : self._d, : self._n]
        # all heads read the gradient before any of them adds to it
        for head, head_grad, grad_sums, (_, _, sums) in zip(
            self._weight_views, self._gradient_views, self._grad_sums, saved, strict=True
        ):
            grad_after = grad_rows[:, -grad_sums.shape[1] :]
            self._outer(grad_after, sums, head_grad.value[layer])
            self._matrix_times(head.value[layer].mT, grad_after, grad_sums)
        for head, head_grad, kernel, grad_sums, (queries, scores, sums) in zip(
            self._weight_views, self._gradient_views, self._heads, self._grad_sums, saved, strict=True
        ):
            values, grad_values = (part[:, -grad_sums.shape[1] :, : self._n] for part in (rows, grad_rows))
            grad_queries = self._scratch("grad_queries", *queries.shape)
            if kernel is kernels.linear:
                grad_raw = None
                self._product(scores.transpose(1, 2), grad_sums, grad_queries)
            else:
                start = self._minus_mean(grad_sums, sums) if kernel is softmax else None
                grad_raw = self._product(
                    grad_sums.transpose(1, 2), values, self._scratch("grad_raw", *scores.shape), start=start
                )
                self._through_kernel(grad_raw, scores, kernel)
                self._product(xs, grad_raw.transpose(1, 2), grad_queries)
            self._outer(grad_queries, rows[:, : self._d], head_grad.score[layer])
            if layer == 0:
                continue
            self._matrix_times(head.score[layer].mT, grad_queries, grad_rows[:, : self._d], add=True)
            if grad_raw is None:
                grad_scores = self._product(grad_sums, queries.transpose(1, 2))
                self._product(grad_scores.transpose(1, 2), values, grad_xs, start=grad_xs)
                self._product(grad_scores, xs, grad_values, start=grad_values)
            else:
                self._product(queries, grad_raw, grad_xs, start=grad_xs)
                self._product(grad_sums, scores, grad_values, start=grad_values)

    def _apply_kernel(self, raw: Tensor, kernel: Kernel) -> Tensor:
        """h of the inner products, in place; the softmax is over keys."""
        if kernel is softmax:
            per_query = torch.empty_like(raw[:, :, :1])
            self._record(torch.amax, raw, 2, True, out=per_query)
            self._record(raw.sub_, per_query)
            self._record(raw.exp_)
            self._record(torch.sum, raw, 2, True, out=per_query)
            self._record(raw.div_, per_query)
        elif kernel is kernels.relu:
            self._record(raw.relu_)
        elif kernel is kernels.exp:
            self._record(raw.exp_)
        return raw

    def _through_kernel(self, grad: Tensor, scores: Tensor, kernel: Kernel) -> None:
        """Turn the gradient along scores into that along inner products, in place; for the softmax, minus its mean."""
        if kernel is kernels.relu:
            self._record(torch.ops.aten.threshold_backward.grad_input, grad, scores, 0, grad_input=grad)
        elif kernel is not kernels.linear:
            self._record(grad.mul_, scores)

    def _minus_mean(self, grad_sums: Tensor, sums: Tensor) -> Float[Tensor, "models queries 1 c"]:
        """Minus the sum over keys of scores times the gradient along them."""
        terms, mean = self._scratch("terms", *grad_sums.shape), self._scratch("mean", *grad_sums[:, 0].shape)
        self._record(torch.mul, grad_sums, sums, out=terms)
        self._record(torch.sum, terms, 1, out=mean)
        self._record(mean.neg_)
        return mean[:, :, None]
