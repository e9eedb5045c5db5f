"""How yang24's models are trained: our recipes by scale, and the paper's own."""

from dataclasses import replace
from typing import Any

from looped.experiment import Adam, Experiment, Muon, TrainConfig
from looped.functional.schedules import Ramp, RandomDepth, Staircase, Trapezoid

PAPER = TrainConfig(
    steps=6000,
    batch=256,
    points=41,
    window=15,
    grad=15,
    depth=RandomDepth(low=-4, high=4),
    dims=Ramp(start=5, stop=20, share=1 / 3),
    active_points=Ramp(start=11, stop=41, share=1 / 3),
    optimizer=Muon(learning_rate=3e-3, muon_learning_rate=0.01, clip=1.0, schedule=Trapezoid(warmup=0.02, decay=0.5)),
    average=0.999,
    dtype="bfloat16",
    log_every=100,
    checkpoint_every=2000,
)
"""Muon, a rate that falls to zero over the last half, b loops on average. docs/log.md has what else was tried."""

CPU = TrainConfig(
    steps=1000,
    batch=64,
    points=11,
    window=4,
    grad=4,
    depth=RandomDepth(low=-4, high=4),
    dims=Ramp(start=2, stop=5, share=0.3),
    optimizer=Muon(learning_rate=5e-3, muon_learning_rate=0.02, clip=1.0, schedule=Trapezoid(warmup=0.03, decay=0.5)),
    log_every=20,
    checkpoint_every=250,
)
"""Muon, and a random number of loops before the gradient: a minute instead of hours, stable far past those loops."""

SMOKE = replace(
    CPU, steps=20, batch=8, points=7, window=2, grad=2, depth=RandomDepth(low=-2, high=2), dims=None, log_every=5
)


def shaped(experiment: Experiment, **fields: Any) -> Experiment:
    """The experiment with other fields of the model."""
    return replace(experiment, model=replace(experiment.model, **fields))


def as_published(base: Experiment, *, steps: int = 500_000) -> Experiment:
    """The experiment with the training of the published program.

    The paper's text points at Garg et al., who climb a stair of dims and points every 2000 steps.
    """
    loops, window, points = base.model.loops, base.train.window, base.train.points
    first, by = (11, 2) if points <= 41 else (26, 5)
    train = replace(
        base.train,
        steps=steps,
        batch=64,
        depth=Staircase(start=window - loops, stop=0, by=2, every=500) if loops > window else None,
        dims=Staircase(start=min(5, base.task.d), stop=base.task.d, by=1, every=5000),
        active_points=Staircase(start=min(first, points), stop=points, by=by, every=5000),
        optimizer=Adam(learning_rate=1e-4),
        average=None,
        dtype="float32",
        log_every=1000,
        checkpoint_every=10_000,
    )
    return replace(base, train=train)


def short(base: Experiment, *, steps: int) -> Experiment:
    """The experiment trained as `PAPER` says in fewer steps, of 64 prompts: the same for all that a figure compares.

    Points grow as in `PAPER`, from a quarter of the examples. Weights are averaged over a sixth of the steps, at most
    1000 of them: with 2,000 steps an average over 1000 would lag behind.
    """
    points = base.train.points
    unchanged = {name: getattr(base.train, name) for name in ("points", "window", "grad", "depth")}
    growing = Ramp(start=1 + (points - 1) // 4, stop=points, share=1 / 3)
    average = min(0.999, 1 - 6 / steps)
    return replace(
        base, train=replace(PAPER, steps=steps, batch=64, active_points=growing, average=average, **unchanged)
    )


def around(base: Experiment, loops: int, window: int) -> Experiment:
    """Train with T = `window` and b = `loops`: the loops of a step are random, from T + 1 to 2b - T - 1, b on average.

    If b is at most T + 1, every step has b loops; T is then at most b.
    """
    spread = loops - window - 1
    depth = RandomDepth(low=-spread, high=spread) if spread > 0 else None
    train = replace(base.train, window=min(window, loops), grad=min(window, loops), depth=depth)
    return replace(base, model=replace(base.model, loops=loops), train=train)
