"""The closed forms: Lemma 2, Lemma 4."""

from collections.abc import Iterator

import torch
from torch import Tensor

from looped.functional import kernels
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import KernelTransformer, restricted
from looped.theorems.check import Finding, exact, relative_difference, theorem
from looped.theorems.gatmiry24.realizable_prompts import RealizablePrompts, population_loss, realizable, square_roots
from looped.theorems.sampling import normal, uniform

CASES = [(2, 3, 1), (3, 7, 2), (5, 9, 4), (4, 20, 6)]
"""(d, n, layers)."""


def random_model(d: int, layers: int, seed: int, *, kernel: kernels.Kernel = kernels.linear) -> KernelTransformer:
    """A restricted multilayer model with random A, not symmetric, and u = 0."""
    model = restricted(d=d, loops=layers, layers=layers, kernel=kernel).build().double()
    model.put(score=normal(layers, d, d, generator=generator_of(seed)))
    return model


def layer_scores(model: KernelTransformer) -> Tensor:
    """The A of every layer."""
    return model.heads[0].get_parameter("score").detach()


@theorem(
    "gatmiry24.lem2",
    "y^(t+1) = y' prod_{i<=t} (I - s_i/n) and y_q^(t+1) = -(1/n) sum_{j<=t} y' prod_{i<j} (I - s_i/n) r_j, where "
    "s_i = sigma(X'A_i X), r_j = sigma(X'A_j x_q), for linear and ReLU attention.",
)
def lem2() -> Iterator[Finding]:
    """Both recursions against the model's states."""
    printed, corrected = [], []
    for seed, (d, n, layers) in enumerate(CASES):
        for kernel in (kernels.linear, kernels.relu):
            prompts = realizable(torch.ones(8, d, dtype=torch.float64), n=n, generator=generator_of(seed))
            model = random_model(d, layers, seed, kernel=kernel)
            labels = model.states(prompts.prompt)[-1][..., d]
            examples, query_printed, query = lemma_2(prompts, layer_scores(model), kernel)
            printed.append(relative_difference(query_printed, labels[:, -1]))
            pairs = ((query, labels[:, -1]), (examples, labels[:, :-1]))
            corrected.append(max(relative_difference(*pair) for pair in pairs))
    instance = f"(d, n, L) in {CASES}, linear and ReLU, 8 prompts each, random A not symmetric, seeds 0-3"
    statement = "y_q^(t+1) = sum_{j=1}^{t-1} y'(I - prod_{i<j} (I - s_i/n)) r_j + y' prod_{i<t} (I - s_i/n) r_t."
    yield exact(printed, instance).stated("as printed", statement)
    yield exact(corrected, instance).stated("as corrected")


@theorem(
    "gatmiry24.lem4",
    "TF = w'x_q - w' prod_i (I - Sigma A_i / n) x_q, and the loss is tr(G G'), G = prod_i (I - Sigma^1/2 A_i "
    "Sigma^1/2 / n), Sigma = XX', for linear attention with u = 0.",
)
def lem4() -> Iterator[Finding]:
    """Output and population loss against the model, with A that are not symmetric."""
    printed, corrected = [], []
    for seed, (d, n, layers) in enumerate(CASES):
        generator = generator_of(seed)
        prompts = realizable(uniform(8, d, generator=generator) + 0.5, n=n, generator=generator)
        model, loss_model = random_model(d, layers, seed), random_model(d, layers, seed)
        output, scores = model.predict(prompts.prompt)[:, 0], layer_scores(model)
        loss_model.put(score=scores * (d + 2) / n)  # `population_loss` has d + 2 examples
        loss = population_loss(loss_model, prompts.covariance, loops=layers, generator=generator)[-1]
        formulas = (lemma_4(prompts, scores, transpose=False), lemma_4(prompts, scores / n, transpose=True))
        for differences, formula in zip((printed, corrected), formulas, strict=True):
            pairs = zip(formula, (output, loss), strict=True)
            differences.append(max(relative_difference(*pair) for pair in pairs))
    instance = f"(d, n, L) in {CASES}, 8 prompts or covariances each, random A not symmetric, seeds 0-3"
    statement = (
        "TF = w'x_q - w' prod_i (I - Sigma A_i) x_q and the loss is tr(prod_i (I - S_i) prod_i reversed (I - S_i)), "
        "S_i = Sigma^1/2 A_i Sigma^1/2: without the 1/n of Eq. (2), and untransposed."
    )
    yield exact(printed, instance).stated("as printed", statement)
    yield exact(corrected, instance).stated("as corrected")


def lemma_2(prompts: RealizablePrompts, scores: Tensor, kernel: kernels.Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """The labels of examples and query after all layers by Lemma 2: (examples, query as printed, query corrected)."""
    xs, query, labels = prompts.prompt.xs[:, :-1], prompts.prompt.xs[:, -1:], prompts.prompt.ys[:, :-1]
    n, last = xs.shape[1], len(scores) - 1
    residual, printed, corrected = labels, torch.zeros_like(labels[:, 0]), torch.zeros_like(labels[:, 0])
    for j, matrix in enumerate(scores):
        query_scores = kernel(xs, query @ matrix.T)[..., 0]
        corrected = corrected - (residual * query_scores).sum(-1) / n
        if j == last:
            printed = printed + (residual * query_scores).sum(-1)
        elif j >= 1:
            printed = printed + ((labels - residual) * query_scores).sum(-1)
        residual = residual - torch.einsum("bn,bnm->bm", residual, kernel(xs, xs @ matrix.T)) / n
    return residual, printed, corrected


def lemma_4(prompts: RealizablePrompts, matrices: Tensor, *, transpose: bool) -> tuple[Tensor, Tensor]:
    """Output and loss of Lemma 4 for Sigma A = covariance @ matrices; `transpose` transposes the second product."""
    root, _ = square_roots(prompts.covariance)
    eye = torch.eye(root.shape[-1], dtype=root.dtype)
    product, left, right = eye, eye, eye
    for matrix in matrices:
        product = product @ (eye - prompts.covariance @ matrix)
        factor = eye - root @ matrix @ root
        left, right = left @ factor, (factor.mT if transpose else factor) @ right
    output = prompts.answer[:, 0] - torch.einsum("bd,bde,be->b", prompts.w, product, prompts.prompt.xs[:, -1])
    return output, torch.einsum("bde,bed->b", left, right)
