"""gao24's Figures 2 to 4: three models on three tasks, and what T, dT, layers and heads do.

The text does not say which values Figures 3 and 4 show; `paper` takes those around its default T = 20, dT = 15.
Figure 3 is about the loop as printed: with pre(X) injected into every loop, all are stable. No figure has a number in
the text, so none stands beside ours but Figure 5's "around 1e-3".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from looped.evaluation.curves import Curve as EvaluatedCurve
from looped.experiment import Scale
from looped.models.algoformer import AlgoFormerConfig
from looped.papers import gao24
from looped.papers.gao24.known import KNOWN, known_representation, without_examples
from looped.papers.gao24.trainings import in_a_grid
from looped.papers.gao24.variants import (
    ALGOFORMER,
    LOOPED,
    MODELS,
    STANDARD,
    as_standard,
    three,
    with_loops,
    with_shape,
)
from looped.studies import (
    Axis,
    Cell,
    Context,
    Curves,
    Learned,
    Panels,
    Study,
    Table,
    along,
    area,
    best,
    claim,
    curve,
    drift,
    last,
    worst,
)
from looped.studies.checks import Check
from looped.studies.measures import tasks_of
from looped.studies.study import Cells
from looped.tasks.sequences import RepresentationRegression
from looped.tasks.task import SequenceTask, Task

TASKS = {
    "regression": gao24.regression,
    "autoregression": gao24.autoregression,
    "chain_of_thought": gao24.chain_of_thought,
}
TITLES = {
    "regression": "regression with representation",
    "autoregression": "AR(q) with representation",
    "chain_of_thought": "chain of thought with MLPs",
}
PRINTED = "as printed"
AS_PRINTED = {
    "regression": gao24.regression_printed,
    "autoregression": gao24.autoregression_printed,
    "chain_of_thought": gao24.chain_of_thought_printed,
}
NOISES = (0.1, 1.0)
"""The paper's sigma beside 0."""
LAYERS = {"smoke": 2, "cpu": 6, "paper": 12}
"""Layers of the standard transformer."""
LOOPS = {
    "smoke": ((1, (2, 3)), (2, (2, 3))),
    "cpu": ((1, (4, 6)), (3, (4, 6))),
    "paper": ((5, (10, 15, 20)), (10, (10, 15, 20)), (15, (15, 20, 30))),
}
"""(dT, its T's) of Figure 3."""
SHAPES = {
    "smoke": ((1, 1), (1, 2), (2, 2)),
    "cpu": ((1, 1), (1, 4), (2, 4)),
    "paper": ((1, 4), (1, 8), (1, 16), (2, 8), (3, 8), (4, 8), (4, 16)),
}
"""(layers, heads) of pre, loop and post in Figure 4."""
ERROR = "error (predicting zero = 1)"
BY_EXAMPLES = Axis(x="examples, or states, seen", y=ERROR, log=True, floor=1e-3)
BY_LOOPS = Axis(x="loops", y="error at the last pair", log=True)
CHOSEN_LATE = (
    "; the part above the best known predictor is asked about since two of three seeds were seen: no predictor could "
    "have 0.95 of all of the error, whose ratio is the second number"
)
BY_TASK = Panels(y="by_examples", axis=BY_EXAMPLES, column="task", colour="model", share_y=False)


@dataclass(frozen=True, kw_only=True)
class PointCurves(Curves):
    """Error by examples after the trained loops; a chain of thought's is the mean over the steps of each example.

    For every task also `without_examples`: the error at the last example of the best answers that read no example.
    """

    at_own_loops: bool = True

    def add_baselines(self, table: Table, cells: Cells, context: Context) -> None:
        """The best known predictor, and what is known without examples."""
        super().add_baselines(table, cells, context)
        for labels, experiment in tasks_of(cells):
            errors, answers = Table(), without_examples(experiment.task)
            self.add_errors(errors, labels, self.errors(answers, experiment, dtype=torch.float64), experiment.task)
            table.add(labels, "without_examples", errors.series[0].value[-1])

    def example_curve(self, curve: EvaluatedCurve, task: Task) -> EvaluatedCurve:
        """One place for each example."""
        tokens = task.tokens_per_point if isinstance(task, SequenceTask) else 1
        if tokens == 1:
            return curve
        examples = sorted({place // tokens for place in curve.x})

        def means(values: Sequence[float]) -> list[float]:
            groups = [
                [value for place, value in zip(curve.x, values, strict=True) if place // tokens == example]
                for example in examples
            ]
            return [sum(group) / len(group) for group in groups]

        ends = {name: means(getattr(curve, name)) for name in ("mean", "low", "high")}
        return EvaluatedCurve(label=curve.label, x=examples, **ends)


EVALUATION = {
    "smoke": PointCurves(prompts=8, loops=6, baselines=known_representation),
    "cpu": PointCurves(seeds=(3, 4, 5), prompts=512, loops=24, baselines=known_representation),
    "paper": PointCurves(seeds=(0, 1, 2), prompts=1280, loops=200, baselines=known_representation),
}
"""The `cpu` recipes were tuned on seeds 0 to 2, so others are judged."""
OWN_LOOPS = EVALUATION | {"paper": replace(EVALUATION["paper"], loops=20)}
"""Read up to the trained loops at `paper` scale: Figure 2 shows none beyond."""
BESIDE_FIG2 = OWN_LOOPS | {"paper": replace(OWN_LOOPS["paper"], seeds=(0,))}
"""What stands beside Figure 2 has no claim: one seed."""
GRID = EVALUATION | {"paper": replace(EVALUATION["paper"], seeds=(0,))}
"""Figures of many short trainings: one seed of each at `paper` scale."""


def three_models(scale: Scale) -> Cells:
    """The three models on the three tasks."""
    return {
        Cell(task=task, model=model): experiment
        for task, recipe in TASKS.items()
        for model, experiment in three(recipe(scale), LAYERS[scale]).items()
    }


def noisy_regression(scale: Scale) -> Cells:
    """The three models on regression with label noise."""
    base = gao24.regression(scale)
    assert isinstance(base.task, RepresentationRegression)
    return {
        Cell(noise=noise, model=model): experiment
        for noise in NOISES
        for model, experiment in three(replace(base, task=replace(base.task, noise=noise)), LAYERS[scale]).items()
    }


def printed_models(scale: Scale) -> Cells:
    """On each task the AlgoFormer as printed, and with pre(X) injected and a norm in the loop."""
    pairs = {task: {ALGOFORMER: TASKS[task], PRINTED: printed} for task, printed in AS_PRINTED.items()}
    return {
        Cell(task=task, model=model): recipe(scale) for task, pair in pairs.items() for model, recipe in pair.items()
    }


def printed_loops(scale: Scale) -> Cells:
    """The AlgoFormer as printed, for several T and dT."""
    base = in_a_grid(gao24.regression_printed(scale), "fig3", scale)
    return {Cell(dT=window, T=loops): with_loops(base, loops, window) for window, row in LOOPS[scale] for loops in row}


def shapes(scale: Scale) -> Cells:
    """The AlgoFormer of several layers and heads."""
    base = in_a_grid(gao24.regression(scale), "fig4", scale)
    return {Cell(L=layers, h=heads): with_shape(base, layers, heads) for layers, heads in SHAPES[scale]}


def equal_layers(scale: Scale) -> Cells:
    """AlgoFormers of L layers in each of their three parts, beside standard transformers of 3 L layers."""
    base = in_a_grid(gao24.regression(scale), "fig4", scale)
    assert isinstance(base.model, AlgoFormerConfig)
    heads = base.model.loop.heads
    return {
        Cell(L=layers, model=model): experiment
        for layers in dict.fromkeys(layers for layers, shown in SHAPES[scale] if shown == heads)
        for model, experiment in {
            ALGOFORMER: with_shape(base, layers, heads),
            STANDARD: replace(as_standard(base, 3 * layers), name=f"gao24.regression_{3 * layers}_layers"),
        }.items()
    }


def does_better(task: str, better: str, worse: str):
    """The claim that one model's error, a mean over examples, is at most 0.95 of another's.

    On regression and AR it is the error above that of the best known predictor, which is the best there is, knows Phi,
    and has more than 0.95 of every model's error. On chains of thought models do better than it at few examples.
    """
    model = "AlgoFormer" if better == ALGOFORMER else f"{better} transformer"
    whole = area(task=task, model=better) / area(task=task, model=worse)
    above, other = (curve(task=task, model=name) - curve(task=task, model=KNOWN) for name in (better, worse))
    bayes = task != "chain_of_thought"
    return claim(
        f"{task}.{'beats' if better == ALGOFORMER else f'{better}_beats'}_{worse}",
        f"The {model} does better than the {worse} transformer on {TITLES[task]} (Section 5.2).",
        (above.mean() / other.mean() <= 0.95) & (whole < 1) if bayes else whole <= 0.95,
        beside={"after all examples": last(task=task, model=better) / last(task=task, model=worse)},
        remark="equal width, prompts, steps and optimiser" + (CHOSEN_LATE if bayes else ""),
    )


FIG2 = Study(
    name="gao24.fig2",
    title="AlgoFormer, vanilla looped and standard transformer on three tasks",
    cells=three_models,
    measure=OWN_LOOPS.__getitem__,
    panels=BY_TASK,
    learned=Learned(zero="without_examples"),
    claims=(
        *(does_better(task, ALGOFORMER, other) for task in TASKS for other in (LOOPED, STANDARD)),
        does_better("chain_of_thought", STANDARD, LOOPED),
        *(
            claim(
                f"{task}.falls_with_examples",
                f"The error of all models falls with more examples on {TITLES[task]} (Section 5.2).",
                worst(last(task=task) / curve(task=task).first(), over="model", among=MODELS) < 1,
            )
            for task in TASKS
        ),
        claim(
            "fewer_parameters",
            "The AlgoFormer has fewer parameters than the standard transformer (Sections 2.2 and 6).",
            worst(last("parameters", model=ALGOFORMER) / last("parameters", model=STANDARD), over="task") < 1,
        ),
    ),
)

FIG2_NOISE = replace(
    FIG2,
    name="gao24.fig2_noise",
    title="The three models on regression with label noise, which the text mentions beside Figure 2",
    cells=noisy_regression,
    measure=BESIDE_FIG2.__getitem__,
    panels=replace(BY_TASK, column="noise", title="σ = {noise}"),
    claims=(),
    scales=("smoke", "paper"),
)

FIG2_PRINTED = replace(
    FIG2_NOISE,
    name="gao24.fig2_printed",
    title="The AlgoFormer as printed, beside the one of Figure 2, whose loop has an injection and a norm",
    cells=printed_models,
    panels=BY_TASK,
)

FIG3 = replace(
    FIG2,
    name="gao24.fig3",
    title="Error far beyond the trained loops, for several T and dT",
    cells=printed_loops,
    measure=GRID.__getitem__,
    panels=Panels(y="by_loops", axis=BY_LOOPS, column="dT", colour="T", mark_trained=True),
    claims=(
        claim(
            "larger_window_is_steadier",
            "A larger dT makes inference beyond T loops more stable (Section 5.3).",
            best(drift(dT=min) / drift(dT=max), over="T") >= 1,
        ),
        claim(
            "more_loops",
            "A larger T increases the model's capacity: lower errors after T loops (Section 5.3).",
            worst(along(area(), over="T").successive().largest(), over="dT") <= 1,
            remark="the same steps for all; the paper adds that a larger T is harder to train",
        ),
    ),
)


def more(what: str, check: Check):
    """The claim that adding layers, or heads, alone lowers the error."""
    return claim(f"more_{what}", f"More {what} give lower errors (Section 5.3, Figure 4).", check)


FIG4 = replace(
    FIG2,
    name="gao24.fig4",
    title="Error for several numbers of layers and heads",
    cells=shapes,
    measure=GRID.__getitem__,
    panels=Panels(y="by_examples", axis=BY_EXAMPLES, colour="L", dash="h", width=5.2, height=3.4),
    claims=(
        more("layers", worst(along(area(), over="L").successive().largest(), over="h", among=(2, 4, 8)) < 1),
        more("heads", along(area(L=1), over="h").successive().largest() < 1),
        claim(
            "largest_is_not_best",
            "4 layers and 16 heads do worse than a smaller model (Section 5.3).",
            area(L=max, h=max) / best(best(area(), over="h"), over="L") > 1,
        ),
    ),
)
"""Layers at 8 heads and heads at one layer: the paper itself sees 4 layers with 16 heads break the trend."""

FIG4_STANDARD = replace(
    FIG2_NOISE,
    name="gao24.fig4_standard",
    title="AlgoFormer and standard transformer of equally many layers, 3 L",
    cells=equal_layers,
    measure=GRID.__getitem__,
    panels=replace(BY_TASK, column="L", title="{L} layers in each part"),
    claims=(
        claim(
            "equal_layers",
            "With the same number of layers the AlgoFormer does better than the standard transformer (Section 5.3).",
            worst(area(model=ALGOFORMER) / area(model=STANDARD), over="L") < 1,
            beside={
                "after all examples, at worst": worst(last(model=ALGOFORMER) / last(model=STANDARD), over="L"),
                "most layers applied, AlgoFormer": last("layers_applied", model=ALGOFORMER, L=max),
            },
            remark="layers with weights of their own, L each in pre, loop and post; only regression was trained",
        ),
    ),
)
