"""The in-context loss of a kernel transformer and its gradient, computed together and fast.

The same numbers as `KernelTransformer` with heads V = diag(A, r) and autograd give. Less is computed for them:

- no (d+1) x (d+1) matrices: A, r and M = B'C act on their own coordinates;
- the last layer is read at the query's label alone, so it costs one row of scores, and the first has no gradient
  to hand on to its input;
- where h is linear a prompt enters through X'X, X'y and x_q, which all steps on one minibatch share;
- prompts lie last in memory, so that every inner loop runs over them (`batch_last`), and pass through in chunks that
  stay in the cache, forward and backward before the next one; on a GPU a layer is one kernel (`gpu`).

Ref: cheng24, Eq. (3), (5) and (26).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.batch_last import Arena, each, outer, product, to_last
from looped.models.kernel_linear import Moments, linear_label, moments
from looped.prompt import Prompt

CHUNK = 2**20
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


class Chunk(NamedTuple):
    """A part of a minibatch, prompts last, with what all steps on it share."""

    rows: Float[Tensor, "models width tokens c"] | None
    """(x, y) of every pair as columns, the query's label hidden; None where `moments` is enough."""
    moments: Moments | None
    """X'X, X'y and x_q, where all heads are linear."""
    target: Float[Tensor, "models c"]
    """The query's label."""


Batch = tuple[Chunk, ...]
"""A minibatch as `prepare` lays it out."""


def head_weights(
    key: Float[Tensor, "models layers d d"],
    query: Float[Tensor, "models layers d d"],
    label: Float[Tensor, "models layers"],
    transform: Float[Tensor, "models layers d d"] | None = None,
) -> HeadWeights:
    """The weights of a `FactoredScores` head: M = B'C, B the `key` and C the `query`."""
    return HeadWeights(key.mT @ query, transform, label)


def prepare(prompt: Prompt, heads: Sequence[Kernel], *, chunk: int | None = None) -> Batch:
    """What one minibatch gives to every step on it; a prompt without an axis of models is one model's.

    `chunk` is how many prompts of every model pass through together: None fits a CPU's cache, and is all on a GPU.
    """
    unknown = [kernel for kernel in heads if kernel not in KERNELS]
    if unknown or not heads:
        raise ValueError(f"`heads` must be linear, relu, exp or softmax; got {unknown}. Use `KernelTransformer`.")
    xs, ys = (prompt.xs, prompt.ys) if prompt.xs.ndim == 4 else (prompt.xs[None], prompt.ys[None])
    # on a GPU the one kernel for all h is as fast
    only_linear = all(kernel is kernels.linear for kernel in heads) and not xs.is_cuda
    models, count, tokens, d = xs.shape
    if chunk is None and xs.is_cuda:
        chunk = count
    elif chunk is None:
        most = max(64, CHUNK // (models * (2 * d * d if only_linear else tokens * tokens)))
        # as many chunks for every core, so that none waits for the last one
        threads = torch.get_num_threads()
        chunk = math.ceil(count / (threads * math.ceil(count / (most * threads))))
    parts = []
    for x, y in zip(xs.split(chunk, 1), ys.split(chunk, 1), strict=True):
        target = y[..., -1].contiguous()
        if only_linear:
            parts.append(Chunk(None, moments(x, y), target))
        else:
            hidden = torch.cat([y[..., :-1], torch.zeros_like(y[..., -1:])], -1)
            parts.append(Chunk(to_last(torch.cat([x, hidden[..., None]], -1).mT), None, target))
    return tuple(parts)


def in_context_loss(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> Float[Tensor, " models"]:
    """The mean squared error at the query, model by model, differentiable in the weights.

    loss = mean over prompts of (prediction - y_q)^2
    """
    if batch[0].moments is not None:
        count = sum(chunk.target.shape[1] for chunk in batch)
        given = ((chunk.moments, chunk.target) for chunk in batch if chunk.moments is not None)
        errors = [(linear_label(weights, one) + target).square().sum(1) for one, target in given]
        return torch.stack(errors).sum(0) / count
    flat = [part for one in weights for part in one if part is not None]
    return _Loss.apply(batch, tuple(heads), [one.transform is not None for one in weights], *flat)  # type: ignore


@torch.no_grad()
def predictions(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> Float[Tensor, "models batch"]:
    """The model's prediction of +y at the query."""
    found, arena = [], Arena(weights[0].label)
    for chunk in batch:
        arena.reset()
        if chunk.rows is not None:
            forward, _ = _passes(chunk.rows, arena)
            found.append(-forward(weights, heads, chunk.rows)[0])
        elif chunk.moments is not None:
            found.append(-linear_label(weights, chunk.moments))
    return torch.cat(found, 1)


class _Loss(torch.autograd.Function):
    """Loss and gradient in one pass over chunks; `backward` only multiplies."""

    @staticmethod
    def forward(ctx, batch, heads, transforms, *flat):
        values, weights = iter(flat), []
        for free in transforms:
            score = next(values)
            weights.append(HeadWeights(score, next(values) if free else None, next(values)))
        wanted, count = any(ctx.needs_input_grad), sum(chunk.target.shape[1] for chunk in batch)

        def run(chunk: Chunk, arena: Arena) -> tuple[Tensor, list[HeadWeights]]:
            assert chunk.rows is not None
            forward, backward = _passes(chunk.rows, arena)
            label, kept = forward(weights, heads, chunk.rows)
            error = label + chunk.target
            slopes = [_zeros(one) for one in weights]
            if wanted:
                backward(weights, heads, kept, 2 / count * error, slopes)
            return error.square().sum(1) / count, slopes

        done = _over_chunks(run, batch)
        loss = torch.stack([one for one, _ in done]).sum(0)
        slopes = [_sum([slopes[head] for _, slopes in done]) for head in range(len(weights))]
        ctx.save_for_backward(*(part for one in slopes for part in one if part is not None))
        return loss

    @staticmethod
    def backward(ctx, *grads):
        (up,) = grads
        return (None, None, None, *(up.view(-1, *[1] * (slope.ndim - 1)) * slope for slope in ctx.saved_tensors))


def _zeros(one: HeadWeights) -> HeadWeights:
    transform = None if one.transform is None else torch.zeros_like(one.transform)
    return HeadWeights(torch.zeros_like(one.score), transform, torch.zeros_like(one.label))


def _sum(parts: Sequence[HeadWeights]) -> HeadWeights:
    transforms = [one.transform for one in parts if one.transform is not None]
    score, label = torch.stack([one.score for one in parts]).sum(0), torch.stack([one.label for one in parts]).sum(0)
    return HeadWeights(score, torch.stack(transforms).sum(0) if transforms else None, label)


def _over_chunks(run: Callable[[Chunk, Arena], Any], batch: Batch) -> list[Any]:
    """`run` on every chunk, in order; on a CPU one chunk a core, since two cores on one small tensor gain little."""
    threads = torch.get_num_threads()
    if batch[0].target.is_cuda or threads == 1 or len(batch) == 1:
        return [_alone(run, chunk) for chunk in batch]
    try:
        return list(_workers(threads).map(partial(_alone, run), batch))
    finally:
        torch.set_num_threads(threads)  # a worker's own setting is also the default of threads to come


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


_own = threading.local()


def _alone(run: Callable[[Chunk, Arena], Any], chunk: Chunk) -> Any:
    """One chunk in this thread, in memory that the thread keeps for the next one."""
    arena = getattr(_own, "arena", None)
    if arena is None or arena.like.dtype != chunk.target.dtype or arena.like.device != chunk.target.device:
        arena = _own.arena = Arena(chunk.target.new_empty(0))
    arena.reset()
    with torch.no_grad():  # a thread of its own does not know that there is no gradient here
        return run(chunk, arena)


def _passes(rows: Tensor, arena: Arena) -> tuple[Callable[..., tuple[Tensor, Any]], Callable[..., None]]:
    """The forward and the backward pass for where the rows lie."""
    if rows.is_cuda:
        from looped.models.gpu import kernel_attention

        return kernel_attention.forward, kernel_attention.backward
    return partial(_forward, arena=arena), partial(_backward, arena=arena)


class _Kept(NamedTuple):
    """What a layer's backward pass reads: its rows, and of every head queries, scores and sums."""

    rows: Tensor
    heads: list[tuple[Tensor, Tensor, Tensor]]


def _forward(weights, heads, rows: Tensor, *, arena: Arena) -> tuple[Tensor, list[_Kept]]:
    """The query's label coordinate (models, c) after all layers, and what each layer leaves behind.

    Tokens are columns here, as in the paper: rows (models, width, tokens, c), scores (models, queries, keys, c).
    """
    d, layers = rows.shape[1] - 1, weights[0].label.shape[1]
    kept = []
    for layer in range(layers - 1):
        examples, after, own = rows[:, :, :-1], arena.take(*rows.shape).copy_(rows), []
        for one, kernel in zip(weights, heads, strict=True):
            queries = each(one.score[:, layer], rows[:, :d], arena)
            gives = examples if one.transform is not None else examples[:, d:]
            if kernel is kernels.linear:
                scores = product(gives, _turn(examples[:, :d]), arena)
                sums = product(scores, queries, arena)
            else:
                scores = _weigh(product(_turn(queries), examples[:, :d], arena), kernel)
                sums = product(gives, _turn(scores), arena)
            own.append((queries, scores, sums))
            after[:, d] += one.label[:, layer, None, None] * sums[:, -1]
            if one.transform is not None:
                after[:, :d] += each(one.transform[:, layer], sums[:, :d], arena)
        kept.append(_Kept(rows, own))
        rows = after
    examples, label, own = rows[:, :, :-1], rows[:, d, -1], []
    for one, kernel in zip(weights, heads, strict=True):
        query = each(one.score[:, -1], rows[:, :d, -1:], arena)
        scores = _weigh(product(_turn(query), examples[:, :d], arena), kernel)
        sums = product(scores, _turn(examples[:, d:]), arena)[:, 0, 0]
        own.append((query, scores, sums))
        label = label + one.label[:, -1, None] * sums
    return label, [*kept, _Kept(rows, own)]


def _backward(weights, heads, kept: list[_Kept], up: Tensor, slopes: list[HeadWeights], *, arena: Arena) -> None:
    """Add this chunk's gradient to `slopes`; `up` (models, c) is the loss's slope along the query's label."""
    rows, own = kept[-1]
    d, first = rows.shape[1] - 1, len(kept) == 1
    examples, back = rows[:, :, :-1], arena.take(*rows.shape).zero_()
    back[:, d, -1] = up
    for one, kernel, (query, scores, sums), slope in zip(weights, heads, own, slopes, strict=True):
        slope.label[:, -1] += (up * sums).sum(1)
        through = (up * one.label[:, -1, None])[:, None, None]
        rise = _slope(scores, through * examples[:, d:], kernel, through * sums[:, None, None])
        turn = product(examples[:, :d], _turn(rise), arena)
        slope.score[:, -1] += outer(turn, rows[:, :d, -1:])
        if not first:
            back[:, d:, :-1] += through * scores
            back[:, :d, :-1] += query * rise
            back[:, :d, -1:] += each(one.score[:, -1].mT, turn, arena)
    for layer in range(len(kept) - 2, -1, -1):
        (rows, own), first = kept[layer], layer == 0
        examples, before = rows[:, :, :-1], back if first else arena.take(*back.shape).copy_(back)
        for one, kernel, (queries, scores, sums), slope in zip(weights, heads, own, slopes, strict=True):
            slope.label[:, layer] += (back[:, d] * sums[:, -1]).sum((1, 2))
            width = slice(d if one.transform is None else 0, d + 1)
            gives, down = examples[:, width], arena.take(*back[:, width].shape)
            torch.mul(one.label[:, layer, None, None], back[:, d], out=down[:, -1])
            if one.transform is not None and slope.transform is not None:
                slope.transform[:, layer] += outer(back[:, :d], sums[:, :d])
                down[:, :d] = each(one.transform[:, layer].mT, back[:, :d], arena)
            rise = scores
            if kernel is kernels.linear:
                turn = product(_turn(scores), down, arena)
            else:
                mean = (down * sums).sum(1)[:, :, None] if kernel is softmax else None
                rise = _slope(scores, product(_turn(down), gives, arena), kernel, mean)
                turn = product(examples[:, :d], _turn(rise), arena)
            slope.score[:, layer] += outer(turn, rows[:, :d])
            if first:
                continue
            before[:, :d] += each(one.score[:, layer].mT, turn, arena)
            if kernel is kernels.linear:
                among = product(down, _turn(queries), arena)
                before[:, :d, :-1] += product(_turn(among), gives, arena)
                before[:, width, :-1] += product(among, examples[:, :d], arena)
            else:
                before[:, :d, :-1] += product(queries, rise, arena)
                before[:, width, :-1] += product(down, scores, arena)
        back = before


def _turn(matrices: Tensor) -> Tensor:
    """Each prompt's matrix transposed."""
    return matrices.transpose(1, 2)


def _weigh(raw: Tensor, kernel: Kernel) -> Tensor:
    """H of inner products (models, queries, keys, c), in place; the softmax is over keys."""
    if kernel is softmax:
        raw = raw.sub_(raw.amax(2, keepdim=True)).exp_()
        return raw.div_(raw.sum(2, keepdim=True))
    if kernel is kernels.relu:
        return raw.relu_()
    return raw.exp_() if kernel is kernels.exp else raw


def _slope(scores: Tensor, up: Tensor, kernel: Kernel, mean: Tensor | None) -> Tensor:
    """The slope along inner products, `up` being that along `scores`; `mean` is their product summed over keys.

    Only the softmax reads the mean.
    """
    if mean is not None and kernel is softmax:
        return up.sub_(mean).mul_(scores)
    if kernel is kernels.relu:
        return torch.ops.aten.threshold_backward.grad_input(up, scores, 0, grad_input=up)
    return up.mul_(scores) if kernel is kernels.exp else up
