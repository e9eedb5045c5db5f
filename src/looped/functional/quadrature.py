"""Gauss's rules, interpolation, and the polynomials of least mean square, in float64.

A model of gatmiry24 with A_t = a_t I has the loss E over eigenvalues of p(lambda)^2, p = prod_t (1 - a_t lambda): a
multilayer one has any polynomial with p(0) = 1 and real roots, a looped one a power of one factor.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Nodes = tuple[Tensor, Tensor]
"""Points and their weights, which sum to 1: a distribution of eigenvalues, or a quadrature rule of one."""


def interval(low: float, high: float, *, nodes: int) -> Nodes:
    """Gauss's rule for the uniform distribution on [low, high], exact for polynomials below degree 2 nodes."""
    off = torch.arange(1, nodes, dtype=torch.float64)
    off = off / (4 * off**2 - 1).sqrt()
    points, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (low + high) / 2 + (high - low) / 2 * points, vectors[0].square()


def best_rates(nodes: Nodes, layers: int) -> Float[Tensor, " layers"]:
    """The rates a_t of the multilayer model with the least loss: one over the roots of the best polynomial.

        min E p(lambda)^2,  p(0) = 1, degree L:  the orthogonal polynomial of the weight lambda, which has real roots

    With fewer points than layers the loss is 0; the rates left over are 0.
    """
    points, weights = nodes
    wanted = min(layers, len(points))
    rates = 1 / torch.linalg.eigvalsh(_lanczos(points, (weights * points).sqrt(), wanted))
    return torch.cat([rates, rates.new_zeros(layers - wanted)])


def _lanczos(points: Tensor, start: Tensor, count: int) -> Float[Tensor, "count count"]:
    """The tridiagonal matrix whose eigenvalues are the roots of the orthogonal polynomial of weight start^2."""
    basis = [start / start.norm()]
    diagonal, off = [], []
    for _ in range(count):
        moved = points * basis[-1]
        diagonal.append(moved @ basis[-1])
        for _ in range(2):
            for vector in basis:
                moved = moved - (moved @ vector) * vector
        off.append(moved.norm())
        basis.append(moved / off[-1].clamp_min(1e-300))
    inner = torch.stack(off[:-1]) if count > 1 else points.new_zeros(0)
    return torch.diag(torch.stack(diagonal)) + torch.diag(inner, 1) + torch.diag(inner, -1)


def best_rate(nodes: Nodes, loops: int) -> float:
    """The rate of the looped model with the least loss: min E (1 - a lambda)^(2L), which is convex."""
    points, weights = nodes
    low, high = 1 / float(points.max()), 1 / float(points.min())
    for _ in range(80):
        middle = (low + high) / 2
        slope = float((weights * points * (1 - middle * points) ** (2 * loops - 1)).sum())
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (low + high) / 2


def product(left: Nodes, right: Nodes) -> Nodes:
    """The distribution of the product of two independent numbers."""
    return torch.outer(left[0], right[0]).flatten(), torch.outer(left[1], right[1]).flatten()


def loss_of(rates: Float[Tensor, " layers"], nodes: Nodes) -> float:
    """E prod_t (1 - a_t lambda)^2."""
    points, weights = nodes
    return float((weights * (1 - rates[:, None] * points).prod(0).square()).sum())


def chebyshev_nodes(count: int, low: float, high: float) -> Float[Tensor, " count"]:
    """Places in [low, high] at which a polynomial is read, for `interpolate`; from high to low."""
    angles = (2 * torch.arange(count, dtype=torch.float64) + 1) * (torch.pi / (2 * count))
    return (low + high) / 2 + (high - low) / 2 * angles.cos()


def interpolate(
    nodes: Float[Tensor, " count"], values: Float[Tensor, "rows count"], at: Float[Tensor, "rows places"]
) -> Float[Tensor, "rows places"]:
    """The polynomials through (nodes, values) at other places, for `chebyshev_nodes`: the barycentric formula."""
    index = torch.arange(len(nodes), dtype=nodes.dtype, device=nodes.device)
    weights = (-1.0) ** index * ((2 * index + 1) * (torch.pi / (2 * len(nodes)))).sin()
    gaps = at[..., None] - nodes
    parts = weights / torch.where(gaps == 0, 1e-300, gaps)
    return (parts * values[:, None]).sum(-1) / parts.sum(-1)
