"""Planted failures of gatmiry24's theorems."""

from collections.abc import Callable
from typing import Any

import torch
from theorem_plants import Plant
from torch import Tensor

CHECKS = "looped.theorems.gatmiry24"


def factor(size: float) -> Callable[[Any], Any]:
    """A function whose result is `size` times what it was."""
    return lambda original: lambda *args, **options: size * original(*args, **options)


def rate(size: float) -> Callable[[Any], Any]:
    """A construction at `size` times its rate."""
    return lambda original: lambda **options: original(**options | {"rate": size * options["rate"]})


def deeper(original: Any) -> Any:
    """Restricted weight sets with a layer more than they may have."""
    return lambda d, layers, kernel, *, top: original(d, layers + 1, kernel, top=top)


def scale_free(original: Any) -> Any:
    """Restricted weight sets whose attention is divided by |X|^2, for which a scaling changes nothing."""

    def sets(d: int, layers: int, kernel: Any, *, top: float) -> Any:
        def divided(keys: Tensor, queries: Tensor) -> Tensor:
            return kernel(keys, queries) / keys.square().sum((-2, -1), keepdim=True)

        return original(d, layers, divided, top=1.001)

    return sets


def closed_form(theorem: str) -> list[Plant]:
    """The closed forms of `theorem` for attention that is not what they say."""
    scores, values = (f"looped.models.patterns.{name}" for name in ("CovariateScores.queries", "UnitValue.values"))
    changes: list[tuple[str, Callable[[Any], Any], str]] = [
        (scores, lambda _: lambda self, rows, weights, d: rows[..., :d] @ weights["score"], "A is transposed"),
        (scores, factor(-1), "A has the other sign"),
        (values, factor(-1), "the value has the other sign"),
        (values, factor(2), "the value is doubled"),
    ]
    return [Plant(theorem=theorem, rows=(1,), target=target, change=change, why=why) for target, change, why in changes]


PLANTS = [
    *closed_form("gatmiry24.lem2"),
    *closed_form("gatmiry24.lem4"),
    Plant(
        theorem="gatmiry24.lem1a",
        rows=(0, 1),
        target=f"{CHECKS}.weight_sets.restricted_sets",
        change=scale_free,
        why="attention divides by the size of X",
    ),
    Plant(
        theorem="gatmiry24.thm1a",
        rows=(1, 2),
        target=f"{CHECKS}.weight_sets.restricted_sets",
        change=deeper,
        why="a layer more",
    ),
    Plant(
        theorem="gatmiry24.thm1a",
        rows=(3,),
        target=f"{CHECKS}.lower_bounds.nearly_orthogonal",
        change=lambda _: lambda query: query,
        why="w is parallel to the query",
    ),
    *(
        Plant(
            theorem=name,
            rows=rows,
            target=f"{CHECKS}.weight_sets.unrestricted_sets",
            change=lambda original: lambda layers, top, d: original(layers + 1, top, d),
            why="a layer more",
        )
        for name, rows in (("gatmiry24.lem1b", (2,)), ("gatmiry24.thm1b", (0,)))
    ),
    *(
        Plant(
            theorem=name,
            rows=rows,
            target=f"{CHECKS}.lower_bounds.deviations",
            change=lambda original: lambda ratio, k: original(ratio, 9 * k),
            why="polynomials of 9 times the degree",
        )
        for name, rows in (("gatmiry24.lem3", (0, 1)), ("gatmiry24.lem3b", (0,)))
    ),
    Plant(
        theorem="gatmiry24.thm2",
        rows=(0,),
        target="looped.constructions.gradient_descent.chebyshev_roots",
        change=lambda original: lambda degree, low, high: original(degree, low, 0.9 * high),
        why="roots on a shorter interval",
    ),
    Plant(
        theorem="gatmiry24.thm3",
        rows=(1,),
        target="looped.models.exit_rules.ResidualCertificate.dual_norm",
        change=lambda _: lambda self, xs, query: torch.einsum("bnd,bd->bn", xs, query).norm(dim=-1),
        why="the norm of XX', not of its inverse",
    ),
    Plant(
        theorem="gatmiry24.exit",
        rows=(0,),
        target=f"{CHECKS}.certified_exit.looped_descent",
        change=rate(0.5),
        why="gradient descent at half its rate",
    ),
    *(
        Plant(
            theorem="gatmiry24.thm4",
            rows=(1, 2),
            target="looped.models.patterns.FullScores.queries",
            change=factor(size),
            why=f"scores times {size:g}",
        )
        for size in (-1.0, 1.1)
    ),
    Plant(
        theorem="gatmiry24.thm5",
        rows=(0,),
        target=f"{CHECKS}.upper_bounds.looped_descent",
        change=rate(0.5),
        why="gradient descent at half its rate",
    ),
    Plant(
        theorem="gatmiry24.rates",
        rows=(0,),
        target=f"{CHECKS}.upper_bounds.newton_loop",
        change=lambda original: lambda **options: original(**options | {"alpha": options["alpha"] ** 2}),
        why="Newton starts at 1/kappa^4",
    ),
    Plant(
        theorem="gatmiry24.thm6",
        rows=(0,),
        target=f"{CHECKS}.overfitting.exploding",
        change=lambda original: lambda layers, delta: original(layers, 0.3),
        why="C is that of delta' = .3",
    ),
    *(
        Plant(
            theorem=name,
            rows=rows,
            target=f"{CHECKS}.overfitting.overfitted",
            change=lambda original: lambda layers, low, high, d=3: original(layers, 2 * low, high, d),
            why="training covariances up to 4 alpha, as the proof prints",
        )
        for name, rows in (("gatmiry24.thm6", (3,)), ("gatmiry24.wasserstein", (0,)))
    ),
    Plant(
        theorem="gatmiry24.thm7",
        rows=(1,),
        target=f"{CHECKS}.robustness.looped_minimiser",
        change=factor(0.5),
        why="half of the minimiser",
    ),
    Plant(
        theorem="gatmiry24.thm8",
        rows=(1,),
        target=f"{CHECKS}.robustness.preconditioned",
        change=lambda original: lambda matrices, **options: original(matrices[:1].expand_as(matrices), **options),
        why="all layers are equal",
    ),
    Plant(
        theorem="gatmiry24.thm8b",
        rows=(1,),
        target=f"{CHECKS}.robustness.preconditioned",
        change=lambda original: (
            lambda matrices, **options: original(matrices + torch.ones_like(matrices).triu(1), **options)
        ),
        why="A is not symmetric",
    ),
]
"""What is wrong with each, in `why`."""
