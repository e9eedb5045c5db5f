"""cheng24, Figures 3, 5 and 6: how far the learned matrices are from multiples of the identity during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Settings
from looped.evaluation.lines import finish, log_y, reference_line, seeds_line
from looped.papers.cheng24 import judges
from looped.papers.cheng24.scales import MATRICES
from looped.papers.cheng24.training import Case, kept_steps, outcomes
from looped.papers.cheng24.worlds import describe

GRID = [(data, heads) for data in ("linear", "relu", "exp") for heads in ("linear", "relu", "softmax")]
"""The nine panels of Figures 5 and 6: (K, h)."""
PANELS = {
    3: [("exp", "softmax", False), ("exp", "softmax", True)],
    5: [(data, heads, False) for data, heads in GRID],
    6: [(data, heads, True) for data, heads in GRID],
}
"""(K, h, whether A is free)."""
LAYERS = 3


def _measure(number: int, world: str):
    def measure(sizes: Mapping[str, Any], settings: Settings) -> Data:
        """Train what is missing and give distances to scaled identity by seed, kept step and matrix."""
        cases = {
            (data, heads, free): Case(
                world=world, data=data, heads=(heads,), n=sizes["n"], layers=LAYERS, transform=free
            )
            for data, heads, free in PANELS[number]
        }
        found = outcomes(cases.values(), sizes, settings)
        panels = [
            {
                "title": f"({data}, {heads})" + (", A = 0" if number == 3 and not free else ""),
                "distances": [[_finite(row) for row in seed] for seed in found[case].distances],
                "losses": _finite(found[case].losses),
                "bayes": found[case].bayes,
                "transform": free,
            }
            for (data, heads, free), case in cases.items()
        ]
        return {"world": world, "settings": describe(world), "steps": kept_steps(sizes), "panels": panels}

    return measure


def draw(figure: Any, data: Data) -> None:
    """One panel a pair (K, h), logarithmic distance against training steps, a line a matrix; losses at the end."""
    panels = data["panels"]
    columns = min(3, len(panels))
    rows = len(panels) // columns
    figure.set_size_inches(2.9 * columns + 0.4, 2.1 * rows + 0.9)
    every = [value for one in panels for seed in one["distances"] for row in seed for value in row if value]
    bottom = min(0.02, 0.8 * min(every))
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for index, (ax, one) in enumerate(zip(axes.flat, panels, strict=True)):
        names = [f"B'C, layer {k}" for k in range(LAYERS)] + [f"A, layer {k}" for k in range(LAYERS - 1)]
        for place, _ in enumerate(one["distances"][0][0]):
            runs = [[row[place] for row in seed] for seed in one["distances"]]
            seeds_line(ax, place, data["steps"], runs, names[place], linewidth=1.3)
        ends = [data["steps"][0], data["steps"][-1]]
        reference_line(ax, ends, [judges.SMALL] * 2, f"{judges.SMALL}, converged", linewidth=0.8)
        log_y(ax)
        ax.set(title=f"({'abcdefghi'[index]}) {one['title']}", ylim=(bottom, 1.3))
        loss, bayes = (_shown(one[name]) for name in ("losses", "bayes"))
        ax.text(0.03, 0.05, f"loss {loss}, Bayes {bayes}", transform=ax.transAxes, fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("training steps")
    for ax in axes[:, 0]:
        ax.set_ylabel("distance to a I")
    finish(figure, columns=2 * columns)


def _shown(values: Sequence[float | None]) -> str:
    """A mean over seeds in a few letters."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(values) if len(known) == len(values) else math.inf
    return "0" if mean < 5e-4 else f"{mean:.2g}"


def _claims(number: int, name: str) -> tuple[Claim, ...]:
    if number == 3:
        statement = "On exp data the matrices of a softmax model converge to multiples of the identity, with A = 0 and "
        return (
            Claim(
                id=f"{name}.converged",
                statement=statement + "with A free (Section 4.5, Figure 3; Theorems 4.5 and 4.6).",
                tolerance=f"final distance, a mean over matrices and seeds, below {judges.SMALL} in both panels",
                judge=judges.largest_distance,
            ),
        )
    theorem = "4.5" if number == 5 else "4.6"
    return (
        Claim(
            id=f"{name}.converged",
            statement=f"In most cases the matrices converge to multiples of the identity (App. H, Figure {number}; "
            f"Theorem {theorem}).",
            tolerance=f"final distance, a mean over matrices and seeds, below {judges.SMALL} in over half the panels",
            judge=judges.converged,
        ),
    )


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _figure(number: int, world: str) -> Figure:
    name = f"cheng24.fig{number}" + ("" if world == "paper" else "_released")
    what = {3: "with A = 0 and with A free, exp data, softmax", 5: "A = 0, nine pairs (K, h)", 6: "A free, nine pairs"}
    return Figure(
        name=name,
        title=f"Distance of the learned matrices to multiples of the identity during training: {what[number]}"
        + ("" if world == "paper" else ", in the released program's settings"),
        settings=MATRICES,
        measure=_measure(number, world),
        draw=draw,
        claims=_claims(number, name),
    )


fig3, fig3_released = _figure(3, "paper"), _figure(3, "released")
fig5, fig5_released = _figure(5, "paper"), _figure(5, "released")
fig6, fig6_released = _figure(6, "paper"), _figure(6, "released")
