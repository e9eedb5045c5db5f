"""How gao24's models are trained: our recipes by scale, and the paper's own."""

from dataclasses import replace

from looped.experiment import Adam, Experiment, Muon, TrainConfig, training
from looped.functional.schedules import Ramp, Trapezoid

PAPER = TrainConfig(
    steps=7000,
    batch=64,
    points=41,
    window=15,
    grad=15,
    dims=Ramp(start=5, stop=20, share=1 / 3),
    optimizer=Muon(learning_rate=3e-3, muon_learning_rate=0.01, clip=1.0, schedule=Trapezoid(warmup=0.02, decay=0.5)),
    average=0.999,
    dtype="bfloat16",
    log_every=100,
    checkpoint_every=2000,
)
"""T=20, dT=15: `loops` and `window`. Optimiser, averaging and precision are those of our yang24 recipes; untuned."""

STEPS = {"autoregression": 6000, "chain_of_thought": 4000}
"""At `paper` scale, where a task has others than `PAPER`; the same for all models of a task."""

CELL_STEPS = {"fig3": 1600, "fig4": 700, "fig5": 2600}
"""At `paper` scale, the same for all cells of a figure: so many that its slowest cell takes about 40 s on one H200.

The slowest are T = 30, 4 layers (4 times the work of 1), and T = 20. A smaller batch would leave the GPU idle.
"""

CPU = TrainConfig(
    steps=400,
    batch=24,
    points=12,
    window=3,
    grad=3,
    optimizer=Muon(learning_rate=5e-3, muon_learning_rate=0.02, clip=1.0, schedule=Trapezoid(warmup=0.03, decay=0.5)),
    log_every=50,
    checkpoint_every=200,
)
"""Muon: a minute instead of hours."""

SMOKE = replace(CPU, steps=3, batch=4, points=4, window=2, grad=2, log_every=2)


def as_published(experiment: Experiment, *, steps: int = 500_000) -> Experiment:
    """The experiment with the paper's training, named so: Adam 1e-4 in float32; no curriculum is mentioned.

    The paper states no batch; 64 is yang24's.
    """
    named = replace(experiment, name=f"{experiment.name}_published")
    return training(
        named,
        steps=steps,
        dims=None,
        optimizer=Adam(learning_rate=1e-4),
        average=None,
        dtype="float32",
        log_every=1000,
        checkpoint_every=10_000,
    )


def in_a_grid(experiment: Experiment, figure: str, scale: str) -> Experiment:
    """The experiment with the short training that all cells of a figure share at `paper` scale."""
    return training(experiment, steps=CELL_STEPS[figure]) if scale == "paper" else experiment
