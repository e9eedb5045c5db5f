from dataclasses import replace
from pathlib import Path

import pytest

from looped.config import override
from looped.experiment import Adam, AdamW, Experiment, Muon, OptimizerConfig, Setup, TrainConfig, hash_of
from looped.files import read_json
from looped.functional.schedules import RandomDepth, Staircase
from looped.models.decoder import DecoderConfig
from looped.papers import yang24
from looped.tasks.regression import LinearRegression

KEPT = Path(__file__).parents[1] / "results" / "models"


def experiment(**fields):
    base = {
        "task": LinearRegression(d=3),
        "model": DecoderConfig(d=3, width=16, heads=2, loops=4, positions=16),
        "train": TrainConfig(steps=5, window=2),
    }
    return Experiment(**(base | fields))


def test_equal_configs_have_equal_hashes():
    assert experiment().hash == experiment().hash
    assert Experiment.from_data(experiment().to_data()).hash == experiment().hash
    assert override(experiment(), []).hash == experiment().hash
    base = yang24.linear("paper")
    assert replace(base, name="mine").hash != base.hash
    assert replace(base).hash == base.hash


@pytest.mark.parametrize("known", sorted(KEPT.glob("*/config.json")), ids=lambda file: file.parent.name)
def test_configs_of_earlier_versions_keep_their_hash(known):
    """So that their runs are found again by the same command: a new field of a config needs `metadata=LATER`."""
    data = {key: value for key, value in read_json(known).items() if key != "carried_over"}
    assert Experiment.from_data(data).to_data() == data
    assert Experiment.from_data(data).hash == hash_of(data)


def test_recipes_whose_runs_are_too_large_to_keep_have_their_hash():
    assert yang24.sparse_12_layers("paper").hash == "9a94b44b73"
    assert yang24.sparse_12_layers_longer("paper").hash == "65d002f931"
    assert yang24.relu_network_12_layers("paper").hash == "4184ce8b75"


def test_a_field_that_came_later_is_part_of_the_hash_once_it_is_set():
    read = Experiment.from_data(read_json(KEPT / "yang24.linear" / "config.json"))
    assert "emphasis" not in read.to_data()["train"]
    assert read.to_data(complete=True)["train"]["emphasis"] == 0
    weighed = override(read, ["train.emphasis=2"])
    assert weighed.to_data()["train"]["emphasis"] == 2.0
    assert weighed.hash != read.hash
    assert override(weighed, ["train.emphasis=0"]).hash == read.hash


def test_a_whole_number_hashes_as_itself_however_it_is_spelled():
    whole, real = (experiment(task=LinearRegression(d=3, noise=noise)) for noise in (1, 1.0))
    assert whole == real
    assert whole.hash == real.hash == override(experiment(), ["task.noise=1"]).hash


@pytest.mark.parametrize(
    "setting",
    [
        "name=other",
        "task.noise=0.5",
        "task.noise=1e-300",
        "model.loops=5",
        "model.inside=false",
        "train.seed=1",
        "train.seed=-1",
        "train.seed=9007199254740993",
        "train.steps=6",
        "train.optimizer.learning_rate=1e-5",
        "train.optimizer.betas=[0.9, 0.99]",
        "train.pool=8",
        "train.average=0.9",
        "train.dtype=float64",
        'task={"type": "looped.tasks.regression:SparseRegression", "d": 3}',
    ],
)
def test_every_field_changes_the_hash(setting):
    assert override(experiment(), [setting]).hash != experiment().hash
    large = [override(experiment(), [f"train.seed={seed}"]) for seed in (2**53, 2**53 + 1)]
    assert large[0].hash != large[1].hash, "though a float cannot tell them apart"


@pytest.mark.parametrize("name", ["window", "grad"])
def test_a_window_beyond_the_loops_is_refused(name):
    with pytest.raises(ValueError, match=rf"`{name}` must be in \[1, loops=4\]; got 25. Lower it or raise `loops`"):
        experiment(train=TrainConfig(**{"window": 1, name: 25}))
    with pytest.raises(ValueError, match=rf"`{name}` must be at least 1; got 0"):
        TrainConfig(**{name: 0})
    experiment(train=TrainConfig(**{"window": 1, name: 4}))


def test_windows_shrink_with_a_shallow_step():
    config = TrainConfig(window=4, grad=3, depth=RandomDepth(low=-2, high=2))
    assert config.windows(2) == {"grad": 2, "keep": 2}
    assert config.windows(9) == {"grad": 3, "keep": 4}
    assert TrainConfig(window=2).windows(5) == {"grad": None, "keep": 2}


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "a\n", "a:b", "~"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="`name` names a folder"):
        experiment(name=name)


@pytest.mark.parametrize("name", ["a", "yang24.linear_12_layers", "a-b", "日本"])
def test_a_name_of_letters_and_digits_is_kept(name):
    assert experiment(name=name).name == name


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TrainConfig, {"steps": 0}, "`steps` must be at least 1; got 0"),
        (TrainConfig, {"batch": -1}, "`batch` must be at least 1"),
        (TrainConfig, {"points": 0}, "`points` must be at least 1"),
        (TrainConfig, {"pool": 0}, "`pool` must be at least 1"),
        (TrainConfig, {"log_every": 0}, "`log_every` must be at least 1"),
        (TrainConfig, {"checkpoint_every": 0}, "`checkpoint_every` must be at least 1"),
        (TrainConfig, {"keep_checkpoints": 0}, "`keep_checkpoints` must be at least 1"),
        (TrainConfig, {"average": 1.0}, "`average` must be between 0 and 1; got 1.0"),
        (TrainConfig, {"pool": 4, "dims": RandomDepth(low=1, high=2)}, "`pool` fixes the prompts"),
        (Muon, {"muon_learning_rate": 0.0}, "`muon_learning_rate` must be above 0; got 0"),
        (Adam, {"clip": 0.0}, "`clip` must be above 0; got 0"),
        *((kind, {"learning_rate": 0.0}, "`learning_rate` must be above 0; got 0") for kind in (Adam, AdamW, Muon)),
        (AdamW, {"weight_decay": -1.0}, "`weight_decay` must be at least 0; got -1"),
        (OptimizerConfig, {}, "`Adam`, `AdamW` or `Muon`"),
    ],
)
def test_a_config_that_cannot_run_is_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_an_optimiser_has_its_own_fields_alone():
    with pytest.raises(TypeError, match="weight_decay"):
        Muon(weight_decay=0.5)


def test_depth_is_added_to_the_loops_of_the_model():
    deeper = experiment(train=TrainConfig(steps=200, depth=RandomDepth(low=-3, high=2)))
    assert {deeper.loops_at(step) for step in range(200)} == {1, 2, 3, 4, 5, 6}
    climbing = experiment(train=TrainConfig(steps=9, depth=Staircase(start=-3, stop=0, by=2, every=3)))
    assert [climbing.loops_at(step) for step in range(9)] == [1, 1, 1, 3, 3, 3, 4, 4, 4]
    assert experiment().loops_at(0) == 4


@pytest.mark.parametrize("depth", [RandomDepth(low=-4, high=4), Staircase(start=-9, stop=0, by=1, every=1)])
def test_a_step_without_loops_is_refused(depth):
    fewest = int(depth.bounds(5)[0]) + 4
    with pytest.raises(ValueError, match=rf"at least 1 loop; got {fewest} with loops=4. Raise `depth`"):
        experiment(train=TrainConfig(steps=5, depth=depth))


def test_weights_without_training_are_a_setup_and_not_an_experiment():
    setup = Setup(task=LinearRegression(d=3), model=experiment().model)
    assert Setup.from_data(setup.to_data()) == setup
    assert Setup.from_data(experiment().to_data()) == experiment()
    with pytest.raises(ValueError, match="`experiment` was imported or constructed: there is nothing to train here"):
        Experiment.from_data(setup.to_data())


@pytest.mark.parametrize("d", [0, -1])
def test_task_and_model_have_one_d_of_at_least_1(d):
    with pytest.raises(ValueError, match=r"`task\.d` and `model\.d` must agree; got 4 and 3"):
        experiment(task=LinearRegression(d=4))
    with pytest.raises(ValueError, match="`d` must be at least 1"):
        LinearRegression(d=d)
    with pytest.raises(ValueError, match="`d` must be at least 1"):
        override(experiment(), [f"task.d={d}", f"model.d={d}"])
