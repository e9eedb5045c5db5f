"""Orthogonal matrices whose means stand for means over all of them, exactly."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def signed_shifts(d: int) -> Float[Tensor, "turns d d"]:
    """All sign changes of all cyclic shifts of d coordinates, a group of 2^d d matrices.

        mean of U'M U = (tr M / d) I  for every M, as over all orthogonal U

    The signs cancel what is off the diagonal, the shifts level the diagonal.
    """
    eye = torch.eye(d, dtype=torch.float64)
    shifts = torch.stack([eye.roll(shift, 0) for shift in range(d)])
    signs = 1 - 2 * (torch.arange(2**d)[:, None] >> torch.arange(d) & 1).double()
    return (signs[:, None, :, None] * shifts).flatten(0, 1)


def circle(num_angles: int) -> Float[Tensor, "turns 2 2"]:
    """Rotations of the plane by equal angles, and the same after a reflection.

    Means over them are means over all orthogonal U: exactly for polynomials in U of a degree below `num_angles`, and
    for analytic functions up to an error that falls exponentially with it.
    """
    angles = 2 * math.pi * torch.arange(num_angles, dtype=torch.float64) / num_angles
    first = torch.stack([angles.cos(), angles.sin()], -1)
    second = torch.stack([-angles.sin(), angles.cos()], -1)
    return torch.cat([torch.stack([first, second], -2), torch.stack([first, -second], -2)])


def turned(
    xs: Float[Tensor, "sets n d"], turns: Float[Tensor, "turns d d"], root: Float[Tensor, "d d"]
) -> Float[Tensor, "turned n d"]:
    """Sigma^1/2 U Sigma^-1/2 X for all sets of points X and all turns U; `root` is Sigma^1/2, and rows are points."""
    return ((xs @ torch.linalg.inv(root))[None] @ turns.mT[:, None] @ root).flatten(0, 1)
