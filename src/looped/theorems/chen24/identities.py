"""What one layer and a loop compute exactly: Lemma 4.1, Theorem 4.2."""

from collections.abc import Iterator

import torch

from looped.constructions.gradient_descent import vector_descent
from looped.functional.streams import generator_of
from looped.prompt import Prompt
from looped.theorems.check import Finding, exact, relative_difference, theorem
from looped.theorems.chen24.vector_prompts import draw_prompts
from looped.theorems.sampling import normal, uniform


@theorem("chen24.lem4.1", "Attn(Z; I, diag(I, 0)) = (0, 0; q'X'X + alpha y'X, 0).")
def lem4_1() -> Iterator[Finding]:
    """One step of rate 1 from any q and for any y; all rows and columns are compared."""
    errors, sizes = [], [(2, 1), (5, 3), (20, 5), (50, 8), (9, 12)]
    for seed, (n, d) in enumerate(sizes):
        prompts = draw_prompts(20, n, d, seed, started=True)
        ys = normal(20, n, generator=generator_of(100 + seed))
        model = vector_descent(d=d, rates=[1.0])
        xs = torch.cat([prompts.xs, prompts.query[:, None]], 1)
        prompt = Prompt(xs, torch.cat([ys, prompts.alpha[:, None]], 1))
        start = model.embed(prompt).rows
        attention = start - model.states(prompt)[-1]
        expected = torch.zeros_like(start)
        from_labels = torch.einsum("bn,bnd->bd", ys, prompts.xs) * prompts.alpha[:, None]
        expected[:, -1, :d] = torch.einsum("bd,bnd,bne->be", prompts.query, prompts.xs, prompts.xs) + from_labels
        errors.append(relative_difference(attention, expected))
    yield exact(errors, f"(n, d) in {sizes}, 20 prompts each (seeds 0-4), any y, q != 0; largest relative difference")


@theorem("chen24.thm4.2", "TF(Z; Q, P) = alpha theta^(T), theta by gradient descent from -q / alpha.")
def thm4_2() -> Iterator[Finding]:
    """Different rates in every loop, q != 0, and noisy labels, since the identity needs no realizable ones."""
    errors, sizes, loops = [], [(5, 3), (20, 5), (50, 8), (6, 10)], 40
    for seed, (n, d) in enumerate(sizes):
        prompts = draw_prompts(10, n, d, seed, started=True)
        generator = generator_of(50 + seed)
        prompts = prompts._replace(ys=prompts.ys + normal(10, n, generator=generator))
        rates = (0.5 + uniform(10, loops, generator=generator)) / prompts.highest[:, None]
        expected = prompts.alpha[:, None] * prompts.descend(rates, loops)[1:]
        difference = (prompts.answer(rates, loops) - expected).norm(dim=-1) / expected.norm(dim=-1)
        errors.append(difference.amax(-1))
    instance = f"(n, d) in {sizes}, T = 1..{loops}, 10 prompts each (seeds 0-3), eta^(t) in [0.5, 1.5]/L, noisy y"
    yield exact(torch.stack(errors).amax(0), instance, x_label="T")
