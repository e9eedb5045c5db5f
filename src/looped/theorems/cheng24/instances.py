"""Prompts with labels of any kind or from a Gaussian process, and what a transformer answers layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from looped.constructions.gradient_descent import functional_descent
from looped.functional.kernels import Kernel
from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, draw


def seeded(seed: int) -> torch.Generator:
    """A generator with that seed."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def any_labels(batch: int, n: int, d: int, seed: int, *, sphere: bool = False) -> Prompt:
    """n examples and a query with normal labels; x ~ N(0, I/d), or on the unit sphere."""
    generator = seeded(seed)
    xs = normal(batch, n + 1, d, generator=generator)
    xs = xs / (xs.norm(dim=-1, keepdim=True) if sphere else d**0.5)
    return Prompt(xs, normal(batch, n + 1, generator=generator))


def process_labels(task: GaussianProcess, batch: int, n: int, seed: int) -> Prompt:
    """n examples and a query of a Gaussian process, labels and all in float64."""
    generator = seeded(seed)
    xs = task.sample(batch=batch, n=n + 1, generator=generator).xs.double()
    return Prompt(xs, draw(task.gram(xs), generator))


def safe_rates(gram: Float[Tensor, "batch n n"], loops: int, generator: torch.Generator) -> Float[Tensor, " loops"]:
    """Rates between a half and one and a half over the largest norm of the Gram matrices."""
    factors = 0.5 + torch.rand(loops, dtype=torch.float64, generator=generator)
    return factors / float(torch.linalg.matrix_norm(gram, 2).max())


@torch.no_grad()
def predictions(model: KernelTransformer, prompt: Prompt) -> Float[Tensor, "loops batch"]:
    """The prediction of y at the query after every loop."""
    return model(prompt, keep=model.config.loops)[..., 0]


@torch.no_grad()
def own_steps(
    prompt: Prompt,
    steps: Float[Tensor, " batch"],
    kernel: Kernel | tuple[Kernel, ...],
    loops: int,
    maps: Sequence[Tensor] | None = None,
) -> Float[Tensor, "loops batch"]:
    """The same for functional descent where every prompt has its own step: as many models side by side."""
    model = functional_descent(d=prompt.d, rates=steps[:, None], kernel=kernel, maps=maps, loops=loops)
    each = Prompt(prompt.xs[:, None], prompt.ys[:, None])
    return model(each, keep=loops)[:, :, 0, 0]


def apart(found: Float[Tensor, "loops batch"], expected: Float[Tensor, "loops batch"]) -> Float[Tensor, " loops"]:
    """The largest difference over prompts, relative to the size of what is expected at that loop."""
    return (found - expected).abs().amax(-1) / expected.square().mean(-1).sqrt()
