"""Eigenvalues of the sample covariance ZZ'/n of n Gaussian examples: their mean distribution, and draws with its tail.

The loss of a deep model is a polynomial of degree 2L in an eigenvalue, and rests on eigenvalues that 100,000 prompts do
not have: weights that are best for 500,000 sampled covariances lose 10^5 times the least at L = 16. So the least loss
comes from exact moments, and prompts are drawn with a stretched largest eigenvalue and the weight that this asks for.
"""

import math
from fractions import Fraction
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.quadrature import Nodes
from looped.functional.streams import stream

STRETCHES = (1, 1, 2, 4, 8)
"""By which factors, all as likely, the gap of the largest eigenvalue to the next is stretched."""


def wishart(batch: int, n: int, d: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
    """ZZ'/n of n standard normal examples."""
    z = torch.randn(batch, n, d, generator=generator, device=generator.device)
    return z.mT @ z / n


@cache
def moments(d: int, n: int, count: int) -> list[Fraction]:
    """E tr (ZZ'/n)^k / d for k below `count`.

        tr W^k / d has the mean of (W^k)_11,  W = B B',  B bidiagonal with independent chi entries

    (W^k)_11 sums over walks of 2k steps on a line whose edges are B's entries; an edge is taken 2m times, and a walk
    with m on one edge and q on the next is one of C(m + q - 1, q). Ref: Dumitriu, Edelman 2002.
    """
    degrees = [n, *(degree for step in range(1, d) for degree in (d - step, n - step))]
    walks = {(m, m): _chi_moment(n, m) for m in range(1, count)}
    totals = [1, *walks.values()]
    for degree in degrees[1:]:
        longer: dict[tuple[int, int], int] = {}
        for (m, taken), weight in walks.items():
            for q in range(1, count - taken):
                ways = math.comb(m + q - 1, q) * _chi_moment(degree, q)
                longer[q, taken + q] = longer.get((q, taken + q), 0) + weight * ways
        for (_, taken), weight in longer.items():
            totals[taken] += weight
        walks = longer
    return [Fraction(total, n**k) for k, total in enumerate(totals)]


@cache
def _chi_moment(degree: int, m: int) -> int:
    """E chi^2m = degree (degree + 2) ... (degree + 2m - 2)."""
    return math.prod(range(degree, degree + 2 * m, 2))


def eigenvalue_rule(d: int, n: int, nodes: int) -> Nodes:
    """Gauss's rule for the mean distribution of an eigenvalue of ZZ'/n, exact for polynomials below degree 2 nodes.

    Chebyshev's algorithm, from moments to the recurrence, loses all digits in floating point: it is done in fractions.
    """
    before, now = [Fraction(0)] * (2 * nodes), moments(d, n, 2 * nodes)
    diagonal, squares = [now[1]], [Fraction(0)]
    for k in range(1, nodes):
        after = [Fraction(0)] * (2 * nodes)
        for j in range(k, 2 * nodes - k):
            after[j] = now[j + 1] - diagonal[-1] * now[j] - squares[-1] * before[j]
        diagonal.append(after[k + 1] / after[k] - now[k] / now[k - 1])
        squares.append(after[k] / now[k - 1])
        before, now = now, after
    off = torch.tensor([float(square) for square in squares[1:]], dtype=torch.float64).sqrt()
    centre = torch.diag(torch.tensor([float(number) for number in diagonal], dtype=torch.float64))
    points, vectors = torch.linalg.eigh(centre + torch.diag(off, 1) + torch.diag(off, -1))
    return points, vectors[0].square()


def draw_spectra(
    pool: Float[Tensor, "pool d"], n: int, count: int, generator: torch.Generator
) -> tuple[Float[Tensor, "count d"], Float[Tensor, " count"]]:
    """Eigenvalues with a heavier tail, and weights under which they are those of ZZ'/n.

    l_1 <- l_2 + c (l_1 - l_2),  weight = p(l) / mean over c of p(the l that c stretches to this one) / c
    p(l_1 | the others) ~ l_1^((n-d-1)/2) exp(-n l_1 / 2) prod_j (l_1 - l_j)
    """
    which, stretch = (
        torch.randint(size, (count,), generator=generator, device=pool.device) for size in (len(pool), len(STRETCHES))
    )
    factors = pool.new_tensor(STRETCHES)
    others, second, first = pool[which, :-1], pool[which, -2], pool[which, -1]
    largest = second + factors[stretch] * (first - second)
    sources = second[:, None] + (largest - second)[:, None] / factors
    density = (_log_density(sources, others[:, None], n) - factors.log()).logsumexp(1) - math.log(len(factors))
    weights = (_log_density(largest, others, n) - density).exp()
    return torch.cat([others, largest[:, None]], 1), weights


def _log_density(largest: Tensor, others: Tensor, n: int) -> Tensor:
    """log p(l_1 | the others), up to what the others alone decide."""
    power = (n - others.shape[-1] - 2) / 2
    return power * largest.log() - n / 2 * largest + (largest[..., None] - others).log().sum(-1)


@cache
def spectra(d: int, n: int, count: int, purpose: str, device: torch.device) -> Float[Tensor, "count d"]:
    """Eigenvalues of `count` sample covariances, ascending, to draw from."""
    generator = torch.Generator().manual_seed(stream(0, f"spectra of {purpose}"))
    return torch.linalg.eigvalsh(wishart(count, n, d, generator).double()).to(device)
