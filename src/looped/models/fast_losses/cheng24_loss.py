"""The in-context loss of a kernel transformer and its gradient, computed together and fast.

The numbers are those of `KernelTransformer` with heads V = diag(A, r) and autograd. It computes less for them:

- A, r and M = B'C act on their own coordinates, without (d+1) x (d+1) matrices;
- the last layer costs one row of scores, and the first passes no gradient on to its input;
- where h is linear, a prompt enters through X'X, X'y and x_q, which all steps on one minibatch share;
- prompts are the last axis (`batch_last`) and pass through in chunks that stay in the cache, forward and backward
  (`cheng24_plan`); on a GPU a layer is one kernel (`cheng24_gpu`).

Ref: cheng24, Eq. (3), (5) and (26).
"""

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.fast_losses.batch_last import to_last
from looped.models.fast_losses.cheng24_linear import Moments, linear_label, moments
from looped.models.fast_losses.cheng24_plan import HeadWeights, Plan, pack, unpack
from looped.prompt import Prompt

CHUNK, MOMENTS = 3 * 2**17, 2**20
"""Scores in one chunk on a CPU, and entries of moments where all heads are linear: what is saved fits the cache."""
MAX_PLANS = 4
"""How many plans, one for each shape of a chunk, a thread stores."""
KERNELS: tuple[Kernel, ...] = (kernels.linear, kernels.relu, kernels.exp, softmax)
"""The kernels h whose derivative is written here."""


class Chunk(NamedTuple):
    """A part of a minibatch, with what all steps on it share; prompts are the last axis."""

    rows: Float[Tensor, "models width tokens c"] | None
    """(x, y) of every pair as columns, the query's label replaced by 0; None where `moments` is enough."""
    moments: Moments | None
    """X'X, X'y and x_q, where all heads are linear."""
    target: Float[Tensor, "models c"]
    """The query's label."""


Batch = tuple[Chunk, ...]
"""A minibatch, as `prepare` returns it."""


def head_weights(
    key: Float[Tensor, "models layers d d"],
    query: Float[Tensor, "models layers d d"],
    label: Float[Tensor, "models layers"],
    transform: Float[Tensor, "models layers d d"] | None = None,
) -> HeadWeights:
    """The weights of a `FactoredScores` head: M = B'C, B the `key` and C the `query`."""
    return HeadWeights(key.mT @ query, transform, label)


def prepare(prompt: Prompt, heads: Sequence[Kernel], *, chunk: int | None = None) -> Batch:
    """Compute what all steps on one minibatch share; a prompt without an axis of models is for one model.

    `chunk` is how many prompts of every model pass through together: None fits a CPU's cache, and takes all on a GPU.
    """
    unknown = [kernel for kernel in heads if kernel not in KERNELS]
    if unknown or not heads:
        raise ValueError(f"`heads` must be linear, relu, exp or softmax; got {unknown}. Use `KernelTransformer`.")
    xs, ys = (prompt.xs, prompt.ys) if prompt.xs.ndim == 4 else (prompt.xs[None], prompt.ys[None])
    # on a GPU, the kernel that handles every h is as fast
    only_linear = all(kernel is kernels.linear for kernel in heads) and not xs.is_cuda
    models, count, tokens, d = xs.shape
    if chunk is None and xs.is_cuda:
        chunk = count
    elif chunk is None:
        most = max(64, (MOMENTS // (2 * d * d) if only_linear else CHUNK // tokens**2) // models)
        # every core gets equally many chunks, so that none waits for the last, and a chunk fills whole cache lines
        threads = torch.get_num_threads()
        chunk = math.ceil(count / (threads * math.ceil(count / (most * threads))) / 16) * 16
    parts = []
    for x, y in zip(xs.split(chunk, 1), ys.split(chunk, 1), strict=True):
        hidden = torch.cat([y[..., :-1], torch.zeros_like(y[..., -1:])], -1)
        rows = None if only_linear else to_last(torch.cat([x, hidden[..., None]], -1).mT)
        parts.append(Chunk(rows, moments(x, y) if only_linear else None, y[..., -1].contiguous()))
    return tuple(parts)


def in_context_loss(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> Float[Tensor, " models"]:
    """The mean squared error of each model at the query, differentiable in the weights.

    loss = mean over prompts of (prediction - y_q)^2
    """
    if batch[0].moments is not None:
        pairs = ((chunk.moments, chunk.target) for chunk in batch if chunk.moments is not None)
        errors = [(linear_label(weights, given) + target).square().sum(1) for given, target in pairs]
        return torch.stack(errors).sum(0) / _num_prompts(batch)
    flat = [weight for head in weights for weight in head if weight is not None]
    return _Loss.apply(batch, tuple(heads), [head.transform is not None for head in weights], *flat)  # type: ignore


@torch.no_grad()
def predictions(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> Float[Tensor, "models batch"]:
    """Each model's prediction of +y at the query."""
    answers, packed = [], pack(weights)
    for chunk in batch:
        if chunk.rows is None:
            assert chunk.moments is not None
            answers.append(-linear_label(weights, chunk.moments))
        elif chunk.rows.is_cuda:
            answers.append(-_gpu().forward(weights, heads, chunk.rows)[0])
        else:
            answers.append(-_plan(chunk.rows, heads, weights).predict(packed, chunk.rows))
    return torch.cat(answers, 1)


class _Loss(torch.autograd.Function):
    """Loss and gradient in one pass over the chunks; `backward` only multiplies."""

    @staticmethod
    def forward(ctx, batch, heads, transforms, *flat):
        values = iter(flat)
        # a tuple is read from left to right: score, transform, label
        weights = [HeadWeights(next(values), next(values) if free else None, next(values)) for free in transforms]
        if not any(ctx.needs_input_grad):
            targets = torch.cat([chunk.target for chunk in batch], 1)
            return (predictions(weights, heads, batch) - targets).square().mean(1)
        loss, gradient = (_on_gpu if batch[0].target.is_cuda else _on_cpu)(weights, heads, batch)
        ctx.save_for_backward(*(grad for head in gradient for grad in head if grad is not None))
        return loss

    @staticmethod
    def backward(ctx, *grads):
        (up,) = grads
        return None, None, None, *(up.view(-1, *[1] * (grad.ndim - 1)) * grad for grad in ctx.saved_tensors)


def _on_gpu(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> tuple[Tensor, list[HeadWeights]]:
    """The loss and its gradient."""
    count, loss = _num_prompts(batch), torch.zeros_like(weights[0].label[:, 0])
    gradient = unpack(torch.zeros_like(pack(weights)), weights)
    for chunk in batch:
        label, saved_rows = _gpu().forward(weights, heads, chunk.rows)
        error = label + chunk.target
        _gpu().backward(weights, heads, saved_rows, 2 / count * error, gradient)
        loss += error.square().sum(1) / count
    return loss, gradient


def _gpu() -> Any:
    from looped.models.fast_losses import cheng24_gpu

    return cheng24_gpu


def _on_cpu(weights: Sequence[HeadWeights], heads: Sequence[Kernel], batch: Batch) -> tuple[Tensor, list[HeadWeights]]:
    """The loss and its gradient; each core takes chunks of its own, since two cores gain little on one small tensor."""
    threads, learn = torch.get_num_threads(), partial(_learn, weights, heads, pack(weights))
    if threads == 1 or len(batch) == 1:
        totals = [learn(chunk) for chunk in batch]
    else:
        try:
            totals = list(_workers(threads).map(learn, batch))
        finally:
            torch.set_num_threads(threads)  # a worker's setting is also the default for new threads
    total = torch.stack(totals).sum(0) / _num_prompts(batch)
    return total[-len(weights[0].label) :], unpack(2 * total, weights)


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


@torch.no_grad()  # a worker thread does not inherit the no-grad mode of an autograd function
def _learn(weights: Sequence[HeadWeights], heads: Sequence[Kernel], packed: Tensor, chunk: Chunk) -> Tensor:
    assert chunk.rows is not None
    return _plan(chunk.rows, heads, weights).learn(packed, chunk.rows, chunk.target)


def _num_prompts(batch: Batch) -> int:
    return sum(chunk.target.shape[1] for chunk in batch)


_of_thread = threading.local()


def _plan(rows: Tensor, heads: Sequence[Kernel], like: Sequence[HeadWeights]) -> Plan:
    """The thread's plan for chunks of this shape, stored for the next chunk."""
    plans = _of_thread.__dict__.setdefault("plans", {})
    key = (rows.shape, rows.dtype, *heads, *(head.transform is None for head in like), like[0].label.shape)
    if key not in plans:
        if len(plans) == MAX_PLANS:
            plans.pop(next(iter(plans)))
        plans[key] = Plan(rows, heads, like)
    return plans[key]
