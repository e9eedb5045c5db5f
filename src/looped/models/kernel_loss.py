"""The in-context loss of a kernel transformer and its gradient, computed together and fast.

The same numbers as `KernelTransformer` with heads V = diag(A, r) and autograd give. Less is computed for them:

- no (d+1) x (d+1) matrices: A, r and M = B'C act on their own coordinates;
- the last layer is read at the query's label alone, so it costs one row of scores, and the first has no gradient
  to hand on to its input;
- where h is linear a prompt enters through X'X, X'y and x_q, which all steps on one minibatch share;
- prompts lie last in memory, so that every inner loop runs over them (`batch_last`), and pass through in chunks that
  stay in the cache, forward and backward before the next one (`kernel_plan`); on a GPU a layer is one kernel (`gpu`).

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
from looped.models.batch_last import to_last
from looped.models.kernel_linear import Moments, linear_label, moments
from looped.models.kernel_plan import HeadWeights, Plan
from looped.prompt import Prompt

CHUNK = 3 * 2**17
"""Scores of one chunk on a CPU: what its passes keep of two chunks at a time fits the cache together."""
PLANS = 4
"""Shapes of chunks whose plan a thread keeps."""
KERNELS: tuple[Kernel, ...] = (kernels.linear, kernels.relu, kernels.exp, softmax)
"""The h that have their derivative here."""


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
        # as many chunks for every core, so that none waits for the last one, and of whole cache lines
        threads = torch.get_num_threads()
        chunk = math.ceil(count / (threads * math.ceil(count / (most * threads))) / 16) * 16
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
    found = []
    for chunk in batch:
        if chunk.rows is not None:
            found.append(-_passes(chunk.rows, heads, weights).forward(weights, chunk.rows))
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

        def run(chunk: Chunk) -> tuple[Tensor, list[HeadWeights]]:
            assert chunk.rows is not None
            passes = _passes(chunk.rows, heads, weights)
            error = passes.forward(weights, chunk.rows) + chunk.target
            return error.square().sum(1) / count, passes.backward(2 / count * error) if wanted else []

        done = _over_chunks(run, batch)
        slopes = [_sum(own) for own in zip(*(own for _, own in done), strict=True)]
        ctx.save_for_backward(*(part for one in slopes for part in one if part is not None))
        return torch.stack([loss for loss, _ in done]).sum(0)

    @staticmethod
    def backward(ctx, *grads):
        (up,) = grads
        return (None, None, None, *(up.view(-1, *[1] * (slope.ndim - 1)) * slope for slope in ctx.saved_tensors))


def _sum(parts: Sequence[HeadWeights]) -> HeadWeights:
    transforms = [one.transform for one in parts if one.transform is not None]
    score, label = torch.stack([one.score for one in parts]).sum(0), torch.stack([one.label for one in parts]).sum(0)
    return HeadWeights(score, torch.stack(transforms).sum(0) if transforms else None, label)


def _over_chunks(run: Callable[[Chunk], Any], batch: Batch) -> list[Any]:
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


@torch.no_grad()  # a thread of its own does not know that there is no gradient here
def _alone(run: Callable[[Chunk], Any], chunk: Chunk) -> Any:
    return run(chunk)


class _OnGpu:
    """A plan's two passes as the GPU's kernels do them."""

    def __init__(self, heads: Sequence[Kernel]):
        from looped.models.gpu import kernel_attention

        self.heads, self.kernels = heads, kernel_attention

    def forward(self, weights: Sequence[HeadWeights], rows: Tensor) -> Tensor:
        label, self.kept = self.kernels.forward(weights, self.heads, rows)
        self.weights = weights
        return label

    def backward(self, up: Tensor) -> list[HeadWeights]:
        slopes = [_zeros(one) for one in self.weights]
        self.kernels.backward(self.weights, self.heads, self.kept, up, slopes)
        return slopes


def _zeros(one: HeadWeights) -> HeadWeights:
    transform = None if one.transform is None else torch.zeros_like(one.transform)
    return HeadWeights(torch.zeros_like(one.score), transform, torch.zeros_like(one.label))


_own = threading.local()


def _passes(rows: Tensor, heads: Sequence[Kernel], weights: Sequence[HeadWeights]) -> Plan | _OnGpu:
    """The forward and the backward pass for where the rows lie; a plan is this thread's, kept for the next chunk."""
    if rows.is_cuda:
        return _OnGpu(heads)
    plans = _own.__dict__.setdefault("plans", {})
    shapes = tuple(part if part is None else part.shape for one in weights for part in one)
    key = (rows.shape, rows.dtype, tuple(heads), shapes)
    if key not in plans:
        if len(plans) == PLANS:
            plans.pop(next(iter(plans)))
        plans[key] = Plan(rows, heads, weights)
    return plans[key]
