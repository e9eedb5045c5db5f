"""Realizable prompts with given eigenvalues, and a model's error on them."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt
from looped.theorems.sampling import normal


class RealizablePrompts(NamedTuple):
    """A batch of prompts whose labels are exactly linear, with the weights that made them."""

    prompt: Prompt
    w: Float[Tensor, "batch d"]
    answer: Float[Tensor, "batch 1"]
    """w'x_q, the query's true label."""
    covariance: Float[Tensor, "batch d d"]
    """Sigma = XX'."""

    @property
    def norms(self) -> Float[Tensor, " batch"]:
        """|w| |x_q|, the unit of most bounds."""
        return self.w.norm(dim=-1) * self.prompt.xs[:, -1].norm(dim=-1)


def orthonormal(*shape: int, generator: torch.Generator) -> Tensor:
    """Uniformly distributed matrices with orthonormal columns."""
    q, r = torch.linalg.qr(normal(*shape, generator=generator))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def random_directions(eigenvalues: Float[Tensor, "batch d"], generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """Symmetric matrices with these eigenvalues and uniformly distributed eigenvectors."""
    batch, d = eigenvalues.shape
    vectors = orthonormal(batch, d, d, generator=generator)
    return vectors * eigenvalues[:, None] @ vectors.mT


def square_roots(matrices: Float[Tensor, "*batch d d"]) -> tuple[Tensor, Tensor]:
    """The symmetric square root of positive definite matrices, and its inverse."""
    values, vectors = torch.linalg.eigh(matrices)
    roots = values.sqrt()[..., None, :]
    return vectors * roots @ vectors.mT, vectors / roots @ vectors.mT


def with_covariance(
    covariance: Float[Tensor, "batch d d"], w: Tensor, query: Tensor, *, n: int, generator: torch.Generator
) -> RealizablePrompts:
    """n examples whose XX' is exactly `covariance`, labelled by w, and a query."""
    values, vectors = torch.linalg.eigh(covariance)
    basis = orthonormal(len(covariance), n, covariance.shape[-1], generator=generator)
    examples = basis * values.clamp_min(0).sqrt()[:, None, :] @ vectors.mT
    xs = torch.cat([examples, query[:, None]], 1)
    ys = torch.einsum("bnd,bd->bn", xs, w)
    return RealizablePrompts(Prompt(xs, ys), w, ys[:, -1:], covariance)


def realizable(
    eigenvalues: Float[Tensor, "batch d"], *, n: int, generator: torch.Generator, unit: bool = True
) -> RealizablePrompts:
    """Prompts whose XX' has these eigenvalues in random directions; w and the query are normal, of length 1 if `unit`.

    Ref: gatmiry24, Definition 1.
    """
    covariance = random_directions(eigenvalues, generator)
    w, query = normal(*eigenvalues.shape, generator=generator), normal(*eigenvalues.shape, generator=generator)
    if unit:
        w, query = w / w.norm(dim=-1, keepdim=True), query / query.norm(dim=-1, keepdim=True)
    return with_covariance(covariance, w, query, n=n, generator=generator)


@torch.no_grad()
def prediction_errors(model: KernelTransformer, prompts: RealizablePrompts, loops: int) -> Float[Tensor, "loops batch"]:
    """|prediction - w'x_q| after every loop."""
    return (model(prompts.prompt, loops=loops, keep=loops) - prompts.answer).abs()[..., 0]


@torch.no_grad()
def population_loss(
    model: KernelTransformer, covariances: Float[Tensor, "batch d d"], *, loops: int, generator: torch.Generator
) -> Float[Tensor, "loops batch"]:
    """The model's exact expected squared error after every loop for each covariance, measured by running the model.

        E (TF - y)^2 = sum_ij err(w = Sigma^{-1/2} e_i, x_q = Sigma^{1/2} e_j)^2,  w ~ N(0, Sigma^-1), x_q ~ N(0, Sigma)

    Ref: gatmiry24, Eq. (8). The error is bilinear in w and x_q, so d^2 prompts give the expectation.
    """
    batch, d, _ = covariances.shape
    root, inverse = square_roots(covariances)
    pairs = torch.cartesian_prod(torch.arange(d), torch.arange(d))
    w, query = inverse[:, pairs[:, 0]].flatten(0, 1), root[:, pairs[:, 1]].flatten(0, 1)
    prompts = with_covariance(covariances.repeat_interleave(d * d, 0), w, query, n=d + 2, generator=generator)
    return prediction_errors(model, prompts, loops).square().reshape(loops, batch, d * d).sum(-1)
