"""gao24, On the Expressive Power of a Variant of the Looped Transformer: recipes.

Scales: `paper` is the paper's own (D=256, 8 heads, d=20, N=40, Adam 1e-4, 500k steps; no curriculum is mentioned);
`cpu` is a smaller model that learns in a minute on two cores, translation on one GPU, `gao24.linear` excepted, whose
training is too short to learn anything; `smoke` runs in seconds and shows only that the machinery works.

As printed the loop reads pre(X) only as its first state, so that gradient must flow through all loops, or pre is never
trained. Here pre(X) is injected into every loop instead, as yang24 injects the prompt, and gradient flows through the
last dT loops: at `cpu` scale as good after T loops, and flat beyond them where the printed form grows worse. The
printed form is `as_printed`, `gao24.autoregression_printed`, and Figure 3.
"""

from dataclasses import replace
from typing import Literal

from looped.experiment import Adam, Experiment, Muon, TrainConfig
from looped.functional.schedules import Trapezoid
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.papers.gao24.variants import as_looped, as_printed, as_standard, with_task
from looped.tasks.regression import LinearRegression
from looped.tasks.sequences import AutoRegression, ChainOfThought, RepresentationRegression
from looped.tasks.translation import Translation

Scale = Literal["smoke", "cpu", "paper"]

ALGOFORMER = AlgoFormerConfig(d=20, width=256, positions=82, loops=20, inject="add", loop_norm=True)
_FOUR, _TWO = Part(heads=4), Part(heads=2)
SMALL = replace(ALGOFORMER, d=3, width=32, positions=32, loops=4, pre=_FOUR, loop=_FOUR, post=_FOUR)
TINY = replace(ALGOFORMER, d=2, width=8, positions=16, loops=3, pre=_TWO, loop=_TWO, post=_TWO)

PAPER = TrainConfig(
    steps=500_000,
    batch=64,
    points=41,
    window=15,
    grad=15,
    optimizer=Adam(learning_rate=1e-4),
    log_every=1000,
    checkpoint_every=10_000,
)
"""T=20, dT=15: `loops` and `window`. The paper states no batch; 64 is yang24's."""

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


def regression(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, AlgoFormer (Fig. 2a, 3, 4)."""
    model, train = {"smoke": (TINY, SMOKE), "cpu": (SMALL, CPU), "paper": (ALGOFORMER, PAPER)}[scale]
    return Experiment(name="gao24.regression", task=RepresentationRegression(d=model.d), model=model, train=train)


def autoregression(scale: Scale = "cpu") -> Experiment:
    """AR(3) with representation, AlgoFormer (Fig. 2b); with less noise at `cpu`, where a small model must find it."""
    task = {
        "smoke": AutoRegression(d=2, order=2),
        "cpu": AutoRegression(d=3, noise=0.1, hidden=8, representation=3),
        "paper": AutoRegression(),
    }[scale]
    points = {"smoke": 5, "cpu": 16, "paper": 40}[scale]
    return with_task(regression(scale), "gao24.autoregression", task, points)


def chain_of_thought(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs of 6 layers, AlgoFormer (Fig. 2c); of 2 layers at small scales."""
    task = {
        "smoke": ChainOfThought(d=2, layers=2),
        "cpu": ChainOfThought(d=2, layers=2, slope=0.25),
        "paper": ChainOfThought(),
    }[scale]
    points = {"smoke": 3, "cpu": 8, "paper": 41}[scale]
    return with_task(regression(scale), "gao24.chain_of_thought", task, points)


def autoregression_looped(scale: Scale = "cpu") -> Experiment:
    """AR with representation, the vanilla looped model: no pre, no post, X injected in every loop (Fig. 2b)."""
    return replace(as_looped(autoregression(scale)), name="gao24.autoregression_looped")


def autoregression_printed(scale: Scale = "cpu") -> Experiment:
    """AR with representation, the AlgoFormer as printed: nothing injected, gradient through all loops."""
    return replace(as_printed(autoregression(scale)), name="gao24.autoregression_printed")


def autoregression_12_layers(scale: Scale = "cpu") -> Experiment:
    """AR with representation, a standard transformer of 12 layers; of 6 at small scales (Fig. 2b)."""
    layers = 12 if scale == "paper" else 6
    return replace(as_standard(autoregression(scale), layers), name="gao24.autoregression_12_layers")


def linear(scale: Scale = "cpu") -> Experiment:
    """Linear regression, AlgoFormer, to be compared with gradient descent and Newton's method (Fig. 5)."""
    base = regression(scale)
    return replace(base, name="gao24.linear", task=LinearRegression(d=base.task.d))


def translation(scale: Scale = "cpu") -> Experiment:
    """German to English, AlgoFormer with T=12, dT=10 (the table); `cpu` takes minutes on a GPU, hours on a CPU."""
    words = {"smoke": 600, "cpu": 4000, "paper": 8000}[scale]
    points = {"smoke": 96, "cpu": 72, "paper": 128}[scale]
    limit = 200 if scale == "smoke" else None
    loops, window = (3, 2) if scale == "smoke" else (12, 10)
    shape = {"tokens": "given", "d": 1, "vocabulary": words, "positions": points, "loops": loops}
    rates = {"cpu": Adam(learning_rate=1e-3, clip=1.0, schedule=Trapezoid(warmup=0.05, decay=0.5)),
             "paper": Adam(learning_rate=5e-5)}  # fmt: skip
    train = replace(SMOKE if scale == "smoke" else PAPER, points=points, window=window, grad=window)
    if scale == "cpu":
        train = replace(train, steps=3000, log_every=100, checkpoint_every=1000)
    return Experiment(
        name="gao24.translation",
        task=Translation(vocabulary=words, limit=limit),
        model=replace(TINY if scale == "smoke" else ALGOFORMER, **shape),
        train=replace(train, optimizer=rates.get(scale, train.optimizer)),
    )
