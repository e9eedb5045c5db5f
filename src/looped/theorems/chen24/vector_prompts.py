"""Prompts of vector generation: examples (x_i, y_i) and the query (q, alpha)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.constructions.gradient_descent import vector_descent
from looped.functional.descent import gradient_descent
from looped.functional.streams import generator_of
from looped.prompt import Prompt
from looped.theorems.sampling import normal


class VectorPrompts(NamedTuple):
    """A batch of prompts of vector generation, with the numbers that the bounds need."""

    xs: Float[Tensor, "count n d"]
    ys: Float[Tensor, "count n"]
    theta: Float[Tensor, "count d"]
    """theta*, which the model does not see."""
    query: Float[Tensor, "count d"]
    """q before the first loop."""
    alpha: Float[Tensor, " count"]
    """The value that <answer, theta*> should have."""
    highest: Float[Tensor, " count"]
    """L, the largest eigenvalue of X'X."""
    lowest: Float[Tensor, " count"]
    """mu, the smallest eigenvalue of X'X."""

    @property
    def kappa(self) -> Float[Tensor, " count"]:
        """The condition number of X'X."""
        return self.highest / self.lowest

    def answer(self, rates: Float[Tensor, "count layers"], loops: int) -> Float[Tensor, "loops count d"]:
        """The transformer's answer after every loop; each prompt has its own rates."""
        xs = torch.cat([self.xs, self.query[:, None]], 1)
        prompt = Prompt(xs[:, None], torch.cat([self.ys, self.alpha[:, None]], 1)[:, None])
        model = vector_descent(d=xs.shape[-1], rates=rates, loops=loops)
        with torch.no_grad():
            return model(prompt, keep=loops)[:, :, 0]

    def descend(self, rates: Float[Tensor, "count layers"], loops: int) -> Float[Tensor, "steps count d"]:
        """theta^(0), .., theta^(T) of gradient descent from -q / alpha."""
        steps = rates.expand(-1, loops).T
        return gradient_descent(self.xs, self.ys, steps=loops, rate=steps, start=-self.query / self.alpha[:, None])

    def hardest(self) -> "VectorPrompts":
        """The same X and alpha with q = 0 and theta* along the eigenvector of mu, which descent reaches last."""
        theta = torch.linalg.eigh(self.xs.mT @ self.xs).eigenvectors[..., 0]
        return self._replace(theta=theta, ys=_labels(self.xs, theta), query=torch.zeros_like(theta))

    def error(self, answers: Float[Tensor, "loops count d"]) -> Float[Tensor, "loops count"]:
        """|<answer, theta*> - alpha|."""
        return ((answers * self.theta).sum(-1) - self.alpha).abs()


def draw_prompts(count: int, n: int, d: int, seed: int, *, spread: float = 1.0, started: bool = False) -> VectorPrompts:
    """Gaussian X with columns scaled from 1 to `spread`; theta* on the unit sphere; q = 0 unless `started`."""
    generator = generator_of(seed)
    factors = torch.logspace(0, math.log10(spread), d, dtype=torch.float64)
    xs = normal(count, n, d, generator=generator) * factors
    theta = normal(count, d, generator=generator)
    theta = theta / theta.norm(dim=-1, keepdim=True)
    query, alpha = normal(count, d, generator=generator) * started, normal(count, generator=generator)
    eigenvalues = torch.linalg.eigvalsh(xs.mT @ xs)
    return VectorPrompts(xs, _labels(xs, theta), theta, query, alpha, eigenvalues[:, -1], eigenvalues[:, 0])


def _labels(xs: Float[Tensor, "count n d"], theta: Float[Tensor, "count d"]) -> Float[Tensor, "count n"]:
    return torch.einsum("bnd,bd->bn", xs, theta)
