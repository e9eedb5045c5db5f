"""Functional gradient descent, exactly and in the limit: Propositions 3.1, 3.4 and D.1, Section 3.1.2."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.gaussian_process import bayes
from looped.constructions.gradient_descent import functional_descent as transformer
from looped.functional import kernels
from looped.functional.attention import softmax
from looped.functional.descent import functional_descent
from looped.functional.kernels import Kernel
from looped.functional.streams import generator_of
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, MixedProcess, Part
from looped.theorems.check import EXACT, Finding, bound_plot, bounded, exact, theorem
from looped.theorems.cheng24.kernel_prompts import (
    descent_predictions,
    loop_differences,
    normal_prompts,
    predictions,
    process_prompts,
    safe_rates,
)
from looped.theorems.sampling import normal, uniform


def quadratic(left: Float[Tensor, "*batch n d"], right: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch n m"]:
    """(1 + <u, v>)^2, a kernel with finitely many features."""
    return (1 + kernels.linear(left, right)).square()


def features(xs: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n count"]:
    """The features of `quadratic`: 1, sqrt(2) u and all products u_i u_j."""
    products = (xs[..., :, None] * xs[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(xs[..., :1]), math.sqrt(2) * xs, products], -1)


def feature_descent(prompt: Prompt, rates: Float[Tensor, " loops"]) -> Float[Tensor, "loops batch"]:
    """Gradient descent on the weights of the features, by autograd, read at the query: the meaning of Eq. (7).

    f = <w, features>,  w <- w - rate grad 1/2 |y - f(X)|^2
    """
    phi, labels = features(prompt.xs), prompt.ys[:, :-1]
    w, at_query = torch.zeros_like(phi[:, 0]), []
    for rate in rates:
        w = w.detach().requires_grad_()
        loss = 0.5 * (labels - torch.einsum("bnf,bf->bn", phi[:, :-1], w)).square().sum()
        w = w - rate * torch.autograd.grad(loss, w)[0]
        at_query.append((phi[:, -1] * w).sum(-1).detach())
    return torch.stack(at_query)


@theorem("cheng24.prop3.1", "V = diag(0, -r), B = C = I, h = K: TF_l(x) = -f_l(x), f gradient descent in K's space.")
def prop3_1() -> Iterator[Finding]:
    """Eq. (9) for five kernels; descent on the features of one; other B, C with B'C = I, not symmetric."""
    loops, n, d = 12, 9, 4
    prompt, generator = normal_prompts(20, n, d, 0), generator_of(1)
    xs, ys, queries = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1:]
    differences = {}
    for kernel in (kernels.linear, kernels.exp, kernels.rbf, kernels.arc_cosine, quadratic):
        rates = safe_rates(kernel(xs, xs), loops, generator)
        expected = functional_descent(xs, ys, queries, kernel=kernel, steps=loops, rate=rates[:, None])[1:, :, 0]
        model = transformer(d=d, rates=rates, kernel=kernel)
        differences[kernel.__name__] = loop_differences(predictions(model, prompt), expected)
        if kernel is quadratic:
            differences["its features"] = loop_differences(predictions(model, prompt), feature_descent(prompt, rates))
        if kernel in (kernels.linear, kernels.exp):
            gauge = normal(d, d, generator=generator)
            model.put(key=gauge.T, query=torch.linalg.inv(gauge))
            differences[f"{kernel.__name__} with B'C = I"] = loop_differences(predictions(model, prompt), expected)
    instance = (
        f"d={d}, n={n}, l = 1..{loops}, a different rate in every layer, 20 prompts (seed 0): "
        f"{', '.join(differences)}; largest relative difference"
    )
    yield exact(torch.stack(list(differences.values())).amax(0), instance, x_label="layers")


@theorem("cheng24.sec3.1.2", "Softmax attention runs f <- f + r tau(.) sum_i (y_i - f(x_i)) K(., x_i), K = exp.")
def sec3_1_2() -> Iterator[Finding]:
    """Eq. (10) written out without attention, tau = 1 / sum_j K(., x_j); then Remark 3.2."""
    loops, d, sigma, sizes = 10, 4, 0.8, (4, 8, 16, 32, 64, 128)
    errors, against_exp = [], []
    for seed, n in enumerate(sizes):
        prompt = normal_prompts(10, n, d, seed, sphere=True)
        rates = 0.5 + uniform(loops, generator=generator_of(seed))
        gram = (torch.einsum("bid,bjd->bij", prompt.xs, prompt.xs) / sigma**2).exp()
        tau = 1 / gram[:, :n].sum(1)
        values, expected = torch.zeros_like(prompt.ys), []
        for rate in rates:
            values = values + rate * tau * torch.einsum("bi,bij->bj", prompt.ys[:, :n] - values[:, :n], gram[:, :n])
            expected.append(values[:, n])
        maps = [torch.eye(d, dtype=torch.float64) / sigma]
        soft = predictions(transformer(d=d, rates=rates, kernel=softmax, maps=maps), prompt)
        errors.append(float(loop_differences(soft, torch.stack(expected)).max()))
        plain = transformer(d=d, rates=rates * float(tau.mean()), kernel=kernels.exp, maps=maps)
        against_exp.append(float(loop_differences(predictions(plain, prompt), soft).max()))
    instance = (
        f"d={d}, n in {sizes}, {loops} layers, a different rate in each, sigma = {sigma}, 10 prompts each on the "
        f"sphere; exp attention with the single rate r mean(tau) for all x differs by {against_exp[0]:.2f} at "
        f"n={sizes[0]} and by {against_exp[-1]:.2f} at n={sizes[-1]}"
    )
    others = {"softmax against exp of rate r mean(tau)": against_exp}
    plot = bound_plot("n", sizes, "relative difference", errors, EXACT, others, log_x=True)
    yield Finding(max(errors), EXACT, instance, plot, tolerance=True)
    prompt, rates = normal_prompts(20, 12, d, 50, sphere=True), torch.linspace(0.02, 0.05, loops, dtype=torch.float64)
    with_exp = predictions(transformer(d=d, rates=rates, kernel=kernels.exp), prompt)
    with_rbf = predictions(transformer(d=d, rates=math.e * rates, kernel=kernels.rbf), prompt)
    remark = "Remark 3.2: on the unit sphere exp attention of rate r is Gaussian-kernel attention of rate e r."
    differences = loop_differences(with_exp, with_rbf)
    finding = exact(differences, f"d={d}, n=12, {loops} layers, 20 prompts (seed 50)", x_label="layers")
    yield finding.stated("as stated", remark)


@theorem(
    "cheng24.prop3.4",
    "As l grows, TF_l tends to minus the Bayes estimator; with a step < 2/|K|, |TF_l + f| <= |K^-1/2 nu| |K^-1/2 y| "
    "|I - step K|^l.",
)
def prop3_4() -> Iterator[Finding]:
    """The limit; then two lines of the proof: the step, printed as < |K|, and the sum, printed without the step."""
    task, n, loops = GaussianProcess(kernel=kernels.exp, whiten=False), 4, 40
    prompt = process_prompts(task, 40, n, 0)
    gram = kernels.exp(prompt.xs, prompt.xs)
    top = torch.linalg.matrix_norm(gram[:, :n, :n], 2)
    target = bayes(prompt, task)[:, -1]
    setting = f"K = exp, d=5, n={n}, 40 prompts (seed 0), |K| {top.min():.1f} to {top.max():.1f}"
    yield bayes_limit(prompt, gram, target, kernels.exp, setting=setting)
    too_long = descent_predictions(prompt, 0.9 * top, kernels.exp, loops)
    distance = (too_long - target).square().mean(-1).sqrt() / target.square().mean().sqrt()
    instance = f"{setting}, step = 0.9 |K|: the distance at l = {loops} over that at l = 0"
    plot = bound_plot("layers", range(1, loops + 1), "relative distance to Bayes", distance, 1.0)
    statement = "The proof takes a step < |K|, for which it says that TF_l tends to the limit. The proposition stands."
    yield Finding(float(distance[-1]), 1.0, instance, plot).stated("in the proof", statement)
    step = 1 / top
    reached = descent_predictions(prompt, step, kernels.exp, loops)
    residual, total, sums = prompt.ys[:, :n], torch.zeros(40, dtype=torch.float64), []
    for _ in range(loops):
        total = total + (gram[:, :n, n] * residual).sum(-1)
        residual = residual - step[:, None] * torch.einsum("bij,bj->bi", gram[:, :n, :n], residual)
        sums.append(total)
    instance = f"{setting}, step = 1/|K|, l = 1..{loops}; largest relative difference"
    printed, corrected = (
        exact(loop_differences(reached, factor * torch.stack(sums)), instance, x_label="layers") for factor in (1, step)
    )
    statement = "The proof's sum, TF_l = -nu' sum_k (I - step K)^k y, k < l, lacks the step. The proposition stands."
    yield printed.stated("in the proof", statement)
    yield corrected.stated("as corrected", "The proof's sum: TF_l = -step nu' sum_k (I - step K)^k y, k < l.")


@theorem("cheng24.propD.1", "Heads with kernels K_s and B = C = G_s run descent in the space of sum_s K_s(G_s., G_s.).")
def propD_1() -> Iterator[Finding]:
    """(A) three heads with maps that are not symmetric, exactly; (B) two heads tend to the Bayes estimator."""
    loops, n, d = 12, 9, 4
    prompt, generator = normal_prompts(20, n, d, 3), generator_of(4)
    heads = (kernels.linear, kernels.exp, kernels.rbf)
    maps = [normal(d, d, generator=generator) / d**0.5 for _ in heads]

    def total(left: Tensor, right: Tensor) -> Tensor:
        grams = [kernel(left @ through.T, right @ through.T) for kernel, through in zip(heads, maps, strict=True)]
        return torch.stack(grams).sum(0)

    xs, ys, queries = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1:]
    rates = safe_rates(total(xs, xs), loops, generator)
    expected = functional_descent(xs, ys, queries, kernel=total, steps=loops, rate=rates[:, None])[1:, :, 0]
    instance = (
        f"(A) linear, exp and rbf heads, random G_s, d={d}, n={n}, l = 1..{loops}, a different rate in every layer, 20 "
        "prompts (seed 3); largest relative difference"
    )
    reached = predictions(transformer(d=d, rates=rates, kernel=heads, maps=maps), prompt)
    yield exact(loop_differences(reached, expected), instance, x_label="layers")
    parts = (
        Part(kernel=kernels.linear, scales=(1.0, 1.0, 0.0, 0.0, 0.0)),
        Part(kernel=kernels.exp, scales=(0.0, 0.0, 1.0, 1.0, 1.0)),
    )
    task = MixedProcess(parts=parts, whiten=False)
    prompt = process_prompts(task, 40, 4, 5)
    yield bayes_limit(
        prompt,
        task.raw_gram(prompt.xs),
        bayes(prompt, task)[:, -1],
        tuple(part.kernel for part in parts),
        maps=[torch.tensor(part.scales, dtype=torch.float64).diag() for part in parts],
        setting="linear head on x_1, x_2 and exp head on x_3 .. x_5, d=5, n=4, 40 prompts (seed 5)",
    ).stated(
        "as stated",
        "(B) With the heads' Gaussian process, TF_l tends to minus the Bayes estimator, as in Proposition 3.4.",
    )


def bayes_limit(
    prompt: Prompt,
    gram: Float[Tensor, "batch m m"],
    target: Float[Tensor, " batch"],
    kernel: Kernel | tuple[Kernel, ...],
    *,
    setting: str,
    maps: Sequence[Tensor] | None = None,
) -> Finding:
    """The distance to the Bayes estimator at every layer, with steps of 1/|K| and 1.9/|K|, against its bound.

    |f_l - f| = |nu' K^-1 (I - step K)^l y| <= |K^-1/2 nu| |K^-1/2 y| max_i |1 - step lambda_i|^l
    """
    loops, n = 300, gram.shape[-1] - 1
    values, vectors = torch.linalg.eigh(gram[:, :n, :n])
    nu, ys = (torch.einsum("bij,bi->bj", vectors, vector) for vector in (gram[:, :n, n], prompt.ys[:, :n]))
    size = (nu.square() / values).sum(-1).sqrt() * (ys.square() / values).sum(-1).sqrt()
    distances, bounds = [], []
    for factor in (1.0, 1.9):
        step = factor / values[:, -1]
        shrink = (1 - step[:, None] * values).abs().amax(-1)
        distances.append((descent_predictions(prompt, step, kernel, loops, maps) - target).abs())
        bounds.append(size * shrink ** torch.arange(1, loops + 1, dtype=torch.float64)[:, None])
    distance, bound = torch.stack(distances), torch.stack(bounds)
    above = bound > 1e-9 * size
    layers = torch.unique(torch.logspace(0, math.log10(loops), 40).long())
    shown, limit = (line[0, layers - 1].mean(-1) for line in (distance, bound))
    last = float(distance[0, -1].square().mean().sqrt() / target.square().mean().sqrt())
    instance = (
        f"{setting}, step = 1/|K| and 1.9/|K|, l = 1..{loops} while above rounding; with 1/|K| the relative distance "
        f"at the end is {last:.1g}"
    )
    plot = bound_plot("layers", layers.tolist(), "distance to Bayes", shown, limit, log_x=True)
    return bounded(distance[above], bound[above], instance, plot)
