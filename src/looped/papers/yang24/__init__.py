"""yang24, Looped Transformers are Better at Learning Learning Algorithms: recipes.

Scales: `paper` is the paper's own (Adam 1e-4, batch 64, 500k steps, the published program's curriculum); `cpu` is a
smaller model that learns in minutes on two cores; `smoke` runs in seconds and shows only that the machinery works.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from looped.experiment import Experiment, OptimizerConfig, TrainConfig
from looped.functional.schedules import Ramp, RandomDepth, Staircase, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.trees import DecisionTree

Scale = Literal["smoke", "cpu", "paper"]

DECODER = DecoderConfig(d=20, width=256, heads=8, layers=1, loops=20)
SMALL = DecoderConfig(d=5, width=64, heads=4, layers=1, loops=8, positions=32)
TINY = DecoderConfig(d=3, width=16, heads=2, layers=1, loops=4, positions=16)

PAPER = TrainConfig(
    steps=500_000,
    batch=64,
    points=41,
    window=15,
    grad=15,
    depth=Staircase(start=15, stop=20, by=2, every=500),
    dims=Staircase(start=5, stop=20, by=1, every=5000),
    active_points=Staircase(start=11, stop=41, by=2, every=5000),
    optimizer=OptimizerConfig(kind="adam", learning_rate=1e-4),
    log_every=1000,
    checkpoint_every=10_000,
)
"""The published program's; the paper's text points at Garg et al., who climb a stair every 2000 steps."""

CPU = TrainConfig(
    steps=1000,
    batch=64,
    points=11,
    window=4,
    grad=4,
    depth=RandomDepth(low=4, high=12),
    dims=Ramp(start=2, stop=5, share=0.3),
    optimizer=OptimizerConfig(
        kind="muon",
        learning_rate=5e-3,
        muon_learning_rate=0.02,
        clip=1.0,
        schedule=Trapezoid(warmup=0.03, decay=0.5),
    ),
    log_every=20,
    checkpoint_every=250,
)
"""Muon, and a no-gradient prefix of random length: a minute instead of hours, and stable far past the trained loops."""

SMOKE = replace(
    CPU, steps=20, batch=8, points=7, window=2, grad=2, depth=RandomDepth(low=2, high=6), dims=None, log_every=5
)


def linear(scale: Scale = "cpu") -> Experiment:
    """Linear regression, looped decoder with b = 20, T = 15 (Fig. 2 to 8)."""
    sizes = {
        "smoke": (LinearRegression(d=3), TINY, SMOKE),
        "cpu": (LinearRegression(d=5), SMALL, CPU),
        "paper": (LinearRegression(d=20), DECODER, PAPER),
    }
    task, model, train = sizes[scale]
    return Experiment(name="yang24.linear", task=task, model=model, train=train)


def noisy(scale: Scale = "cpu") -> Experiment:
    """Linear regression with label noise, where ridge is the optimum and least squares explodes at k = d."""
    base = linear(scale)
    assert isinstance(base.task, LinearRegression)
    return replace(base, name="yang24.noisy", task=replace(base.task, noise=1.0))


def linear_12_layers(scale: Scale = "cpu") -> Experiment:
    """Linear regression, the same decoder unlooped: 12 layers with weights of their own (Fig. 2)."""
    return _unlooped(linear(scale), scale)


def sparse(scale: Scale = "cpu") -> Experiment:
    """Sparse linear regression, 3 of 20 weights nonzero, looped decoder with b = 20, T = 10 (Fig. 9, 10a, 11)."""
    base = linear(scale)
    assert base.train is not None
    train = base.train
    if scale == "paper":
        train = replace(train, window=10, grad=10, depth=Staircase(start=10, stop=20, by=2, every=500))
    nonzero = {"smoke": 1, "cpu": 2, "paper": 3}[scale]
    return replace(base, name="yang24.sparse", task=SparseRegression(d=base.task.d, nonzero=nonzero), train=train)


def tied(scale: Scale = "cpu") -> Experiment:
    """Weight tying: the block looped with no prompt injected, so that all loops carry gradient (Fig. 3)."""
    base = linear(scale)
    assert base.train is not None
    assert isinstance(base.model, DecoderConfig)
    return replace(
        base, name="yang24.tied", model=replace(base.model, inject="none"), train=replace(base.train, grad=None)
    )


def sparse_12_layers(scale: Scale = "cpu") -> Experiment:
    """Sparse linear regression, 12 layers unlooped (Fig. 10a, 11)."""
    return _unlooped(sparse(scale), scale)


def tree(scale: Scale = "cpu") -> Experiment:
    """Decision trees of depth 4, looped decoder with b = 70, T = 15 (Fig. 9, 10b)."""
    tasks = {"smoke": DecisionTree(d=3, depth=1), "cpu": DecisionTree(d=5, depth=2), "paper": DecisionTree(d=20)}
    return _longer(replace(linear(scale), name="yang24.tree", task=tasks[scale]), scale, loops=70, window=15)


def tree_12_layers(scale: Scale = "cpu") -> Experiment:
    """Decision trees, 12 layers unlooped (Fig. 10b)."""
    return _unlooped(tree(scale), scale)


def relu_network(scale: Scale = "cpu") -> Experiment:
    """Two-layer ReLU networks of 100 hidden units, looped decoder with b = 12, T = 5 (Fig. 9, 10c)."""
    tasks = {
        "smoke": ReLUNetwork(d=3, hidden=4),
        "cpu": ReLUNetwork(d=5, hidden=20),
        "paper": ReLUNetwork(d=20, hidden=100),
    }
    return _longer(replace(linear(scale), name="yang24.relu_network", task=tasks[scale]), scale, loops=12, window=5)


def relu_network_12_layers(scale: Scale = "cpu") -> Experiment:
    """Two-layer ReLU networks, 12 layers unlooped (Fig. 10c)."""
    return _unlooped(relu_network(scale), scale)


def _unlooped(base: Experiment, scale: Scale) -> Experiment:
    """The same experiment with layers of their own weights in place of loops."""
    assert base.train is not None
    assert isinstance(base.model, DecoderConfig)
    layers = {"smoke": 2, "cpu": 8, "paper": 12}[scale]
    return replace(
        base,
        name=f"{base.name}_12_layers",
        model=replace(base.model, layers=layers, loops=1),
        train=replace(base.train, window=1, grad=None, depth=None),
    )


def _longer(base: Experiment, scale: Scale, *, loops: int, window: int) -> Experiment:
    """Prompts of 100 examples, and the loops and window of the paper; smaller scales keep the recipe's own loops."""
    assert base.train is not None
    train = replace(base.train, points={"smoke": 8, "cpu": 16, "paper": 101}[scale])
    if scale != "paper":
        return replace(base, train=train)
    train = replace(
        train,
        window=window,
        grad=window,
        depth=Staircase(start=window, stop=loops, by=2, every=500),
        active_points=Staircase(start=26, stop=101, by=5, every=5000),
    )
    return replace(base, model=replace(base.model, loops=loops), train=train)
