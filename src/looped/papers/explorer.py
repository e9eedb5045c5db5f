"""No paper: the small model of the loop explorer, `looped explore`, which guesses curves from points in a plane."""

from dataclasses import replace

from looped.experiment import Experiment, Muon, Scale, TrainConfig
from looped.functional.schedules import Ramp, RandomDepth, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.tasks.mixture import FunctionMixture

MODEL = DecoderConfig(d=1, width=64, heads=4, layers=1, loops=12, positions=50)
"""Room for 24 examples and a query."""

CPU = TrainConfig(
    steps=4000,
    batch=64,
    points=25,
    window=3,
    grad=5,
    depth=RandomDepth(low=-8, high=8),
    active_points=Ramp(start=9, stop=25, share=0.35),
    optimizer=Muon(
        learning_rate=4e-3, muon_learning_rate=0.015, clip=1.0, schedule=Trapezoid(warmup=0.035, decay=0.125)
    ),
    average=0.999,
    log_every=50,
    checkpoint_every=500,
)
"""Loops are random, 4 to 20 a step, so that every loop from the second on is an answer and more do no harm."""

SIZES = {
    "smoke": (
        replace(MODEL, width=16, heads=2, loops=4),
        replace(CPU, steps=20, batch=8, grad=4, depth=None, log_every=5),
    ),
    "cpu": (MODEL, CPU),
    "paper": (MODEL, replace(CPU, steps=60_000, batch=256, log_every=500, checkpoint_every=5000)),
}
"""The model and how it is trained."""


def curves(scale: Scale = "cpu") -> Experiment:
    """Lines, small networks, stairs and waves of one x, with noise: what `looped explore` lets people draw."""
    model, train = SIZES[scale]
    return Experiment(name="explorer.curves", task=FunctionMixture(), model=model, train=train)
