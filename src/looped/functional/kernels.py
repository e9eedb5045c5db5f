"""Gram matrices: a kernel takes two sets of rows and gives one number per pair."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Callable[[Tensor, Tensor], Tensor]
"""(left (*batch n r), right (*batch m r)) -> Gram (*batch n m)."""


def linear(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """Inner products.

        K_ij = <u_i, v_j>

    Ref: cheng24, Eq. (14).
    """
    return left @ right.mT


def relu(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """Positive parts of inner products; not positive semidefinite in general.

        K_ij = max(<u_i, v_j>, 0)

    Ref: cheng24, Eq. (14).
    """
    return linear(left, right).relu()


def exp(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """Exponentials of inner products.

        K_ij = exp(<u_i, v_j>)

    Ref: cheng24, Eq. (14) with sigma = 1; any other sigma divides the rows by it, u / sigma.
    """
    return linear(left, right).exp()


def rbf(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """The Gaussian kernel, which on the unit sphere is `exp` up to a factor.

        K_ij = exp(-|u_i - v_j|^2 / 2)

    Ref: cheng24, Remark 3.2.
    """
    squares = left.square().sum(-1)[..., :, None] + right.square().sum(-1)[..., None, :]
    return (linear(left, right) - squares / 2).exp()


def arc_cosine(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """The kernel of a wide ReLU layer with N(0, I) weights g, in closed form.

        K_ij = 2 E[relu<g, u_i> relu<g, v_j>] = |u_i| |v_j| (sin a + (pi - a) cos a) / pi,  a the angle between them

    Ref: cheng24, Example 8, per hidden unit and doubled (Cho and Saul, degree 1).
    """
    sizes = left.norm(dim=-1)[..., :, None] * right.norm(dim=-1)[..., None, :]
    cosine = (linear(left, right) / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)).clamp(-1, 1)
    angle = cosine.arccos()
    return sizes * (angle.sin() + (math.pi - angle) * cosine) / math.pi


def absolute(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """A symmetric matrix with the absolute values of its eigenvalues.

        K_+ = U |D| U',  K = U D U'

    Ref: cheng24, Definition 3.3.
    """
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.abs()[..., None, :]) @ vectors.mT
