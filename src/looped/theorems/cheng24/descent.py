"""What the construction computes, exactly and in the limit: Propositions 3.1, 3.4 and D.1, Section 3.1.2."""

from __future__ import annotations

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
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, MixedProcess, Part
from looped.theorems.check import Finding, Form, curve, theorem, worst
from looped.theorems.cheng24.instances import (
    any_labels,
    apart,
    normal,
    own_steps,
    predictions,
    process_labels,
    safe_rates,
    seeded,
)

EXACT = 1e-10
"""Largest relative difference of two float64 computations of one number."""


def quadratic(left: Float[Tensor, "*batch n d"], right: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch n m"]:
    """(1 + <u, v>)^2, whose function space has finitely many features."""
    return (1 + kernels.linear(left, right)).square()


def features(xs: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n count"]:
    """The features of `quadratic`: 1, sqrt(2) u and all products u_i u_j."""
    products = (xs[..., :, None] * xs[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(xs[..., :1]), math.sqrt(2) * xs, products], -1)


def feature_descent(prompt: Prompt, rates: Float[Tensor, " loops"]) -> Float[Tensor, "loops batch"]:
    """Gradient descent by autograd on the weights of the features, read at the query: (7) as it is meant.

    f = <w, features>,  w <- w - rate grad 1/2 |y - f(X)|^2
    """
    made, labels = features(prompt.xs), prompt.ys[:, :-1]
    w, reached = torch.zeros_like(made[:, 0]), []
    for rate in rates:
        w = w.detach().requires_grad_()
        loss = 0.5 * (labels - torch.einsum("bnf,bf->bn", made[:, :-1], w)).square().sum()
        w = w - rate * torch.autograd.grad(loss, w)[0]
        reached.append((made[:, -1] * w).sum(-1).detach())
    return torch.stack(reached)


@theorem("cheng24.prop3.1", "V = diag(0, -r), B = C = I, h = K: TF_l(x) = -f_l(x), f gradient descent in K's space.")
def prop3_1() -> Iterator[Finding]:
    """Eq. (9) for five kernels; gradient descent on the features of one; other B, C with B'C = I, not symmetric."""
    loops, n, d = 12, 9, 4
    prompt, generator = any_labels(20, n, d, 0), seeded(1)
    xs, ys, queries = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1:]
    curves = {}
    for kernel in (kernels.linear, kernels.exp, kernels.rbf, kernels.arc_cosine, quadratic):
        rates = safe_rates(kernel(xs, xs), loops, generator)
        expected = functional_descent(xs, ys, queries, kernel=kernel, steps=loops, rate=rates[:, None])[1:, :, 0]
        model = transformer(d=d, rates=rates, kernel=kernel)
        curves[kernel.__name__] = apart(predictions(model, prompt), expected)
        if kernel is quadratic:
            curves["its features"] = apart(predictions(model, prompt), feature_descent(prompt, rates))
        if kernel in (kernels.linear, kernels.exp):
            gauge = normal(d, d, generator=generator)
            model.put(key=gauge.T, query=torch.linalg.inv(gauge))
            curves[f"{kernel.__name__} with B'C = I"] = apart(predictions(model, prompt), expected)
    measured = torch.stack(list(curves.values())).amax(0)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        instance=f"d={d}, n={n}, l = 1..{loops} with own rates, 20 prompts (seed 0): {', '.join(curves)}; largest "
        "relative difference",
        plot=curve("layers", range(1, loops + 1), "relative difference", measured, EXACT),
    )


@theorem("cheng24.sec3.1.2", "Softmax attention runs f <- f + r tau(.) sum_i (y_i - f(x_i)) K(., x_i), K = exp.")
def sec3_1_2() -> Iterator[Finding]:
    """Eq. (10), tau = 1 / sum_j K(., x_j), written out without attention; then Remark 3.2."""
    loops, d, sigma, sizes = 10, 4, 0.8, (4, 8, 16, 32, 64, 128)
    errors, against_exp = [], []
    for seed, n in enumerate(sizes):
        prompt = any_labels(10, n, d, seed, sphere=True)
        rates = 0.5 + torch.rand(loops, dtype=torch.float64, generator=seeded(seed))
        gram = (torch.einsum("bid,bjd->bij", prompt.xs, prompt.xs) / sigma**2).exp()
        tau = 1 / gram[:, :n].sum(1)
        values, expected = torch.zeros_like(prompt.ys), []
        for rate in rates:
            values = values + rate * tau * torch.einsum("bi,bij->bj", prompt.ys[:, :n] - values[:, :n], gram[:, :n])
            expected.append(values[:, n])
        maps = [torch.eye(d, dtype=torch.float64) / sigma]
        soft = predictions(transformer(d=d, rates=rates, kernel=softmax, maps=maps), prompt)
        errors.append(float(apart(soft, torch.stack(expected)).max()))
        plain = transformer(d=d, rates=rates * float(tau.mean()), kernel=kernels.exp, maps=maps)
        against_exp.append(float(apart(predictions(plain, prompt), soft).max()))
    yield Finding(
        measured=max(errors),
        bound=EXACT,
        tolerance=True,
        instance=f"d={d}, n in {sizes}, {loops} layers with own rates, sigma = {sigma}, 10 prompts each on the sphere; "
        f"with one rate r mean(tau) for all x, exp attention is {against_exp[0]:.2f} apart at n={sizes[0]} and "
        f"{against_exp[-1]:.2f} at n={sizes[-1]}",
        plot=curve(
            "n",
            sizes,
            "relative difference",
            errors,
            EXACT,
            {"softmax against exp of rate r mean(tau)": against_exp},
            log_x=True,
        ),
    )
    prompt, rates = any_labels(20, 12, d, 50, sphere=True), torch.linspace(0.02, 0.05, loops, dtype=torch.float64)
    left = predictions(transformer(d=d, rates=rates, kernel=kernels.exp), prompt)
    right = predictions(transformer(d=d, rates=math.e * rates, kernel=kernels.rbf), prompt)
    measured = apart(left, right)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        statement="Remark 3.2: on the unit sphere exp attention of rate r is Gaussian-kernel attention of rate e r.",
        instance=f"d={d}, n=12, {loops} layers, 20 prompts (seed 50)",
        plot=curve("layers", range(1, loops + 1), "relative difference", measured, EXACT),
    )


@theorem(
    "cheng24.prop3.4",
    "With step < 2/|K|, TF_l tends to minus the Bayes estimator: |TF_l + f| <= |K^-1/2 nu| |K^-1/2 y| |I - step K|^l.",
)
def prop3_4() -> Iterator[Finding]:
    """The step of the proof, printed < |K|; then its sum, printed without the step."""
    task, n, loops = GaussianProcess(kernel=kernels.exp, whiten=False), 4, 40
    prompt = process_labels(task, 40, n, 0)
    gram = kernels.exp(prompt.xs, prompt.xs)
    top = torch.linalg.matrix_norm(gram[:, :n, :n], 2)
    target = bayes(prompt, task)[:, -1]
    setting = f"K = exp, d=5, n={n}, 40 prompts (seed 0), |K| {top.min():.1f} to {top.max():.1f}"
    wide = own_steps(prompt, 0.9 * top, kernels.exp, loops)
    away = (wide - target).square().mean(-1).sqrt() / target.square().mean().sqrt()
    yield Finding(
        measured=float(away[-1]),
        bound=1.0,
        form="as printed",
        statement="With step < |K|, TF_l tends to minus the Bayes estimator.",
        instance=f"{setting}, step = 0.9 |K|: distance at l = {loops} in units of that at l = 0, not to be passed",
        plot=curve("layers", range(1, loops + 1), "relative distance to Bayes", away, 1.0),
    )
    yield approach(prompt, gram, target, kernels.exp, "as corrected", setting)
    step = 1 / top
    reached = own_steps(prompt, step, kernels.exp, loops)
    residual, total, sums = prompt.ys[:, :n], torch.zeros(40, dtype=torch.float64), []
    for _ in range(loops):
        total = total + (gram[:, :n, n] * residual).sum(-1)
        residual = residual - step[:, None] * torch.einsum("bij,bj->bi", gram[:, :n, :n], residual)
        sums.append(total)
    without, within = torch.stack(sums), step * torch.stack(sums)
    forms: list[tuple[Form, Tensor, str]] = [("as printed", without, ""), ("as corrected", within, "step ")]
    for form, formula, factor in forms:
        measured = apart(reached, formula)
        yield Finding(
            measured=float(measured.max()),
            bound=EXACT,
            tolerance=True,
            form=form,
            statement=f"TF_l = -{factor}nu' sum_k (I - step K)^k y, k < l.",
            instance=f"{setting}, step = 1/|K|, l = 1..{loops}; largest relative difference",
            plot=curve("layers", range(1, loops + 1), "relative difference", measured, EXACT),
        )


@theorem("cheng24.propD.1", "Heads with kernels K_s and B = C = G_s run descent in the space of sum_s K_s(G_s., G_s.).")
def propD_1() -> Iterator[Finding]:
    """(A) three heads with maps that are not symmetric, exactly; (B) two heads tend to the Bayes estimator."""
    loops, n, d = 12, 9, 4
    prompt, generator = any_labels(20, n, d, 3), seeded(4)
    each = (kernels.linear, kernels.exp, kernels.rbf)
    maps = [normal(d, d, generator=generator) / d**0.5 for _ in each]

    def total(left: Tensor, right: Tensor) -> Tensor:
        grams = [kernel(left @ one.T, right @ one.T) for kernel, one in zip(each, maps, strict=True)]
        return torch.stack(grams).sum(0)

    xs, ys, queries = prompt.xs[:, :-1], prompt.ys[:, :-1], prompt.xs[:, -1:]
    rates = safe_rates(total(xs, xs), loops, generator)
    expected = functional_descent(xs, ys, queries, kernel=total, steps=loops, rate=rates[:, None])[1:, :, 0]
    measured = apart(predictions(transformer(d=d, rates=rates, kernel=each, maps=maps), prompt), expected)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        instance=f"(A) linear, exp and rbf heads, random G_s, d={d}, n={n}, l = 1..{loops} with own rates, 20 prompts "
        "(seed 3); largest relative difference",
        plot=curve("layers", range(1, loops + 1), "relative difference", measured, EXACT),
    )
    scales = ((1.0, 1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0, 1.0))
    pair = (kernels.linear, kernels.exp)
    task = MixedProcess(
        parts=tuple(Part(kernel=kernel, scales=one) for kernel, one in zip(pair, scales, strict=True)), whiten=False
    )
    prompt = process_labels(task, 40, 4, 5)
    yield approach(
        prompt,
        task.raw_gram(prompt.xs),
        bayes(prompt, task)[:, -1],
        pair,
        "as stated",
        "linear head on x_1, x_2 and exp head on x_3 .. x_5, d=5, n=4, 40 prompts (seed 5)",
        "(B) With the heads' Gaussian process, TF_l tends to minus the Bayes estimator, as in Proposition 3.4.",
        [torch.tensor(one, dtype=torch.float64).diag() for one in scales],
    )


def approach(
    prompt: Prompt,
    gram: Float[Tensor, "batch m m"],
    target: Float[Tensor, " batch"],
    kernel: Kernel | tuple[Kernel, ...],
    form: Form,
    setting: str,
    statement: str = "",
    maps: Sequence[Tensor] | None = None,
) -> Finding:
    """The distance to the Bayes estimator layer by layer, with steps of 1 and 1.9 over |K|, against the series.

    |f_l - f| = |nu' K^-1 (I - step K)^l y| <= |K^-1/2 nu| |K^-1/2 y| max_i |1 - step lambda_i|^l
    """
    loops, n = 300, gram.shape[-1] - 1
    values, vectors = torch.linalg.eigh(gram[:, :n, :n])
    nu, ys = (torch.einsum("bij,bi->bj", vectors, one) for one in (gram[:, :n, n], prompt.ys[:, :n]))
    size = (nu.square() / values).sum(-1).sqrt() * (ys.square() / values).sum(-1).sqrt()
    measured, bounds = [], []
    for factor in (1.0, 1.9):
        step = factor / values[:, -1]
        shrink = (1 - step[:, None] * values).abs().amax(-1)
        measured.append((own_steps(prompt, step, kernel, loops, maps) - target).abs())
        bounds.append(size * shrink ** torch.arange(1, loops + 1, dtype=torch.float64)[:, None])
    found, limit = torch.stack(measured), torch.stack(bounds)
    seen = limit > 1e-9 * size
    at, bound = worst(found[seen], limit[seen])
    shown = torch.unique(torch.logspace(0, math.log10(loops), 40).long()) - 1
    last = float(found[0, -1].square().mean().sqrt() / target.square().mean().sqrt())
    return Finding(
        measured=at,
        bound=bound,
        form=form,
        statement=statement,
        instance=f"{setting}, step = 1/|K| and 1.9/|K|, l = 1..{loops} while above rounding; with 1/|K| the relative "
        f"distance at the end is {last:.1g}",
        plot=curve(
            "layers",
            (shown + 1).tolist(),
            "distance to Bayes",
            found[0, shown].mean(-1),
            limit[0, shown].mean(-1),
            log_x=True,
        ),
    )
