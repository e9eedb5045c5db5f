"""Realizable instances with given eigenvalues, and a model's error on them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt


class Instances(NamedTuple):
    """A batch of prompts whose labels are exactly linear, and what belongs to them."""

    prompt: Prompt
    w: Float[Tensor, "batch d"]
    answer: Float[Tensor, "batch 1"]
    """w'x_q, the query's true label."""
    covariance: Float[Tensor, "batch d d"]
    """Sigma = XX'."""

    @property
    def size(self) -> Float[Tensor, "batch 1"]:
        """|w| |x_q|, the unit of most bounds."""
        return (self.w.norm(dim=-1) * self.prompt.xs[:, -1].norm(dim=-1))[:, None]


def seeded(seed: int) -> torch.Generator:
    """A generator with that seed."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def orthonormal(*shape: int, generator: torch.Generator) -> Tensor:
    """Matrices with orthonormal columns, uniformly distributed."""
    q, r = torch.linalg.qr(normal(*shape, generator=generator))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def with_covariance(
    covariance: Float[Tensor, "batch d d"], w: Tensor, query: Tensor, *, n: int, generator: torch.Generator
) -> Instances:
    """n examples whose XX' is `covariance` exactly, labelled by w, and a query."""
    values, vectors = torch.linalg.eigh(covariance)
    basis = orthonormal(len(covariance), n, covariance.shape[-1], generator=generator)
    examples = basis * values.clamp_min(0).sqrt()[:, None, :] @ vectors.mT
    xs = torch.cat([examples, query[:, None]], 1)
    ys = torch.einsum("bnd,bd->bn", xs, w)
    return Instances(Prompt(xs, ys), w, ys[:, -1:], covariance)


def realizable(
    eigenvalues: Float[Tensor, "batch d"], *, n: int, generator: torch.Generator, unit: bool = True
) -> Instances:
    """Instances whose XX' has these eigenvalues in random directions; w and the query normal, of length 1 if `unit`.

    Ref: gatmiry24, Definition 1.
    """
    batch, d = eigenvalues.shape
    vectors = orthonormal(batch, d, d, generator=generator)
    w, query = normal(batch, d, generator=generator), normal(batch, d, generator=generator)
    if unit:
        w, query = w / w.norm(dim=-1, keepdim=True), query / query.norm(dim=-1, keepdim=True)
    return with_covariance(vectors * eigenvalues[:, None] @ vectors.mT, w, query, n=n, generator=generator)


@torch.no_grad()
def errors(model: KernelTransformer, instances: Instances, loops: int) -> Float[Tensor, "loops batch"]:
    """|prediction - w'x_q| after every loop."""
    return (model(instances.prompt, loops=loops, keep=loops) - instances.answer).abs()[..., 0]


@torch.no_grad()
def population_loss(
    model: KernelTransformer, covariances: Float[Tensor, "batch d d"], *, loops: int, generator: torch.Generator
) -> Float[Tensor, "loops batch"]:
    """The model's expected squared error after every loop for each covariance, exactly, through the model itself.

        E (TF - y)^2 = sum_ij err(w = Sigma^{-1/2} e_i, x_q = Sigma^{1/2} e_j)^2,  w ~ N(0, Sigma^-1), x_q ~ N(0, Sigma)

    Ref: gatmiry24, Eq. (8). The error is bilinear in w and x_q, so d^2 prompts give the expectation.
    """
    batch, d, _ = covariances.shape
    values, vectors = torch.linalg.eigh(covariances)
    root = vectors * values.sqrt()[:, None] @ vectors.mT
    inverse = vectors / values.sqrt()[:, None] @ vectors.mT
    pairs = torch.cartesian_prod(torch.arange(d), torch.arange(d))
    w, query = inverse[:, pairs[:, 0]].flatten(0, 1), root[:, pairs[:, 1]].flatten(0, 1)
    each = covariances.repeat_interleave(d * d, 0)
    made = with_covariance(each, w, query, n=d + 2, generator=generator)
    return errors(model, made, loops).square().reshape(loops, batch, d * d).sum(-1)
