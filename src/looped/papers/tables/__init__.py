"""Predictors for small tables: one block looped over rows, trained on random tables.

`regressor` and `classifier` are the recipes. At `paper` scale they are for a GPU; at `cpu` scale they are smaller
siblings, which train on one core within an hour and are what `InContextRegressor` and `InContextClassifier` use until
the large ones are trained.
"""

from dataclasses import replace

from looped.experiment import Experiment, Muon, Scale, TrainConfig
from looped.functional.schedules import RandomDepth, Trapezoid
from looped.models.table_transformer import TableTransformerConfig
from looped.tasks.table_prior import ClassPrior, TablePrior

QUANTILES = 10
"""Their levels are 5%, 15%, ..., 95%."""
ANSWERS = 4
"""Labels of every query in training, each with noise of its own."""

CPU = TrainConfig(
    steps=12_000,
    batch=32,
    points=112,
    lengths=(20, 32, 48, 64, 112),
    window=3,
    grad=5,
    depth=RandomDepth(low=-3, high=3),
    optimizer=Muon(learning_rate=5e-3, muon_learning_rate=0.02, clip=1.0, schedule=Trapezoid(warmup=0.03, decay=0.3)),
    average=0.998,
    log_every=50,
    checkpoint_every=250,
)
"""Mostly short prompts, of 4 to 96 examples and 16 queries."""
SMOKE = replace(
    CPU, steps=4, batch=4, points=14, lengths=(10, 14), window=2, grad=2, depth=RandomDepth(low=-1, high=1), log_every=2
)
PAPER = replace(
    CPU,
    steps=10_000,
    batch=128,
    points=336,
    lengths=(40, 64, 96, 144, 336),
    window=10,
    grad=10,
    depth=RandomDepth(low=-8, high=8),
    optimizer=Muon(learning_rate=3e-3, muon_learning_rate=0.01, clip=1.0, schedule=Trapezoid(warmup=0.02, decay=0.5)),
    average=0.999,
    dtype="bfloat16",
    log_every=100,
    checkpoint_every=1000,
)
"""Not trained yet: no GPU was there."""

TRAININGS: dict[Scale, TrainConfig] = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}
MODELS: dict[Scale, TableTransformerConfig] = {
    "smoke": TableTransformerConfig(d=4, width=16, heads=2, loops=3, queries=4, regressions=True),
    "cpu": TableTransformerConfig(d=30, width=96, heads=4, loops=8, queries=16, regressions=True),
    "paper": TableTransformerConfig(d=30, width=256, heads=8, loops=20, queries=32, regressions=True),
}


def regressor(scale: Scale = "paper") -> Experiment:
    """Numbers from small tables, with their quantiles."""
    model = replace(MODELS[scale], quantiles=QUANTILES)
    task = TablePrior(d=model.d, quantiles=QUANTILES, answers=ANSWERS)
    return Experiment(name="tables.regressor", task=task, model=model, train=TRAININGS[scale])


def classifier(scale: Scale = "paper") -> Experiment:
    """Classes from small tables: one class against the rest."""
    model = replace(MODELS[scale], answers="log_odds")
    return Experiment(
        name="tables.classifier", task=ClassPrior(d=model.d, answers=ANSWERS), model=model, train=TRAININGS[scale]
    )
