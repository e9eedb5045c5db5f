import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.config import code_of, decode, encode, name_of, nearest, override, parse_value
from looped.experiment import FORMAT, Adam, AdamW, Experiment, Muon, Setup, TrainConfig, is_plain
from looped.functional import kernels
from looped.functional.schedules import Ramp, RandomDepth, Schedule, Staircase, Trapezoid
from looped.models.decoder import DecoderConfig
from looped.papers import yang24
from looped.recipes import SCALES, recipes
from looped.tasks.gaussian_process import GaussianProcess, MixedProcess, Part
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class OwnTask(LinearRegression):
    """A user's own task: code that a file may name only if it was handed over."""

    slope: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A field that a config cannot hold."""

    numbers: list[int] = field(default_factory=lambda: [1, 2])


def own_kernel(queries, keys):
    return kernels.linear(queries, keys)


def through_json(data):
    return json.loads(json.dumps(data, allow_nan=False))


small = st.integers(1, 50)
finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
positive = st.floats(min_value=1e-12, max_value=1e6)
counts = st.one_of(
    st.builds(lambda a, b, by, every: Staircase(start=a, stop=a + b, by=by, every=every), small, small, small, small),
    st.builds(lambda low, more: RandomDepth(low=low, high=low + more), small, small),
    st.builds(
        lambda start, more, share: Ramp(start=start, stop=start + more, share=share), small, small, st.floats(0.01, 1)
    ),
)
factors = st.builds(lambda a, b: Trapezoid(warmup=a / 2, decay=b / 2), st.floats(0, 1), st.floats(0, 1))
rates = {
    "learning_rate": positive,
    "betas": st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
    "clip": st.none() | positive,
    "schedule": factors | counts,
}
optimizers = st.one_of(
    st.builds(Adam, **rates),
    st.builds(AdamW, weight_decay=positive, **rates),
    st.builds(Muon, muon_learning_rate=positive, **rates),
)
train_configs = st.builds(
    TrainConfig,
    steps=small,
    batch=small,
    points=small,
    window=st.just(1),
    depth=st.none() | counts,
    active_points=st.none() | counts,
    emphasis=st.floats(0, 10),
    pool=st.none() | small,
    optimizer=optimizers,
    average=st.none() | st.floats(0.01, 0.99),
    start=st.none() | st.text(max_size=20),
    seed=st.integers(-(2**63), 2**63 - 1),
)


def setup_of(d, noise, train, loops, name):
    parts = {
        "name": name,
        "task": LinearRegression(d=d, noise=noise),
        "model": DecoderConfig(d=d, width=16, heads=2, loops=loops),
    }
    return Setup(**parts) if train is None else Experiment(**parts, train=train)


names = st.text("abcXYZ09._-", min_size=1, max_size=12).filter(is_plain)
experiments = st.builds(setup_of, small, positive, st.none() | train_configs, small, names)


# the shape checker draws which number of a tuple it looks at
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@settings(max_examples=30, deadline=None, derandomize=True)
@given(experiments)
def test_every_config_survives_json(experiment):
    assert Setup.from_data(through_json(experiment.to_data())) == experiment


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.recursive(st.none() | st.booleans() | st.integers() | finite | st.text(), st.lists, max_leaves=8))
def test_values_that_are_not_a_config_are_refused_with_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        decode(data, Experiment)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", recipes())
def test_every_recipe_survives_json(name, scale):
    experiment = recipes()[name](scale)
    assert Experiment.from_data(through_json(experiment.to_data())) == experiment


def test_functions_and_nested_dataclasses_in_tuples_are_written_by_name():
    task = MixedProcess(parts=(Part(kernel=kernels.relu, scales=(1.0,) * 5), Part(kernel=kernels.linear)))
    data = through_json(encode(task))
    assert "kernel" not in data, "each part has its own"
    assert data["parts"][0]["kernel"] == "looped.functional.kernels:relu"
    assert decode(data, Task) == task
    assert name_of(LinearRegression) == "looped.tasks.regression:LinearRegression"
    assert name_of(own_kernel) == f"{__name__}:own_kernel"


def local_kernel():
    def local(queries, keys):
        return queries

    return local


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (math.nan, math.inf, {1, 2}, object(), {"a": 1}),
            "a config holds dataclasses, functions, numbers and strings",
        ),
        ((local_kernel(), lambda queries, keys: queries), "module-level names"),
    ],
)
def test_what_cannot_be_written_is_refused(values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            encode(value)


def test_an_unknown_field_in_a_file_is_told_the_nearest():
    data = through_json(yang24.linear("smoke").to_data())
    data["train"]["optimizer"]["betaz"] = [0.9, 0.99]
    with pytest.raises(ValueError, match=r"unknown field `train.optimizer.betaz`. Did you mean `betas`"):
        Experiment.from_data(data)
    assert nearest("zzz", ["beta", "alpha"]) == "Valid: alpha, beta.", "all where none is near"


def test_a_class_may_be_given_by_its_short_name():
    changed = override(yang24.linear("smoke"), ['train.optimizer={"type": "AdamW", "weight_decay": 0.5}'])
    assert changed.train.optimizer == AdamW(weight_decay=0.5)
    with pytest.raises(ValueError, match=r"`type` must be a name of the form `module:name`; got 'OwnTask'"):
        decode({"type": "OwnTask", "d": 3}, Task)  # loaded, but not handed over
    assert decode({"type": "OwnTask", "d": 3}, Task, code=code_of(OwnTask)) == OwnTask(d=3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.step=1", "unknown field `train.step`. Did you mean `steps`"),
        (
            "train.optimizer.learning_rat=1",
            "unknown field `train.optimizer.learning_rat`. Did you mean `learning_rate`",
        ),
        ("tsak.d=3", "unknown field `tsak.d`. Did you mean `task`"),
        ("model.widthh=3", "unknown field `model.widthh`. Did you mean `width`"),
        ("task.nosie=1", "unknown field `task.nosie`. Did you mean `noise`"),
        ("train.optimizer.weight_decay=0.5", "unknown field `train.optimizer.weight_decay`. Muon has none; AdamW has."),
        ("train.depth.every=3", "unknown field `train.depth.every`. RandomDepth has none; Staircase has."),
        ("train.steps=ten", "`train.steps` must be int; got 'ten'"),
        ("train.steps=1.5", "`train.steps` must be int; got 1.5"),
        ("train.steps=true", "`train.steps` must be int; got True"),
        ("train.steps=null", "`train.steps` must be int; got None"),
        ("task.noise=true", "`task.noise` must be float; got True"),
        ("task.noise=NaN", "`task.noise` must be finite"),
        ("task.noise=1e999", "`task.noise` must be finite"),
        ("task.noise=1" + "0" * 400, "`task.noise` must be float"),
        ("task.noise=" + "1" * 5000, "limit"),
        ("model.inside=1", "`model.inside` must be bool; got 1"),
        (
            "model.inject=ad",
            "`model.inject` must be one of 'add', 'multiply', 'none', 'scaled', 'gated', 'concat'; got 'ad'",
        ),
        ("train.optimizer.betas=0.9", "`train.optimizer.betas` must be a list; got 0.9"),
        ("train.optimizer.betas=[0.9]", "`train.optimizer.betas` must have 2 entries; got 1"),
        ('train.optimizer.betas=[0.9, "x"]', r"`train.optimizer.betas\[1\]` must be float; got 'x'"),
        ("train.optimizer=muon", "`train.optimizer` must be an object with the fields of OptimizerConfig"),
        ("task=7", "`task` must be an object with the fields of Task"),
        ("name=7", "`name` must be str; got 7"),
        ("train.depth.low=2.5", "`train.depth.low` must be int"),
        ("train.dims.low=2", "`train.dims` is None and has no fields"),
        ("train.steps.more=2", "`train.steps` is 20 and has no fields"),
        ("train.steps", "an override reads `field=value`; got `train.steps`"),
        ("=3", "an override reads `field=value`; got `=3`"),
    ],
)
def test_a_wrong_setting_says_where_and_what(setting, message):
    with pytest.raises(ValueError, match=message):
        override(yang24.linear("smoke"), [setting])


def test_a_field_whose_type_no_config_can_hold_is_named():
    with pytest.raises(ValueError, match=r"`numbers` is annotated list\[int\], which a config cannot hold"):
        override(Odd(), [])


HOSTILE = [
    "os:system",
    "builtins:eval",
    "builtins:dict",
    "subprocess:Popen",
    "torch:load",
    "looped.cli:os",
    "looped.config:importlib",
    "looped.config:importlib.import_module",
    "looped.config:encode.__globals__",
    "looped.config:json.loads",
    "looped.files:os.system",
    "looped.tasks.regression:Task",
    "looped.tasks.regression:torch",
    "looped.experiment:FORMAT",
    "looped.no_such_module:Thing",
    "looped.config:no_such_name",
    "looped.__main__:main",
    "looped.cli:main",
    "looped.cli.train:train",
    "looped.:encode",
    "looped..config:encode",
    "looped.config:",
    "looped.config:.",
    "loopedevil:Thing",
    ":system",
    "os",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["task", "model", "train.depth", "kernel"])
def test_a_hostile_name_is_refused(name, where):
    data = through_json(yang24.linear("smoke").to_data())
    if where == "kernel":
        data["task"] = {"type": "looped.tasks.gaussian_process:GaussianProcess", "kernel": name}
    elif where == "train.depth":
        data["train"]["depth"] = {"type": name}
    else:
        data[where] = {"type": name}
    with pytest.raises(ValueError, match=r"(task|model|train\.depth)\.(type|kernel)` (names|must)"):
        Experiment.from_data(data)


NOT_A_NAME = "`task.type` must be a name of the form `module:name`"
NO_TASKS = ["looped.experiment:Experiment", "looped.models.decoder:DecoderConfig", "looped.config:encode"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        *(({"type": name}, NOT_A_NAME) for name in (7, None, ["os:system"], {"type": "os:system"}, True)),
        *(({"type": name, "d": 3}, f"`task.type` must name a Task; got `{name}`") for name in NO_TASKS),
        ({"d": 3}, "`task` is incomplete: .*abstract"),
    ],
)
def test_a_type_that_names_no_task_is_refused(task, message):
    with pytest.raises(ValueError, match=message):
        decode({"task": task}, Experiment)


def test_the_users_own_code_is_resolved_only_when_handed_over():
    task = OwnTask(d=3, slope=2.0)
    data = through_json(encode(task))
    assert data["type"] == f"{__name__}:OwnTask"
    with pytest.raises(ValueError, match=r"names code outside looped, .*OwnTask.*--code FILE.py"):
        decode(data, Task)
    assert decode(data, Task, code=code_of(OwnTask)) == task
    assert decode(data, Task, code=code_of(sys.modules[__name__])) == task


def test_handing_over_one_thing_hands_over_no_other():
    data = encode(GaussianProcess(kernel=own_kernel))
    with pytest.raises(ValueError, match="`kernel` names code outside looped"):
        decode(data, Task, code=code_of(OwnTask))
    assert decode(data, Task, code=code_of(own_kernel)).kernel is own_kernel


def test_an_override_keeps_the_users_own_parts():
    assert override(OwnTask(d=3), ["slope=4"]) == OwnTask(d=3, slope=4.0)
    mixed = MixedProcess(parts=(Part(kernel=own_kernel),))
    assert override(mixed, ["rotation=null"]) == replace(mixed, rotation=None)


def test_several_overrides_act_at_once():
    base = yang24.linear("smoke")
    changed = override(base, ["task.d=4", "model.d=4", "train.window=3", "model.loops=3", "train.grad=3"])
    assert (changed.task.d, changed.model.loops, changed.train.window) == (4, 3, 3)
    for half in (["task.d=4"], ["model.d=4"]):
        with pytest.raises(ValueError, match=r"`task.d` and `model.d` must agree"):
            override(base, half)


def test_overrides_take_json_and_leave_the_original_alone():
    base = yang24.linear("smoke")
    before = base.to_data()
    changed = override(
        base,
        [
            "task.noise = 1",
            "train.depth=null",
            "train.optimizer.clip=None",
            "train.optimizer.betas=[0.5, 0.6]",
            "model.inside=False",
            'train.active_points={"type": "looped.functional.schedules:Ramp", "start": 1, "stop": 7, "share": 1}',
            'task={"type": "looped.tasks.regression:SparseRegression", "d": 3, "nonzero": 2}',
            "name=a.b-c",
        ],
    )
    assert changed.task == SparseRegression(d=3, nonzero=2)
    assert changed.train.depth is None
    assert changed.train.optimizer.clip is None
    assert changed.train.optimizer.betas == (0.5, 0.6)
    assert changed.model.inside is False
    assert changed.train.active_points == Ramp(start=1, stop=7, share=1.0)
    assert changed.name == "a.b-c"
    assert base.to_data() == before


def test_the_last_override_of_a_field_wins_and_types_can_be_swapped():
    base = yang24.linear("smoke")
    assert override(base, ["train.steps=3", "train.steps=4"]).train.steps == 4
    spare = ["task.type=looped.tasks.regression:SparseRegression", "task.d=3"]
    assert override(base, spare).task == SparseRegression(d=3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("-1e-3", -1e-3),
        ("true", True),
        ("True", True),
        ("None", None),
        ("null", None),
        ("none", "none"),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ('"3"', "3"),
        ("runs/some-run", "runs/some-run"),
        ("", ""),
    ],
)
def test_values_are_json_or_else_text(text, value):
    parsed = parse_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_a_newer_format_is_refused():
    data = {**yang24.linear("smoke").to_data(), "format": FORMAT + 1, "something_new": 1}
    with pytest.raises(ValueError, match=rf"newer looped \(format {FORMAT + 1}; this one reads up to {FORMAT}\)"):
        Experiment.from_data(data)


@pytest.mark.parametrize("data", [None, [], 7, "x", {}, {"format": "1"}, {"format": None}, {"task": {}}])
def test_what_is_not_a_config_is_refused(data):
    with pytest.raises(ValueError, match="not a looped config"):
        Experiment.from_data(data)


def test_missing_fields_take_defaults_and_those_without_one_are_named():
    data = through_json(yang24.linear("smoke").to_data())
    del data["train"]["batch"]
    assert Experiment.from_data(data).train.batch == TrainConfig().batch
    del data["model"]
    with pytest.raises(ValueError, match=r"incomplete: .*'model'"):
        Experiment.from_data(data)
    with pytest.raises(ValueError, match=r"`depth` is incomplete: .*'high'"):
        decode({"type": "looped.functional.schedules:RandomDepth", "low": 1}, Schedule, "depth")


def test_tuples_of_any_length_and_optional_functions_are_read():
    assert decode([1, 2, 3], tuple[int, ...]) == (1, 2, 3)
    assert decode(None, Callable[..., int] | None) is None
    assert decode("looped.functional.kernels:relu", Callable[..., int] | None) is kernels.relu
