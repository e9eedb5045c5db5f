"""Figures 4, 9, 12, 13 and 17: function classes, b loops in training and a loss over T of them, and far beyond b.

The grids compare cells: at `paper` scale every cell of a function class has the same short training (`STEPS`), about 10
to 50 seconds on one H200. On two cores at `cpu` scale a figure takes three to five minutes; Figures 4 and 9 reuse the
trainings of 12 and 13.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from looped.experiment import Experiment, Scale, training
from looped.papers.yang24 import linear, linear_12_layers, relu_network, sparse, tree
from looped.papers.yang24.variants import (
    BEFORE_DRIFT,
    DIVERGED,
    FLAT,
    GRID_STEPS,
    PRINTED_MATCH,
    UNLOOPED,
    ClassCurves,
    cheap,
    with_loops,
)
from looped.studies import Cell, Learned, Panels, Study, claim
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity
from looped.studies.quantities import along, area, at, best, curve, drift, loops_to, within_factor, worst
from looped.studies.study import Cells

LINEAR, SPARSE, TREE, RELU = "linear regression", "sparse linear regression", "decision tree", "2-layer ReLU network"
RECIPES: dict[str, Callable[..., Experiment]] = {LINEAR: linear, SPARSE: sparse, TREE: tree, RELU: relu_network}
"""The looped model of each function class."""
STEADIED, BARE = "clipped, bfloat16", "not clipped, float32"
SCHEDULED, AT_ONCE = "with scheduling", "without scheduling"
B: dict[str, list[int]] = {"smoke": [2, 4], "cpu": [4, 8, 12], "paper": [12, 20, 30, 40, 50]}
TREE_B = {**B, "paper": [12, 50, 70, 100]}
"""Values of b in the grids."""
T = {"smoke": [1, 2], "cpu": [2, 4], "paper": [5, 10, 15]}
STEPS = {LINEAR: GRID_STEPS, SPARSE: GRID_STEPS, TREE: 2000, RELU: 2000}
"""Steps of 64 prompts of every cell at `paper` scale; trees and ReLU networks have prompts of 101 points."""
CLIMBS = 160
"""At `paper` scale loops climb by 2 after each of this many parts of the training: from 5 to 100 in the first third."""
MIDDLE_T = {"smoke": [2], "cpu": [4], "paper": [10]}
"""The window of Figure 9."""
SIMILAR_RATES = 1.25**0.5
"""Ratio of loops that counts as similar for b = 40 and 50: halfway, in logarithms, from equal to in proportion to b."""
GRID_EVALUATION = {
    "smoke": ClassCurves(prompts=8, loops=8, tree_loops=8),
    "cpu": ClassCurves(seeds=(3, 4, 5), prompts=256, loops=48, tree_loops=48),
    "paper": ClassCurves(prompts=1280, loops=500, tree_loops=200),
}
SCHEDULE_EVALUATION = {
    "smoke": ClassCurves(prompts=16, loops=4, tree_loops=4),
    "cpu": ClassCurves(seeds=(3, 4), prompts=512, loops=8, tree_loops=8),
    "paper": ClassCurves(prompts=1280, loops=500, tree_loops=200),
}
PAPER_B_T = {LINEAR: (20, 15), SPARSE: (20, 10), TREE: (70, 15), RELU: (12, 5)}
"""b and T of each function class in Figure 17."""


def grid(scale: Scale, tasks: Sequence[str], windows: Sequence[int]) -> Cells:
    """Models trained to b loops with a loss over the last T; in training the loops climb from T to b."""
    bases = {task: cheap(RECIPES[task](scale), scale, cpu=200, paper=STEPS[task]) for task in tasks}
    return {
        Cell(task=task, T=window, b=b): with_loops(
            base, b, window, every={"smoke": 2, "cpu": 10, "paper": STEPS[task] // CLIMBS}[scale]
        )
        for task, base in bases.items()
        for window in windows
        for b in (TREE_B if task == TREE else B)[scale]
    }


def grid_and_layers(scale: Scale) -> Cells:
    """The grid of Figure 4 and, at `paper` scale, 12 layers with the same training, which Section 4.2 compares with."""
    cells = dict(grid(scale, [LINEAR], T[scale]))
    if scale == "paper":
        cells[Cell(model=UNLOOPED, L=12)] = cheap(linear_12_layers(scale), scale, cpu=200)
    return cells


def large_windows(scale: Scale) -> Cells:
    """The T of the grid, and a larger one with what keeps gradients steady (clipping, bfloat16) and without."""
    b, window, larger = {"smoke": (4, 2, 3), "paper": (30, 15, 20)}[scale]
    every = {"smoke": 2, "paper": GRID_STEPS // CLIMBS}[scale]
    base = cheap(linear(scale), scale, cpu=200)
    bare = training(base, optimizer=replace(base.train.optimizer, clip=None), dtype="float32")
    return {
        Cell(kind=STEADIED, T=window): with_loops(base, b, window, every=every),
        Cell(kind=STEADIED, T=larger): with_loops(base, b, larger, every=every),
        Cell(kind=BARE, T=larger): with_loops(bare, b, larger, every=every),
    }


def schedules(scale: Scale) -> Cells:
    """Every function class with its own b and T, the loops climbing from T to b or at b from the start."""
    cells = {}
    for task, recipe in RECIPES.items():
        b, window = {"smoke": (4, 2), "cpu": (8, 4), "paper": PAPER_B_T[task]}[scale]
        base = cheap(recipe(scale), scale, cpu=150, paper=STEPS[task])
        every = {"smoke": 2, "cpu": 20, "paper": STEPS[task] // CLIMBS}[scale]
        cells[Cell(task=task, kind=SCHEDULED)] = with_loops(base, b, window, every=every)
        cells[Cell(task=task, kind=AT_ONCE)] = with_loops(base, b, window, every=None)
    return cells


def at_trained_loops(**labels: Any) -> Quantity:
    """The error at the most loops of the training."""
    return at(curve("trained_loops", **labels), "by_loops", **labels)


def fixed_point_and_window(task: str, name: str) -> tuple[Claim, Claim]:
    """With the largest b and T there is a fixed point, and at every b the error falls as T grows."""
    by_window = along(area(task=task), over="T")
    return (
        claim(
            f"{name}.fixed_point",
            f"A higher b finds a fixed point that does not diverge past b (Section 4.2, Appendix B); {task}.",
            drift(task=task, T=max, b=max) <= FLAT,
        ),
        claim(
            f"{name}.window",
            f"At every b a smaller T gives a larger error (Appendix B); {task}.",
            worst(by_window.successive().largest(), over="b") < 1,
            remark="the largest ratio of an error to that at the next smaller T",
        ),
    )


BY_LOOPS = Panels(y="by_loops", column="T", colour="b", line="b = {b}", mark_trained=True, most=200)
trained_to = curve("trained_loops", b=max, T=max)
forty_error, fifty_error = (at_trained_loops(b=b, T=15) for b in (40, 50))
forty_loops, fifty_loops = (loops_to(2 * fifty_error, b=b, T=15) for b in (40, 50))
FIG4 = Study(
    name="yang24.fig4",
    title="Linear regression: error by loops for models trained to b loops with a loss over T of them",
    cells=grid_and_layers,
    measure=lambda scale: GRID_EVALUATION[scale],
    panels=BY_LOOPS,
    learned=BEFORE_DRIFT,
    claims=(
        fixed_point_and_window(LINEAR, "linear")[0],
        claim(
            "low_b_diverges",
            "A lower b may diverge after the trained loops (Section 4.2, Figure 4).",
            worst(drift(b=min), over="T") >= DIVERGED,
        ),
        claim(
            "saturates",
            "The fixed point saturates before the trained loops (Section 4.2, Figure 4).",
            loops_to(1.1 * at_trained_loops(b=max, T=max), b=max, T=max) / trained_to <= 0.9,
            remark="loops to within a tenth of the trained error, over the trained loops",
        ),
        claim(
            "12_loops_fall_short",
            "With b = 12, the effective depth of 12 layers, it fails to replicate their performance (Section 4.2).",
            best(at_trained_loops(b=min), over="T") / at_trained_loops(model=UNLOOPED) > PRINTED_MATCH,
            remark="at the best T; b = 20 matches with up to this ratio of errors in the authors' logs",
        ),
        claim(
            "rate_saturates",
            "Beyond some b the rate of convergence no longer falls: with T = 15, b = 40 and 50 have similar ones "
            "(Section 4.2).",
            within_factor((forty_loops / fifty_loops).called("loops with b = 40 over those with b = 50"), SIMILAR_RATES)
            & (forty_error / fifty_error < 2),
            remark="loops to twice the trained error of b = 50; in proportion to b they would differ by 1.25",
        ),
    ),
)

FIG9 = replace(
    FIG4,
    name="yang24.fig9",
    title="Error by loops for models trained to b loops: sparse linear regression, decision tree, ReLU network",
    cells=lambda scale: grid(scale, list(RECIPES), MIDDLE_T[scale]),
    panels=replace(BY_LOOPS, only={"task": (SPARSE, TREE, RELU)}, column="task", share_y=False),
    claims=(
        claim(
            "sparse_easier",
            "With T = 10 linear regression diverges at b = 20, sparse regression does not (Section 5.4, Figure 9).",
            (drift(task=SPARSE, b=20) <= FLAT) & (drift(task=LINEAR, b=20) >= DIVERGED),
        ),
        claim(
            "relu_needs_few",
            "ReLU networks need fewer loops than linear regression: the smallest b has a fixed point for them, and "
            "none for linear regression (Section 5.4, Figure 9).",
            (drift(task=RELU, b=min) <= FLAT) & (drift(task=LINEAR, b=min) >= DIVERGED),
        ),
    ),
)

FIG12 = replace(
    FIG4,
    name="yang24.fig12",
    title="Grids of b and T, by loops and by examples: linear and sparse linear regression",
    cells=lambda scale: grid(scale, [LINEAR, SPARSE], T[scale]),
    panels=(replace(BY_LOOPS, row="task"), Panels(y="by_examples", row="task", column="T", colour="b", line="b = {b}")),
    claims=(*fixed_point_and_window(LINEAR, "linear"), *fixed_point_and_window(SPARSE, "sparse")),
)

FIG13 = replace(
    FIG12,
    name="yang24.fig13",
    title="Grids of b and T, by loops and by examples: decision tree and 2-layer ReLU network",
    cells=lambda scale: grid(scale, [TREE, RELU], T[scale]),
    claims=(
        *fixed_point_and_window(TREE, "tree"),
        *fixed_point_and_window(RELU, "relu"),
        claim(
            "tree_needs_more",
            "Decision trees need a larger b than the smallest to find a fixed point, ReLU networks do not "
            "(Appendix B, Figure 13).",
            (drift(task=TREE, T=max, b=min) >= DIVERGED)
            & (drift(task=TREE, T=max, b=max) <= FLAT)
            & (drift(task=RELU, T=max, b=min) <= FLAT),
        ),
    ),
)

steadied, bare = (at_trained_loops(kind=kind, T=20) for kind in (STEADIED, BARE))
smaller_window = at_trained_loops(kind=STEADIED, T=15)
LARGE_WINDOW = Study(
    name="yang24.large_window",
    title="Linear regression: T = 20 with clipping and mixed precision, and without, beside T = 15; b = 30",
    cells=large_windows,
    measure=lambda scale: GRID_EVALUATION[scale],
    panels=Panels(y="by_loops", mark_trained=True, most=200, width=4.0),
    # what nothing steadies may fail to learn: that is what the claim is about
    learned=replace(BEFORE_DRIFT, controls={"kind": BARE}),
    scales=("smoke", "paper"),
    claims=(
        claim(
            "unstable",
            "A larger T such as 20 makes the training unstable where nothing steadies it (Section 4.2, Appendix B).",
            bare / steadied >= DIVERGED,
            remark="by our optimiser, whose steps have a size of their own: a milder test than the paper's Adam",
        ),
        claim(
            "safe_if_steadied",
            "With mixed precision and clipping it is safe to train with such a T as well (Appendix B).",
            (steadied / smaller_window <= FLAT) & (drift(kind=STEADIED, T=20) <= FLAT),
            remark="the error at the trained loops over that with T = 15, and the drift past them",
        ),
    ),
)

FIG17 = Study(
    name="yang24.fig17",
    title="Error by examples with loops scheduled in training and without, for four function classes",
    cells=schedules,
    measure=lambda scale: SCHEDULE_EVALUATION[scale],
    panels=Panels(y="by_examples", column="task", colour="kind", line="{kind}", wrap=2, share_y=False),
    learned=Learned(best=0.0),
    claims=(
        claim(
            "no_difference",
            "In most cases the schedule of loops makes no difference (Appendix E, Figure 17).",
            worst(abs(area(kind=SCHEDULED) - area(kind=AT_ONCE)), over="task", among=(LINEAR, SPARSE, RELU)) <= 0.05,
        ),
        claim(
            "tree_gains",
            "On decision trees the schedule gives slightly better results (Appendix E, Figure 17).",
            area(task=TREE, kind=SCHEDULED) / area(task=TREE, kind=AT_ONCE) < 1,
        ),
    ),
)
