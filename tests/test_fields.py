"""Every field of every recipe's config does something: set to another value it changes the run, or is refused."""

import dataclasses
import functools
from pathlib import Path

import pytest
import torch

from looped.config import change, decode, encode
from looped.experiment import Adam, Experiment, TrainConfig
from looped.functional import kernels
from looped.functional.fixed_points import Anderson
from looped.functional.schedules import Ramp, RandomDepth, Staircase
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.block_parts import BlockParts
from looped.models.blocks import relu
from looped.models.gradients import Truncated
from looped.models.kernel_transformer import query_covariates
from looped.models.patterns import CovariateScores, LabelValue
from looped.recipes import recipes
from looped.tasks.regression import SparseRegression
from looped.tasks.table_pieces import Classes, Columns, Noise, OneClass, Trees
from looped.training.run import Run, save_model
from looped.training.trainer import Trainer, train
from tasks.tiny_text import write

TINY = {"train.steps": 6, "train.batch": 2, "train.log_every": 2, "train.checkpoint_every": 2, "train.points": 5}
"""Every recipe at smoke scale, made smaller still."""
BASES = {
    "gao24.chain_of_thought": {"train.points": 2},
    "gao24.translation": {"train.points": 60, "model.positions": 60},
    "yang24.linear_published": {"train.depth.every": 2, "train.depth.by": 1, "train.active_points": None},
    "gatmiry24.looped": {"train.optimizer.schedule.share": 0.2},
    "explorer.curves": {"train.active_points": {"type": "Ramp", "start": 2, "stop": 5, "share": 0.5}},
    "tables.classifier": {"train.lengths": [4, 5]},
    "tables.regressor": {"train.lengths": [4, 5]},
}
"""What some recipes need besides, so that six steps show what a field does."""
PRIORS = ("TablePrior", "ClassPrior")
HALF = {"type": "looped.tasks.gaussian_process:Part", "kernel": "looped.functional.kernels:exp", "weight": 0.5}
VALUES = {
    ("Experiment", "task"): SparseRegression(d=3, nonzero=2),
    ("Experiment", "model"): AlgoFormerConfig(d=3, width=8, loops=4, inject="add", positions=12),
    ("Experiment", "train"): TrainConfig(steps=3, batch=3, points=4),
    ("GaussianProcess", "kernel"): kernels.exp,
    ("MixedProcess", "kernel"): kernels.relu,
    **{(kind, "eigenvalues"): [1.0, 2.0, 1.0, 1.0, 1.0] for kind in ("GaussianProcess", "MixedProcess")},
    ("MixedProcess", "parts"): [HALF],
    ("Part", "kernel"): kernels.relu,
    ("Part", "scales"): [1.0, 1.0, 1.0, 0.0, 0.0],
    ("Part", "head_width"): 3,
    ("Part", "hidden"): 5,
    ("IsotropicRegression", "centres"): [5.0, 9.0],
    ("IsotropicRegression", "half"): 1.0,
    **{(kind, name): 3 for kind in ("RepresentationRegression", "AutoRegression") for name in ("features", "hidden")},
    ("FunctionMixture", "classes"): [{"type": "looped.tasks.mixture:Lines"}],
    ("Waves", "frequency"): [2.0, 5.0],
    ("Translation", "corpus"): "iwslt",
    ("Translation", "split"): "val",
    ("Translation", "limit"): 3,
    **{(prior, "columns"): Columns(plain=0.0) for prior in PRIORS},
    **{(prior, "functions"): [Trees()] for prior in PRIORS},
    **{(prior, "noise"): Noise(most=0.1) for prior in PRIORS},
    ("TablePrior", "targets"): [Classes()],
    ("ClassPrior", "targets"): [OneClass(inner=1.0)],
    ("OneClass", "inner"): 1.0,
    ("TableTransformerConfig", "answers"): "log_odds",
    ("Columns", "plain"): 0.0,
    ("Network", "activation"): "tanh",
    **{("TablePrior", name): 1.0 for name in ("irrelevant", "blended")},
    **{("ClassPrior", name): 0.0 for name in ("irrelevant", "blended")},
    **dict.fromkeys(
        (
            ("Columns", "correlated"),
            ("Columns", "clustered"),
            ("Columns", "missing"),
            ("Noise", "heavy"),
            ("Number", "skewed"),
        ),
        1.0,
    ),
    ("Classes", "two"): 0.0,
    ("TableTransformerConfig", "width"): 12,
    ("TableTransformerConfig", "heads"): 4,
    ("TableTransformerConfig", "queries"): 2,
    ("KernelTransformerConfig", "loops"): 2,
    ("KernelTransformerConfig", "heads"): [
        {"type": "looped.models.kernel_transformer:Head", "value": LabelValue(), "scores": CovariateScores()}
    ],
    ("KernelTransformerConfig", "positions"): 4,
    ("KernelTransformerConfig", "readout"): query_covariates,
    ("KernelTransformerConfig", "models"): 2,
    ("Head", "kernel"): kernels.exp,
    ("Head", "value"): LabelValue(),
    ("Head", "scores"): CovariateScores(),
    ("AlgoFormerConfig", "vocabulary"): 7,
    ("AlgoFormerConfig", "width"): 12,
    ("AlgoFormerConfig", "tokens"): "apart",
    ("AlgoFormerConfig", "query"): "last",
    ("AlgoFormerConfig", "read"): "y",
    ("AlgoFormerConfig", "pre"): Part(layers=2, heads=2),
    ("AlgoFormerConfig", "loop"): Part(layers=2, heads=2),
    ("AlgoFormerConfig", "post"): Part(layers=0),
    ("Part", "heads"): 4,
    ("AlgoFormerConfig", "inject"): "none",
    ("AlgoFormerConfig", "activation"): relu,
    ("AlgoFormerConfig", "subspaces"): [["first", 3], ["rest", 5]],
    ("DecoderConfig", "width"): 12,
    ("DecoderConfig", "heads"): 4,
    ("DecoderConfig", "inject"): "multiply",
    ("RecurrentDepthConfig", "width"): 12,
    ("RecurrentDepthConfig", "heads"): 4,
    ("RecurrentDepthConfig", "inject"): "gated",
    ("RecurrentDepthConfig", "parts"): BlockParts(norm="rms"),
    ("RecurrentDepthConfig", "ponder"): 0.1,
    ("BlockParts", "norm"): "rms",
    ("BlockParts", "mlp"): "swiglu",
    ("BlockParts", "attention"): "linear",
    ("BlockParts", "kv_heads"): 1,
    ("Implicit", "solver"): Anderson(),
    ("Implicit", "adjoint"): Anderson(),
    ("Anderson", "memory"): 2,
    ("Anderson", "mixing"): 0.5,
    ("Broyden", "memory"): 2,
    ("TrainConfig", "gradient"): Truncated(back=1),
    ("TrainConfig", "loop_weights"): [1.0, 3.0],
    ("TrainConfig", "lengths"): [3],
    ("TrainConfig", "window"): 1,
    ("TrainConfig", "extended"): [3],
    ("TrainConfig", "grad"): 3,
    ("TrainConfig", "depth"): RandomDepth(low=-1, high=1),
    ("TrainConfig", "dims"): Ramp(start=1, stop=3, share=0.5),
    ("TrainConfig", "active_points"): Ramp(start=2, stop=5, share=1.0),
    ("TrainConfig", "pool"): 2,
    ("TrainConfig", "optimizer"): Adam(learning_rate=0.5),
    ("TrainConfig", "average"): 0.5,
    ("TrainConfig", "dtype"): "float64",
    ("Trapezoid", "warmup"): 0.5,
    ("Trapezoid", "decay"): 0.3,
    ("Trapezoid", "floor"): 0.8,
    ("Halving", "share"): 0.4,
    ("Staircase", "start"): -1,
    ("Staircase", "stop"): -1,
    ("Staircase", "every"): 1,
    ("RandomDepth", "low"): -1,
    ("RandomDepth", "high"): 0,
    **{(kind, "clip"): 1e-3 for kind in ("Adam", "AdamW", "Muon")},
    **{(kind, "betas"): [0.5, 0.5] for kind in ("Adam", "AdamW", "Muon")},
    **{(kind, "schedule"): Staircase(start=1, stop=3, by=1, every=1) for kind in ("Adam", "AdamW", "Muon")},
}
"""Another value of a field; a field that is not here is a number, which grows, or a switch, which is turned."""
REFUSED = {
    ("FunctionMixture", "d"),
    *((kind, "d") for kind in ("GaussianProcess", "MixedProcess", "RepresentationRegression", "AutoRegression")),
    *((kind, "d") for kind in ("ChainOfThought", "LinearRegression", "Translation", "IsotropicRegression")),
    *((kind, "d") for kind in ("SparseRegression", "DecisionTree", "ReLUNetwork", "VectorGeneration")),
    *((kind, "d") for kind in ("KernelTransformerConfig", "AlgoFormerConfig", "DecoderConfig")),
    ("RecurrentDepthConfig", "d"),
    ("TrainConfig", "gradient"),  # beside `grad`
    *((kind, name) for kind in (*PRIORS, "TableTransformerConfig") for name in ("d", "quantiles")),
    ("TableTransformerConfig", "answers"),  # of the regressor, which has quantiles
    *(("AlgoFormerConfig", name) for name in ("outputs", "vocabulary", "read", "causal", "inject")),
    ("Translation", "vocabulary"),
    ("MixedProcess", "kernel"),
    ("KernelTransformerConfig", "registers"),
    ("KernelTransformerConfig", "positions"),
}
"""Fields that the recipe they are tried on does not allow to change alone."""
FILES = {("TrainConfig", "log_every"), ("TrainConfig", "checkpoint_every"), ("TrainConfig", "keep_checkpoints")}
"""Fields that say what is written, and when."""


def fields_of(config, path=()):
    """(class, field), path and value of every field of a config and of the configs in it."""
    if dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            if field.init:
                value = getattr(config, field.name)
                yield (type(config).__name__, field.name), (*path, field.name), value
                yield from fields_of(value, (*path, field.name))
    elif isinstance(config, tuple):
        for index, item in enumerate(config):
            yield from fields_of(item, (*path, index))


@functools.cache
def tiny(recipe):
    return change(recipes()[recipe]("smoke"), {**TINY, **BASES.get(recipe, {})})


def cases():
    """Every field once, on `yang24.linear`, `cheng24.linear` or the first recipe that has it."""
    seen = {}
    for recipe in ("yang24.linear", "cheng24.linear", *recipes()):
        for name, path, value in fields_of(tiny(recipe)):
            seen.setdefault(name, (recipe, path, value))
    return [pytest.param(name, *case, id=".".join(name)) for name, case in seen.items()]


def plain(value):
    """Any value as JSON data."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else encode(value)


def another(name, value):
    if name in VALUES:
        return plain(VALUES[name])
    if isinstance(value, bool):
        return not value
    assert isinstance(value, (int, float)), f"{name} needs a value in VALUES"
    return value + 1 if isinstance(value, int) else 1.5 * value + 0.25


def with_value(experiment, path, value):
    """The experiment with one field changed, which may lie in a tuple."""
    data = plain(experiment)
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return decode(data, Experiment)


@functools.cache
def outcome(experiment):
    """All that a run is: its weights before and after training, its losses, its answers after some loops."""
    trainer = Trainer([Run(Path("nowhere"), experiment)], torch.device("cpu"))
    before = {name: value.clone() for name, value in trainer.weights().items()}
    for step in range(experiment.train.steps):
        trainer.step(step)
    generator = torch.Generator().manual_seed(0)
    prompt = experiment.task.sample(batch=2, n=experiment.train.points, generator=generator).to(trainer.dtype)
    with torch.no_grad():
        answers = {f"answer {loops}": trainer.model(prompt, loops=loops)[-1] for loops in (1, 4)}
        answers["answer"] = trainer.model(prompt)[-1]
        errors = {"error": experiment.task.error(answers["answer"][None], prompt)}
    after = {f"after {name}": value for name, value in trainer.weights().items()}
    average = {f"average {name}": value for name, value in (trainer.average or {}).items()}
    return {**before, **after, **average, **answers, **errors, "sums": trainer.sums}


def same(left, right):
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.fixture(scope="module", autouse=True)
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_DATA", str(folder))
        patch.setenv("LOOPED_CACHE", str(folder / "cache"))
        for name in ("multi30k", "iwslt"):
            write(folder / "translation" / name)
        (folder / "translation" / "iwslt" / "train.en.gz").write_bytes(
            (folder / "translation" / "iwslt" / "train.de.gz").read_bytes()
        )
        yield


@pytest.mark.parametrize(("name", "recipe", "path", "value"), cases())
def test_every_field_changes_the_run_or_is_refused(name, recipe, path, value, tmp_path):
    base = tiny(recipe)
    if name == ("TrainConfig", "start"):
        torch.manual_seed(7)
        new = str(save_model(tmp_path / "start", base.model.build(), base.task, name="start").path)
    else:
        new = f"{value}x" if name == ("Experiment", "name") else another(name, value)
    if name in REFUSED:
        with pytest.raises(ValueError, match=r"`"):
            outcome(with_value(base, path, new))
        return
    changed = with_value(base, path, new)
    assert changed != base
    if name == ("Experiment", "name"):
        assert changed.folder.startswith(new)
    elif name == ("AlgoFormerConfig", "subspaces"):
        assert changed.model.subspaces == (("first", 3), ("rest", 5))
    elif name in FILES:
        files = [written(train(run, out=tmp_path / str(index))) for index, run in enumerate((base, changed))]
        assert files[0] != files[1]
    else:
        assert not same(outcome(changed), outcome(base))


def written(run):
    """The steps that have a line in the metrics, and those that have a checkpoint."""
    return [line["step"] for line in run.metrics()], run.steps
