"""The groundwork of the theorems on stationary points: Lemmas A.1 and G.3, Example 8, Eq. (58)."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.attention import softmax
from looped.models.kernel_transformer import Head, KernelTransformerConfig, functional
from looped.models.patterns import FactoredScores, FullValue
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.theorems.check import EXACT, Finding, Form, bound_plot, exact, relative_difference, theorem
from looped.theorems.cheng24.kernel_prompts import normal_prompts
from looped.theorems.sampling import normal, seeded

ATTENTIONS = (kernels.linear, kernels.relu, kernels.exp, softmax)


@theorem("cheng24.lemA.1", "E (TF + y)^2 = E Tr((I - M) Y'Y (I - M)), Y the labels after a run that sees y_{n+1}.")
def lemA_1() -> Iterator[Finding]:
    """Random weights, every attention, V = diag(A, r) and, beyond the lemma, any V; the proof prints Tr squared."""
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
    statement = "The last line of the proof: E (TF + y)^2 = E (Tr((I - M) Y'Y (I - M)))^2."
    yield exact(printed, setting).stated("as printed", statement)


def both_runs(
    config: KernelTransformerConfig, prompt: Prompt
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """TF + y with the query's label hidden, and that label after a run that sees it."""
    hidden, seeing = config.build().double(), replace(config, hide_label=False).build().double()
    seeing.load_state_dict(hidden.state_dict())
    return prompt.ys[:, -1] - hidden.predict(prompt)[:, 0], -seeing.predict(prompt)[:, 0]


@theorem(
    "cheng24.lemG.3",
    "The unit g of steepest descent of sum_i (y_i - f(x_i))^2 is sum_i e_i K(., x_i) / sqrt(e'K e), e = y - f(X).",
)
def lemG_3() -> Iterator[Finding]:
    """Its norm, printed without the root; its slope against other unit directions, in the examples' span and out."""
    batch, n, d = 50, 8, 4
    generator = seeded(7)
    prompt = normal_prompts(batch, n, d, 7)
    # functions are sums over the examples and as many other points, so directions can leave the examples' span
    points = torch.cat([prompt.xs[:, :-1], normal_prompts(batch, n - 1, d, 8).xs], 1)
    gram = kernels.exp(points, points)
    errors = prompt.ys[:, :-1] - normal(batch, n, generator=generator)
    energy = torch.einsum("bi,bij,bj->b", errors, gram[:, :n, :n], errors)
    weights = torch.cat([errors, torch.zeros_like(errors)], 1)
    printed = (_norm(weights / energy[:, None], gram) - 1).abs()
    setting = f"K = exp, d={d}, n={n}, {batch} prompts (seed 7)"
    finding = Finding(float(printed.max()), EXACT, f"{setting}; largest | |g| - 1 |", tolerance=True)
    yield finding.stated("as printed", "The same with e'K e in place of its root: |g| = 1.")
    best = weights / energy.sqrt()[:, None]
    slope = _slope(best, errors, gram)
    gains, sizes = [], (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    for size in sizes:
        other = best + size * normal(100, *best.shape, generator=generator)
        other = other / _norm(other, gram)[..., None]
        gains.append(float(((slope - _slope(other, errors, gram)) / slope.abs()).max()))
    unit = float((_norm(best, gram) - 1).abs().max())
    instance = f"{setting}, 100 unit directions each at 5 distances: | |g| - 1 |, or how much steeper another is"
    plot = bound_plot("distance", sizes, "slope above the steepest", [-gain for gain in gains], EXACT, log_x=True)
    yield Finding(max(unit, *gains), EXACT, instance, plot, tolerance=True).stated("as corrected")


def _norm(weights: Tensor, gram: Tensor) -> Tensor:
    return torch.einsum("...bi,bij,...bj->...b", weights, gram, weights).sqrt()


def _slope(weights: Tensor, errors: Tensor, gram: Tensor) -> Tensor:
    """d/dt sum_i (y_i - f(x_i) - t g(x_i))^2 at 0."""
    return -2 * torch.einsum("bi,bij,...bj->...b", errors, gram[:, : errors.shape[-1]], weights)


@theorem(
    "cheng24.ex8", "Labels <theta_2, relu(theta_1 x)> have a covariance K(X) with K(Sigma^1/2 U Sigma^-1/2 X) = K(X)."
)
def ex8() -> Iterator[Finding]:
    """K from random networks against its closed form; then the invariance, which needs Sigma = I or whitened x."""
    hidden, points, d, networks = 6, 4, 5, 60000
    generator = seeded(9)
    xs = normal(points, d, generator=generator)
    first = normal(networks, hidden, d, generator=generator)
    labels = torch.einsum("km,kmi->ki", normal(networks, hidden, generator=generator), (first @ xs.T).relu())
    products = labels[:, :, None] * labels[:, None, :]
    expected = hidden / 2 * kernels.arc_cosine(xs, xs)
    scores = (products.mean(0) - expected).abs() / (products.std(0) / networks**0.5)
    instance = f"d={d}, m={hidden}, {points} points, {networks} networks (seed 9): largest deviation in standard errors"
    statement = "E y_i y_j = m E relu<g, x_i> relu<g, x_j> = (m / 2) arc-cosine kernel of x_i, x_j, g ~ N(0, I)."
    yield Finding(float(scores.max()), 4.0, instance, tolerance=True).stated("as stated", statement)
    root = GaussianProcess().root
    whiten = torch.linalg.inv(root)
    turn, _ = torch.linalg.qr(normal(200, d, d, generator=generator))
    covariates = normal(200, 8, d, generator=generator) @ root
    turned = covariates @ (root @ turn @ whiten).mT
    cases: list[tuple[Form, Tensor, str]] = [
        ("as printed", torch.eye(d, dtype=torch.float64), "The network reads x, whose covariance is Sigma."),
        ("as corrected", whiten, "The network reads Sigma^-1/2 x (or Sigma = I, which is all that App. I.1 shows)."),
    ]
    for form, through, statement in cases:
        before, after = (kernels.arc_cosine(xs @ through, xs @ through) for xs in (covariates, turned))
        change = (after - before).abs().amax((1, 2)) / before.abs().amax((1, 2))
        instance = "d=5, D = (1, 1, .25, 2.25, 1), 8 points, 200 turns U (seed 9); largest relative change"
        finding = exact(change, instance, x_label="turn")
        yield finding.stated(form, f"K(Sigma^1/2 U Sigma^-1/2 X) = K(X). {statement}")


@theorem(
    "cheng24.eq58",
    "With V = diag(A, r), Y_{l+1} = Y_0 prod_{i<=l} (I + r_i M h(B_i X_i, C_i X_i)), X_i as transformed.",
)
def eq58() -> Iterator[Finding]:
    """The product against the states of the model; Eq. (58) prints X_0 in place of X_i, as does Eq. (72)."""
    layers, n, d = 3, 6, 4
    prompt = normal_prompts(50, n, d, 10)
    mask = torch.diag(torch.cat([torch.ones(n), torch.zeros(1)])).double()
    errors: dict[Form, list[float]] = {"as printed": [], "as corrected": []}
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
    yield exact(errors["as printed"], instance).stated("as printed", "The same with X_0 in place of X_i.")
    yield exact(errors["as corrected"], instance).stated("as corrected")
