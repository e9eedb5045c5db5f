"""gao24's lemmas and theorems as programs; `construct` turns a program into an AlgoFormer.

model = construct(theorem_41(d=5, num_examples=40, alpha=1e-4), limits=Limits(temperature=1e-5), loops=15)
"""

from looped.constructions.compiler import Limits, construct
from looped.constructions.gao24.gradient import Dense, lemma_a2, lemma_a2_tokens, represent, theorem_31
from looped.constructions.gao24.newton_regression import lemma_a4, lemma_a4_tokens, theorem_41
from looped.constructions.gao24.prefix_descent import lemma_a5, lemma_a5_tokens, theorem_42
from looped.constructions.gao24.sequence import lemma_a3, theorem_32, theorem_33
from looped.constructions.interpreter import interpret

__all__ = [
    "Dense",
    "Limits",
    "construct",
    "interpret",
    "lemma_a2",
    "lemma_a2_tokens",
    "lemma_a3",
    "lemma_a4",
    "lemma_a4_tokens",
    "lemma_a5",
    "lemma_a5_tokens",
    "represent",
    "theorem_31",
    "theorem_32",
    "theorem_33",
    "theorem_41",
    "theorem_42",
]
