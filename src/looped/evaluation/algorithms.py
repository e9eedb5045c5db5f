"""The algorithms a model is compared with: answers and their gradients at the query, as functions of few parameters."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.descent import chebyshev_iteration, gradient_descent, newton_inverse, preconditioned_descent
from looped.functional.kernels import Kernel
from looped.prompt import Prompt


class Answers(NamedTuple):
    """Predictions at the query and their gradients along it."""

    predictions: Float[Tensor, " batch"]
    gradients: Float[Tensor, "batch d"]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A family of answers."""

    name: str
    """What it is called."""
    parameters: tuple[str, ...]
    """Names of the parameters."""
    starts: Callable[[Prompt], Float[Tensor, "starts parameters"]]
    """Logarithms of parameters to start from, over several decades; the parameters are positive."""
    answers: Callable[[Prompt, int, Tensor], Answers]
    """(prompt, steps, logarithms of the parameters) -> answers."""
    iterates: bool = True
    """Whether it has a step count."""

    @classmethod
    def of(cls, predict: Callable[..., Tensor]) -> "Algorithm":
        """An algorithm without parameters from `predict(prompt, steps)`, or `predict(prompt)`: answers to the query.

        They must be differentiable along the query, `prompt.xs[:, -1]`.
        """
        iterates = len(inspect.signature(predict).parameters) > 1

        def answers(prompt: Prompt, steps: int, values: Tensor) -> Answers:
            query = prompt.xs[:, -1].detach().requires_grad_()
            shown = Prompt(torch.cat([prompt.xs[:, :-1], query[:, None]], 1), prompt.ys)
            with torch.enable_grad():
                predictions = predict(shown, steps) if iterates else predict(shown)
                if predictions.shape != query.shape[:1]:
                    raise ValueError(
                        f"`{predict.__name__}` must answer the query of each of the {len(query)} prompts with one "
                        f"number; got the shape {tuple(predictions.shape)}."
                    )
                (slope,) = torch.autograd.grad(predictions.sum(), query)
            return Answers(predictions.detach(), slope)

        name = predict.__name__.replace("_", " ")
        return cls(
            name=name,
            parameters=(),
            starts=lambda prompt: prompt.xs.new_zeros(1, 0),
            answers=answers,
            iterates=iterates,
        )


def preconditioned_answers(prompt: Prompt, steps: int, matrix: Float[Tensor, "d d"]) -> Answers:
    """Gradient descent with `matrix` as the rate of every step."""
    weights = preconditioned_descent(*_examples(prompt), preconditioners=matrix.expand(steps, -1, -1))[-1]
    return _linear(prompt, weights)


def _examples(prompt: Prompt) -> tuple[Tensor, Tensor]:
    return prompt.xs[:, :-1], prompt.ys[:, :-1]


def _linear(prompt: Prompt, weights: Tensor) -> Answers:
    """w'x_q, whose gradient is w."""
    return Answers((weights * prompt.xs[:, -1]).sum(-1), weights)


def _eigenvalues(prompt: Prompt) -> Float[Tensor, "batch d"]:
    """Those of X'X, ascending."""
    xs, _ = _examples(prompt)
    return torch.linalg.eigvalsh(xs.mT @ xs)


def _starts(prompt: Prompt, values: list[list[float]]) -> Tensor:
    return torch.tensor(values).to(prompt.xs).log()


def _over_largest(power: int, *factors: float) -> Callable[[Prompt], Tensor]:
    """Starts at factor / largest^power, where largest is the mean largest eigenvalue of X'X."""

    def starts(prompt: Prompt) -> Tensor:
        largest = float(_eigenvalues(prompt)[:, -1].mean())
        return _starts(prompt, [[factor / largest**power] for factor in factors])

    return starts


_rates = _over_largest(1, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 1.4, 1.8)
_alphas = _over_largest(2, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4)


def _descent(prompt: Prompt, steps: int, values: Tensor) -> Answers:
    return _linear(prompt, gradient_descent(*_examples(prompt), steps=steps, rate=values[0].exp())[-1])


def _penalties(prompt: Prompt) -> Tensor:
    mean = float(_eigenvalues(prompt).mean())
    return _starts(prompt, [[factor * mean] for factor in (1e-6, 1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)])


def _ridge(prompt: Prompt, steps: int, values: Tensor) -> Answers:
    xs, ys = _examples(prompt)
    gram = xs.mT @ xs + values[0].exp() * torch.eye(prompt.d).to(xs)
    return _linear(prompt, torch.linalg.solve(gram, (xs.mT @ ys[..., None]))[..., 0])


def _newton(prompt: Prompt, steps: int, values: Tensor) -> Answers:
    xs, ys = _examples(prompt)
    inverse = newton_inverse(xs.mT @ xs, steps=steps, alpha=values[0].exp())[-1]
    return _linear(prompt, (inverse @ (xs.mT @ ys[..., None]))[..., 0])


def _intervals(prompt: Prompt) -> Tensor:
    largest = float(_eigenvalues(prompt)[:, -1].mean())
    pairs = [(high / ratio, high) for high in (0.6, 0.9, 1.2, 1.8) for ratio in (1.5, 3.0, 10.0, 40.0)]
    # the second parameter is high - low, so that high stays above
    return _starts(prompt, [[largest * low, largest * (high - low)] for low, high in pairs])


def _chebyshev(prompt: Prompt, steps: int, values: Tensor) -> Answers:
    low, spread = values.exp()
    weights = chebyshev_iteration(*_examples(prompt), steps=steps, low=low, high=low + spread)[-1]
    return _linear(prompt, weights)


def _functional(kernel: Kernel, slope: Callable[[Tensor], Tensor]) -> Callable[[Prompt, int, Tensor], Answers]:
    """Functional gradient descent with kernel(sqrt(c) u, sqrt(c) v); `slope` is h' at inner products."""

    def answers(prompt: Prompt, steps: int, values: Tensor) -> Answers:
        xs, ys = _examples(prompt)
        rate, scale = values[0].exp(), values[1].exp() if len(values) > 1 else torch.ones_like(values[0])
        among = kernel(scale * xs, xs)
        inner = scale * (xs @ prompt.xs[:, -1:].mT)[..., 0]
        residual, total = ys, torch.zeros_like(ys)
        for _ in range(steps):
            total = total + residual
            residual = residual - rate * torch.einsum("bn,bnm->bm", residual, among)
        across = kernel(scale * xs, prompt.xs[:, -1:])[..., 0]
        gradient = rate * scale * torch.einsum("bn,bnd->bd", total * slope(inner), xs)
        return Answers(rate * (total * across).sum(-1), gradient)

    return answers


def _kernel_rates(kernel: Kernel, scales: tuple[float, ...]) -> Callable[[Prompt], Tensor]:
    """Starts for each scale, in units of 1 / E|x|^2; without scales the kernel has none."""

    def starts(prompt: Prompt) -> Tensor:
        xs, _ = _examples(prompt)
        size, grid = float(xs.square().sum(-1).mean()), []
        for scaled in [[scale / size] for scale in scales] or [[]]:
            among = kernel(math.prod(scaled) * xs, xs)
            norm = float(torch.linalg.matrix_norm(among, 2).mean())
            grid += [[factor / norm, *scaled] for factor in (0.01, 0.1, 0.3, 0.7, 1.2, 1.8)]
        return _starts(prompt, grid)

    return starts


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(name="gradient descent", parameters=("rate",), starts=_rates, answers=_descent),
    Algorithm(name="ridge", parameters=("penalty",), starts=_penalties, answers=_ridge, iterates=False),
    Algorithm(name="Newton", parameters=("alpha",), starts=_alphas, answers=_newton),
    Algorithm(
        name="functional descent, relu",
        parameters=("rate",),
        starts=_kernel_rates(kernels.relu, ()),
        answers=_functional(kernels.relu, lambda inner: (inner > 0).to(inner)),
    ),
    Algorithm(
        name="functional descent, exp",
        parameters=("rate", "scale"),
        starts=_kernel_rates(kernels.exp, (0.1, 0.5, 1.0, 2.0)),
        answers=_functional(kernels.exp, torch.exp),
    ),
    Algorithm(name="Chebyshev", parameters=("low", "spread"), starts=_intervals, answers=_chebyshev),
)
"""Simplest first: where two are about as near, the first is named."""
