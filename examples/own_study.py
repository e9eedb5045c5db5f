"""A study of your own: does a wider block learn more in the same steps?

looped reproduce examples/own_study.py:widths
"""

from dataclasses import replace

from looped.papers import yang24
from looped.studies import Cell, Curves, Learned, Panels, Study, along, area, claim, drift, worst

WIDTHS = {"smoke": (8, 16), "cpu": (16, 32, 64)}


def cells(scale):
    """One model for each width, everything else as in the recipe."""
    base = yang24.linear(scale)
    return {Cell(width=width): replace(base, model=replace(base.model, width=width)) for width in WIDTHS[scale]}


def measure(scale):
    """Two seeds of each, evaluated far beyond the trained loops."""
    return Curves(seeds=(0, 1), prompts=256, loops=32) if scale == "cpu" else Curves(prompts=16, loops=8)


widths = Study(
    name="widths",
    title="Linear regression: error by examples and by loops for blocks of several widths",
    cells=cells,
    measure=measure,
    panels=(
        Panels(y="by_examples", colour="width", width=3.4),
        Panels(y="by_loops", colour="width", width=3.4, mark_trained=True),
    ),
    learned=Learned(best=0.0),
    scales=("smoke", "cpu"),
    judged="cpu",
    claims=(
        claim(
            "wider_is_better", "A wider block has a smaller error.", along(area(), "width").successive().largest() < 1
        ),
        claim("stable", "Every one has a fixed point.", worst(drift(), over="width") <= 1.5),
    ),
)
