"""Losses of restricted linear attention in the d-dimensional space, for whole families of models at once.

The labels of all tokens stay linear in their covariates, y_j = <e, x_j> (the query's: <e - w, x_q>), so one layer is
a map of e in R^d, and no token needs to be carried along:

    e <- (I - A' S) e,  e = w first,  S = XX'/n,  prediction = <w - e, x_q>

Models come deepest first; a looped family has one layer, a multilayer one has as many as its deepest model.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Scores = Float[Tensor, "models layers d d"]
"""A of every layer; past a model's depth its weights are not read."""


def residual(
    score: Scores,
    depths: Sequence[int],
    covariance: Float[Tensor, "groups d d batch"],
    scale: Float[Tensor, "#models batch"],
    w: Float[Tensor, "groups d batch"],
) -> Float[Tensor, "models d batch"]:
    """What is left of w after each model's layers.

        e <- e - A' (scale S e)

    Ref: gatmiry24, Lemma 4. Model m reads the prompts of group m mod groups: seeds have their own, settings share them.
    A prompt with x = sqrt(s) z has S = s ZZ'/n, so that models with other s can share Z. Prompts lie last in memory.
    """
    models, groups = len(score), len(w)
    rates = scale.expand(models, -1)

    def layer(e: Tensor, a: Tensor) -> Tensor:
        if e.is_cuda:  # one kernel
            from looped.models.fast_losses.gatmiry24_gpu import Step

            return Step.apply(e, a, covariance, rates[: len(e)])  # type: ignore
        return torch.baddbmm(e, a.mT, _Symmetric.apply(covariance, rates[: len(e)], e), alpha=-1)  # type: ignore

    return _descend(score, depths, w.repeat(models // groups, 1, 1), layer)


class _Symmetric(torch.autograd.Function):
    """rate S e; S is symmetric, so the slope along e is rate S times the slope."""

    @staticmethod
    def forward(ctx, covariance, rates, e):
        ctx.save_for_backward(covariance, rates)
        return symmetric(covariance, rates, e)

    @staticmethod
    def backward(ctx, *grads):
        covariance, rates = ctx.saved_tensors
        return None, None, symmetric(covariance, rates, grads[0])


def symmetric(
    matrices: Float[Tensor, "groups d d c"], rates: Float[Tensor, "models c"], vectors: Float[Tensor, "models d c"]
) -> Float[Tensor, "models d c"]:
    """Each prompt's symmetric matrix times its vector, times its rate; model m reads the prompts of group m mod groups.

    out_i = rate sum_k S_ki v_k
    """
    (models, d, count), groups = vectors.shape, len(matrices)
    split = vectors.view(models // groups, groups, d, count)
    out = matrices[:, 0] * split[:, :, :1]
    for k in range(1, d):
        out.addcmul_(matrices[:, k], split[:, :, k : k + 1])
    return out.mul_(rates.view(models // groups, groups, 1, count)).view(models, d, count)


def sampled_loss(
    score: Scores,
    depths: Sequence[int],
    covariance: Float[Tensor, "groups d d batch"],
    scale: Float[Tensor, "#models batch"],
    w: Float[Tensor, "groups d batch"],
) -> Float[Tensor, " models"]:
    """Mean squared error over prompts, the query integrated out; predicting zero costs 1.

        E over x_q of (TF - y_q)^2 / d = |e|^2 / d,  z and w standard normal, x = sqrt(s) z, w* = w / sqrt(s)

    Ref: gatmiry24, Section 5.
    """
    return residual(score, depths, covariance, scale, w).square().mean((-2, -1))


def exact_loss(
    score: Scores, depths: Sequence[int], scale: Float[Tensor, "#models nodes"]
) -> Float[Tensor, "models nodes"]:
    """The expected squared error where the sample covariance is s I exactly; predicting zero costs 1.

        E (TF - y_q)^2 / d = |prod_t (I - s A_t')|^2 / d

    Ref: gatmiry24, Lemma 4 with Eq. (2)'s 1/n, which the lemma leaves out.
    """
    models, nodes, d = len(score), scale.shape[1], score.shape[-1]
    rates = scale[:, None, :, None].expand(models, 1, nodes, d).reshape(models, 1, nodes * d)

    def layer(product: Tensor, a: Tensor) -> Tensor:
        return product - rates[: len(product)] * torch.bmm(a.mT, product)

    product = _descend(score, depths, _eye(score).repeat(1, nodes).expand(models, d, nodes * d), layer)
    return product.square().unflatten(-1, (nodes, d)).sum((1, 3)) / d


def covariance_loss(
    score: Scores, depths: Sequence[int], covariance: Float[Tensor, "batch d d"], scale: Float[Tensor, "#models batch"]
) -> Float[Tensor, "models batch"]:
    """The expected squared error given the sample covariance, w* and the query integrated out.

        |prod_t (I - scale A_t' S)|^2 / d

    As a function of the scale it is a polynomial of degree 2L, so a few scales give it at all.
    """
    models, batch, d = len(score), len(covariance), covariance.shape[-1]
    rates = scale[..., None, None].expand(models, -1, 1, 1)

    def layer(product: Tensor, a: Tensor) -> Tensor:
        return product - rates[: len(product)] * torch.einsum("med,mbef->mbdf", a, covariance @ product)

    return _descend(score, depths, _eye(score).expand(models, batch, d, d), layer).square().sum((-2, -1)) / d


def anisotropic_loss(
    score: Scores, depths: Sequence[int], root: Float[Tensor, "batch d d"]
) -> Float[Tensor, "models batch"]:
    """The expected squared error where the sample covariance is any Sigma exactly; predicting zero costs 1.

        |prod_t (I - Sigma^1/2 A_t' Sigma^1/2)|^2 / d,  root = Sigma^1/2

    Ref: gatmiry24, Lemma 4 with Eq. (2)'s 1/n.
    """
    batch, d, _ = root.shape

    def layer(product: Tensor, a: Tensor) -> Tensor:
        return product - root @ torch.einsum("med,mbef->mbdf", a, root @ product)

    return _descend(score, depths, _eye(score).expand(len(score), batch, d, d), layer).square().sum((-2, -1)) / d


def _eye(score: Tensor) -> Tensor:
    return torch.eye(score.shape[-1], dtype=score.dtype, device=score.device)


def _descend(score: Tensor, depths: Sequence[int], state: Tensor, layer: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Each model's state after its own number of layers; finished models leave."""
    if list(depths) != sorted(depths, reverse=True) or len(depths) != len(score) or depths[-1] < 1:
        raise ValueError(f"`depths` must be one number a model, deepest first; got {list(depths)}. Sort the models.")
    done = []
    for t in range(depths[0]):
        going = sum(depth > t for depth in depths)
        if going < len(state):
            done.append(state[going:])
        state = layer(state[:going], score[:going, min(t, score.shape[1] - 1)])
    return torch.cat([state, *reversed(done)])
