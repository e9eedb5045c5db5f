"""The closed forms: Lemma 2, Lemma 4."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from looped.functional import kernels
from looped.models.kernel_transformer import KernelTransformer, restricted
from looped.theorems.check import Finding, Plot, theorem
from looped.theorems.gatmiry24.instances import Instances, normal, population_loss, realizable, seeded

EXACT = 1e-10
"""Largest relative difference of two float64 computations of one number."""
CASES = [(2, 3, 1), (3, 7, 2), (5, 9, 4), (4, 20, 6)]
"""(d, n, layers)."""


def random_model(d: int, layers: int, seed: int, *, kernel: kernels.Kernel = kernels.linear) -> KernelTransformer:
    """A restricted multilayer model with random A, not symmetric, and u = 0."""
    model = restricted(d=d, loops=layers, layers=layers, kernel=kernel).build().double()
    model.put(score=normal(layers, d, d, generator=seeded(seed)))
    return model


def scores_of(model: KernelTransformer) -> Tensor:
    """The A of every layer."""
    return model.heads[0].get_parameter("score").detach()


@theorem(
    "gatmiry24.lem2",
    "y^(t+1) = y' prod_{i<=t} (I - s_i/n) and y_q^(t+1) = -(1/n) sum_{j<=t} y' prod_{i<j} (I - s_i/n) r_j, where "
    "s_i = sigma(X'A_i X), r_j = sigma(X'A_j x_q), for linear and ReLU attention.",
)
def lem2() -> Iterator[Finding]:
    """Both recursions against the model's states."""
    difference: dict[str, list[float]] = {"printed": [], "corrected": []}
    for seed, (d, n, layers) in enumerate(CASES):
        for kernel in (kernels.linear, kernels.relu):
            made = realizable(torch.ones(8, d, dtype=torch.float64), n=n, generator=seeded(seed))
            model = random_model(d, layers, seed, kernel=kernel)
            state = model.states(made.prompt)[-1]
            rows, query, printed, corrected = _lemma_2(made, scores_of(model), kernel)
            scale = state[:, -1, d].abs().max()
            labels = (state[:, :-1, d] - rows).abs().max() / rows.abs().max()
            difference["printed"].append(float((state[:, -1, d] - printed).abs().max() / scale))
            difference["corrected"].append(float(torch.maximum(labels, (state[:, -1, d] - corrected).abs().max() / scale)))
            assert query.shape == corrected.shape
    instance = f"(d, n, L) in {CASES}, linear and ReLU, 8 prompts each, random A not symmetric, seeds 0-3"
    yield Finding(
        measured=max(difference["printed"]),
        bound=EXACT,
        tolerance=True,
        form="as printed",
        statement="y_q^(t+1) = sum_{j=1}^{t-1} y'(I - prod_{i<j} (I - s_i/n)) r_j + y' prod_{i<t} (I - s_i/n) r_t.",
        instance=instance,
    )
    yield Finding(
        measured=max(difference["corrected"]), bound=EXACT, tolerance=True, form="as corrected", instance=instance
    )
