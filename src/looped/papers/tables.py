"""The predictor for small tables: one block looped over rows, trained on random tables."""

from looped.experiment import Experiment, Muon, TrainConfig
from looped.functional.schedules import RandomDepth, Trapezoid
from looped.models.table_transformer import TableTransformerConfig
from looped.tasks.table_prior import TablePrior

QUANTILES = 10


def regressor(scale: str = "paper") -> Experiment:
    """Numbers from small tables, with their quantiles."""
    muon = Muon(learning_rate=5e-3, muon_learning_rate=0.02, clip=1.0, schedule=Trapezoid(warmup=0.03, decay=0.5))
    train = TrainConfig(
        steps=12_000,
        batch=32,
        points=112,
        lengths=(20, 32, 48, 64, 112),
        window=3,
        grad=5,
        depth=RandomDepth(low=-3, high=3),
        optimizer=muon,
        average=0.998,
        log_every=50,
        checkpoint_every=250,
    )
    return Experiment(
        name="tables.regressor",
        task=TablePrior(d=20, quantiles=QUANTILES),
        model=TableTransformerConfig(d=20, width=64, heads=4, loops=8, queries=16, quantiles=QUANTILES),
        train=train,
    )
