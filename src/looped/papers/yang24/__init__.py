"""yang24, Looped Transformers are Better at Learning Learning Algorithms: recipes.

Scales: `paper` has the paper's tasks, architecture and loss, trained by a recipe of our own (linear regression: a
minute on one GPU); `as_published` gives it the paper's training instead (Adam 1e-4, batch 64, 500k steps, the published
program's curriculum). `cpu` is a smaller model that learns in minutes on two cores; `smoke` runs in seconds and shows
only that the machinery works.
"""

from dataclasses import replace

from looped.experiment import Experiment, Muon, Scale, training
from looped.functional.schedules import Ramp, Staircase, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.papers.yang24.trainings import CPU, PAPER, SMOKE, around, as_published
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.trees import DecisionTree

DECODER = DecoderConfig(d=20, width=256, heads=8, layers=1, loops=20)
SMALL = DecoderConfig(d=5, width=64, heads=4, layers=1, loops=8, positions=32)
TINY = DecoderConfig(d=3, width=16, heads=2, layers=1, loops=4, positions=16)


def linear(scale: Scale = "cpu") -> Experiment:
    """Linear regression, looped decoder with b = 20, T = 15 (Fig. 2 to 8)."""
    sizes = {
        "smoke": (LinearRegression(d=3), TINY, SMOKE),
        "cpu": (LinearRegression(d=5), SMALL, CPU),
        "paper": (LinearRegression(d=20), DECODER, PAPER),
    }
    task, model, train = sizes[scale]
    return Experiment(name="yang24.linear", task=task, model=model, train=train)


def linear_published(scale: Scale = "cpu") -> Experiment:
    """Linear regression trained as the paper says: Adam, and at `paper` scale 500k steps (Fig. 2)."""
    base = replace(linear(scale), name="yang24.linear_published")
    return as_published(base) if scale == "paper" else as_published(base, steps=base.train.steps)


def noisy(scale: Scale = "cpu") -> Experiment:
    """Linear regression with label noise, where ridge is the optimum and least squares explodes at k = d."""
    base = linear(scale)
    assert isinstance(base.task, LinearRegression)
    return replace(base, name="yang24.noisy", task=replace(base.task, noise=1.0))


def linear_12_layers(scale: Scale = "cpu") -> Experiment:
    """Linear regression, the same decoder unlooped: 12 layers with weights of their own (Fig. 2)."""
    return _unlooped(linear(scale), scale)


def sparse(scale: Scale = "cpu") -> Experiment:
    """Sparse linear regression, 3 of 20 weights nonzero, looped decoder with b = 20, T = 10 (Fig. 9, 11)."""
    base = linear(scale)
    nonzero = {"smoke": 1, "cpu": 2, "paper": 3}[scale]
    named = replace(base, name="yang24.sparse", task=SparseRegression(d=base.task.d, nonzero=nonzero))
    if scale != "paper":
        return named
    # 40,000 steps of 256 prompts were too few for the error at 10 examples (docs/log.md): more and smaller steps
    return around(training(named, steps=150_000, batch=64, log_every=1000, checkpoint_every=10_000), 20, 10)


def sparse_longer(scale: Scale = "cpu") -> Experiment:
    """Sparse linear regression: at `paper` scale `yang24.sparse` trained on, later pairs weighing more (Fig. 10a)."""
    base = replace(sparse(scale), name="yang24.sparse_longer")
    return _trained_on(base, "yang24.sparse", steps=200_000, grows=140_000) if scale == "paper" else base


def tied(scale: Scale = "cpu") -> Experiment:
    """Weight tying: the block looped with no prompt injected, so that all loops carry gradient (Fig. 3)."""
    base = linear(scale)
    # all loops carry gradient, so on a GPU every number of loops would need a graph of its own
    depth = None if scale == "paper" else base.train.depth
    model, train = replace(base.model, inject="none"), replace(base.train, grad=None, depth=depth)
    return replace(base, name="yang24.tied", model=model, train=train)


def sparse_12_layers(scale: Scale = "cpu") -> Experiment:
    """Sparse linear regression, 12 layers unlooped (Fig. 11); fewer steps, which take as long on a GPU."""
    base = _unlooped(sparse(scale), scale)
    return training(base, steps=60_000) if scale == "paper" else base


def sparse_12_layers_longer(scale: Scale = "cpu") -> Experiment:
    """Sparse regression, 12 layers: at `paper` scale a run of `yang24.sparse_12_layers` trained on (Fig. 10a)."""
    first = sparse_12_layers(scale)
    base = replace(first, name="yang24.sparse_12_layers_longer")
    if scale != "paper":
        return base
    # trained longer, or from fresh weights, it diverged or its loss rose again (docs/log.md)
    return _trained_on(base, first.folder, steps=28_000, grows=24_080, clip=0.3)


def tree(scale: Scale = "cpu") -> Experiment:
    """Decision trees of depth 4, looped decoder with b = 70, T = 15 (Fig. 9, 13, 17)."""
    tasks = {"smoke": DecisionTree(d=3, depth=1), "cpu": DecisionTree(d=5, depth=2), "paper": DecisionTree(d=20)}
    base = _longer(replace(linear(scale), name="yang24.tree", task=tasks[scale]), scale, loops=70, window=15)
    return training(base, batch=64) if scale == "paper" else base


def tree_first(scale: Scale = "cpu") -> Experiment:
    """Decision trees: at `paper` scale the first part of `yang24.tree_longer`, with fewer loops (Fig. 10b)."""
    base = replace(tree(scale), name="yang24.tree_first")
    return around(_first_part(base), loops=24, window=15) if scale == "paper" else base


def tree_longer(scale: Scale = "cpu") -> Experiment:
    """Decision trees: at `paper` scale `yang24.tree_first` trained on with b = 70, T = 15 (Fig. 10b)."""
    base = replace(tree(scale), name="yang24.tree_longer")
    return _second_part(base, tree_first(scale)) if scale == "paper" else base


def tree_12_layers(scale: Scale = "cpu") -> Experiment:
    """Decision trees, 12 layers unlooped."""
    return _unlooped(tree(scale), scale)


def tree_12_layers_first(scale: Scale = "cpu") -> Experiment:
    """Decision trees, 12 layers unlooped: the first part of `yang24.tree_12_layers_longer` (Fig. 10b)."""
    base = replace(tree_12_layers(scale), name="yang24.tree_12_layers_first")
    return _first_part(base) if scale == "paper" else base


def tree_12_layers_longer(scale: Scale = "cpu") -> Experiment:
    """Decision trees, 12 layers unlooped, trained in two parts as the looped model is (Fig. 10b)."""
    base = replace(tree_12_layers(scale), name="yang24.tree_12_layers_longer")
    return _second_part(base, tree_12_layers_first(scale)) if scale == "paper" else base


def relu_network(scale: Scale = "cpu") -> Experiment:
    """Two-layer ReLU networks of 100 hidden units, looped decoder with b = 12, T = 5 (Fig. 9, 10c)."""
    tasks = {
        "smoke": ReLUNetwork(d=3, hidden=4),
        "cpu": ReLUNetwork(d=5, hidden=20),
        "paper": ReLUNetwork(d=20, hidden=100),
    }
    return _longer(replace(linear(scale), name="yang24.relu_network", task=tasks[scale]), scale, loops=12, window=5)


def relu_network_12_layers(scale: Scale = "cpu") -> Experiment:
    """Two-layer ReLU networks, 12 layers unlooped (Fig. 10c); a third of the steps, a third of the time."""
    base = _unlooped(relu_network(scale), scale)
    return training(base, steps=4000) if scale == "paper" else base


def _unlooped(base: Experiment, scale: Scale) -> Experiment:
    """The same experiment with layers that have their own weights, in place of loops; `cpu` needs half the rates."""
    layers = {"smoke": 2, "cpu": 8, "paper": 12}[scale]
    rates = {"learning_rate": 3e-3, "muon_learning_rate": 0.01} if scale == "cpu" else {}
    return replace(
        base,
        name=f"{base.name}_12_layers",
        model=replace(base.model, layers=layers, loops=1),
        train=replace(base.train, window=1, grad=None, depth=None, optimizer=replace(base.train.optimizer, **rates)),
    )


def _trained_on(base: Experiment, start: str, *, steps: int, grows: int, clip: float = 1.0) -> Experiment:
    """Train on from the weights of `start` with more weight on later pairs; 21 points, and from step `grows` on 41.

    Nearly all of the loss is at few examples, where no model can answer; unweighted, it drowns the rest (docs/log.md).
    """
    falling = Trapezoid(warmup=0.02, decay=0.8)
    rates = {"learning_rate": 1.2e-3, "muon_learning_rate": 4e-3, "clip": clip, "schedule": falling}
    return training(
        base,
        steps=steps,
        start=start,
        dims=None,
        active_points=Staircase(start=21, stop=41, by=20, every=grows),
        emphasis=2.0,
        optimizer=replace(base.train.optimizer, **rates),
    )


def _first_part(base: Experiment) -> Experiment:
    """The first of two parts of training on trees: the rate falls to 0.4 of itself at the end."""
    return _weighted(base, steps=36_000, rate=1.0, schedule=Trapezoid(warmup=0.02, decay=0.3, floor=0.4))


def _second_part(base: Experiment, first: Experiment) -> Experiment:
    """The second part, from the weights of the first: the rate falls to zero, all dimensions and points from step 0."""
    part = _weighted(base, steps=15_000, rate=0.5, schedule=Trapezoid(warmup=0.02, decay=0.9))
    return training(part, start=first.folder, dims=None, active_points=None)


def _weighted(base: Experiment, *, steps: int, rate: float, schedule: Trapezoid) -> Experiment:
    """Train with the i-th pair weighing i times as much as the first, at `rate` times the rates of the recipe."""
    given = base.train.optimizer
    assert isinstance(given, Muon)
    rates = {"learning_rate": rate * given.learning_rate, "muon_learning_rate": rate * given.muon_learning_rate}
    optimizer = replace(given, schedule=schedule, **rates)
    return training(base, steps=steps, emphasis=1.0, optimizer=optimizer, log_every=500, checkpoint_every=5000)


def _longer(base: Experiment, scale: Scale, *, loops: int, window: int) -> Experiment:
    """Prompts of 100 examples, with the paper's loops and window; smaller scales keep the loops of the recipe."""
    long = training(base, points={"smoke": 8, "cpu": 16, "paper": 101}[scale])
    if scale != "paper":
        return long
    return around(training(long, steps=12_000, active_points=Ramp(start=26, stop=101, share=1 / 3)), loops, window)
