"""cheng24, Section 4.1: which covariates and labels satisfy Assumptions 4.1 and 4.2 (Examples 5, 7 and 8)."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal

from looped.functional import kernels
from looped.functional.streams import generator_of
from looped.tasks.gaussian_process import GaussianProcess
from looped.theorems.check import Finding, Form, exact, relative_difference, theorem
from looped.theorems.cheng24.turns import turned
from looped.theorems.sampling import normal

NUM_TURNS = 200
"""Random orthogonal U for which an invariance is checked."""


def random_turns(d: int, generator: torch.Generator) -> Float[Tensor, "turns d d"]:
    """Random orthogonal matrices."""
    return torch.linalg.qr(normal(NUM_TURNS, d, d, generator=generator))[0]


def mixture(
    means: Float[Tensor, "*batch clusters d"], noise: Float[Tensor, "*batch m d"], clusters: tuple[int, ...]
) -> Float[Tensor, "*batch m d"]:
    """Example 5: x_i = mu_k + xi_i, k the cluster of point i."""
    return means[..., list(clusters), :] + noise


def log_density(xs: Float[Tensor, "batch m d"], num_clusters: int) -> Float[Tensor, " batch"]:
    """Of Example 5's m points together: a mean over all ways to put them into clusters of a normal density each.

    mu_k and xi_i are N(0, I); `mixture` is linear in them, so its values at unit vectors give the covariance.
    """
    m, d = xs.shape[-2:]
    basis = torch.eye((num_clusters + m) * d, dtype=xs.dtype).view(-1, num_clusters + m, d)
    sources = torch.cat([basis, torch.zeros_like(basis[:1])])
    densities = []
    for clusters in itertools.product(range(num_clusters), repeat=m):
        images = mixture(sources[:, :num_clusters], sources[:, num_clusters:], clusters).flatten(1)
        rows, centre = images[:-1] - images[-1], images[-1]
        densities.append(MultivariateNormal(centre, rows.T @ rows).log_prob(xs.flatten(1)))
    return torch.stack(densities).logsumexp(0) - m * math.log(num_clusters)


@theorem("cheng24.ex5", "x_i = mu + xi_i, mu and xi_i from N(0, I), satisfy Assumption 4.1: U X has the law of X.")
def ex5() -> Iterator[Finding]:
    """The joint density of all points before and after a turn; then with two clusters."""
    d, n, generator = 3, 4, generator_of(11)
    turns = random_turns(d, generator)
    for num_clusters in (1, 2):
        xs = normal(1, n + 1, d, generator=generator)
        before, after = (log_density(points, num_clusters) for points in (xs, turned(xs, turns, torch.eye(d).double())))
        instance = f"d={d}, n={n}, {NUM_TURNS} turns U (seed 11): largest relative change of the density of X"
        finding = exact((after - before).expm1().abs(), instance, x_label="turn")
        two = "The same with two cluster means, drawn independently, and points of either with probability 1/2."
        yield finding.stated("as stated", two if num_clusters == 2 else "")


def change_under_turns(gram: Callable[[Tensor], Tensor], seed: int) -> Float[Tensor, " turns"]:
    """How much K(Sigma^1/2 U Sigma^-1/2 X) differs from K(X), relative to its largest entry, for random U.

    x = Sigma^1/2 xi, xi on the unit sphere, as in Appendix H.1
    """
    root, generator = GaussianProcess().root, generator_of(seed)
    directions = normal(1, 8, len(root), generator=generator)
    xs = directions / directions.norm(dim=-1, keepdim=True) @ root
    before, after = gram(xs), gram(turned(xs, random_turns(len(root), generator), root))
    return (after - before).abs().amax((1, 2)) / before.abs().max()


@theorem(
    "cheng24.ex7",
    "Labels from the K Gaussian process of linear, relu or exp satisfy Assumption 4.2: K_+(U_Sigma X) = K_+(X).",
)
def ex7() -> Iterator[Finding]:
    """Definition 3.3 and Appendix H.1 have K at x; Example 7 quotes them with Sigma^-1/2 x, which it needs."""
    cases: list[tuple[Form, bool, str]] = [
        (
            "as printed",
            False,
            "Labels of Definition 3.3, K(x_i, x_j), as Appendix H.1 draws them, satisfy Assumption 4.2.",
        ),
        ("as corrected", True, "Labels of Example 7, K(Sigma^-1/2 x_i, Sigma^-1/2 x_j), satisfy Assumption 4.2."),
    ]
    instance = f"K linear, relu and exp, d=5, D = (1, 1, .25, 2.25, 1), 8 points, {NUM_TURNS} turns U (seed 12): change"
    for form, whiten, statement in cases:
        changes = [
            change_under_turns(GaussianProcess(kernel=kernel, whiten=whiten).gram, 12)
            for kernel in (kernels.linear, kernels.relu, kernels.exp)
        ]
        yield exact(torch.stack(changes).amax(0), instance, x_label="turn").stated(form, statement)


def relu_moments(xs: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """E relu<g, x_i> relu<g, x_j>, g ~ N(0, I), by quadrature over the direction of g in the plane of x_i and x_j.

    |x_i| |x_j| / pi times the integral of cos t cos(t - a), from a - pi/2 to pi/2, a the angle between them
    """
    nodes, node_weights = np.polynomial.legendre.leggauss(30)
    sizes = xs.norm(dim=-1)
    angle = (xs @ xs.T / (sizes[:, None] * sizes)).clamp(-1, 1).arccos()[..., None]
    half = (math.pi - angle) / 2
    t = angle - math.pi / 2 + half * (1 + torch.tensor(nodes))
    integral = (torch.tensor(node_weights) * half * t.cos() * (t - angle).cos()).sum(-1)
    return sizes[:, None] * sizes * integral / math.pi


@theorem(
    "cheng24.ex8", "Labels <theta_2, relu(theta_1 x)> have a covariance K(X) with K(Sigma^1/2 U Sigma^-1/2 X) = K(X)."
)
def ex8() -> Iterator[Finding]:
    """K by quadrature against its closed form; then the invariance, which needs Sigma = I or whitened x."""
    hidden, xs = 6, normal(8, 5, generator=generator_of(9))
    differences = [relative_difference(hidden / 2 * kernels.arc_cosine(xs, xs), hidden * relu_moments(xs))]
    statement = "E y_i y_j = m E relu<g, x_i> relu<g, x_j> = (m / 2) arc-cosine kernel of x_i, x_j, g ~ N(0, I)."
    instance = f"d=5, m={hidden}, 8 points (seed 9): the closed form against quadrature, largest relative difference"
    yield exact(differences, instance).stated("as stated", statement)
    eye = torch.eye(5, dtype=torch.float64)
    cases: list[tuple[Form, Tensor, str]] = [
        ("as printed", eye, "The network reads x, whose covariance is Sigma."),
        (
            "as corrected",
            torch.linalg.inv(GaussianProcess().root),
            "The network reads Sigma^-1/2 x (or Sigma = I, which is all that App. I.1 shows).",
        ),
    ]
    instance = f"d=5, D = (1, 1, .25, 2.25, 1), 8 points, {NUM_TURNS} turns U (seed 9); largest relative change"
    for form, through, statement in cases:
        change = change_under_turns(lambda xs, through=through: kernels.arc_cosine(xs @ through, xs @ through), 9)
        finding = exact(change, instance, x_label="turn")
        yield finding.stated(form, f"K(Sigma^1/2 U Sigma^-1/2 X) = K(X). {statement}")
