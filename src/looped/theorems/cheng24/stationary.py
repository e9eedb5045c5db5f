"""cheng24, Section 4: stationary points of the in-context loss, exactly.

The covariates are a few sets of points, each turned by all orthogonal U: that satisfies Assumption 4.1. At weights of
the theorem's form the gradient at U_Sigma X along R is the gradient at X along U'R U_Sigma (Eq. 43), so the mean over
all U is the mean over `signed_shifts`. Labels enter through their covariance: predictions are linear in them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd.functional import hessian
from torch.func import functional_call

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import KernelTransformer, functional
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.theorems.check import EXACT, Finding, bound_plot, theorem
from looped.theorems.cheng24.turns import circle, signed_shifts, turned
from looped.theorems.sampling import normal

SHIFTS = (0.01, 0.1, 0.3)
"""How far B and C are moved away from the point, relative to their norms."""
PAIRS: tuple[tuple[Kernel, Kernel], ...] = (
    (kernels.exp, softmax),
    (kernels.relu, kernels.relu),
    (kernels.linear, kernels.linear),
)
"""Label kernels K and attentions h."""
TRIVIAL = (
    "B = C = 0 with the best r is a stationary point of this form for any labels, since h then reads nothing, and that "
    "alone proves the sentence. Its content is Propositions E.3, F.3 and F.4; here b and c are not 0."
)

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The in-context loss of an architecture on labels from a Gaussian process, as a function of all its weights."""

    task: GaussianProcess
    """The distribution of labels, and Sigma."""
    kernel: Kernel
    """The attention h."""
    transform: bool
    """Whether A is free, as in Theorem 4.6, or 0, as in Theorem 4.5."""
    layers: int = 2
    """Number of layers, k + 1 in the paper."""
    n: int = 5
    """Examples in a prompt."""
    num_sets: int = 4
    """Number of sets of points, before they are turned."""

    def points(self, seed: int) -> Float[Tensor, "sets n d"]:
        """The sets of points, n examples and a query, from the task's distribution."""
        return self.task.sample(batch=self.num_sets, n=self.n + 1, generator=generator_of(seed)).xs.double()

    @property
    def through(self) -> Float[Tensor, "d d"]:
        """Sigma^-1/2, of which B and C are multiples."""
        return torch.linalg.inv(self.task.root)

    @cached_property
    def model(self) -> KernelTransformer:
        """The model; its initial weights are never read."""
        config = functional(
            d=self.task.d, loops=self.layers, layers=self.layers, kernel=self.kernel, transform=self.transform
        )
        return config.build().double()

    def weights(self, numbers: Float[Tensor, "matrices layers"]) -> Weights:
        """r, B = b Sigma^-1/2, C = c Sigma^-1/2 and A = a I from the rows (r, b, c, a) of `numbers`."""
        scaled = numbers[..., None, None]
        weights = {
            "heads.0.label": numbers[0],
            "heads.0.key": scaled[1] * self.through,
            "heads.0.query": scaled[2] * self.through,
        }
        eye = torch.eye(self.task.d, dtype=torch.float64)
        return weights | ({"heads.0.transform": scaled[3] * eye} if self.transform else {})

    def loss(self, weights: Weights, xs: Float[Tensor, "batch m d"]) -> Tensor:
        """E (prediction - y)^2 over the labels, averaged over the sets of points.

        u'K u,  u = (c, -1),  prediction = sum_i c_i y_i: c_i is the prediction when y_i = 1 and all other labels are 0
        """
        batch, tokens, d = xs.shape
        repeated = xs[:, None].expand(-1, tokens - 1, -1, -1).reshape(-1, tokens, d)
        units = torch.eye(tokens, dtype=xs.dtype)[:-1].repeat(batch, 1)
        answers = functional_call(self.model, weights, (Prompt(repeated, units),))[-1].reshape(batch, tokens - 1)
        u = torch.cat([answers, -torch.ones_like(answers[:, :1])], 1)
        return torch.einsum("bi,bij,bj->b", u, self.task.gram(xs), u).mean()

    def slopes(self, weights: Weights, xs: Float[Tensor, "batch m d"]) -> Weights:
        """The gradient along every entry of every matrix."""
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        return dict(zip(leaves, torch.autograd.grad(self.loss(leaves, xs), list(leaves.values())), strict=True))

    def gradient_norm(self, weights: Weights, xs: Float[Tensor, "batch m d"]) -> float:
        """The norm of the whole gradient."""
        return float(torch.cat([slope.flatten() for slope in self.slopes(weights, xs).values()]).norm())

    def best(self, xs: Float[Tensor, "batch m d"]) -> Weights:
        """The point of least loss among those of the theorem's form, to rounding."""
        start = torch.tensor([-0.5 / self.n, 0.5, 1.0, 0.01], dtype=torch.float64)[: 4 if self.transform else 3]
        # start from unequal layers: equal ones may be a saddle, since two steps of unequal length can do better
        start = start[:, None] * torch.linspace(0.6, 1.4, self.layers, dtype=torch.float64)
        return self.weights(_minimise(lambda numbers: self.loss(self.weights(numbers), xs), start))

    def shifted(self, weights: Weights, shift: float) -> Weights:
        """The same weights with B and C moved in a random direction."""
        generator, moved = generator_of(1), dict(weights)
        for name in ("heads.0.key", "heads.0.query"):
            noise = normal(*weights[name].shape, generator=generator)
            sizes = weights[name].norm(dim=(1, 2), keepdim=True) / noise.norm(dim=(1, 2), keepdim=True)
            moved[name] = weights[name] + shift * sizes * noise
        return moved


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """BFGS, then Newton steps; where only a product of numbers matters the Hessian is singular."""

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(flat).view_as(start).requires_grad_()
        value = loss(point)
        return value.item(), torch.autograd.grad(value, point)[0].flatten().numpy()

    near = minimize(value_and_slope, start.flatten().numpy(), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    for _ in range(3):
        curvature = hessian(loss, torch.tensor(near).view_as(start))
        assert isinstance(curvature, Tensor)
        inverse = torch.linalg.pinv(curvature.reshape(len(near), -1), rtol=1e-7, hermitian=True).numpy()
        near = near - inverse @ value_and_slope(near)[1]
    return torch.tensor(near).view_as(start)


def stationary(*, transform: bool) -> Finding:
    """The gradient at the best point of the form over all turns, relative to that of the sets of points unturned."""
    ratios, moved, norms = [], [], []
    for seed, (label, kernel) in enumerate(PAIRS):
        landscape = Landscape(task=GaussianProcess(kernel=label), kernel=kernel, transform=transform)
        points = landscape.points(seed)
        everywhere = turned(points, signed_shifts(landscape.task.d), landscape.task.root)
        # the loss of weights of the form is the same for every turn, so one of them is enough to find the best
        best = landscape.best(points)
        unturned = landscape.gradient_norm(best, points)
        norm, *others = (
            landscape.gradient_norm(weights, everywhere)
            for weights in (best, *(landscape.shifted(best, shift) for shift in SHIFTS))
        )
        ratios.append(norm / unturned)
        moved.append([other / unturned for other in others])
        norms.append(f"({label.__name__}, {kernel.__name__}) {norm:.1g}, unturned {unturned:.2g}")
    worst = ratios.index(max(ratios))
    plot = bound_plot(
        "relative shift of B and C", [0.0, *SHIFTS], "relative gradient", [ratios[worst], *moved[worst]], EXACT
    )
    instance = (
        f"d=5, n=5, 2 layers, D = (1, 1, .25, 2.25, 1), 4 sets of points each (seeds 0-2) turned by 160 U, best point "
        f"of the form; gradient norm for (K, h): {'; '.join(norms)}; relative to unturned"
    )
    return Finding(max(ratios), EXACT, instance, plot, tolerance=True)


@theorem(
    "cheng24.thm4.5",
    "Under Assumptions 4.1 to 4.3, with A = 0, some r and B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.",
)
def thm4_5() -> Iterator[Finding]:
    """At the point; then for the labels of Definition 3.3, which Assumption 4.2 leaves out."""
    yield stationary(transform=False).stated("as stated", remark=TRIVIAL)
    least, ratio = definition_3_3()
    instance = (
        "d=2, D = (.25, 2.25), n=2, 1 layer, 4 sets of points (seed 3) turned by 64 U; K and h linear: the least "
        "gradient in B over all b, with r = c = 1, relative to that at b = 0 (only r b c matters). K = exp, softmax: "
        f"at the best point {ratio:.2g} of the unturned gradient"
    )
    statement = (
        "Assumption 4.2 is needed: with the labels of Definition 3.3 and Appendix H.1, K(x_i, x_j), which do not "
        "satisfy it (`cheng24.ex7`), and linear K and h, no point of the form with r b c other than 0 is stationary."
    )
    yield Finding(least, EXACT, instance, at_least=True, tolerance=True).stated("as stated", statement)


@theorem(
    "cheng24.thm4.6",
    "Under Assumptions 4.1 to 4.3, some r and A = a I, B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.",
)
def thm4_6() -> Iterator[Finding]:
    """The same with A free."""
    yield stationary(transform=True).stated("as stated", remark=TRIVIAL)


def plane_process(kernel: Kernel, *, whiten: bool = False) -> GaussianProcess:
    """Labels of Definition 3.3 in the plane, where the mean over all turns is a sum; Example 7's if `whiten`."""
    return GaussianProcess(d=2, kernel=kernel, eigenvalues=(0.25, 2.25), whiten=whiten)


def definition_3_3() -> tuple[float, float]:
    """The least gradient of points of the form, with linear attention over all of them, with softmax at the best."""
    sizes = {"transform": False, "layers": 1, "n": 2}
    straight = Landscape(task=plane_process(kernels.linear), kernel=kernels.linear, **sizes)
    points = straight.points(3)
    everywhere = turned(points, circle(32), straight.task.root)
    # the gradient in B is affine in b
    at_0, at_1 = (
        straight.slopes(straight.weights(torch.tensor([[1.0], [b], [1.0]]).double()), everywhere)["heads.0.key"]
        for b in (0.0, 1.0)
    )
    change = at_1 - at_0
    closest = at_0 - (at_0 * change).sum() / change.square().sum() * change
    curved = Landscape(task=plane_process(kernels.exp), kernel=softmax, **sizes)
    best = curved.best(everywhere)
    ratio = curved.gradient_norm(best, everywhere) / curved.gradient_norm(best, points)
    return float(closest.norm() / at_0.norm()), ratio
