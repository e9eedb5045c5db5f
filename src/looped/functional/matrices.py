"""How far a matrix is from a multiple of the identity."""

import torch
from jaxtyping import Float
from torch import Tensor


def to_identity(matrix: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    """min_a |M - a I| / |M|, Frobenius norms; the best a is the mean of the diagonal. M = 0 has distance 0."""
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    size = matrix.norm(dim=(-2, -1))
    return (matrix - mean * eye).norm(dim=(-2, -1)) / torch.where(size > 0, size, 1)
