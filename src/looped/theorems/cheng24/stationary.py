"""cheng24, Section 4: stationary points of the in-context loss, found and then checked by autograd on samples.

A point of the theorem's form has one number per matrix. The best numbers are found on the sample itself; then the
gradient along all entries of all matrices is measured on it, with its standard error. Only the covariates are sampled:
predictions are linear in the labels, so the expectation over labels is exact.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.func import functional_call, grad

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.kernels import Kernel
from looped.models.kernel_transformer import KernelTransformer, functional
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.theorems.check import Finding, Form, bound_plot, theorem
from looped.theorems.sampling import normal, seeded

SHIFTS = (0.1, 0.3)
"""How far B and C are moved away from the point, relative to their norms."""
NUM_ERRORS = 3.0
"""A gradient counts as nonzero if its norm is above this many standard errors."""
PAIRS: tuple[tuple[Kernel, Kernel], ...] = (
    (kernels.exp, softmax),
    (kernels.relu, kernels.relu),
    (kernels.linear, kernels.linear),
)
"""Label kernels K and attentions h."""


class GradientNorm(NamedTuple):
    """The norm of a gradient, and the norm of its standard error."""

    norm: float
    error: float

    def ratio(self, if_nan: float = 0.0) -> float:
        """Norm over error, or `if_nan` where that is not a number."""
        ratio = self.norm / self.error
        return if_nan if math.isnan(ratio) else ratio


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The in-context loss of an architecture on a distribution of prompts, over a fixed sample."""

    task: GaussianProcess
    """The distribution of prompts."""
    kernel: Kernel
    """The attention h."""
    transform: bool
    """Whether A is free, as in Theorem 4.6, or 0, as in Theorem 4.5."""
    layers: int = 2
    """Number of layers, k + 1 in the paper."""
    n: int = 5
    """Examples in a prompt."""
    samples: int = 2000
    """Number of prompts in the sample."""
    chunks: int = 20
    """Number of parts of the sample; their gradients give the standard error."""

    def prompts(self, seed: int) -> Prompt:
        """The sample, with the covariance of its labels in `truth`."""
        prompt = self.task.sample(batch=self.samples, n=self.n + 1, generator=seeded(seed)).to(torch.float64)
        return replace(prompt, truth={"gram": self.task.gram(prompt.xs)})

    def model(self) -> KernelTransformer:
        """The model; its initial weights are never read."""
        config = functional(
            d=self.task.d, loops=self.layers, layers=self.layers, kernel=self.kernel, transform=self.transform
        )
        return config.build().double()

    def weights(self, numbers: Tensor, through: Tensor) -> dict[str, Tensor]:
        """r, A = a I, B = b through and C = through; the rows of `numbers` are (r, b, a), its columns the layers."""
        eye = torch.eye(self.task.d, dtype=torch.float64)
        weights = {
            "heads.0.label": numbers[0],
            "heads.0.key": numbers[1][:, None, None] * through,
            "heads.0.query": through.expand(self.layers, -1, -1),
        }
        return weights | ({"heads.0.transform": numbers[2][:, None, None] * eye} if self.transform else {})

    def loss(self, model: KernelTransformer, weights: dict[str, Tensor], prompt: Prompt) -> Tensor:
        """E (prediction - y)^2 over the labels, averaged over the sample.

        u'K u,  u = (c, -1),  prediction = sum_i c_i y_i: c_i is the prediction when y_i = 1 and all other labels are 0
        """
        batch, tokens, d = prompt.xs.shape
        xs = prompt.xs[:, None].expand(-1, self.n, -1, -1).reshape(-1, tokens, d)
        units = torch.eye(tokens, dtype=xs.dtype)[: self.n].repeat(batch, 1)
        answers = functional_call(model, weights, (Prompt(xs, units),))[-1].reshape(batch, self.n)
        u = torch.cat([answers, -torch.ones_like(answers[:, :1])], 1)
        return torch.einsum("bi,bij,bj->b", u, prompt.truth["gram"], u).mean()

    def best(self, model: KernelTransformer, prompt: Prompt, through: Tensor) -> Tensor:
        """The numbers of least loss, by L-BFGS on a tenth of the sample, then on all of it, whitened by the Hessian."""
        few = prompt.rows(slice(self.samples // 10))
        start = torch.tensor([-0.5 / self.n, 0.5, 0.01], dtype=torch.float64)[: 3 if self.transform else 2]
        # start from unequal layers: equal ones may be a saddle, since two steps of unequal length can do better
        start = start[:, None] * torch.linspace(0.6, 1.4, self.layers, dtype=torch.float64)

        def loss_on(sample: Prompt):
            return lambda numbers: self.loss(model, self.weights(numbers, through), sample)

        near = _minimise(loss_on(few), start, iterations=50)
        values, vectors = torch.linalg.eigh(torch.as_tensor(hessian(loss_on(few), near)).reshape(near.numel(), -1))
        # where h is homogeneous an eigenvalue is 0, because only the product r b matters
        whitening = vectors / values.abs().clamp_min(1e-3 * float(values.max())).sqrt()

        def whitened(steps: Tensor) -> Tensor:
            return loss_on(prompt)(near + (whitening @ steps).reshape(near.shape))

        steps = _minimise(whitened, torch.zeros(near.numel(), dtype=torch.float64), iterations=10)
        return near + (whitening @ steps).reshape(near.shape)

    def gradient(self, model: KernelTransformer, prompt: Prompt, weights: dict[str, Tensor]) -> GradientNorm:
        """The gradient along all entries of all matrices."""
        rows, size = [], self.samples // self.chunks
        for k in range(self.chunks):
            part = prompt.rows(slice(k * size, (k + 1) * size))
            slopes = grad(lambda values, part=part: self.loss(model, values, part))(weights)
            rows.append(torch.cat([slope.flatten() for slope in slopes.values()]))
        gradients = torch.stack(rows)
        error = gradients.std(0) / self.chunks**0.5
        return GradientNorm(float(gradients.mean(0).norm()), float(error.norm()))

    def shifted(self, weights: dict[str, Tensor], shift: float) -> dict[str, Tensor]:
        """The same weights with B and C moved in a random direction."""
        generator, moved = seeded(1), dict(weights)
        for name in ("heads.0.key", "heads.0.query"):
            noise = normal(*weights[name].shape, generator=generator)
            sizes = weights[name].norm(dim=(1, 2), keepdim=True) / noise.norm(dim=(1, 2), keepdim=True)
            moved[name] = weights[name] + shift * sizes * noise
        return moved

    def survey(self, seed: int, shifts: tuple[float, ...] = SHIFTS) -> list[GradientNorm]:
        """The gradient at the best point of the theorem's form, then at points shifted away from it."""
        model, prompt, through = self.model(), self.prompts(seed), torch.linalg.inv(self.task.root)
        point = self.weights(self.best(model, prompt, through), through)
        points = [point, *(self.shifted(point, shift) for shift in shifts)]
        return [self.gradient(model, prompt, weights) for weights in points]


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor, *, iterations: int) -> Tensor:
    point = start.clone().requires_grad_()
    search = torch.optim.LBFGS([point], max_iter=iterations, tolerance_grad=1e-8, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = loss(point)
        value.backward()
        return value

    search.step(closure)
    return point.detach()


def stationary(*, transform: bool) -> Iterator[Finding]:
    """The gradient at the point against its standard error; then away from the point, to show the test's power."""
    landscapes = [
        Landscape(task=GaussianProcess(kernel=label), kernel=kernel, transform=transform) for label, kernel in PAIRS
    ]
    surveys = [landscape.survey(seed) for seed, landscape in enumerate(landscapes)]
    names = ", ".join(f"({label.__name__}, {kernel.__name__})" for label, kernel in PAIRS)
    first = landscapes[0]
    setting = (
        f"(K, h) = {names}; d=5, n={first.n}, {first.layers} layers, D = (1, 1, .25, 2.25, 1), {first.samples} prompts "
        f"each (seeds 0-{len(landscapes) - 1}), standard error from {first.chunks} parts"
    )
    norms = "; ".join(
        f"{point.norm:.3g} +- {point.error:.2g}, {shifted[0].norm:.3g} when moved by {SHIFTS[0]:.0%}"
        for point, *shifted in surveys
    )
    worst = max(surveys, key=lambda survey: survey[0].ratio(math.inf))
    measured, limits = zip(*((norm, NUM_ERRORS * error) for norm, error in worst), strict=True)
    plot = bound_plot("relative shift of B and C", [0.0, *SHIFTS], "gradient norm", measured, limits)
    instance = f"{setting}; gradient norms {norms}; the bound is {NUM_ERRORS:g} standard errors"
    yield Finding(measured[0], limits[0], instance, plot, tolerance=True)
    norm, error = min((max(survey[1:], key=GradientNorm.ratio) for survey in surveys), key=GradientNorm.ratio)
    instance = f"{setting}; moved by 10 or 30%, whichever shows it best, for the pair that shows it least"
    control = "Control: with B and C moved away from the point, the same measurement finds a gradient above 0."
    yield Finding(norm, NUM_ERRORS * error, instance, plot, at_least=True).stated("as stated", control)


@theorem("cheng24.thm4.5", "With A = 0, some r and B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.")
def thm4_5() -> Iterator[Finding]:
    """At the point, away from it, and at the best point for labels from K(x, x), as in Appendix H.1."""
    yield from stationary(transform=False)
    forms: list[tuple[Form, bool]] = [("as printed", False), ("as corrected", True)]
    for form, whiten in forms:
        task = GaussianProcess(kernel=kernels.relu, whiten=whiten)
        norm, error = Landscape(task=task, kernel=kernels.relu, transform=False).survey(5, ())[0]
        where = "Sigma^-1/2 x (Example 7)" if whiten else "x (Definition 3.3, Appendix H.1)"
        instance = f"(K, h) = (relu, relu), seed 5, otherwise as above; {norm:.3g} +- {error:.2g}"
        finding = Finding(norm, NUM_ERRORS * error, instance, tolerance=True)
        yield finding.stated(form, f"The same with labels from the Gaussian process of K at {where}.")


@theorem("cheng24.thm4.6", "Some r and A = a I, B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.")
def thm4_6() -> Iterator[Finding]:
    """The same with A free."""
    yield from stationary(transform=True)
