"""A kernel transformer's two passes on a CPU, derived by hand and written down as calls on fixed memory.

Prompts pass through in chunks that fit the cache, and there a call from Python costs as much as its arithmetic. So
whatever does not depend on numbers is done once for a shape: memory is taken, views are made, and every call is kept
with its arguments. A chunk copies its rows and runs the calls, and two threads hardly wait for each other in Python.

Ref: cheng24, Eq. (3), (5) and (26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.batch_last import each, outer, product


class HeadWeights(NamedTuple):
    """The free weights of one head, layer by layer, as products where only products count."""

    score: Float[Tensor, "models layers d d"]
    """M = B'C."""
    transform: Float[Tensor, "models layers d d"] | None
    """A; None where it is 0."""
    label: Float[Tensor, "models layers"]
    """r."""


class _Placed(NamedTuple):
    """A head's weights, or the slopes along them, as views of one long tensor."""

    score: Float[Tensor, "layers models d d"]
    """M."""
    value: Float[Tensor, "layers models width width"]
    """V = diag(A, r), or r alone where A is 0; it acts on the last `width` coordinates."""


def pack(weights: Sequence[HeadWeights]) -> Float[Tensor, " size"]:
    """All weights as the one long tensor that a plan reads."""
    flat = weights[0].score.new_zeros(_size(weights))
    for own, one in zip(_views(flat, weights), weights, strict=True):
        own.score.copy_(one.score.transpose(0, 1))
        own.value[..., -1, -1] = one.label.mT
        if one.transform is not None:
            own.value[..., :-1, :-1] = one.transform.transpose(0, 1)
    return flat


def unpack(flat: Float[Tensor, " size"], like: Sequence[HeadWeights]) -> list[HeadWeights]:
    """What `pack` was given, or slopes in its place."""
    weights = []
    for own in _views(flat, like):
        score, value = own.score.transpose(0, 1), own.value.transpose(0, 1)
        weights.append(HeadWeights(score, value[..., :-1, :-1] if value.shape[-1] > 1 else None, value[..., -1, -1]))
    return weights


def _views(flat: Tensor, like: Sequence[HeadWeights]) -> list[_Placed]:
    parts, placed = iter(flat[: _size(like)].split([size for one in like for size in _sizes(one)])), []
    for one in like:
        models, layers, d, _ = one.score.shape
        score, value = next(parts).view(layers, models, d, d), next(parts)
        width = 1 if one.transform is None else d + 1
        placed.append(_Placed(score, value.view(layers, models, width, width)))
    return placed


def _sizes(one: HeadWeights) -> tuple[int, int]:
    width = 1 if one.transform is None else one.score.shape[-1] + 1
    return one.score.numel(), one.label.numel() * width * width


def _size(like: Sequence[HeadWeights]) -> int:
    return sum(size for one in like for size in _sizes(one))


class _Kept(NamedTuple):
    """What a head's backward pass reads of its forward pass in one layer."""

    queries: Float[Tensor, "models d queries c"]
    scores: Tensor
    """(models, queries, keys, c), or of a linear head the sum over keys of value and key, (models, width, d, c)."""
    sums: Float[Tensor, "models width queries c"]


class Plan:
    """The passes over chunks of one shape. Tokens are columns, as in the paper, and the query is the last one."""

    def __init__(
        self, rows: Float[Tensor, "models width tokens c"], heads: Sequence[Kernel], like: Sequence[HeadWeights]
    ):
        """`rows` and `like` give shapes; their numbers are not read."""
        models, width, tokens, count = rows.shape
        self._d, self._n, self._layers, self._heads = width - 1, tokens - 1, like[0].label.shape[1], tuple(heads)
        self._given, self._found = (rows.new_zeros(_size(like) + more) for more in (0, models))
        self._weights, self._slopes = _views(self._given, like), _views(self._found, like)
        self._rows = [torch.empty_like(rows) for _ in range(self._layers)]
        self._label, self._target, self._up = (rows.new_empty(models, 1, 1, count) for _ in range(3))
        self._back = torch.empty_like(rows)
        """The slope along a layer's rows, the last layer's first."""
        self._downs = [rows.new_empty(models, one.value.shape[-1], tokens, count) for one in self._weights]
        self._shared: dict[tuple, Tensor] = {}
        self._calls: list[Callable[[], object]] = []
        self._product, self._each, self._outer = (partial(call, do=self._note) for call in (product, each, outer))
        kept = [self._note_forward(layer) for layer in range(self._layers - 1)]
        last = self._note_last_forward()
        self._forward, self._calls = self._calls, []
        self._note_last_backward(last)
        for layer in range(self._layers - 2, -1, -1):
            self._note_backward(layer, kept[layer])
        self._backward = self._calls

    def predict(self, packed: Tensor, rows: Float[Tensor, "models width tokens c"]) -> Float[Tensor, "models c"]:
        """The query's label coordinate after all layers, in memory that the next chunk overwrites."""
        self._given.copy_(packed)
        self._rows[0].copy_(rows)
        for call in self._forward:
            call()
        return self._label[:, 0, 0]

    def learn(
        self, packed: Tensor, rows: Float[Tensor, "models width tokens c"], target: Float[Tensor, "models c"]
    ) -> Float[Tensor, " size_and_models"]:
        """Half the squared errors' slopes, packed, and behind them the squared errors' sum, model by model."""
        self._target[:, 0, 0] = target
        self.predict(packed, rows)
        for call in self._backward:
            call()
        return self._found.clone()

    def _note(self, call: Callable[..., object], *args: object, **named: object) -> None:
        self._calls.append(partial(call, *args, **named))

    def _share(self, name: str, *shape: int) -> Tensor:
        """Memory that layers and heads use one after the other, so that it stays in the cache."""
        return self._shared.setdefault((name, shape), self._back.new_empty(shape))

    def _note_forward(self, layer: int) -> list[_Kept]:
        """Z <- Z + V Z h(Z, M Z), examples alone being keys."""
        rows, after = self._rows[layer : layer + 2]
        examples, kept = rows[:, :, : self._n], []
        xs = examples[:, : self._d]
        self._note(after.copy_, rows)
        for own, kernel in zip(self._weights, self._heads, strict=True):
            width = own.value.shape[-1]
            queries = self._each(own.score[layer], rows[:, : self._d])
            if kernel is kernels.linear:
                scores = self._product(examples[:, -width:], _turn(xs))
                sums = self._product(scores, queries)
            else:
                scores = self._weigh(self._product(_turn(queries), xs), kernel)
                sums = self._product(examples[:, -width:], _turn(scores))
            self._each(own.value[layer], sums, after[:, -width:], add=True)
            kept.append(_Kept(queries, scores, sums))
        return kept

    def _note_last_forward(self) -> list[_Kept]:
        """The query alone, and of that the label."""
        xs, ys = self._rows[-1].split([self._d, 1], 1)
        label, kept = ys[:, :, self._n :], []
        for own, kernel in zip(self._weights, self._heads, strict=True):
            query = self._each(own.score[-1], xs[:, :, self._n :])
            scores = self._weigh(self._product(_turn(query), xs[:, :, : self._n]), kernel)
            sums = self._product(scores, _turn(ys[:, :, : self._n]))
            self._note(torch.addcmul, label, own.value[-1, :, -1:, -1:, None], sums, out=self._label)
            label = self._label
            kept.append(_Kept(query, scores, sums))
        return kept

    def _note_last_backward(self, kept: Sequence[_Kept]) -> None:
        xs, ys = self._rows[-1].split([self._d, 1], 1)
        back_x, back_y = self._back.split([self._d, 1], 1)
        self._note(torch.add, self._label, self._target, out=self._up)
        self._outer(self._up, self._up, self._found[-len(self._up) :].view(-1, 1, 1))
        self._note(self._back.zero_)
        self._note(back_y[:, :, self._n :].copy_, self._up)
        for own, slope, kernel, (query, scores, sums) in zip(
            self._weights, self._slopes, self._heads, kept, strict=True
        ):
            self._note(slope.value[-1, :, -1:, -1:].copy_, self._outer(self._up, sums))
            through, rise = torch.empty_like(self._up), torch.empty_like(scores)
            self._note(torch.mul, self._up, own.value[-1, :, -1:, -1:, None], out=through)
            self._note(torch.mul, through, ys[:, :, : self._n], out=rise)
            if kernel is softmax:
                self._note(rise.addcmul_, through, sums, value=-1)
            self._slope(rise, scores, kernel)
            turn = self._product(xs[:, :, : self._n], _turn(rise))
            self._outer(turn, xs[:, :, self._n :], slope.score[-1])
            if self._layers > 1:
                self._note(back_y[:, :, : self._n].addcmul_, through, scores)
                self._note(back_x[:, :, : self._n].addcmul_, query, rise)
                self._each(own.score[-1].mT, turn, back_x[:, :, self._n :], add=True)

    def _note_backward(self, layer: int, kept: Sequence[_Kept]) -> None:
        """`_back` from the slope along the rows behind a layer to that along the rows before it."""
        rows, back = self._rows[layer], self._back
        xs, back_xs = rows[:, : self._d, : self._n], back[:, : self._d, : self._n]
        # all heads read the slope before one of them adds to it
        for own, slope, down, (_, _, sums) in zip(self._weights, self._slopes, self._downs, kept, strict=True):
            above = back[:, -down.shape[1] :]
            self._outer(above, sums, slope.value[layer])
            self._each(own.value[layer].mT, above, down)
        for own, slope, kernel, down, (queries, scores, sums) in zip(
            self._weights, self._slopes, self._heads, self._downs, kept, strict=True
        ):
            gives, back_gives = (part[:, -down.shape[1] :, : self._n] for part in (rows, back))
            turn = self._share("turn", *queries.shape)
            if kernel is kernels.linear:
                rise = None
                self._product(_turn(scores), down, turn)
            else:
                start = self._minus_mean(down, sums) if kernel is softmax else None
                rise = self._product(_turn(down), gives, self._share("rise", *scores.shape), start=start)
                self._slope(rise, scores, kernel)
                self._product(xs, _turn(rise), turn)
            self._outer(turn, rows[:, : self._d], slope.score[layer])
            if layer == 0:
                continue
            self._each(own.score[layer].mT, turn, back[:, : self._d], add=True)
            if rise is None:
                among = self._product(down, _turn(queries))
                self._product(_turn(among), gives, back_xs, start=back_xs)
                self._product(among, xs, back_gives, start=back_gives)
            else:
                self._product(queries, rise, back_xs, start=back_xs)
                self._product(down, scores, back_gives, start=back_gives)

    def _weigh(self, raw: Tensor, kernel: Kernel) -> Tensor:
        """H of inner products, in place; the softmax is over keys."""
        if kernel is softmax:
            of_query = torch.empty_like(raw[:, :, :1])
            self._note(torch.amax, raw, 2, True, out=of_query)
            self._note(raw.sub_, of_query)
            self._note(raw.exp_)
            self._note(torch.sum, raw, 2, True, out=of_query)
            self._note(raw.div_, of_query)
        elif kernel is kernels.relu:
            self._note(raw.relu_)
        elif kernel is kernels.exp:
            self._note(raw.exp_)
        return raw

    def _slope(self, up: Tensor, scores: Tensor, kernel: Kernel) -> None:
        """From the slope along scores to that along inner products, in place; the softmax's mean is gone already."""
        if kernel is kernels.relu:
            self._note(torch.ops.aten.threshold_backward.grad_input, up, scores, 0, grad_input=up)
        elif kernel is not kernels.linear:
            self._note(up.mul_, scores)

    def _minus_mean(self, down: Tensor, sums: Tensor) -> Float[Tensor, "models queries 1 c"]:
        """The slope along scores, weighted by them and summed over keys, with the other sign."""
        terms, mean = self._share("terms", *down.shape), self._share("mean", *down[:, 0].shape)
        self._note(torch.mul, down, sums, out=terms)
        self._note(torch.sum, terms, 1, out=mean)
        self._note(mean.neg_)
        return mean[:, :, None]


def _turn(matrices: Tensor) -> Tensor:
    """Each prompt's matrix transposed."""
    return matrices.transpose(1, 2)
