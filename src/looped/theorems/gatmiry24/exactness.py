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
    apart: dict[str, list[float]] = {"printed": [], "corrected": []}
    for seed, (d, n, layers) in enumerate(CASES):
        for kernel in (kernels.linear, kernels.relu):
            made = realizable(torch.ones(8, d, dtype=torch.float64), n=n, generator=seeded(seed))
            model = random_model(d, layers, seed, kernel=kernel)
            labels = model.states(made.prompt)[-1][..., d]
            examples, printed, corrected = lemma_2(made, scores_of(model), kernel)
            apart["printed"].append(relative(printed, labels[:, -1]))
            apart["corrected"] += [relative(corrected, labels[:, -1]), relative(examples, labels[:, :-1])]
    instance = f"(d, n, L) in {CASES}, linear and ReLU, 8 prompts each, random A not symmetric, seeds 0-3"
    yield Finding(
        measured=max(apart["printed"]),
        bound=EXACT,
        tolerance=True,
        form="as printed",
        statement="y_q^(t+1) = sum_{j=1}^{t-1} y'(I - prod_{i<j} (I - s_i/n)) r_j + y' prod_{i<t} (I - s_i/n) r_t.",
        instance=instance,
        plot=_by_case(apart["printed"]),
    )
    measured = [max(apart["corrected"][i : i + 2]) for i in range(0, len(apart["corrected"]), 2)]
    yield Finding(
        measured=max(measured),
        bound=EXACT,
        tolerance=True,
        form="as corrected",
        instance=instance,
        plot=_by_case(measured),
    )


@theorem(
    "gatmiry24.lem4",
    "TF = w'x_q - w' prod_i (I - Sigma A_i / n) x_q, and the loss is tr(G G'), G = prod_i (I - Sigma^1/2 A_i "
    "Sigma^1/2 / n), Sigma = XX', for linear attention with u = 0.",
)
def lem4() -> Iterator[Finding]:
    """Output and population loss against the model, with A that are not symmetric."""
    printed, corrected = [], []
    for seed, (d, n, layers) in enumerate(CASES):
        generator = seeded(seed)
        made = realizable(torch.rand(8, d, generator=generator, dtype=torch.float64) + 0.5, n=n, generator=generator)
        model = random_model(d, layers, seed)
        output = model.predict(made.prompt)[:, 0]
        loss_model = random_model(d, layers, seed)
        loss_model.put(score=scores_of(model) * (d + 2) / n)  # `population_loss` has d + 2 examples
        loss = population_loss(loss_model, made.covariance, loops=layers, generator=generator)[-1]
        scores = scores_of(model)
        printed.append(
            max(relative(*pair) for pair in zip(lemma_4(made, scores, turn=False), (output, loss), strict=True))
        )
        closed = lemma_4(made, scores / n, turn=True)
        corrected.append(max(relative(*pair) for pair in zip(closed, (output, loss), strict=True)))
    instance = f"(d, n, L) in {CASES}, 8 prompts or covariances each, random A not symmetric, seeds 0-3"
    yield Finding(
        measured=max(printed),
        bound=EXACT,
        tolerance=True,
        form="as printed",
        statement="TF = w'x_q - w' prod_i (I - Sigma A_i) x_q and the loss is tr(prod_i (I - S_i) prod_i reversed "
        "(I - S_i)), S_i = Sigma^1/2 A_i Sigma^1/2: without the 1/n of Eq. (2), and untransposed.",
        instance=instance,
        plot=_by_case(printed),
    )
    yield Finding(
        measured=max(corrected),
        bound=EXACT,
        tolerance=True,
        form="as corrected",
        instance=instance,
        plot=_by_case(corrected),
    )


def lemma_2(made: Instances, scores: Tensor, kernel: kernels.Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """The labels of examples and query after all layers by Lemma 2: (examples, query as printed, query corrected)."""
    xs, query, labels = made.prompt.xs[:, :-1], made.prompt.xs[:, -1:], made.prompt.ys[:, :-1]
    n, last = xs.shape[1], len(scores) - 1
    now, printed, corrected = labels, torch.zeros_like(labels[:, 0]), torch.zeros_like(labels[:, 0])
    for j, matrix in enumerate(scores):
        reach = kernel(xs, query @ matrix.T)[..., 0]
        corrected = corrected - (now * reach).sum(-1) / n
        if j == last:
            printed = printed + (now * reach).sum(-1)
        elif 1 <= j <= last - 1:
            printed = printed + ((labels - now) * reach).sum(-1)
        now = now - torch.einsum("bn,bnm->bm", now, kernel(xs, xs @ matrix.T)) / n
    return now, printed, corrected


def lemma_4(made: Instances, matrices: Tensor, *, turn: bool) -> tuple[Tensor, Tensor]:
    """Output and loss of Lemma 4 for Sigma A = covariance @ matrices; `turn` transposes the second product."""
    values, vectors = torch.linalg.eigh(made.covariance)
    root = vectors * values.sqrt()[:, None] @ vectors.mT
    eye = torch.eye(root.shape[-1], dtype=root.dtype)
    product, forth, back = eye, eye, eye
    for matrix in matrices:
        product = product @ (eye - made.covariance @ matrix)
        factor = eye - root @ matrix @ root
        forth, back = forth @ factor, (factor.mT if turn else factor) @ back
    output = made.answer[:, 0] - torch.einsum("bd,bde,be->b", made.w, product, made.prompt.xs[:, -1])
    return output, torch.einsum("bde,bed->b", forth, back)


def relative(got: Tensor, true: Tensor) -> float:
    """Largest difference, relative to the largest true value."""
    return float((got - true).abs().max() / true.abs().max())


def _by_case(measured: list[float]) -> Plot:
    return Plot(
        x_label="case",
        y_label="relative difference",
        x=list(range(1, len(measured) + 1)),
        lines={"measured": measured, "bound": [EXACT] * len(measured)},
    )
