"""Parts of looped models, not of one paper: a recipe for each, and one study that compares them.

All are the looped decoder `plain` with one thing changed, on the same task, with the same steps and seeds. `cpu` is the
scale of the study, about a minute for three seeds; `smoke` shows that the machinery works; `paper` is yang24's size,
which was not trained.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from looped.baselines.linear import least_squares
from looped.evaluation.errors import Baseline
from looped.experiment import Experiment, Muon, Scale, TrainConfig, training
from looped.functional.fixed_points import Anderson, Broyden, Repeat
from looped.functional.schedules import Ramp, RandomDepth, Trapezoid
from looped.models.block_parts import BlockParts
from looped.models.gradients import Implicit, Phantom, Truncated
from looped.models.recurrent_depth import RecurrentDepthConfig
from looped.studies import Cell, Context, Curves, Learned, Panels, Study, Table, claim
from looped.studies.quantities import at, curve
from looped.studies.study import Cells, device_seconds
from looped.tasks.regression import LinearRegression
from looped.tasks.task import Task

MODELS = {
    "smoke": RecurrentDepthConfig(d=2, width=16, heads=2, loops=4, positions=16, prelude=0, coda=0),
    "cpu": RecurrentDepthConfig(d=2, width=32, heads=4, loops=6, positions=16, prelude=0, coda=0),
    "paper": RecurrentDepthConfig(d=20, width=256, heads=8, loops=20, positions=96, prelude=0, coda=0),
}
CPU = TrainConfig(
    steps=600,
    batch=64,
    points=5,
    window=3,
    grad=3,
    depth=RandomDepth(low=-3, high=3),
    dims=Ramp(start=1, stop=2, share=0.2),
    optimizer=Muon(learning_rate=1e-2, muon_learning_rate=0.04, clip=1.0, schedule=Trapezoid(warmup=0.03, decay=0.5)),
    log_every=50,
    checkpoint_every=600,
)
TRAIN = {
    "smoke": replace(
        CPU, steps=6, batch=8, window=2, grad=2, depth=RandomDepth(low=-2, high=2), dims=None, log_every=3
    ),
    "cpu": CPU,
    "paper": replace(CPU, steps=6000, points=41, window=15, grad=15, dims=Ramp(start=5, stop=20, share=1 / 3)),
}


def plain(scale: Scale = "cpu") -> Experiment:
    """The looped decoder: addition, LayerNorm, GELU, softmax attention, learned positions, a short window."""
    model = MODELS[scale]
    return Experiment(name="parts.plain", task=LinearRegression(d=model.d), model=model, train=TRAIN[scale])


def prelude_coda(scale: Scale = "cpu") -> Experiment:
    """A block before the loops and one behind them."""
    return _with("prelude_coda", scale, prelude=1, coda=1)


def random_start(scale: Scale = "cpu") -> Experiment:
    """Training starts the loops from normal numbers."""
    return _with("random_start", scale, start_std=1.0)


def recurrent_depth(scale: Scale = "cpu") -> Experiment:
    """Prelude, core, coda, concatenation and random starts together. Ref: Geiping et al. 2025."""
    return _with("recurrent_depth", scale, prelude=1, coda=1, inject="concat", start_std=1.0)


def fixed_depth(scale: Scale = "cpu") -> Experiment:
    """The same number of loops in every step, where the others draw it."""
    return training(_with("fixed_depth", scale), depth=None)


def scaled(scale: Scale = "cpu") -> Experiment:
    """Injection with a number for each channel."""
    return _with("scaled", scale, inject="scaled")


def gated(scale: Scale = "cpu") -> Experiment:
    """Injection by the update gate of a GRU."""
    return _with("gated", scale, inject="gated")


def concatenated(scale: Scale = "cpu") -> Experiment:
    """Injection by a matrix on state and prompt side by side."""
    return _with("concatenated", scale, inject="concat")


def loop_embedding(scale: Scale = "cpu") -> Experiment:
    """Each loop adds a vector of its own."""
    return _with("loop_embedding", scale, loop_embedding=True)


def low_rank(scale: Scale = "cpu") -> Experiment:
    """Each loop changes the matrices of the block by its own matrices of rank 2."""
    return _with("low_rank", scale, rank=2)


def rms_norm(scale: Scale = "cpu") -> Experiment:
    """RMSNorm in place of LayerNorm."""
    return _with("rms_norm", scale, parts=BlockParts(norm="rms"))


def rotary(scale: Scale = "cpu") -> Experiment:
    """Rotary positions in place of learned ones."""
    return _with("rotary", scale, parts=BlockParts(rotary=True))


def swiglu(scale: Scale = "cpu") -> Experiment:
    """SwiGLU in place of GELU, with as many weights."""
    return _with("swiglu", scale, parts=BlockParts(mlp="swiglu"))


def grouped(scale: Scale = "cpu") -> Experiment:
    """All heads of queries share one head of keys and values."""
    return _with("grouped", scale, parts=BlockParts(kv_heads=1))


def linear_attention(scale: Scale = "cpu") -> Experiment:
    """Attention by positive features in place of softmax."""
    return _with("linear_attention", scale, parts=BlockParts(attention="linear"))


def loop_weights(scale: Scale = "cpu") -> Experiment:
    """The i-th of the loops in the loss weighs i times as much as the first."""
    base = _with("loop_weights", scale)
    return training(base, loop_weights=tuple(float(i + 1) for i in range(base.train.window)))


def last_loop(scale: Scale = "cpu") -> Experiment:
    """The loss reads the last loop alone, as implicit and phantom gradients need it."""
    return training(_with("last_loop", scale), window=1)


def truncated(scale: Scale = "cpu") -> Experiment:
    """Each loss goes back through as many loops as the window of `plain` has."""
    base = _with("truncated", scale)
    return training(base, grad=None, gradient=Truncated(back=base.train.window))


def phantom(scale: Scale = "cpu") -> Experiment:
    """Damped loops with gradient, after others without."""
    base = _with("phantom", scale)
    return training(base, window=1, grad=None, gradient=Phantom(back=base.train.window))


def implicit(scale: Scale = "cpu") -> Experiment:
    """Implicit differentiation where plain loops end."""
    return training(_with("implicit", scale), window=1, grad=None, gradient=Implicit(solver=Repeat()))


def anderson(scale: Scale = "cpu") -> Experiment:
    """Implicit differentiation at the fixed point that Anderson mixing finds."""
    solver = Anderson()
    return training(_with("anderson", scale), window=1, grad=None, gradient=Implicit(solver=solver, adjoint=solver))


def broyden(scale: Scale = "cpu") -> Experiment:
    """Implicit differentiation at the fixed point that Broyden's method finds."""
    solver = Broyden()
    return training(_with("broyden", scale), window=1, grad=None, gradient=Implicit(solver=solver, adjoint=solver))


def jacobian(scale: Scale = "cpu") -> Experiment:
    """A penalty on the Jacobian of the last loop."""
    return training(_with("jacobian", scale), jacobian=0.1)


def halting(scale: Scale = "cpu") -> Experiment:
    """Every token learns when to halt; the loss reads the mixture after the last loop."""
    return training(_with("halting", scale, ponder=0.01), window=1, grad=None)


def _with(name: str, scale: Scale, **model: Any) -> Experiment:
    """`plain` under another name, with other fields of the model."""
    base = plain(scale)
    return replace(base, name=f"parts.{name}", model=replace(base.model, **model))


PLAIN = "plain"
PARTS: Mapping[str, Callable[..., Experiment]] = {
    PLAIN: plain,
    "prelude and coda": prelude_coda,
    "random start": random_start,
    "recurrent depth": recurrent_depth,
    "fixed depth": fixed_depth,
    "scaled injection": scaled,
    "gated injection": gated,
    "concatenation": concatenated,
    "loop embedding": loop_embedding,
    "low rank per loop": low_rank,
    "RMSNorm": rms_norm,
    "rotary positions": rotary,
    "SwiGLU": swiglu,
    "grouped attention": grouped,
    "linear attention": linear_attention,
    "loop weights": loop_weights,
    "last loop": last_loop,
    "truncated": truncated,
    "phantom": phantom,
    "implicit": implicit,
    "implicit, Anderson": anderson,
    "implicit, Broyden": broyden,
    "Jacobian penalty": jacobian,
    "halting": halting,
}
"""What the study calls them."""


@dataclass(frozen=True, kw_only=True)
class PartCurves(Curves):
    """Curves, and the seconds that each training took: its part of those of its stack."""

    def __call__(self, cells: Cells, context: Context) -> Table:
        """Measure all cells."""
        table = super().__call__(cells, context)
        for reading in self.readings(cells, context.runs):
            run = reading.experiment.folder
            [origin] = [training for training in context.trainings if training["run"] == run]
            table.add(reading.cell, "seconds", device_seconds(origin), seed=reading.experiment.train.seed)
        return table


def only_least_squares(task: Task) -> dict[str, Baseline]:
    """The best known predictor."""
    return {"least squares": least_squares}


def cells(scale: Scale) -> Cells:
    """Every part."""
    return {Cell(part=part): recipe(scale) for part, recipe in PARTS.items()}


B = MODELS["cpu"].loops
MEASURES = {
    "smoke": PartCurves(prompts=16, loops=4 * MODELS["smoke"].loops, baselines=only_least_squares),
    "cpu": PartCurves(seeds=(0, 1, 2), prompts=512, loops=4 * B, baselines=only_least_squares),
}


def helps(part: str, recipe: Callable[..., Experiment]):
    """The claim that a part lowers the error."""
    return claim(
        recipe.__name__,
        f"{part}: less error after b loops than the plain looped decoder.",
        at(B, "by_loops", part=part) / at(B, "by_loops", part=PLAIN) < 1,
        beside={
            "error after 4b loops over the error after b": at(4 * B, "by_loops", part=part)
            / at(B, "by_loops", part=part),
            "seconds over those of the plain decoder": curve("seconds", part=part) / curve("seconds", part=PLAIN),
        },
    )


COMPARED = Study(
    name="parts.compared",
    title="Parts of looped models, one at a time: error by loops",
    cells=cells,
    measure=lambda scale: MEASURES[scale],
    panels=Panels(column="part", y="by_loops", wrap=6, mark_trained=True),
    learned=Learned(of="by_loops", at="trained_loops", best=0.0),
    claims=tuple(helps(part, recipe) for part, recipe in PARTS.items() if part != PLAIN),
    scales=("smoke", "cpu"),
    judged="cpu",
)
