"""The groundwork of the theorems on stationary points: Lemmas A.1 and G.3, Eq. (58)."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.streams import generator_of
from looped.models.kernel_transformer import Head, KernelTransformerConfig, functional
from looped.models.patterns import FactoredScores, FullValue
from looped.prompt import Prompt
from looped.theorems.check import Finding, Form, exact, relative_difference, theorem
from looped.theorems.cheng24.kernel_prompts import normal_prompts
from looped.theorems.sampling import normal

ATTENTIONS = (kernels.linear, kernels.relu, kernels.exp, softmax)


@theorem("cheng24.lemA.1", "E (TF + y)^2 = E Tr((I - M) Y'Y (I - M)), Y the labels after a run that sees y_{n+1}.")
def lemA_1() -> Iterator[Finding]:
    """Random weights, every attention, V = diag(A, r) and, beyond the lemma, any V; the proof squares the trace."""
    layers, n, d = 3, 7, 4
    prompt = normal_prompts(200, n, d, 6)
    names, gaps, printed = [], [], []
    for kernel in ATTENTIONS:
        config = functional(d=d, loops=layers, layers=layers, kernel=kernel, init_std=0.2)
        full = replace(config, heads=(Head(kernel=kernel, value=FullValue(), scores=FactoredScores()),))
        for name, variant in ((kernel.__name__, config), (f"{kernel.__name__} with any V", full)):
            hidden, seen = both_runs(variant, prompt)
            loss, trace = hidden.square().mean(), seen.square().mean()
            names.append(name)
            gaps.append(max(float((hidden - seen).abs().max() / loss.sqrt()), float((loss - trace).abs() / loss)))
            printed.append(float((loss - seen.square().square().mean()).abs() / loss))
    setting = f"d={d}, n={n}, {layers} layers of random weights, 200 prompts (seed 6): {', '.join(names)}"
    yield exact(gaps, f"{setting}; largest relative difference, prompt by prompt and in the mean")
    statement = "The last line of the proof squares the trace: E (Tr((I - M) Y'Y (I - M)))^2. The lemma stands."
    yield exact(printed, setting).stated("in the proof", statement)


def both_runs(
    config: KernelTransformerConfig, prompt: Prompt
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """TF + y with the query's label hidden, and that label after a run that sees it."""
    hidden, seeing = config.build().double(), replace(config, hide_label=False).build().double()
    seeing.load_state_dict(hidden.state_dict())
    return prompt.ys[:, -1] - hidden.predict(prompt)[:, 0], -seeing.predict(prompt)[:, 0]


@theorem(
    "cheng24.lemG.3",
    "The unit g of steepest descent of sum_i (y_i - f(x_i))^2 is c sum_i e_i K(., x_i), e = y - f(X), for some c > 0.",
)
def lemG_3() -> Iterator[Finding]:
    """The direction against the steepest one found by Cholesky; then c, printed in the proof without the root."""
    batch, n, d = 50, 8, 4
    prompt = normal_prompts(batch, n, d, 7)
    # functions are sums over the examples and as many other points, so directions can leave the examples' span
    points = torch.cat([prompt.xs[:, :-1], normal_prompts(batch, n - 1, d, 8).xs], 1)
    gram = kernels.exp(points, points)
    errors = prompt.ys[:, :-1] - normal(batch, n, generator=generator_of(7))
    values = torch.einsum("bj,bji->bi", descent_weights(errors), gram)
    size = torch.einsum("bi,bi->b", values[:, :n], errors)
    best = steepest(errors, gram)
    setting = f"K = exp, d={d}, n={n}, {batch} prompts (seed 7), directions in the span of {2 * n} points"
    differences = (values / values.norm(dim=-1, keepdim=True) - best / best.norm(dim=-1, keepdim=True)).norm(dim=-1)
    yield exact(differences, f"{setting}: distance of the directions' values there, as unit vectors", x_label="prompt")
    cases: list[tuple[Form, str, Tensor]] = [
        ("in the proof", "c = 1 / e'K e, in the last lines of the proof. The lemma, for some c > 0, stands.", 1 / size),
        ("as corrected", "c = 1 / sqrt(e'K e).", size.rsqrt()),
    ]
    for form, statement, factor in cases:
        gaps = (factor[:, None] * values - best).abs().amax(-1) / best.abs().amax(-1)
        finding = exact(gaps, f"{setting}: relative difference of the unit direction's values", x_label="prompt")
        yield finding.stated(form, statement)


def descent_weights(errors: Float[Tensor, "batch n"]) -> Float[Tensor, "batch points"]:
    """The lemma's direction up to c: e_i on every example, 0 on as many other points."""
    return torch.cat([errors, torch.zeros_like(errors)], 1)


def steepest(errors: Float[Tensor, "batch n"], gram: Float[Tensor, "batch m m"]) -> Float[Tensor, "batch m"]:
    """The values, at all points, of the unit function g of their span with the least slope, without the lemma.

    g = sum_j w_j K(., x_j), |g| = |L'w|, slope = -2 e'K w = -2 <L^-1 K'e, L'w>, gram = L L': L'w is along L^-1 K'e
    """
    factor = torch.linalg.cholesky(gram)
    against = torch.einsum("bi,bij->bj", errors, gram[:, : errors.shape[-1]])
    along = torch.linalg.solve_triangular(factor, against[..., None], upper=False)[..., 0]
    return torch.einsum("bij,bj->bi", factor, along / along.norm(dim=-1, keepdim=True))


@theorem(
    "cheng24.eq58",
    "With V = diag(A, r), Y_{l+1} = Y_0 prod_{i<=l} (I + r_i M h(B_i X_i, C_i X_i)), X_i after i layers.",
)
def eq58() -> Iterator[Finding]:
    """The product against the states of the model; Eq. (58) prints X_0 in place of X_i, as does Eq. (72)."""
    layers, n, d = 3, 6, 4
    prompt = normal_prompts(50, n, d, 10)
    mask = torch.diag(torch.cat([torch.ones(n), torch.zeros(1)])).double()
    errors: dict[Form, list[float]] = {"in the proof": [], "as corrected": []}
    for kernel in ATTENTIONS[:3]:
        model = functional(d=d, loops=layers, layers=layers, kernel=kernel, init_std=0.3).build().double()
        states = [model.embed(prompt).rows, *model.states(prompt)]
        weights = {name: value.detach() for name, value in model.heads[0].named_parameters()}
        for form in errors:
            product = torch.eye(n + 1, dtype=torch.float64)
            for layer in range(layers):
                xs = states[layer if form == "as corrected" else 0][..., :d]
                keys, queries = xs @ weights["key"][layer].T, xs @ weights["query"][layer].T
                scores = kernel(keys, queries)
                product = product @ (torch.eye(n + 1) + weights["label"][layer] * mask @ scores)
            labels = torch.einsum("bi,bij->bj", states[0][..., d], product)
            errors[form].append(relative_difference(labels, states[-1][..., d]))
    instance = f"d={d}, n={n}, {layers} layers of random weights, 50 prompts (seed 10), linear, relu and exp"
    statement = "The same with X_0 in place of X_i, in the proofs of F.3 (58) and F.4 (72). The propositions stand."
    yield exact(errors["in the proof"], instance).stated("in the proof", statement)
    yield exact(errors["as corrected"], instance).stated("as corrected")
