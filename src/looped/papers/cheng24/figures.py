"""cheng24's figures, in the paper's settings and, as `_released`, in those of the released program.

1, 2 and 4: test loss against the number of examples and of layers, beside the Bayes loss. 3, 5 and 6: how far the
learned matrices are from multiples of the identity during training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from looped.papers.cheng24.families import Case, FamilyTraining, label_variance, outcomes
from looped.studies import (
    Axis,
    Cell,
    Context,
    Learned,
    Panels,
    Study,
    Table,
    best,
    claim,
    curve,
    last,
    mean,
    share,
    worst,
)
from looped.studies.claims import Claim
from looped.studies.study import Cells

KINDS = ("linear", "relu", "exp")
SINGLE = (("linear",), ("relu",), ("exp",), ("softmax",))
COMPOSED = (("linear",), ("exp",), ("linear", "exp"))
GRID = tuple((data, head) for data in KINDS for head in ("linear", "relu", "softmax"))
"""The nine panels of Figures 5 and 6: (K, h)."""
TRAINING = {
    "smoke": FamilyTraining(batch=8, resample=2, steps=3, seeds=(0,), test=32, pool=16, logged=2),
    "cpu": FamilyTraining(batch=256, steps=800, seeds=(0, 1), test=16_384, pool=8192, logged=25),
    "paper": FamilyTraining(),
}
"""`cpu`: the same training on minibatches of 256."""
EXAMPLES = {"smoke": (2, 14), "cpu": (2, 6, 14), "paper": (2, 4, 6, 8, 10, 12, 14)}
DEPTHS = {"smoke": (1, 6), "cpu": (1, 3, 6), "paper": (1, 2, 3, 4, 6, 8)}
FIXED_N = (14, 6)
FIXED_DEPTH = {"smoke": 2, "cpu": 3, "paper": 3}
MATRIX_EXAMPLES = {"smoke": 6, "cpu": 14, "paper": 30}
MATRIX_LAYERS = 3
TIE = 1.02
"""A loss counts as the best when it is at most this many times the best of the others."""
CLOSE = 0.1
"""A ratio within 10% of 1 is `as well as`, or a gap that is `very small`."""
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
                losses = [results[cells[member]].losses[index] for member in members]
                table.add(labels, "loss", losses, x=[int(member[self.axis]) for member in members], seed=seed)
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
                    table.add(labels, "distance", values, x=self.training.logged_steps, seed=seed)
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
):
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
            protocol=protocol,
            data=data,
            heads=(head,),
            n=MATRIX_EXAMPLES[scale],
            layers=MATRIX_LAYERS,
            transform=free,
        )
        for data, head, free in panels
    }


def over_best_other(kind: str, h: str, others: Sequence[str]):
    """The last loss of one h over the best of the others, on one kind of data."""
    return last("loss", K=kind, h=h) / best(last("loss", K=kind), over="h", among=others)


def matching(kind: str, where: str) -> Claim:
    """The claim that the matching h has the best loss at the end of the axis, for every n of the figure."""
    ratio = over_best_other(kind, kind, [other for other in KINDS if other != kind])
    return claim(
        f"matching_{kind}",
        f"Leaving softmax aside, the best loss on {kind} data is that of h = {kind} ({where}).",
        worst(ratio, over="n") <= TIE if "depth" in where else ratio <= TIE,
    )


def ratio_of(top: str, bottom: str, **labels):
    """The loss of one h over another's on exp data, along the axis."""
    return curve("loss", K="exp", h=top, **labels) / curve("loss", K="exp", h=bottom, **labels)


ITEM_1 = "Section 3.3, item 1"
FIG1_CLAIMS = (
    matching("linear", f"{ITEM_1}, Figure 1(a)"),
    matching("relu", f"{ITEM_1}, Figure 1(b)"),
    claim(
        "softmax_wins",
        "With 3 layers softmax is more accurate than exp on exp data for n = 6 to 14 (Section 3.3, item 2, Figure 1c).",
        ratio_of("softmax", "exp").largest(between=(6, inf)) < 1,
    ),
)
EXCESS = curve("loss", K="exp", h="exp") - curve("Bayes", K="exp")
FIG2_CLAIMS = (
    *(matching(kind, f"{ITEM_1}, at the largest depth, Figure 2; Proposition 3.4") for kind in KINDS),
    claim(
        "bayes",
        "The exp model approaches the Bayes loss on exp data as layers are added (Section 3.3, 2(b); Proposition 3.4).",
        worst(EXCESS.last() / EXCESS.first(), over="n") <= 1 / 3,
    ),
    claim(
        "softmax_gap",
        "On exp data with n = 14 the gap between softmax and exp becomes very small for L >= 6 (Figure 2b).",
        abs(ratio_of("softmax", "exp", n=14) - 1).largest(between=(6, inf)) <= CLOSE,
    ),
    claim(
        "exp_wins",
        "On exp data with n = 6 exp is the most accurate for L >= 5 (Section 3.3, item 2, Figure 2d).",
        ratio_of("exp", "softmax", n=6).largest(between=(5, inf)) < 1,
    ),
    claim(
        "relu_gap",
        "On relu data the gap between h = relu and Bayes is significant at any depth (Section 3.3, Figure 2a).",
        (curve("loss", K="relu", h="relu", n=14) / curve("Bayes", K="relu", n=14)).least(between=(3, inf)) >= 1 + CLOSE,
    ),
)
FIG4_CLAIMS = (
    *(
        claim(
            f"pure_{kind}",
            f"On {kind} data the two-head model performs as well as the {kind} one (App. D, item 1).",
            over_best_other(kind, "linear+exp", ("linear", "exp")) <= 1 + CLOSE,
        )
        for kind in ("linear", "exp")
    ),
    claim(
        "mixed",
        "On mixed data the two-head model outperforms both single heads (App. D, item 2, Figure 4c).",
        over_best_other("mixed", "linear+exp", ("linear", "exp")) < 1,
    ),
)
MEAN_DISTANCE = mean(last("distance"), over="matrix")
FIG3_CLAIMS = (
    claim(
        "converged",
        "On exp data the matrices of a softmax model converge to multiples of the identity, with A = 0 and with A free "
        "(Section 4.5, Figure 3; Theorems 4.5 and 4.6).",
        worst(MEAN_DISTANCE, over="panel") < CONVERGED,
    ),
)
BY_N = Axis(x="examples n", y="test loss", log=True, places=True)
BY_L = replace(BY_N, x="layers L")
BY_STEP = Axis(x="training steps", y="distance to a I", log=True)
LEARNED = Learned(of="loss", zero="label_variance", best="Bayes")


def loss_study(number: int, protocol: str, title: str, axis: Axis, cells, panels: Panels, claims) -> Study:
    """Figure 1, 2 or 4 in one of the two protocols."""
    suffix = "" if protocol == "paper" else "_released"
    return Study(
        name=f"cheng24.fig{number}{suffix}",
        title=title + (", in the released program's settings" if suffix else ""),
        cells=lambda scale: cells(protocol, scale),
        measure=lambda scale: Losses(axis="n" if axis is BY_N else "L", training=TRAINING[scale]),
        panels=replace(panels, y="loss", axis=axis, colour="h", reference_quantity="Bayes"),
        learned=LEARNED,
        claims=claims,
    )


def matrix_study(number: int, protocol: str, what: str, panels: Sequence[tuple[str, str, bool]], claims) -> Study:
    """Figure 3, 5 or 6 in one of the two protocols."""
    suffix = "" if protocol == "paper" else "_released"
    title = f"Distance of the learned matrices to multiples of the identity during training: {what}"
    return Study(
        name=f"cheng24.fig{number}{suffix}",
        title=title + (", in the released program's settings" if suffix else ""),
        cells=lambda scale: matrix_cells(protocol, scale, panels),
        measure=lambda scale: Distances(training=TRAINING[scale]),
        panels=Panels(y="distance", axis=BY_STEP, column="panel", colour="matrix", wrap=3, height=2.2, top=1.3),
        learned=LEARNED,
        claims=claims,
    )


def most_converge(number: int, theorem: str) -> tuple[Claim, ...]:
    """The claim of Figures 5 and 6."""
    return (
        claim(
            "converged",
            f"In most cases the matrices converge to multiples of the identity (App. H, Figure {number}; {theorem}).",
            share(MEAN_DISTANCE < CONVERGED, over="panel") > 0.5,
        ),
    )


def cells1(protocol: str, scale: str) -> Cells:
    """Three kinds of data by four h, at one depth."""
    return loss_cells(protocol, KINDS, SINGLE, EXAMPLES[scale], (FIXED_DEPTH[scale],))


def cells2(protocol: str, scale: str) -> Cells:
    """Relu and exp data at every depth; and linear data, which the paper's panels leave out, at the largest."""
    deepest = loss_cells(protocol, ("linear",), SINGLE[:3], (max(FIXED_N),), (max(DEPTHS[scale]),))
    return {**loss_cells(protocol, ("relu", "exp"), SINGLE, FIXED_N, DEPTHS[scale]), **deepest}


def cells4(protocol: str, scale: str) -> Cells:
    """Linear, exp and mixed data by one and by two heads."""
    return loss_cells(protocol, ("linear", "exp", "mixed"), COMPOSED, (max(FIXED_N),), DEPTHS[scale])


TITLES = {
    1: "Loss of three layers against the number of examples, three kinds of data by four attentions",
    2: "Loss against the number of layers, on relu and on exp data, with 14 and with 6 examples",
    4: "Linear, exp and two-head models on linear, exp and mixed data, against the number of layers",
}
BY_DATA = Panels(y="loss", column="K", title="{K} data")
FIG1, FIG1_RELEASED = (
    loss_study(1, protocol, TITLES[1], BY_N, cells1, BY_DATA, FIG1_CLAIMS) for protocol in ("paper", "released")
)
FIG2, FIG2_RELEASED = (
    loss_study(2, protocol, TITLES[2], BY_L, cells2, replace(BY_DATA, row="n", title="{K} data, n = {n}",
                                                            only={"K": ("relu", "exp")}), FIG2_CLAIMS)
    for protocol in ("paper", "released")
)  # fmt: skip
FIG4, FIG4_RELEASED = (
    loss_study(4, protocol, TITLES[4], BY_L, cells4, BY_DATA, FIG4_CLAIMS) for protocol in ("paper", "released")
)
FIG3, FIG3_RELEASED = (
    matrix_study(3, protocol, "with A = 0 and with A free, exp data, softmax",
                 [("exp", "softmax", False), ("exp", "softmax", True)], FIG3_CLAIMS)
    for protocol in ("paper", "released")
)  # fmt: skip
FIG5, FIG5_RELEASED = (
    matrix_study(5, protocol, "A = 0, nine pairs (K, h)", [(*pair, False) for pair in GRID],
                 most_converge(5, "Theorem 4.5"))
    for protocol in ("paper", "released")
)  # fmt: skip
FIG6, FIG6_RELEASED = (
    matrix_study(6, protocol, "A free, nine pairs", [(*pair, True) for pair in GRID], most_converge(6, "Theorem 4.6"))
    for protocol in ("paper", "released")
)
