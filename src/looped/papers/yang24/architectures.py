"""Figures 7, 8 and 11: layers, width and heads; what the states hold; and sparsity of the weights.

On two cores at `cpu` scale Figures 7 and 11 take about five minutes each. Figure 8 probes a model of each kind of
Figure 2, two minutes after their training.
"""

from dataclasses import dataclass, replace

from looped.evaluation.probes import probe
from looped.experiment import Experiment, Scale
from looped.models.base import LoopedModel
from looped.papers.yang24 import linear, linear_12_layers, sparse, sparse_12_layers
from looped.papers.yang24.loops import fixed_point_models
from looped.papers.yang24.trainings import around, shaped
from looped.papers.yang24.variants import LOOPED, TWO_SEEDS, UNLOOPED, cheap
from looped.studies import Axis, Cell, Curves, Learned, Panels, Study, Table, claim
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity
from looped.studies.measures import add_curve
from looped.studies.quantities import along, area, at, curve, last, loops_to, worst
from looped.studies.study import Cells
from looped.tasks.regression import SparseRegression

SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "smoke": {"looped": (2,), "unlooped": (1, 2), "width": (8,), "heads": (1,)},
    "cpu": {"looped": (2, 4), "unlooped": (1, 2, 4, 8), "width": (16, 32, 96), "heads": (1, 2, 16)},
    "paper": {
        "looped": (2, 4),
        "unlooped": (1, 2, 4, 8, 12, 20),
        "width": (64, 128, 384, 512),
        "heads": (2, 4, 16, 32),
    },
}
"""Layers, widths and heads that are tried beside the recipe's own."""
SIZES_STEPS = 3000
"""Steps of 64 prompts of every model of Figure 7 at `paper` scale: 40 seconds on one H200 for 4 layers in 30 loops."""
PROBE, CONTROL = "probe", "control"
NONZERO = {"smoke": (1, 2), "cpu": (1, 2, 4), "paper": (1, 3, 6, 9, 12)}
"""Weights of sparse regression that are not zero: s."""


def sizes(scale: Scale) -> Cells:
    """The looped model of one layer, then other layers, widths and heads; `kind` says what is varied."""
    looped, unlooped = linear(scale), linear_12_layers(scale)
    looped = cheap(around(looped, 30, 15) if scale == "paper" else looped, scale, cpu=150, paper=SIZES_STEPS)
    unlooped, tried = cheap(unlooped, scale, cpu=150, paper=SIZES_STEPS), SIZES[scale]
    return {
        Cell(model=LOOPED, L=1): looped,
        **{Cell(model=LOOPED, kind="layers", L=count): shaped(looped, layers=count) for count in tried["looped"]},
        **{Cell(model=UNLOOPED, kind="layers", L=count): shaped(unlooped, layers=count) for count in tried["unlooped"]},
        **{Cell(kind="width", D=width): shaped(looped, width=width) for width in tried["width"]},
        **{Cell(kind="heads", h=heads): shaped(looped, heads=heads) for heads in tried["heads"]},
    }


def sparsities(scale: Scale) -> Cells:
    """Both models for every number of nonzero weights; b = 30, T = 15 at `paper` scale, the same steps for both."""
    looped, unlooped = sparse(scale), sparse_12_layers(scale)
    if scale == "paper":
        looped = around(looped, 30, 15)
    return {
        Cell(model=model, s=count): replace(
            cheap(base, scale, cpu=300), task=SparseRegression(d=base.task.d, nonzero=count)
        )
        for count in NONZERO[scale]
        for model, base in ((LOOPED, looped), (UNLOOPED, unlooped))
    }


def probed_models(scale: Scale) -> Cells:
    """The models of Figure 2; at `paper` scale the looped one has b = 20."""
    cells = fixed_point_models(scale)
    return {**cells, Cell(model=LOOPED): linear(scale)} if scale == "paper" else cells


@dataclass(frozen=True, kw_only=True)
class Probes(Curves):
    """Probe error by layer or loop, averaged over context lengths, and `zero`, what answering zero costs.

    For every model and target: `probe_error` of the probe and of its control, which has never seen other weights.
    """

    lengths: tuple[int, ...]
    """Numbers of examples."""
    hidden: int
    """Hidden units of a probe."""
    steps: int
    """Steps of the probes' training; the paper does not state it."""
    batch: int = 64
    """Prompts in each of them; the paper does not state it."""

    @property
    def evaluations(self) -> int:
        """A guess: a step of the probes' training reads 64 prompts up to the trained loops, for every length."""
        return 1 + len(self.lengths) * self.steps // 1000

    def add_model(self, table: Table, cell: Cell, seed: int, experiment: Experiment, model: LoopedModel) -> None:
        """Train the probes of one model."""
        probes = probe(
            model,
            experiment.task,
            points=experiment.train.points,
            loops=self.loops if experiment.model.loops > 1 else None,
            lengths=self.lengths,
            hidden=self.hidden,
            steps=self.steps,
            batch=self.batch,
            prompts=self.prompts,
            seed=self.prompt_seed,
            level=self.level,
        )
        for kind, targets in ((PROBE, probes.probed), (CONTROL, probes.control)):
            for target in targets:
                labels = Cell(cell, target=target.target, kind=kind)
                add_curve(table, labels, "probe_error", target.by_loop, seed=seed)
                table.add(labels, "zero", sum(target.zero) / len(self.lengths), seed=seed)


PROBES = {
    "smoke": Probes(loops=2, lengths=(2, 4), hidden=8, steps=3, batch=4, prompts=16),
    "cpu": Probes(seeds=(3,), loops=12, lengths=(2, 4, 6, 8, 10), hidden=64, steps=300, prompts=512),
    "paper": Probes(prompts=1280, loops=20, lengths=tuple(range(1, 41)), hidden=64, steps=5000),
}


def probe_error(**labels: str) -> Quantity:
    """Probe error by layer or loop."""
    return curve("probe_error", **{"kind": PROBE, **labels})


def about_target(target: str, name: str) -> tuple[Claim, Claim]:
    """Over loops the probe error falls to its least; over layers it rises again."""
    looped, unlooped = probe_error(model=LOOPED, target=target), probe_error(model=UNLOOPED, target=target)
    return (
        claim(
            f"{name}.refined",
            f"The looped transformer steadily refines its representation over loops (Figure 8); {target}.",
            (looped.last() / looped.least() <= 1.25) & (looped.last() / looped.first() < 1),
        ),
        claim(
            f"{name}.unlooped_turns",
            f"The standard transformer decodes it best before its last layer, around the 10th (Figure 8); {target}.",
            unlooped.last() / unlooped.least() >= 1.05,
        ),
    )


one_layer = {"model": LOOPED, "L": 1}
twice_its_error = 2 * at(curve("trained_loops", **one_layer), "by_loops", **one_layer)
needed = loops_to(twice_its_error, model=LOOPED).called("loops to twice the trained error of one looped layer")
loops_needed = along(needed, over="L")
FIG7 = Study(
    name="yang24.fig7",
    title="Linear regression: layers of looped and unlooped models, widths and heads of looped ones",
    cells=sizes,
    measure=lambda scale: {**TWO_SEEDS, "cpu": replace(TWO_SEEDS["cpu"], prompts=256)}[scale],
    panels=Panels(y="by_loops", column="kind", most=100, width=3.2, height=3.4),
    learned=Learned(best=0.0),
    claims=(
        claim(
            "layers_converge_faster",
            "As L grows the looped model converges in fewer loops (Section 5.3, Figure 7 left).",
            (loops_needed.last() / loops_needed.first() < 1) & (loops_needed.successive().largest() <= 1),
        ),
        claim(
            "more_loops_than_layers",
            "One looped layer needs more loops than a standard transformer has layers, about 20 for 8 "
            "(Section 5.3, Figure 7 left).",
            loops_to(last(model=UNLOOPED, L=8), **one_layer) / 8 >= 1,
        ),
        claim(
            "width_saturates",
            "A larger D helps until it saturates at 256 (Section 5.3, Figure 7 right).",
            (last("by_loops", D=max) / last("by_loops", **one_layer) >= 0.5)
            & (last("by_loops", **one_layer) / last("by_loops", D=128) <= 1)
            & (last("by_loops", D=128) / last("by_loops", D=min) <= 1),
            remark="D = 256 is that of the looped model with L = 1",
        ),
        claim(
            "middle_heads_best",
            "The error falls as h goes from 2 to 8 and rises from 8 to 32 (Section 5.3, Figure 7 right).",
            (last("by_loops", h=min) / last("by_loops", **one_layer) >= 1)
            & (last("by_loops", h=max) / last("by_loops", **one_layer) >= 1),
            remark="h = 8 is that of the looped model with L = 1",
        ),
    ),
)

FIG8 = Study(
    name="yang24.fig8",
    title="Probes of X'y and of the least squares weights, by layer and by loop",
    cells=probed_models,
    measure=lambda scale: PROBES[scale],
    panels=Panels(
        y="probe_error",
        axis=Axis(x="layer / loop iteration", y="mean squared error"),
        column="target",
        colour="model",
        dash="kind",
        title="{target} probe error",
        line="{model}, {kind}",
        width=3.4,
        legend_columns=2,
        share_y=False,
    ),
    learned=Learned(of="probe_error", zero="zero", best=0.0, controls={"kind": CONTROL}),
    claims=(
        *about_target("X'y", "gradient"),
        *about_target("w_ols", "least_squares"),
        claim(
            "control",
            "Probes use the context of every layer and loop: their error is below the least of the control task "
            "(Appendix F, Figure 8).",
            worst(worst(probe_error().largest() / probe_error(kind=CONTROL).least(), over="model"), over="target") < 1,
        ),
    ),
)

FIG11 = Study(
    name="yang24.fig11",
    title="Sparse linear regression with more or fewer nonzero weights: error by examples",
    cells=sparsities,
    measure=lambda scale: TWO_SEEDS[scale],
    panels=Panels(y="by_examples", colour="s", dash="model", width=5.0, height=3.2, legend_columns=2),
    learned=Learned(best=0.0),
    claims=(
        claim(
            "every_sparsity",
            "At every sparsity the looped transformer matches or outperforms the standard one (Figure 11).",
            worst(area(model=LOOPED) / area(model=UNLOOPED), over="s") <= 1.05,
        ),
    ),
)
