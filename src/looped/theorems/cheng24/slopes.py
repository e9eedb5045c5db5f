"""cheng24, Propositions E.3, F.3 and F.4: at weights of the form, a slope along any R is that along a multiple R~.

The left side is the gradient of the transformer by reverse differentiation, averaged over all turns of the covariates
(`stationary.py`). The right side is the slope of the product of Eq. (40) by forward differentiation, without turns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jvp
from torch.nn.functional import pad

from looped.functional.kernels import Kernel
from looped.functional.streams import generator_of
from looped.tasks.gaussian_process import GaussianProcess
from looped.theorems.check import Finding, Form, exact, relative_difference, theorem
from looped.theorems.cheng24.stationary import PAIRS, Landscape, Weights
from looped.theorems.cheng24.turns import signed_shifts, turned
from looped.theorems.sampling import normal, uniform

MATRICES = {"A": "heads.0.transform", "B": "heads.0.key", "C": "heads.0.query"}
"""The model's names of the paper's matrices."""
SETTING = "d=5, n=5, 3 layers, D = (1, 1, .25, 2.25, 1), 4 sets of points"


def product(xs: Float[Tensor, "batch m d"], weights: Weights, kernel: Kernel) -> Float[Tensor, "batch m m"]:
    """G, with which Y = Y_0 G after all layers.

        G = prod_l (I + r_l M h(B_l X_l, C_l X_l)),  X_{l+1} = X_l + A_l X_l M h(B_l X_l, C_l X_l)

    Ref: cheng24, Eq. (40); Eq. (58) with X_l where X_0 is printed.
    """
    total = torch.eye(xs.shape[-2], dtype=xs.dtype)
    for layer, rate in enumerate(weights["heads.0.label"]):
        keys, queries = (xs @ weights[MATRICES[name]][layer].mT for name in "BC")
        scores = pad(kernel(keys[:, :-1], queries), (0, 0, 0, 1))
        total = total + rate * total @ scores
        if MATRICES["A"] in weights:
            xs = xs + scores.mT @ xs @ weights[MATRICES["A"]][layer].mT
    return total


def product_loss(
    xs: Float[Tensor, "batch m d"], gram: Float[Tensor, "batch m m"], weights: Weights, kernel: Kernel
) -> Tensor:
    """E Tr((I - M) G'K G (I - M)): the in-context loss. Ref: cheng24, Lemma A.1."""
    last = product(xs, weights, kernel)[..., -1]
    return torch.einsum("bi,bij,bj->b", last, gram, last).mean()


def moved(weights: Weights, name: str, layer: int, direction: Float[Tensor, "d d"]) -> Weights:
    """The weights with `direction` added to one matrix of one layer."""
    matrices = weights[MATRICES[name]]
    place = torch.zeros_like(matrices[:, 0, 0])
    place[layer] = 1.0
    return weights | {MATRICES[name]: matrices + place[:, None, None] * direction}


def slope_at_0(function: Callable[[Tensor], Tensor]) -> Tensor:
    """The derivative of a function of one number at 0."""
    zero = torch.zeros((), dtype=torch.float64)
    slope = jvp(function, zero, torch.ones_like(zero))[1]
    assert isinstance(slope, Tensor)
    return slope


def form_direction(
    name: str, direction: Float[Tensor, "*batch d d"], root: Float[Tensor, "d d"]
) -> Float[Tensor, "*batch d d"]:
    """R~, the direction of the form that stands for R. Ref: cheng24, Eq. (37), (55) and (70).

    B, C: tr(R Sigma^1/2) / d Sigma^-1/2;  A: tr(R) / d I
    """
    inverse = torch.linalg.inv(root)
    inside = direction if name == "A" else direction @ root
    sizes = inside.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return sizes * (torch.eye(len(root), dtype=root.dtype) if name == "A" else inverse)


@dataclass(frozen=True)
class FormPoint:
    """Random weights of the theorem's form, which need not be stationary, and where their slopes are taken."""

    landscape: Landscape
    """The loss."""
    points: Float[Tensor, "sets m d"]
    """The sets of points, unturned."""
    weights: Weights
    """r, B, C and, where it is free, A."""

    @classmethod
    def drawn(cls, label: Kernel, kernel: Kernel, seed: int, *, transform: bool) -> "FormPoint":
        """Random points, and random numbers for every layer."""
        task = GaussianProcess(kernel=label, rotation=seed)
        landscape = Landscape(task=task, kernel=kernel, transform=transform, layers=3)
        scales = torch.tensor([-0.2, 1.0, 1.0, 0.1], dtype=torch.float64)[: 4 if transform else 3]
        numbers = scales[:, None] * (0.5 + uniform(len(scales), 3, generator=generator_of(seed)))
        return cls(landscape, landscape.points(seed), landscape.weights(numbers))

    @property
    def everywhere(self) -> Float[Tensor, "turned m d"]:
        """The sets of points, turned."""
        task = self.landscape.task
        return turned(self.points, signed_shifts(task.d), task.root)

    def slope(self, name: str, layer: int, direction: Float[Tensor, "d d"]) -> float:
        """The slope of the product's loss at the unturned points."""
        gram = self.landscape.task.gram(self.points)

        def along(step: Tensor) -> Tensor:
            weights = moved(self.weights, name, layer, step * direction)
            return product_loss(self.points, gram, weights, self.landscape.kernel)

        return float(slope_at_0(along))


def slopes_agree(names: str, *, transform: bool) -> Finding:
    """The slope along R, turned everywhere, against that along R~, for R that are not symmetric."""
    differences, largest, num_directions = [], 0.0, 4
    for seed, (label, kernel) in enumerate(PAIRS):
        point = FormPoint.drawn(label, kernel, seed, transform=transform)
        gradient = point.landscape.slopes(point.weights, point.everywhere)
        unturned = point.landscape.slopes(point.weights, point.points)
        directions = normal(num_directions, 5, 5, generator=generator_of(10 + seed))
        for name in names:
            for layer in range(point.landscape.layers):
                left, alone = (
                    torch.einsum("ij,rij->r", slopes[MATRICES[name]][layer], directions)
                    for slopes in (gradient, unturned)
                )
                forms = form_direction(name, directions, point.landscape.task.root)
                right = torch.tensor([point.slope(name, layer, form) for form in forms], dtype=torch.float64)
                # the last layer's A changes nothing, and its slopes are 0
                scale = float(right.abs().max()) or 1.0
                differences.append(float((left - right).abs().max()) / scale)
                largest = max(largest, float((alone - right).abs().max()) / scale)
    pairs = ", ".join(f"({label.__name__}, {kernel.__name__})" for label, kernel in PAIRS)
    instance = (
        f"(K, h) = {pairs}; {SETTING} turned by 160 U; {num_directions} R for every layer of {' and '.join(names)}: "
        f"largest relative difference; {largest:.2g} where the points are not turned"
    )
    remark = "Both sides are equal, since -R is allowed too; the proof of the theorem needs >=, where <= is printed."
    return exact(differences, instance, x_label="pair, matrix and layer").stated("as stated", remark=remark)


@theorem(
    "cheng24.propE.3",
    "With A = 0 and B, C multiples of Sigma^-1/2, the slope in B or C along R is at most that along R~ = "
    "tr(R Sigma^1/2)/d Sigma^-1/2.",
)
def propE_3() -> Iterator[Finding]:
    """The slopes; then Eq. (43) of the proof, turn by turn, printed with U_Sigma' for U'."""
    yield slopes_agree("BC", transform=False)
    printed, corrected = turned_slopes()
    cases: list[tuple[Form, str, list[float]]] = [
        ("in the proof", "U_Sigma'R U_Sigma", printed),
        ("as corrected", "U'R U_Sigma", corrected),
    ]
    for form, symbol, differences in cases:
        finding = exact(
            differences, f"K = exp, h = softmax; {SETTING}, a random U, B of each layer: largest relative difference"
        )
        statement = f"Eq. (43): d/dt G(U_Sigma X, tR) = d/dt G(X, t {symbol}). The proposition stands."
        yield finding.stated(form, statement)


def turned_slopes() -> tuple[list[float], list[float]]:
    """The largest differences between the two sides of Eq. (43), layer by layer: as printed, and with U'R U_Sigma."""
    point = FormPoint.drawn(*PAIRS[0], 3, transform=False)
    root, turn = point.landscape.task.root, torch.linalg.qr(normal(5, 5, generator=generator_of(4)))[0]
    turn_sigma = root @ turn @ torch.linalg.inv(root)
    direction = normal(5, 5, generator=generator_of(5))

    def slope(xs: Tensor, layer: int, along: Tensor) -> Tensor:
        def total(step: Tensor) -> Tensor:
            return product(xs, moved(point.weights, "B", layer, step * along), point.landscape.kernel)

        return slope_at_0(total)

    printed, corrected = [], []
    for layer in range(point.landscape.layers):
        left = slope(turned(point.points, turn[None], root), layer, direction)
        for errors, outer in ((printed, turn_sigma), (corrected, turn)):
            errors.append(relative_difference(slope(point.points, layer, outer.T @ direction @ turn_sigma), left))
    return printed, corrected


@theorem(
    "cheng24.propF.3",
    "With A = a I and B, C multiples of Sigma^-1/2, the slope in B or C along R is at most that along R~ = "
    "tr(R Sigma^1/2)/d Sigma^-1/2.",
)
def propF_3() -> Iterator[Finding]:
    """The same with A free."""
    yield slopes_agree("BC", transform=True)


@theorem(
    "cheng24.propF.4",
    "With A = a I and B, C multiples of Sigma^-1/2, the slope in A along R is at most that along R~ = tr(R)/d I.",
)
def propF_4() -> Iterator[Finding]:
    """The slopes in A; then the proof's last display, printed with U' for U_Sigma^-1."""
    yield slopes_agree("A", transform=True)
    root, directions = GaussianProcess().root, normal(20, 5, 5, generator=generator_of(6))
    turns, expected = signed_shifts(5)[:, None], form_direction("A", directions, root)
    turn_sigma = root @ turns @ torch.linalg.inv(root)
    cases: list[tuple[Form, str, Tensor]] = [
        ("in the proof", "U'R U_Sigma", turns),
        ("as corrected", "U_Sigma^-1 R U_Sigma", turn_sigma),
    ]
    for form, symbol, outer in cases:
        mean = (torch.linalg.inv(outer) @ directions @ turn_sigma).mean(0)
        finding = exact([relative_difference(mean, expected)], "d=5, D = (1, 1, .25, 2.25, 1), 20 R (seed 6)")
        yield finding.stated(form, f"The last display: the mean of {symbol} over U is R~. The proposition stands.")
