"""The in-context loss of a kernel transformer and its gradient, computed together and fast.

The same numbers as `KernelTransformer` with heads V = diag(A, r) and autograd give. Less is computed for them:

- no (d+1) x (d+1) matrices: A, r and M = B'C act on their own coordinates;
- the last layer is read at the query's label alone, so it costs one row of scores, and the first has no gradient
  to hand on to its input;
- where h is linear a prompt enters through X'X, X'y and x_q, which all steps on one minibatch share;
- prompts pass through in chunks that stay in the cache, forward and backward before the next one.

Ref: cheng24, Eq. (3), (5) and (26).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.kernel_linear import Moments, linear_predictions, moments
from looped.prompt import Prompt

CHUNK = 2**19
"""Scores of one chunk on a CPU: its half a dozen tensors of that size fit the cache together."""
KERNELS: tuple[Kernel, ...] = (kernels.linear, kernels.relu, kernels.exp, softmax)
"""The h that have their derivative here."""


class HeadWeights(NamedTuple):
    """The free weights of one head, layer by layer, as products where only products count."""

    score: Float[Tensor, "models layers d d"]
    """M = B'C."""
    transform: Float[Tensor, "models layers d d"] | None
    """A; None where it is 0."""
    label: Float[Tensor, "models layers"]
    """r."""


class Batch(NamedTuple):
    """Prompts with what all steps on them share."""

    rows: Float[Tensor, "models batch tokens width"]
    """(x, y) of every pair, the query's label hidden."""
    target: Float[Tensor, "models batch"]
    """The query's label."""
    moments: Moments | None
    """X'X, X'y and x_q, where all heads are linear."""


def head_weights(
    key: Float[Tensor, "models layers d d"],
    query: Float[Tensor, "models layers d d"],
    label: Float[Tensor, "models layers"],
    transform: Float[Tensor, "models layers d d"] | None = None,
) -> HeadWeights:
    """The weights of a `FactoredScores` head: M = B'C, B the `key` and C the `query`."""
    return HeadWeights(key.mT @ query, transform, label)


def prepare(prompt: Prompt, heads: Sequence[Kernel]) -> Batch:
    """What one minibatch gives to every step on it; a prompt without an axis of models is one model's."""
    unknown = [kernel for kernel in heads if kernel not in KERNELS]
    if unknown or not heads:
        raise ValueError(f"`heads` must be linear, relu, exp or softmax; got {unknown}. Use `KernelTransformer`.")
    xs, ys = (prompt.xs, prompt.ys) if prompt.xs.ndim == 4 else (prompt.xs[None], prompt.ys[None])
    only_linear = all(kernel is kernels.linear for kernel in heads)
    if only_linear:
        return Batch(xs[..., :0, :], ys[..., -1], moments(xs, ys))
    hidden = torch.cat([ys[..., :-1], torch.zeros_like(ys[..., -1:])], -1)
    return Batch(torch.cat([xs, hidden[..., None]], -1), ys[..., -1].contiguous(), None)


def in_context_loss(
    weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch, *, chunk: int | None = None
) -> Float[Tensor, " models"]:
    """The mean squared error at the query, model by model, differentiable in the weights.

    loss = mean over prompts of (y_q + prediction of -y_q)^2
    """
    if batch.moments is not None:
        errors = linear_predictions(weights, batch.moments) - batch.target
        return errors.square().mean(-1)
    flat = [part for one in weights for part in one if part is not None]
    return _Loss.apply(batch, tuple(heads), [one.transform is not None for one in weights], chunk, *flat)


@torch.no_grad()
def predictions(
    weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch, *, chunk: int | None = None
) -> Float[Tensor, "models batch"]:
    """The model's prediction of +y at the query."""
    if batch.moments is not None:
        return linear_predictions(weights, batch.moments)
    parts = _chunks(batch, chunk)
    return torch.cat([-_forward(weights, heads, rows)[0] for rows, _ in parts], 1)


class _Loss(torch.autograd.Function):
    """Loss and gradient in one pass over chunks; `backward` only multiplies."""

    @staticmethod
    def forward(ctx, batch, heads, transforms, chunk, *flat):
        values, weights = iter(flat), []
        for free in transforms:
            score = next(values)
            weights.append(HeadWeights(score, next(values) if free else None, next(values)))
        models, count = batch.target.shape
        wanted = any(ctx.needs_input_grad)
        loss = batch.target.new_zeros(models)
        slopes = [
            HeadWeights(*(None if part is None else torch.zeros_like(part) for part in one)) for one in weights
        ]
        for rows, target in _chunks(batch, chunk):
            label, kept = _forward(weights, heads, rows)
            error = label + target
            loss += error.square().sum(1) / count
            if wanted:
                _backward(weights, heads, kept, 2 / count * error, slopes)
        ctx.save_for_backward(*(part for one in slopes for part in one if part is not None))
        return loss

    @staticmethod
    def backward(ctx, *grads):
        (outer,) = grads
        return (None, None, None, None, *(outer.view(-1, *[1] * (s.ndim - 1)) * s for s in ctx.saved_tensors))


def _chunks(batch: Batch, chunk: int | None) -> list[tuple[Tensor, Tensor]]:
    """Parts of the minibatch along its prompts; on a GPU one part, which fills it."""
    models, count, tokens, _ = batch.rows.shape
    if chunk is None:
        chunk = count if batch.rows.is_cuda else max(1, CHUNK // (models * tokens * tokens))
    return list(zip(batch.rows.split(chunk, 1), batch.target.split(chunk, 1), strict=True))


class _Kept(NamedTuple):
    """What a layer's backward pass reads: its rows, and of every head queries, scores and sums."""

    rows: Tensor
    heads: list[tuple[Tensor, Tensor, Tensor]]


def _forward(weights, heads, rows: Tensor) -> tuple[Tensor, list[_Kept]]:
    """The query's label coordinate (models, chunk) after all layers, and what each layer leaves behind."""
    d, layers = rows.shape[-1] - 1, weights[0].label.shape[1]
    kept = []
    for layer in range(layers - 1):
        examples, updates, own = rows[..., :-1, :], [], []
        for one, kernel in zip(weights, heads, strict=True):
            queries = _apply(rows[..., :d], one.score[:, layer])
            gives = examples if one.transform is not None else examples[..., d:]
            if kernel is kernels.linear:
                scores = examples[..., :d].mT @ gives
                sums = queries @ scores
            else:
                scores = _weigh(queries @ examples[..., :d].mT, kernel)
                sums = scores @ gives
            own.append((queries, scores, sums))
            label = one.label[:, layer, None, None, None] * sums[..., -1:]
            if one.transform is None:
                updates.append(torch.nn.functional.pad(label, (d, 0)))
            else:
                updates.append(torch.cat([_apply(sums[..., :d], one.transform[:, layer]), label], -1))
        kept.append(_Kept(rows, own))
        for update in updates:
            rows = rows + update
    examples, label, own = rows[..., :-1, :], rows[..., -1, d], []
    for one, kernel in zip(weights, heads, strict=True):
        query = _apply(rows[..., -1:, :d], one.score[:, -1])
        scores = _weigh(query @ examples[..., :d].mT, kernel)
        sums = (scores @ examples[..., d:])[..., 0, 0]
        own.append((query, scores, sums))
        label = label + one.label[:, -1, None] * sums
    return label, [*kept, _Kept(rows, own)]


def _backward(weights, heads, kept: list[_Kept], outer: Tensor, slopes: list[HeadWeights]) -> None:
    """Add this chunk's gradient to `slopes`; `outer` (models, chunk) is the loss's slope along the query's label."""
    rows, own = kept[-1]
    d, first = rows.shape[-1] - 1, len(kept) == 1
    examples, last = rows[..., :-1, :], rows[..., -1:, :d]
    back = torch.zeros_like(rows)
    back[..., -1, d] = outer
    for one, kernel, (query, scores, sums), slope in zip(weights, heads, own, slopes, strict=True):
        slope.label[:, -1] += (outer * sums).sum(1)
        through = (outer * one.label[:, -1, None])[..., None, None]
        rise = _slope(scores, through * examples[..., d:].mT, kernel, through * sums[..., None, None])
        turn = rise @ examples[..., :d]
        slope.score[:, -1] += _outer(turn, last)
        if not first:
            back[..., :-1, d:] += through * scores.mT
            back[..., :-1, :d] += rise.mT * query
            back[..., -1:, :d] += _apply(turn, one.score[:, -1].mT)
    for layer in range(len(kept) - 2, -1, -1):
        (rows, own), first = kept[layer], layer == 0
        examples, before = rows[..., :-1, :], None if first else back.clone()
        for one, kernel, (queries, scores, sums), slope in zip(weights, heads, own, slopes, strict=True):
            slope.label[:, layer] += (back[..., d] * sums[..., -1]).sum((1, 2))
            gives, down = examples, one.label[:, layer, None, None, None] * back[..., d:]
            if one.transform is None:
                gives = examples[..., d:]
            else:
                slope.transform[:, layer] += _outer(back[..., :d], sums[..., :d])
                down = torch.cat([_apply(back[..., :d], one.transform[:, layer].mT), down], -1)
            if kernel is kernels.linear:
                turn, among = down @ scores.mT, queries.mT @ down
            else:
                rise = _slope(scores, down @ gives.mT, kernel, (down * sums).sum(-1, keepdim=True))
                turn = rise @ examples[..., :d]
            slope.score[:, layer] += _outer(turn, rows[..., :d])
            if before is None:
                continue
            before[..., :d] += _apply(turn, one.score[:, layer].mT)
            width = slice(d if one.transform is None else 0, d + 1)
            if kernel is kernels.linear:
                before[..., :-1, :d] += gives @ among.mT
                before[..., :-1, width] += examples[..., :d] @ among
            else:
                before[..., :-1, :d] += rise.mT @ queries
                before[..., :-1, width] += scores.mT @ down
        back = back if before is None else before


def _apply(rows: Tensor, matrix: Tensor) -> Tensor:
    """Each model's matrix times each of its rows, as one product."""
    models, count, tokens, _ = rows.shape
    return torch.bmm(rows.reshape(models, count * tokens, -1), matrix.mT).view(models, count, tokens, -1)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """The sum over prompts and tokens of left right', model by model."""
    return left.flatten(1, 2).mT @ right.flatten(1, 2)


def _weigh(raw: Tensor, kernel: Kernel) -> Tensor:
    """H of inner products (..., queries, keys), in place where it can be; keys are last here."""
    if kernel is softmax:
        return raw.softmax(-1)
    if kernel is kernels.relu:
        return raw.relu_()
    return raw.exp_() if kernel is kernels.exp else raw


def _slope(scores: Tensor, outer: Tensor, kernel: Kernel, mean: Tensor) -> Tensor:
    """The slope along inner products, `outer` being that along `scores`; `mean` is their product summed over keys."""
    if kernel is softmax:
        return outer.sub_(mean).mul_(scores)
    if kernel is kernels.relu:
        return outer.mul_(scores > 0)
    return outer.mul_(scores) if kernel is kernels.exp else outer
