"""gao24, Theorems 3.1 to 3.3, 4.1 and 4.2: whole AlgoFormers."""

from collections.abc import Iterator

import numpy as np

from looped.constructions.compiler import Limits
from looped.constructions.gao24 import cases, newton_regression, sequence
from looped.constructions.gao24.cases import SLOPE, Case
from looped.theorems.check import Finding, Form, theorem
from looped.theorems.gao24.limit import NEWTON_SIZES, PREFIX_SIZES, in_the_limit, no_larger


@theorem("gao24.thm3.1", "Pre of L+1 layers, loop and post of 1 give A_T Phi(x_test), A_T by gradient descent.")
def theorem_31() -> Iterator[Finding]:
    """A leaky-ReLU Phi of one, two and three layers."""
    sizes = [((3, 4), 1, 10), ((5, 9, 6), 3, 20), ((8, 12, 10, 6), 1, 40)]
    tasks = [cases.theorem_31(*size, seed=seed) for seed, size in enumerate(sizes)]
    yield from in_the_limit(tasks, 1e-5)
    yield no_larger(tasks, [(len(phi), 2) for phi, _, _ in sizes], (1, 2), (1, 1))  # phi has its input in front: L + 1


@theorem("gao24.thm3.2", "Pre of L+2 layers, loop and post of 1 predict x_{N+1} of AR(q) with representation.")
def theorem_32() -> Iterator[Finding]:
    """Orders one, two and three."""
    sizes = [(2, 1, (5,), 12), (3, 2, (8, 6), 20), (4, 3, (10, 10, 8), 40)]
    tasks = [cases.theorem_32(*size, seed=seed) for seed, size in enumerate(sizes)]
    yield from in_the_limit(tasks, 1e-5)
    yield no_larger(tasks, [(len(phi) + 2, order) for _, order, phi, _ in sizes], (1, 2), (1, 1))


@theorem("gao24.thm3.3", "Pre of 7 layers (1 is enough), loop and post of 1 find the next state of a chain of thought.")
def theorem_33() -> Iterator[Finding]:
    """Every place in the chain; then the printed labels against labels through the inverse activation."""
    sizes = [(2, 2, 8), (4, 3, 12), (5, 6, 10)]
    places = [(seed, size, place) for seed, size in enumerate(sizes) for place in range(size[1])]
    chains = [cases.theorem_33(*size, place=place, seed=seed) for seed, size, place in places]
    yield from in_the_limit(chains, 1e-5, "every place in the chain")
    d, length, n, loops = 3, 2, 40, 400
    states = cases.chains(d, length, n, np.random.default_rng(5))
    eta, truth = cases.safe_rate(states[:, :-1, 0]), states[:, -1:, 1]
    tokens = states.reshape(len(states), -1, d)[:, : n * (length + 1) + 1]
    labels: dict[Form, str] = {"as printed": "s^{l+1} itself", "as corrected": "the inverse activation of s^{l+1}"}
    for form, label in labels.items():
        program = sequence.theorem_33(
            d=d, steps=length, num_examples=n, eta=eta, slope=SLOPE, invert=form == "as corrected"
        )
        error = Case(program, tokens, np.stack([truth] * loops)).error(Limits(temperature=1e-3))
        finding = Finding(error, 1e-5, f"d = {d}, N = {n}, {loops} loops, c = 1e-3", tolerance=True)
        yield finding.stated(form, f"Gradient descent with {label} for labels finds the true next state.")
    yield no_larger(chains, [(7, 2)] * len(chains), (1, 2), (1, 1))


@theorem("gao24.thm4.1", "Pre and loop of 1 layer, post of 2 give x_test' M_T X'y, M_T by Newton's method.")
def theorem_41() -> Iterator[Finding]:
    """Fifteen steps at two condition numbers; then alpha at the end of its printed range."""
    tasks: list[Case] = []
    for kappa, bound in ((10, 1e-6), (1000, 1e-4)):
        tasks = [cases.theorem_41(*size, kappa=kappa, seed=seed) for seed, size in enumerate(NEWTON_SIZES)]
        yield from in_the_limit(tasks, bound, f"condition number {kappa:,}", slopes=kappa == 10)
    xs = cases.inputs(10, (20, 5), np.random.default_rng(3))
    s = xs.swapaxes(1, 2) @ xs
    inverse = xs @ np.linalg.inv(s)
    alphas: dict[Form, float] = {"as printed": 2.0, "as corrected": 1.99}
    for form, alpha in alphas.items():
        tokens = newton_regression.lemma_a4_tokens(xs, alpha * s)
        program = newton_regression.lemma_a4(d=5, num_examples=20)
        case = Case(program, tokens, np.stack([inverse] * 15), slice(0, -2, 2))
        instance = "d = 5, N = 20, condition number 10, 15 steps, c = 1e-4"
        statement = f"Newton's method from M_0 = alpha S reaches the inverse of S, alpha = {alpha}/|S|^2."
        yield Finding(case.error(Limits(temperature=1e-4)), 1e-6, instance, tolerance=True).stated(form, statement)
    yield no_larger(tasks, [(1, 2)] * len(tasks), (1, 2), (2, 2))


@theorem("gao24.thm4.2", "A decoder gives <w_T^i, x_i> at every x_i, w^i by gradient descent on the pairs before it.")
def theorem_42() -> Iterator[Finding]:
    """Post has one layer; the paper's has two."""
    tasks = [cases.theorem_42(*size, seed=seed) for seed, size in enumerate(PREFIX_SIZES)]
    yield from in_the_limit(tasks, 1e-5)
    yield no_larger(tasks, [(1, 2)] * len(tasks), (1, 2), (2, 2))
