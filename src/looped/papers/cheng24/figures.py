"""cheng24's figures, in the paper's settings and, as `_released`, in those of the released program.

1, 2 and 4: test loss against the number of examples and of layers, beside the Bayes loss. 3, 5 and 6: how far the
learned matrices are from multiples of the identity during training.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf
from operator import and_
from typing import Any

from looped.papers.cheng24.families import Case, FamilyTraining, label_variance, outcomes
from looped.studies import Axis, Cell, Context, Learned, Panels, Study, Table, claim
from looped.studies.checks import Check
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity
from looped.studies.quantities import best, curve, last, share, worst
from looped.studies.study import Cells

KINDS, MIXED = ("linear", "relu", "exp"), ("linear", "exp", "mixed")
SINGLE = (("linear",), ("relu",), ("exp",), ("softmax",))
COMPOSED = (("linear",), ("exp",), ("linear", "exp"))
GRID = tuple((data, head) for data in KINDS for head in ("linear", "relu", "softmax"))
"""The nine panels of Figures 5 and 6: (K, h)."""
TRAINING = {
    "smoke": FamilyTraining(batch=8, resample=2, steps=3, seeds=(0,), test=32, pool=16, logged=2),
    "cpu": FamilyTraining(batch=256, steps=800, seeds=(0, 1), test=16_384, pool=8192, logged=25),
    "paper": FamilyTraining(deep_steps=2000, held=1 / 3, seeds=(0, 1, 2, 3, 4)),
}
"""`paper`: A is held at 0 at first, for free from the start some models of 8 layers blow up.

`cpu`: minibatches of 256, and A free from the start.
"""
MATRIX_TRAINING = {**TRAINING, "paper": FamilyTraining(steps=5000, deep_steps=2000)}
"""For Figures 3, 5 and 6: matrices converge more slowly than the loss."""
EXAMPLES = {"smoke": (2, 14), "cpu": (2, 6, 14), "paper": (2, 4, 6, 8, 10, 12, 14)}
DEPTHS = {"smoke": (1, 6), "cpu": (1, 3, 6), "paper": (1, 2, 3, 4, 5, 6, 7, 8)}
FIXED_N = (14, 6)
FIXED_DEPTH = {"smoke": 2, "cpu": 3, "paper": 3}
MATRIX_EXAMPLES = {"smoke": 6, "cpu": 14, "paper": 30}
ITEM_1, LARGEST_DEPTH = "Section 3.3, item 1", "at the largest depth, Figure 2; Proposition 3.4"
TIE = 1.02
"""A loss counts as the best when it is at most this many times the best of the others."""
CLOSE = 0.1
"""A ratio within 10% of 1 is `as well as`, or a gap that is `very small`."""
ZERO = 1e-4
"""A loss far below this, on labels of variance 1, is as good as 0."""
CONVERGED = 0.1
"""A distance to a multiple of the identity below this is `converged`."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Test loss of every model against n or L, and the Bayes estimator's on the same prompts."""

    axis: str
    """Which label is the axis: n or L."""
    training: FamilyTraining
    """How the models are trained and tested."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train what is missing; a curve for each kind of data, h and seed."""
        results = outcomes(cells.values(), self.training, context)
        table = Table()
        for labels, members in self._without(cells, self.axis).items():
            for index, seed in enumerate(self.training.seeds):
                parts = [results[cells[member]] for member in members]
                places = [int(member[self.axis]) for member in members]
                table.add(labels, "loss", [part.losses[index] for part in parts], x=places, seed=seed)
                table.add(labels, "typical", [part.typical[index] for part in parts], x=places, seed=seed)
                table.add(labels, "rare", [part.rare[index] for part in parts], x=places, seed=seed)
        for labels, members in self._without(cells, self.axis, "h").items():
            by_place = {int(member[self.axis]): cells[member] for member in members}
            for index, seed in enumerate(self.training.seeds):
                bayes = [results[case].bayes[index] for case in by_place.values()]
                table.add(labels, "Bayes", bayes, x=list(by_place), seed=seed)
            case = next(iter(by_place.values()))
            table.add(labels, "label_variance", label_variance(case.protocol, case.data))
        return table

    def _without(self, cells: Cells, *dropped: str) -> dict[Cell, list[Cell]]:
        """The cells by their labels but for the dropped ones."""
        groups: dict[Cell, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(Cell({k: v for k, v in cell.items() if k not in dropped}), []).append(cell)
        return groups


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Distance of every learned matrix to a multiple of the identity, by training steps."""

    training: FamilyTraining
    """How the models are trained and tested."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Train what is missing; a curve for each panel, matrix and seed."""
        results = outcomes(cells.values(), self.training, context)
        table = Table()
        for cell, case in cells.items():
            for index, seed in enumerate(self.training.seeds):
                columns = zip(*results[case].distances[index], strict=True)
                for matrix, values in zip(matrix_names(case), columns, strict=True):
                    labels = {**cell, "matrix": matrix}
                    table.add(labels, "distance", values, x=self.training.logged_steps(case), seed=seed)
                table.add(cell, "loss", results[case].losses[index], seed=seed)
                table.add(cell, "Bayes", results[case].bayes[index], seed=seed)
            table.add(cell, "label_variance", label_variance(case.protocol, case.data))
        return table


def matrix_names(case: Case) -> list[str]:
    """The matrices whose distance is read: B'C of every layer, and A of all but the last where it is free."""
    free = [f"A, layer {layer}" for layer in range(case.layers - 1)] if case.transform else []
    return [*(f"B'C, layer {layer}" for layer in range(case.layers)), *free]


def loss_cells(
    protocol: str, data: Sequence[str], heads: Sequence[tuple[str, ...]], n: Sequence[int], L: Sequence[int]
) -> Cells:
    """Every combination."""
    return {
        Cell(K=kind, h="+".join(head), n=examples, L=layers): Case(
            protocol=protocol, data=kind, heads=head, n=examples, layers=layers
        )
        for examples in n
        for kind in data
        for head in heads
        for layers in L
    }


def matrix_cells(protocol: str, scale: str, panels: Sequence[tuple[str, str, bool]]) -> Cells:
    """(K, h, whether A is free) of every panel."""
    return {
        Cell(panel=f"({data}, {head}), A {'free' if free else '= 0'}"): Case(
            protocol=protocol, data=data, heads=(head,), n=MATRIX_EXAMPLES[scale], layers=3, transform=free
        )
        for data, head, free in panels
    }


def over_best_other(kind: str, h: str, among: Sequence[str] = KINDS) -> Quantity:
    """The last loss of one h over the best of the others, on one kind of data."""
    others = [other for other in among if other != h]
    return last("loss", K=kind, h=h) / best(last("loss", K=kind), over="h", among=others)


def over_each_other(
    kind: str, h: str, among: Sequence[str] = KINDS, between: Any = None, **labels: int
) -> list[Quantity]:
    """The largest ratio, along the axis, of the loss of one h to that of each of the others, on one kind of data."""
    curves = {name: curve("loss", K=kind, h=name, **labels) for name in among}
    return [(curves[h] / curves[other]).largest(between) for other in among if other != h]


def all_of(checks: Iterable[Check]) -> Check:
    """All of them at once."""
    return reduce(and_, checks)


def matching(kind: str, where: str, check: Check) -> Claim:
    """The claim that the matching h has the best loss."""
    statement = f"Leaving softmax aside, the best loss on {kind} data is that of h = {kind} ({ITEM_1}, {where})."
    return claim(f"matching_{kind}", statement, check)


def ratio_of(top: str, bottom: str, **labels: int) -> Quantity:
    """The loss of one h over another's on exp data, along the axis."""
    return curve("loss", K="exp", h=top, **labels) / curve("loss", K="exp", h=bottom, **labels)


def both(number: int, title: str, cells: Callable[[str, str], Cells], **fields: Any) -> Iterator[Study]:
    """A figure in the paper's settings, and in those of the released program; `cells` takes protocol and scale."""
    released = ("released", "_released", ", in the released program's settings")
    for protocol, suffix, settings in (("paper", "", ""), released):
        name = f"cheng24.fig{number}{suffix}"
        yield Study(name=name, title=title + settings, cells=partial(cells, protocol), learned=LEARNED, **fields)


LEARNED = Learned(of="loss", zero="label_variance", best="Bayes", every_place=True)
BY_N = Axis(x="examples n", y="test loss", log=True, places=True)
BY_L = replace(BY_N, x="layers L")
AGAINST_N = Panels(
    y="loss", axis=BY_N, column="K", colour="h", title="{K} data", reference_quantity="Bayes", share_y=False
)
AGAINST_L = replace(AGAINST_N, axis=BY_L)
excess = curve("loss", K="exp", h="exp") - curve("Bayes", K="exp")

FIG1, FIG1_RELEASED = both(
    1,
    "Loss of three layers against the number of examples, three kinds of data by four attentions",
    cells=lambda protocol, scale: loss_cells(protocol, KINDS, SINGLE, EXAMPLES[scale], (FIXED_DEPTH[scale],)),
    measure=lambda scale: Losses(axis="n", training=TRAINING[scale]),
    panels=AGAINST_N,
    claims=(
        matching(
            "linear", "for every n, Figure 1(a)", all_of(ratio <= TIE for ratio in over_each_other("linear", "linear"))
        ),
        matching("relu", "for every n, Figure 1(b)", all_of(ratio <= TIE for ratio in over_each_other("relu", "relu"))),
        claim(
            "softmax_wins",
            "With 3 layers softmax is more accurate than exp on exp data for n = 6 to 14 (Section 3.3, item 2, "
            "Figure 1c).",
            ratio_of("softmax", "exp").largest(between=(6, inf)) < 1,
            remark="turns on the kernel's width: exp(<u, v>) as printed, exp(<u, v> / 2) in the released program",
        ),
    ),
)


def by_depth(protocol: str, scale: str) -> Cells:
    """Relu and exp data at every depth; and linear data, which the paper's panels leave out, at the largest."""
    deepest = loss_cells(protocol, ("linear",), SINGLE[:3], (max(FIXED_N),), (max(DEPTHS[scale]),))
    return {**loss_cells(protocol, ("relu", "exp"), SINGLE, FIXED_N, DEPTHS[scale]), **deepest}


FIG2, FIG2_RELEASED = both(
    2,
    "Loss against the number of layers, on relu and on exp data, with 14 and with 6 examples",
    cells=by_depth,
    measure=lambda scale: Losses(axis="L", training=TRAINING[scale]),
    panels=replace(AGAINST_L, row="n", title="{K} data, n = {n}", only={"K": ("relu", "exp")}),
    claims=(
        *(matching(kind, LARGEST_DEPTH, worst(over_best_other(kind, kind), over="n") <= TIE) for kind in KINDS),
        claim(
            "bayes",
            "The exp model approaches the Bayes loss on exp data as layers are added (Section 3.3, 2(b); Proposition "
            "3.4).",
            worst(excess.last() / excess.first(), over="n") <= 1 / 3,
        ),
        claim(
            "softmax_gap",
            "On exp data with n = 14 the gap between softmax and exp becomes very small for L >= 6 (Figure 2b).",
            abs(ratio_of("softmax", "exp", n=14) - 1).largest(between=(6, inf)) <= CLOSE,
        ),
        claim(
            "exp_wins",
            "On exp data with n = 6 exp is the most accurate for L >= 5 (Section 3.3, item 2, Figure 2d).",
            all_of(ratio < 1 for ratio in over_each_other("exp", "exp", ("softmax", *KINDS), (5, inf), n=6)),
        ),
        claim(
            "relu_gap",
            "On relu data the gap between h = relu and Bayes is significant at any depth (Section 3.3, Figure 2a).",
            (curve("loss", K="relu", h="relu", n=14) / curve("Bayes", K="relu", n=14)).least() >= 1 + CLOSE,
        ),
    ),
)
FIG4, FIG4_RELEASED = both(
    4,
    "Linear, exp and two-head models on linear, exp and mixed data, against the number of layers",
    cells=lambda protocol, scale: loss_cells(protocol, MIXED, COMPOSED, (max(FIXED_N),), DEPTHS[scale]),
    measure=lambda scale: Losses(axis="L", training=TRAINING[scale]),
    panels=AGAINST_L,
    claims=(
        *(
            claim(
                f"pure_{kind}",
                f"On {kind} data the two-head model performs as well as the {kind} one, at the largest depth (App. D, "
                f"item 1); {ZERO:g} is added to both losses, since a ratio of two losses near 0 says nothing.",
                (last("loss", K=kind, h="linear+exp") + ZERO) / (last("loss", K=kind, h=kind) + ZERO) <= 1 + CLOSE,
            )
            for kind in ("linear", "exp")
        ),
        claim(
            "mixed",
            "On mixed data the two-head model outperforms both single heads, at the largest depth (App. D, item 2, "
            "Figure 4c).",
            over_best_other("mixed", "linear+exp", ("linear", "exp")) < 1,
        ),
    ),
)


def matrices(
    number: int,
    what: str,
    panels: Sequence[tuple[str, str, bool]],
    statement: str,
    check: Check,
) -> Iterator[Study]:
    """Figure 3, 5 or 6, in both settings."""
    return both(
        number,
        f"Distance of the learned matrices to multiples of the identity during training: {what}",
        cells=lambda protocol, scale: matrix_cells(protocol, scale, panels),
        measure=lambda scale: Distances(training=MATRIX_TRAINING[scale]),
        panels=Panels(y="distance", axis=BY_STEP, column="panel", colour="matrix", wrap=3, height=2.2, top=1.3),
        claims=(claim("converged", statement, check),),
    )


BY_STEP = Axis(x="training steps", y="distance to a I", log=True)
largest_distance = worst(last("distance"), over="matrix")
most_converge = share(largest_distance < CONVERGED, over="panel") > 0.5

FIG3, FIG3_RELEASED = matrices(
    3,
    "with A = 0 and with A free, exp data, softmax",
    [("exp", "softmax", False), ("exp", "softmax", True)],
    "On exp data the matrices of a softmax model converge to multiples of the identity, with A = 0 and with A free "
    "(Section 4.5, Figure 3; Theorems 4.5 and 4.6).",
    worst(largest_distance, over="panel") < CONVERGED,
)
FIG5, FIG5_RELEASED = matrices(
    5,
    "A = 0, nine pairs (K, h)",
    [(*pair, False) for pair in GRID],
    "In most cases the matrices converge to multiples of the identity (App. H, Figure 5; Theorem 4.5).",
    most_converge,
)
FIG6, FIG6_RELEASED = matrices(
    6,
    "A free, nine pairs",
    [(*pair, True) for pair in GRID],
    "In most cases the matrices converge to multiples of the identity (App. H, Figure 6; Theorem 4.6).",
    most_converge,
)
