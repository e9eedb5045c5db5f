"""Configs of format 1, which the version before wrote, train the same here."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped.experiment import Adam, AdamW, Experiment, Muon, Setup, TrainConfig, hash_of
from looped.files import read_json, read_tensors, write_json, write_tensors
from looped.functional.schedules import RandomDepth, Staircase
from looped.models.decoder import DecoderConfig
from looped.recipes import experiment
from looped.tasks.regression import LinearRegression
from looped.training import kept
from looped.training.run import Run, checkpoint_path, read_checkpoint, save_model
from looped.training.trainer import train
from looped.upgrade import upgrade

ROOT = Path(__file__).parents[1]
RECORDED = json.loads((Path(__file__).parent / "data" / "format_1.json").read_text())
"""The loops of every recipe at some steps, and some configs with their hashes, as the version before had them."""
TINY = Experiment(
    name="tiny",
    task=LinearRegression(d=2),
    model=DecoderConfig(d=2, width=8, heads=2, loops=3, positions=8),
    train=TrainConfig(
        steps=6, batch=2, points=3, depth=RandomDepth(low=-2, high=1), optimizer=Muon(clip=1.0), checkpoint_every=3
    ),
)


def carry_over():
    spec = importlib.util.spec_from_file_location("carry_over", ROOT / "tools" / "carry_over.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_format_1(given: Setup):
    """What the version before wrote for a tiny experiment, or a setup."""
    data = json.loads(json.dumps(given.to_data()))
    if type(given) is Setup:
        return data | {"format": 1, "type": "looped.experiment:Experiment", "train": None}
    loops, depth = given.model.loops, data["train"]["depth"]
    data["train"]["depth"] = depth and depth | {"low": depth["low"] + loops, "high": depth["high"] + loops}
    data["train"]["optimizer"] |= {"type": "looped.experiment:OptimizerConfig", "kind": "muon", "weight_decay": 0.0}
    return data | {"format": 1}


def make_old(path: Path, given: Setup) -> str:
    """Turn a run folder into one of the version before; its hash then."""
    data = as_format_1(given)
    write_json(path / "config.json", data)
    for file in (path / "checkpoints").iterdir():
        tensors, about = read_tensors(file)
        write_tensors(file, tensors, about | {"experiment": hash_of(data)})
    return hash_of(data)


def half_trained(out: Path) -> Run:
    """Three of six steps of `TINY`, as if the process had been killed then."""
    run = train(TINY, out=out)
    checkpoint_path(run.path, 6).unlink()
    return run


@pytest.mark.parametrize("name", RECORDED["loops"])
def test_every_recipe_trains_with_the_loops_it_had(name):
    recipe = experiment(*name.split("/"))
    assert {step: recipe.loops_at(int(step)) for step in RECORDED["loops"][name]} == RECORDED["loops"][name]


@pytest.mark.parametrize("name", RECORDED["configs"])
def test_a_recorded_config_is_todays_recipe(name):
    recorded = RECORDED["configs"][name]
    assert hash_of(recorded["config"]) == recorded["hash"]
    assert Experiment.from_data(recorded["config"]) == experiment(*name.split("/"))


def test_an_upgrade_drops_what_an_optimiser_never_read():
    old = {"kind": "muon", "learning_rate": 0.5, "muon_learning_rate": 0.25, "weight_decay": 0.5}
    kinds = {"muon": Muon(learning_rate=0.5, muon_learning_rate=0.25), "adam": Adam(learning_rate=0.5),
             "adamw": AdamW(learning_rate=0.5, weight_decay=0.5)}  # fmt: skip
    for kind, expected in kinds.items():
        data = as_format_1(TINY)
        data["train"]["optimizer"] = {"type": "looped.experiment:OptimizerConfig", **old, "kind": kind}
        assert Experiment.from_data(data).train.optimizer == expected


def test_an_upgrade_makes_depth_relative():
    assert Experiment.from_data(as_format_1(TINY)) == TINY
    data = as_format_1(TINY)
    absolute = {"start": 1, "stop": 3, "by": 1, "every": 2}
    data["train"]["depth"] = {"type": "looped.functional.schedules:Staircase"} | absolute
    assert Experiment.from_data(data).train.depth == Staircase(start=-2, stop=0, by=1, every=2)
    data["train"]["depth"] = {"type": "mine:Depth"}
    with pytest.raises(ValueError, match=r"`mine:Depth`, and its loops cannot be made relative .*\"format\": 2"):
        Experiment.from_data(data)


@pytest.mark.parametrize("damage", [{"train": 3}, {"model": 3}, {"train": {"optimizer": {"kind": [1]}, "depth": 4}}])
def test_a_damaged_config_is_refused_as_it_ever_was(damage):
    with pytest.raises(ValueError, match=r"`(train|model)[\w.]*`"):
        Experiment.from_data(as_format_1(TINY) | damage)
    assert upgrade({"format": 1, **damage})["format"] == 2


def test_a_run_of_the_version_before_goes_on_where_it_stopped(tmp_path):
    whole = train(TINY, out=tmp_path / "whole")
    run = half_trained(tmp_path / "old")
    make_old(run.path, TINY)
    again = Run.open(run.path)
    assert again.experiment == TINY
    train(again.experiment, folder=run.path)
    for name, value in whole.latest().tensors.items():
        assert torch.equal(again.latest().tensors[name], value), name


@pytest.mark.parametrize("carried", [False, True])
def test_a_config_that_was_changed_by_hand_is_still_noticed(tmp_path, carried):
    run = half_trained(tmp_path)
    make_old(run.path, TINY)
    if carried:
        carry_over().main([str(run.path)])
    file = (tmp_path / TINY.folder if carried else run.path) / "config.json"
    data = read_json(file)
    data["train"]["seed"] = 7
    write_json(file, data)
    changed = Run.open(file.parent)
    with pytest.raises(ValueError, match="was written under another"):
        changed.check(read_checkpoint(changed.path, 3))


def test_carrying_over_renames_runs_and_what_refers_to_them(tmp_path, capsys):
    first = half_trained(tmp_path)
    earlier = f"tiny-{make_old(first.path, TINY)}"
    first.path.rename(tmp_path / earlier)
    second = replace(TINY, name="second", train=replace(TINY.train, start=earlier))
    old_second = tmp_path / f"second-{hash_of(as_format_1(second))}"
    old_second.mkdir()
    write_json(old_second / "config.json", as_format_1(second))
    sweep = tmp_path / "sweeps" / "tiny" / "sweep.json"
    sweep.parent.mkdir(parents=True)
    write_json(sweep, {"format": 1, "command": "", "points": [{"run": earlier, "steps": 6, "fields": {}}]})

    assert carry_over().main([str(old_second), str(tmp_path / earlier)]) == 0
    assert f"{tmp_path / earlier} -> {TINY.folder}" in capsys.readouterr().out
    run = Run.open(tmp_path / TINY.folder)
    assert read_json(sweep)["points"][0]["run"] == TINY.folder
    followed = replace(second, train=replace(second.train, start=TINY.folder))
    assert Run.open(tmp_path / followed.folder).experiment == followed
    run.check(read_checkpoint(run.path, 3))
    assert train(TINY, out=tmp_path).latest().finished
    assert carry_over().main([str(run.path)]) == 0  # nothing is left to do
    assert capsys.readouterr().out == ""


def test_weights_without_training_are_carried_over_too(tmp_path, caplog):
    run = save_model(tmp_path / "built", TINY.model.build(), TINY.task, name="built")
    make_old(run.path, run.setup)
    assert carry_over().main([str(run.path)]) == 0
    again = Run.open(run.path)
    assert type(again.setup) is Setup
    again.model()
    assert not caplog.records


def test_a_name_that_is_taken_is_one_line(tmp_path, capsys):
    run = half_trained(tmp_path)
    earlier = tmp_path / f"tiny-{make_old(run.path, TINY)}"
    run.path.rename(earlier)
    (tmp_path / TINY.folder).mkdir()
    assert carry_over().main([str(earlier)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(kept.kept_models()))
def test_kept_models_are_of_todays_format(name, caplog):
    run = Run.open(name)
    data = read_json(run.path / "config.json")
    assert {key: data[key] for key in data if key != "carried_over"} == run.setup.to_data()
    run.model()
    assert not caplog.records
