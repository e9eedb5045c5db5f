"""cheng24, Section 4: stationary points of the in-context loss, found and then checked by autograd on samples.

A point of the theorem's form has one number a matrix. The best such numbers are found on the sample itself; the
gradient along all entries of all matrices is then measured on it, with its standard error. The sample is of covariates:
over the labels, in which predictions are linear, the expectation is exact.
"""

from __future__ import annotations

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
from looped.theorems.check import Finding, Form, curve, theorem

SHIFTS = (0.1, 0.3)
"""How far B and C are moved off the point, relative to their size."""
ERRORS = 3.0
"""A gradient is told from zero when its norm is above this many standard errors."""
PAIRS: tuple[tuple[Kernel, Kernel], ...] = (
    (kernels.exp, softmax),
    (kernels.relu, kernels.relu),
    (kernels.linear, kernels.linear),
)
"""Label kernels K and attentions h."""


class Survey(NamedTuple):
    """Norms of gradients with their standard errors, (norm, error)."""

    point: tuple[float, float]
    off: list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The in-context loss of one architecture on one label distribution, over one fixed sample."""

    task: GaussianProcess
    """What draws prompts."""
    kernel: Kernel
    """h."""
    transform: bool
    """Whether A is free, as in Theorem 4.6, or 0, as in Theorem 4.5."""
    layers: int = 2
    """k + 1 of the paper."""
    n: int = 5
    """Examples a prompt."""
    samples: int = 2000
    """Draws of the covariates."""
    chunks: int = 20
    """Parts of the sample whose gradients give a standard error."""

    def prompts(self, seed: int) -> Prompt:
        """The sample, with the covariance of its labels beside it."""
        generator = torch.Generator().manual_seed(seed)
        prompt = self.task.sample(batch=self.samples, n=self.n + 1, generator=generator).to(torch.float64)
        return replace(prompt, truth={"gram": self.task.gram(prompt.xs)})

    def model(self) -> KernelTransformer:
        """The model; its own weights are never read."""
        config = functional(
            d=self.task.d, loops=self.layers, layers=self.layers, kernel=self.kernel, transform=self.transform
        )
        return config.build().double()

    def weights(self, numbers: Tensor, through: Tensor) -> dict[str, Tensor]:
        """A = a I, B = b through, C = through and r for the rows (r, b, a) of `numbers`, a column a layer."""
        eye = torch.eye(self.task.d, dtype=torch.float64)
        found = {
            "heads.0.label": numbers[0],
            "heads.0.key": numbers[1][:, None, None] * through,
            "heads.0.query": through.expand(self.layers, -1, -1),
        }
        return found | ({"heads.0.transform": numbers[2][:, None, None] * eye} if self.transform else {})

    def loss(self, model: KernelTransformer, weights: dict[str, Tensor], prompt: Prompt) -> Tensor:
        """E (prediction - y)^2 over the labels, averaged over the sample.

        u'K u,  u = (c, -1), prediction = sum_i c_i y_i: c_i is the prediction where y_i = 1 is the only label
        """
        batch, tokens, d = prompt.xs.shape
        xs = prompt.xs[:, None].expand(-1, self.n, -1, -1).reshape(-1, tokens, d)
        units = torch.eye(tokens, dtype=xs.dtype)[: self.n].repeat(batch, 1)
        answers = functional_call(model, weights, (Prompt(xs, units),))[-1].reshape(batch, self.n)
        u = torch.cat([answers, -torch.ones_like(answers[:, :1])], 1)
        return torch.einsum("bi,bij,bj->b", u, prompt.truth["gram"], u).mean()

    def best(self, model: KernelTransformer, prompt: Prompt, through: Tensor) -> Tensor:
        """The numbers of least loss, by L-BFGS on a tenth of the sample and then, whitened by its Hessian, on all."""
        few = prompt.rows(slice(self.samples // 10))
        start = torch.tensor([-0.5 / self.n, 0.5, 0.01], dtype=torch.float64)[: 3 if self.transform else 2]
        # unequal layers, since equal ones may be a saddle: two steps of unequal length can do better
        start = start[:, None] * torch.linspace(0.6, 1.4, self.layers, dtype=torch.float64)

        def on(sample: Prompt):
            return lambda values: self.loss(model, self.weights(values, through), sample)

        near = _minimise(on(few), start, iterations=50)
        values, vectors = torch.linalg.eigh(torch.as_tensor(hessian(on(few), near)).reshape(near.numel(), -1))
        # an eigenvalue is 0 where h is homogeneous: there only r b counts
        scale = vectors / values.abs().clamp_min(1e-3 * float(values.max())).sqrt()

        def whitened(steps: Tensor) -> Tensor:
            return on(prompt)(near + (scale @ steps).reshape(near.shape))

        steps = _minimise(whitened, torch.zeros(near.numel(), dtype=torch.float64), iterations=10)
        return near + (scale @ steps).reshape(near.shape)

    def gradient(self, model: KernelTransformer, prompt: Prompt, weights: dict[str, Tensor]) -> tuple[float, float]:
        """The norm of the gradient along all entries, and the norm of its standard error."""
        each, size = [], self.samples // self.chunks
        for k in range(self.chunks):
            part = prompt.rows(slice(k * size, (k + 1) * size))
            slopes = grad(lambda values, part=part: self.loss(model, values, part))(weights)
            each.append(torch.cat([slope.flatten() for slope in slopes.values()]))
        gradients = torch.stack(each)
        spread = gradients.std(0) / self.chunks**0.5
        return float(gradients.mean(0).norm()), float(spread.norm())

    def shifted(self, weights: dict[str, Tensor], shift: float) -> dict[str, Tensor]:
        """The same weights with B and C moved in a random direction."""
        generator, moved = torch.Generator().manual_seed(1), dict(weights)
        for name in ("heads.0.key", "heads.0.query"):
            noise = torch.randn(weights[name].shape, dtype=torch.float64, generator=generator)
            sizes = weights[name].norm(dim=(1, 2), keepdim=True) / noise.norm(dim=(1, 2), keepdim=True)
            moved[name] = weights[name] + shift * sizes * noise
        return moved

    def survey(self, seed: int, shifts: tuple[float, ...] = SHIFTS) -> Survey:
        """The gradient at the best point of the theorem's form, and at points off it."""
        model, prompt, through = self.model(), self.prompts(seed), torch.linalg.inv(self.task.root)
        point = self.weights(self.best(model, prompt, through), through)
        off = [self.gradient(model, prompt, self.shifted(point, shift)) for shift in shifts]
        return Survey(self.gradient(model, prompt, point), off)


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


def _ratio(found: tuple[float, float], unknown: float = 0.0) -> float:
    """Norm over error, or `unknown` where it is not a number."""
    ratio = found[0] / found[1]
    return unknown if math.isnan(ratio) else ratio


def stationary(*, transform: bool) -> Iterator[Finding]:
    """The gradient at the point against its standard error, then the same off the point, which shows the power."""
    lands = [
        Landscape(task=GaussianProcess(kernel=label), kernel=kernel, transform=transform) for label, kernel in PAIRS
    ]
    surveys = [land.survey(seed) for seed, land in enumerate(lands)]
    names = ", ".join(f"({label.__name__}, {kernel.__name__})" for label, kernel in PAIRS)
    land = lands[0]
    setting = (
        f"(K, h) = {names}; d=5, n={land.n}, {land.layers} layers, D = (1, 1, .25, 2.25, 1), {land.samples} prompts "
        f"each (seeds 0-{len(lands) - 1}), standard error of {land.chunks} parts"
    )
    shown = "; ".join(
        f"{norm:.3g} +- {error:.2g}, {off[0][0]:.3g} at {SHIFTS[0]:.0%} off" for (norm, error), off in surveys
    )
    at = max(surveys, key=lambda one: _ratio(one.point, math.inf))
    norms, limits = zip(*((norm, ERRORS * error) for norm, error in [at.point, *at.off]), strict=True)
    plot = curve("relative shift of B and C", [0.0, *SHIFTS], "gradient norm", norms, limits)
    yield Finding(
        measured=at.point[0],
        bound=ERRORS * at.point[1],
        tolerance=True,
        instance=f"{setting}; gradient norms {shown}; the bound is {ERRORS:g} standard errors",
        plot=plot,
    )
    seen = [max(one.off, key=_ratio) for one in surveys]
    norm, error = min(seen, key=_ratio)
    yield Finding(
        measured=norm,
        bound=ERRORS * error,
        at_least=True,
        statement="Control: with B and C moved off the point the same measurement tells the gradient from 0.",
        instance=f"{setting}; moved by 10 or 30%, whichever shows it best, for the pair that shows it least",
        plot=plot,
    )


@theorem("cheng24.thm4.5", "With A = 0, some r and B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.")
def thm4_5() -> Iterator[Finding]:
    """At the point, off it, and at the best point when labels come from K(x, x), as Appendix H.1 has them."""
    yield from stationary(transform=False)
    forms: list[tuple[Form, bool]] = [("as printed", False), ("as corrected", True)]
    for form, whiten in forms:
        task = GaussianProcess(kernel=kernels.relu, whiten=whiten)
        land = Landscape(task=task, kernel=kernels.relu, transform=False)
        norm, error = land.survey(5, ()).point
        where = "Sigma^-1/2 x (Example 7)" if whiten else "x (Definition 3.3, Appendix H.1)"
        yield Finding(
            measured=norm,
            bound=ERRORS * error,
            tolerance=True,
            form=form,
            statement=f"The same with labels from the Gaussian process of K at {where}.",
            instance=f"(K, h) = (relu, relu), seed 5, otherwise as above; {norm:.3g} +- {error:.2g}",
        )


@theorem("cheng24.thm4.6", "Some r and A = a I, B = b Sigma^-1/2, C = c Sigma^-1/2 are a stationary point.")
def thm4_6() -> Iterator[Finding]:
    """The same with A free."""
    yield from stationary(transform=True)
