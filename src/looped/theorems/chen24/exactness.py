"""What one layer and a loop compute, exactly: Lemma 4.1, Theorem 4.2."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from looped.constructions.gradient_descent import vector_descent
from looped.prompt import Prompt
from looped.theorems.check import Finding, curve, theorem
from looped.theorems.chen24.instances import draw

EXACT = 1e-10
"""Largest relative difference of two float64 computations of one number."""


@theorem("chen24.lem4.1", "Attn(Z; I, diag(I, 0)) = (0, 0; q'X'X + alpha y'X, 0).")
def lem4_1() -> Iterator[Finding]:
    """One step of rate 1 from any q and for any y, all rows and columns compared."""
    errors, sizes = [], [(2, 1), (5, 3), (20, 5), (50, 8), (9, 12)]
    for seed, (n, d) in enumerate(sizes):
        made = draw(20, n, d, seed, started=True)
        ys = torch.randn(20, n, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + seed))
        model = vector_descent(d=d, rates=[1.0])
        prompt = Prompt(torch.cat([made.xs, made.query[:, None]], 1), torch.cat([ys, made.alpha[:, None]], 1))
        start = model.embed(prompt).rows
        attention = start - model.states(prompt)[-1]
        expected = torch.zeros_like(start)
        pulled = torch.einsum("bn,bnd->bd", ys, made.xs) * made.alpha[:, None]
        expected[:, -1, :d] = torch.einsum("bd,bnd,bne->be", made.query, made.xs, made.xs) + pulled
        errors.append(_relative(attention, expected))
    yield Finding(
        measured=max(errors),
        bound=EXACT,
        tolerance=True,
        instance=f"(n, d) in {sizes}, 20 prompts each (seeds 0-4), any y, q != 0; largest relative difference",
        plot=curve("case", range(1, len(sizes) + 1), "relative difference", errors, EXACT),
    )


@theorem("chen24.thm4.2", "TF(Z; Q, P) = alpha theta^(T), theta by gradient descent from -q / alpha.")
def thm4_2() -> Iterator[Finding]:
    """Own rates for every loop, q != 0, realizable labels or not (the identity needs no realizability)."""
    errors, sizes, loops = [], [(5, 3), (20, 5), (50, 8), (6, 10)], 40
    for seed, (n, d) in enumerate(sizes):
        made = draw(10, n, d, seed, started=True)
        generator = torch.Generator().manual_seed(50 + seed)
        made = made._replace(ys=made.ys + torch.randn(10, n, dtype=torch.float64, generator=generator))
        rates = (0.5 + torch.rand(10, loops, dtype=torch.float64, generator=generator)) / made.highest[:, None]
        expected = made.alpha[:, None] * made.descend(rates, loops)[1:]
        difference = (made.answer(rates, loops) - expected).norm(dim=-1) / expected.norm(dim=-1)
        errors.append(difference.amax(-1))
    measured = torch.stack(errors).amax(0)
    yield Finding(
        measured=float(measured.max()),
        bound=EXACT,
        tolerance=True,
        instance=f"(n, d) in {sizes}, T = 1..{loops}, 10 prompts each (seeds 0-3), eta^(t) in [0.5, 1.5]/L, noisy y",
        plot=curve("T", range(1, loops + 1), "relative difference", measured, EXACT),
    )


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
