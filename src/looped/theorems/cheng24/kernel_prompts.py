"""Prompts with normal labels or labels from a Gaussian process, and a transformer's predictions loop by loop."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from looped.constructions.gradient_descent import functional_descent
from looped.functional.kernels import Kernel
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import KernelTransformer
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, draw
from looped.theorems.sampling import normal, uniform


def normal_prompts(batch: int, n: int, d: int, seed: int, *, sphere: bool = False) -> Prompt:
    """n examples and a query with normal labels; x ~ N(0, I/d), or on the unit sphere."""
    generator = generator_of(seed)
    xs = normal(batch, n + 1, d, generator=generator)
    xs = xs / (xs.norm(dim=-1, keepdim=True) if sphere else d**0.5)
    return Prompt(xs, normal(batch, n + 1, generator=generator))


def process_prompts(task: GaussianProcess, batch: int, n: int, seed: int) -> Prompt:
    """n examples and a query with labels from a Gaussian process, all in float64."""
    generator = generator_of(seed)
    xs = task.sample(batch=batch, n=n + 1, generator=generator).xs.double()
    return Prompt(xs, draw(task.gram(xs), generator))


def safe_rates(gram: Float[Tensor, "batch n n"], loops: int, generator: torch.Generator) -> Float[Tensor, " loops"]:
    """Rates between 0.5 and 1.5 over the largest norm of the Gram matrices."""
    factors = 0.5 + uniform(loops, generator=generator)
    return factors / float(torch.linalg.matrix_norm(gram, 2).max())


@torch.no_grad()
def predictions(model: KernelTransformer, prompt: Prompt) -> Float[Tensor, "loops batch"]:
    """The prediction of y at the query after every loop."""
    return model(prompt, keep=model.config.loops)[..., 0]


@torch.no_grad()
def descent_predictions(
    prompt: Prompt,
    steps: Float[Tensor, " batch"],
    kernel: Kernel | tuple[Kernel, ...],
    loops: int,
    maps: Sequence[Tensor] | None = None,
) -> Float[Tensor, "loops batch"]:
    """Functional descent at the query after every loop, with a different step for each prompt: one model a prompt."""
    model = functional_descent(d=prompt.d, rates=steps[:, None], kernel=kernel, maps=maps, loops=loops)
    return model(Prompt(prompt.xs[:, None], prompt.ys[:, None]), keep=loops)[:, :, 0, 0]


def loop_differences(
    got: Float[Tensor, "loops batch"], expected: Float[Tensor, "loops batch"]
) -> Float[Tensor, " loops"]:
    """The largest difference over prompts at each loop, relative to the root mean square of the expected values."""
    return (got - expected).abs().amax(-1) / expected.square().mean(-1).sqrt()
