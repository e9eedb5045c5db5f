"""Kept models: made whole or not at all, found by name, used in place of training; those we keep are as recorded."""

import itertools
import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny

import looped
from looped.cli.listing import _claims as claims_in
from looped.cli.listing import model_line
from looped.constructions.ready import READY
from looped.evaluation.curves import evaluate
from looped.experiment import hash_of, training
from looped.files import read_json, read_tensors, write_json, write_tensors
from looped.keeping import MAX_BYTES, MAX_LINES, _thinned, check, keep, read_record, summary
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.reproduce import reproduce, studies
from looped.tasks.sequences import AutoRegression
from looped.training import grid, kept
from looped.training.grid import train_grid
from looped.training.run import Checkpoint, Run, digest, save_model
from looped.training.trainer import train

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "results" / "models"
TINY = tiny(
    "tiny.linear",
    loops=3,
    positions=12,
    steps=6,
    batch=4,
    points=5,
    window=2,
    grad=2,
    average=0.5,
    log_every=2,
    checkpoint_every=3,
)
FEW = {"points": 5, "prompts": 16}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(TINY, out=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """A folder of kept models with one in it; tests that change it take a copy."""
    return keep(run, out=tmp_path_factory.mktemp("models"), **FEW).parent


@pytest.fixture
def store(made, tmp_path, monkeypatch):
    folder = shutil.copytree(made, tmp_path / "models")
    monkeypatch.setattr(kept, "store", lambda: folder)
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    return folder


def files(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


# what is kept


def test_a_kept_model_is_a_small_run_folder_with_the_weights_that_are_judged(run, made):
    path = made / "tiny.linear"
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    rest = {"config.json", "metrics.jsonl", "provenance.json", "kept.json"}
    assert names == rest | {"checkpoints/step-00000006.safetensors"}
    opened, average = Run.open(path), run.latest().part("average")
    assert opened.experiment == TINY
    assert opened.provenance() == run.provenance()
    assert opened.metrics() == run.metrics()
    tensors, about = read_tensors(path / "checkpoints" / "step-00000006.safetensors")
    assert tensors.keys() == {f"model/{name}" for name in average}
    assert all(torch.equal(tensors[f"model/{name}"], value) for name, value in average.items())
    assert (about["step"], about["finished"], about["experiment"]) == (6, True, TINY.hash)
    assert opened.kept
    assert not run.kept
    prompt = TINY.task.sample(batch=3, n=5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(opened.model()(prompt), run.model()(prompt))


def test_the_numbers_are_those_of_an_evaluation(run, made):
    found = read_record(made / "tiny.linear")
    for loops in (3, 6):
        curve = evaluate(run.model(), TINY.task, loops=loops, seed=1, baselines={}, **FEW).by_examples[0]
        assert found["by_examples"][str(loops)] == {key: getattr(curve, key) for key in ("x", "mean", "low", "high")}
    by_loops = found["by_loops"]
    assert by_loops["x"] == [1, 2, 3, 4, 5, 6]
    assert [by_loops["mean"][loops - 1] for loops in (3, 6)] == [found["by_examples"][b]["mean"][-1] for b in "36"]
    triple = [by_loops[key] for key in ("low", "mean", "high")]
    assert all(low <= mean <= high for low, mean, high in zip(*triple, strict=True))
    assert (found["trained_loops"], found["parameters"]) == (3, run.model().num_parameters)
    assert (found["prompts"], found["seed"], found["points"], found["level"]) == (16, 1, 5, 0.9)
    assert found["provenance"]["seconds"] >= 0


def test_the_check_is_of_prompts_drawn_on_the_cpu_at_three_places(run, made):
    found = read_record(made / "tiny.linear")["check"]
    assert (found["prompts"], found["loops"], found["x"]) == (32, 3, [1, 2, 4])
    prompt = TINY.task.sample(batch=32, n=5, generator=torch.Generator().manual_seed(found["seed"]))
    with torch.no_grad():
        errors = TINY.task.error(run.model()(prompt)[-1], prompt).double().mean(0)
    torch.testing.assert_close(torch.tensor(found["mean"]).double(), errors[[1, 2, 4]], rtol=1e-5, atol=0)
    assert check(run.model(), TINY.task, points=5) == found


def test_loops_can_go_further_and_an_unlooped_model_has_one_curve(run, tmp_path):
    found = read_record(keep(run, name="far", out=tmp_path, loops=8, **FEW))
    assert (list(found["by_examples"]), found["by_loops"]["x"]) == (["3", "6"], list(range(1, 9)))
    near = read_record(keep(run, name="near", out=tmp_path, loops=4, **FEW))
    assert near["by_loops"] == {key: values[:4] for key, values in found["by_loops"].items()}
    model = replace(TINY.model, layers=2, loops=1).build()
    layers = save_model(tmp_path / "run", model, TINY.task, name="layers", points=5)
    found = read_record(keep(layers, out=tmp_path, **FEW))
    assert (list(found["by_examples"]), found["by_loops"]["x"]) == (["1"], [1])


def test_weights_of_float64_are_kept_and_judged_as_they_are(tmp_path):
    newton = save_model(tmp_path / "run", READY["gao24.thm4.1"](2, 8, 20).model, TINY.task, name="newton", points=9)
    made = keep(newton, out=tmp_path, points=9, prompts=16)
    same, weights = Run.open(made).latest().part("model"), newton.latest().part("model")
    assert {one.dtype for one in weights.values()} == {torch.float64}
    assert all(torch.equal(same[name], value) for name, value in weights.items())
    found = read_record(made)
    assert max(found["by_loops"]["mean"][-1], found["check"]["mean"][-1]) < 1e-12
    assert check(looped.load(made), TINY.task, points=9) == found["check"]


@pytest.mark.parametrize("rounding", ["float16", "bfloat16"])
def test_weights_can_be_rounded_to_half_the_size_and_are_loaded_as_float32(run, tmp_path, rounding):
    path = keep(run, out=tmp_path, rounding=rounding, **FEW)
    stored, model = Run.open(path).latest().part("model"), looped.load(path)
    exact = run.latest().part("average")
    assert {value.dtype for value in stored.values()} == {getattr(torch, rounding)}
    assert all(torch.equal(stored[name], value.to(getattr(torch, rounding))) for name, value in exact.items())
    assert all(torch.equal(value, stored[name].float()) for name, value in model.state_dict().items())
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert Run.open(path).provenance() == {**run.provenance(), "rounded_to": rounding}
    assert check(model, TINY.task, points=5) == read_record(path)["check"]
    again = Run.open(keep(Run.open(path), out=tmp_path, again=True, **FEW))
    assert all(torch.equal(value, stored[name]) for name, value in again.latest().part("model").items())
    assert again.provenance()["rounded_to"] == rounding
    assert f"rounded to {rounding}" in model_line(summary(path))


def test_rounding_that_costs_accuracy_is_refused(tmp_path):
    """Exact Newton steps end at an error of rounding, which bfloat16 raises by far more than its interval."""
    newton = save_model(tmp_path / "run", READY["gao24.thm4.1"](2, 8, 20).model, TINY.task, name="newton", points=9)
    with pytest.raises(ValueError, match=r"rounded, the model has an error of .* Keep it without rounding\."):
        keep(newton, out=tmp_path / "models", points=9, prompts=16, rounding="bfloat16")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_of_sequences_is_kept_too(tmp_path):
    part = Part(heads=2)
    model = AlgoFormerConfig(
        d=2, outputs=2, tokens="given", width=8, positions=8, loops=2, pre=part, loop=part, post=part, inject="add"
    ).build()
    task = AutoRegression(d=2, order=2)
    run = save_model(tmp_path / "run", model, task, name="series", points=6)
    found = read_record(keep(run, out=tmp_path / "models", points=6, prompts=8))
    assert found["check"]["x"][-1] == found["by_examples"]["2"]["x"][-1]
    assert check(Run.open(tmp_path / "models" / "series").model(), task, points=6) == found["check"]


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1200])
def test_metrics_are_thinned_evenly_and_end_with_the_last_line(count):
    lines = [f"{index}\n".encode() for index in range(count)]
    left = _thinned(b"".join(lines) + b"torn").splitlines(keepends=True)
    assert len(left) == min(count, MAX_LINES)
    assert left[-1:] == lines[-1:]
    assert left == sorted(set(left), key=int)
    gaps = {int(b) - int(a) for a, b in itertools.pairwise(left)}
    assert not gaps or max(gaps) - min(gaps) <= 1


# refused, and nothing half made


def test_an_unfinished_run_is_refused(run, tmp_path):
    part = shutil.copytree(run.path, tmp_path / "part")
    (part / "checkpoints" / "step-00000006.safetensors").unlink()
    with pytest.raises(ValueError, match=r"part has stopped at step 3: only a finished run is kept\. Go on with"):
        keep(Run.open(part), out=tmp_path / "models", **FEW)
    shutil.rmtree(part / "checkpoints")
    with pytest.raises(ValueError, match="part has no checkpoint: only a finished run is kept"):
        keep(Run.open(part), out=tmp_path / "models", **FEW)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "/", "../x", "a/b", ".hidden", "a b", "x\0", "é/"])
def test_a_name_that_leads_elsewhere_is_refused(run, tmp_path, name):
    with pytest.raises(ValueError, match="a kept model's name has letters, digits"):
        keep(run, name=name, out=tmp_path / "models", **FEW)
    assert not (tmp_path / "models").exists()


def test_weights_that_are_too_large_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("looped.keeping.MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"the weights in .* take 0\.0 MB; a kept file has at most 0 MB"):
        keep(run, out=tmp_path / "models", **FEW)
    assert not (tmp_path / "models").exists()


def test_a_training_of_unknown_origin_is_refused(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "provenance.json").unlink()
    with pytest.raises(ValueError, match=r"provenance\.json lacks the command of the training"):
        keep(Run.open(copy), out=tmp_path / "models", **FEW)


def test_what_goes_wrong_leaves_what_was_there(run, store):
    before = files(store)
    with pytest.raises(ValueError, match=r"tiny\.linear already exists.*`--again`"):
        keep(run, out=store, **FEW)
    for wrong in ({"prompts": 1}, {"points": 50}, {"loops": 2}, {"loops": 10**9}):
        with pytest.raises(ValueError, match=r"prompts|examples|loops"):
            keep(run, out=store, again=True, **{**FEW, **wrong})

    def stop(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(run, out=store, again=True, progress=stop, **FEW)
    assert files(store) == before
    assert [path.name for path in store.iterdir()] == ["tiny.linear"]  # no half-made folder beside it


def test_a_rename_that_fails_puts_the_old_one_back(run, store, monkeypatch):
    before, rename = files(store), kept.os.rename

    def fail(old, new):
        if str(old).endswith(".tmp"):
            raise OSError("no")
        rename(old, new)

    monkeypatch.setattr("looped.keeping.os.rename", fail)
    with pytest.raises(OSError, match="no"):
        keep(run, out=store, again=True, **FEW)
    assert files(store) == before


def test_again_replaces_a_kept_model_and_nothing_else(run, store, tmp_path):
    keep(run, out=store, again=True, points=5, prompts=8)
    assert read_record(store / "tiny.linear")["prompts"] == 8
    assert [path.name for path in store.iterdir()] == ["tiny.linear"]
    keep(Run.open("tiny.linear"), out=store, again=True, **FEW)  # a kept one can be recorded anew
    assert read_record(store / "tiny.linear")["prompts"] == 16
    mine = shutil.copytree(run.path, tmp_path / "runs" / "mine")
    with pytest.raises(ValueError, match="mine is not a kept model, so it is not replaced"):
        keep(run, name="mine", out=mine.parent, again=True, **FEW)
    assert (mine / "lock").exists()


def test_a_model_that_diverges_is_not_kept(tmp_path):
    model = replace(TINY.model, loops=2).build()
    bad = {f"model/{name}": torch.full_like(value, 1e30) for name, value in model.state_dict().items()}
    run = save_model(tmp_path / "run", model, TINY.task, name="bad", points=5)
    run.save(Checkpoint(0, True, bad))
    with pytest.raises(ValueError, match="errors are not finite after its 2 loops"):
        keep(run, out=tmp_path / "models", **FEW)
    assert list((tmp_path / "models").iterdir()) == []


# found by name


def test_a_name_loads_the_kept_model_and_a_path_that_exists_wins(run, store, tmp_path, monkeypatch):
    assert kept.kept_models() == {"tiny.linear": store / "tiny.linear"}
    assert kept.locate("tiny.linear") == store / "tiny.linear"
    prompt = TINY.task.sample(batch=3, n=5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(looped.load("tiny.linear")(prompt), run.model()(prompt))
    assert torch.equal(looped.load("tiny.linear", best=True)(prompt), run.model()(prompt))
    monkeypatch.chdir(tmp_path)
    other = train(replace(TINY, train=replace(TINY.train, seed=7)), folder="tiny.linear")
    assert Run.open("tiny.linear").experiment == other.experiment
    shutil.rmtree("tiny.linear")
    Path("tiny.linear").mkdir()
    with pytest.raises(ValueError, match=r"tiny\.linear is not a run folder: it has no config\.json\..* first\.$"):
        Run.open("tiny.linear")


@pytest.mark.parametrize("name", ["tiny.linea", "nothing like it", "/nowhere", "x" * 5000, "a\0b"])
def test_a_wrong_name_says_which_there_are(store, name):
    with pytest.raises(ValueError, match=r"is not a run folder.*or name a kept model\. .*`?tiny\.linear"):
        Run.open(name)


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_path_that_leads_elsewhere_is_no_name(store, name, monkeypatch):
    monkeypatch.chdir(store / "tiny.linear" / "checkpoints" if name != ".." else store / "tiny.linear")
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.json\. .* first\.$"):
        Run.open(name)


def test_without_a_store_the_error_is_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "store", lambda: tmp_path / "none")
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    assert kept.kept_models() == {}
    with pytest.raises(ValueError, match=r"nowhere is not a run folder: it has no config\.json\. .* first\.$"):
        Run.open("nowhere")


def test_only_whole_folders_with_plain_names_count(store):
    shutil.copytree(store / "tiny.linear", store / ".tiny.linear.1234.tmp")
    shutil.copytree(store / "tiny.linear", store / "two words")
    shutil.copytree(store / "tiny.linear", store / "part")
    (store / "part" / "kept.json").unlink()
    (store / "README.md").write_text("")
    assert list(kept.kept_models()) == ["tiny.linear"]


def test_a_run_that_holds_somebodys_printed_evaluation_stays_a_run(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    for text in ("", "{", '{"check": {}}'):  # an empty one is there while `looped evaluate RUN --json` still works
        (copy / "evaluation.json").write_text(text)
        assert not Run.open(copy).kept


def test_models_of_this_folder_come_before_those_of_the_library(store, tmp_path, monkeypatch):
    here = tmp_path / "here"
    shutil.copytree(store / "tiny.linear", here / "tiny.linear")
    shutil.copytree(store / "tiny.linear", here / "mine")
    monkeypatch.setattr(kept, "LOCAL", here)
    assert kept.kept_models() == {"mine": here / "mine", "tiny.linear": here / "tiny.linear"}


def test_another_experiment_is_not_replaced_unless_it_is_named(run, store):
    config = store / "tiny.linear" / "config.json"
    write_json(config, {**read_json(config), "name": "other"})
    with pytest.raises(ValueError, match=r"of another experiment. Give `--name tiny\.linear`"):
        keep(run, points=5, out=store, again=True, prompts=4, check_prompts=4)
    keep(run, points=5, out=store, name="tiny.linear", again=True, prompts=4, check_prompts=4)
    assert read_json(config)["name"] == "tiny.linear"


def test_what_a_kill_left_is_put_away(run, store):
    shutil.copytree(store / "tiny.linear", store / ".tiny.linear.12ab.tmp")
    os.rename(store / "tiny.linear", store / ".tiny.linear.34cd.old")
    keep(run, points=5, out=store, name="tiny.linear", again=True, prompts=4, check_prompts=4)
    assert [path.name for path in store.iterdir()] == ["tiny.linear"]


def test_weights_of_another_config_stand_for_no_run(store, tmp_path):
    config = store / "tiny.linear" / "config.json"
    data = read_json(config)
    data["train"]["seed"] = 5
    write_json(config, data)
    [run] = train_grid([training(TINY, seed=5)], out=tmp_path / "runs")
    assert run.path.parent == tmp_path / "runs"


@pytest.mark.parametrize("damage", [[], {}, {"check": {}}, "parameters", "by_loops", "provenance", "check"])
def test_a_damaged_record_is_one_line(store, damage):
    file = store / "tiny.linear" / "kept.json"
    data = read_json(file)
    write_json(file, {**data, damage: None} if isinstance(damage, str) else damage)
    with pytest.raises(ValueError, match=r"kept\.json is damaged or of another version"):
        summary(store / "tiny.linear")


# used


def test_training_starts_from_a_kept_model_but_does_not_go_on_in_it(run, store, tmp_path):
    before = files(store)
    started = train(replace(TINY, train=replace(TINY.train, start="tiny.linear", steps=1, average=None)), out=tmp_path)
    first = train(replace(TINY, train=replace(TINY.train, start=str(run.path), steps=1, average=None)), out=tmp_path)
    for name, value in started.latest().part("model").items():
        assert torch.equal(value, first.latest().part("model")[name]), name
    # the name alone does not say which weights it meant, the record does
    assert started.provenance()["start"] == first.provenance()["start"] == digest(run.model().state_dict())
    assert "start" not in run.provenance()
    with pytest.raises(ValueError, match=r"there is no run folder nowhere.*or name a kept model\. Valid: tiny\.linear"):
        train(replace(TINY, train=replace(TINY.train, start="nowhere")), out=tmp_path)
    train(TINY, folder=store / "tiny.linear")  # it is finished: nothing is to be done
    assert files(store) == before
    (store / "tiny.linear" / "checkpoints" / "step-00000006.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"kept without its optimiser.*train\.start=tiny\.linear"):
        train(TINY, folder=store / "tiny.linear")


def test_a_kept_model_stands_for_its_run_and_only_other_seeds_are_trained(run, store, tmp_path):
    before, messages = files(store), []
    [stored] = train_grid([TINY], out=tmp_path / "runs", progress=lambda *message: messages.append(message))
    assert stored.path == store / "tiny.linear"
    assert not (tmp_path / "runs").exists()
    assert messages == [("all are kept models", 1.0)]
    both = train_grid([training(TINY, seed=1), TINY], out=tmp_path / "runs")
    assert [run.path.parent for run in both] == [tmp_path / "runs", store]
    assert [run.experiment.train.seed for run in both] == [1, 0]
    assert both[0].latest().finished
    assert files(store) == before


def test_the_best_weights_are_kept_as_such_and_stand_for_no_training(store, tmp_path):
    often = replace(TINY, train=replace(TINY.train, seed=3, checkpoint_every=2, keep_checkpoints=3, average=None))
    run = train(often, out=tmp_path / "runs")
    lines = [{**line, "loss": 0.0 if line["step"] == 4 else line["loss"]} for line in run.metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = Run.open(keep(run, name="best", best=True, out=store, **FEW))
    assert (made.steps, made.provenance()["weights_of_step"]) == ([4], 4)
    assert "weights of step 4" in model_line(summary(made.path))
    for name, value in run.model(best=True).state_dict().items():
        assert torch.equal(made.model().state_dict()[name], value)
    assert any(
        not torch.equal(value, run.model().state_dict()[name]) for name, value in made.model().named_parameters()
    )
    assert Run.open(keep(made, name="copy", out=store, **FEW)).provenance()["weights_of_step"] == 4
    # the whole training is another thing: it is trained
    assert train_grid([often], out=tmp_path / "others")[0].path.parent == tmp_path / "others"
    last = Run.open(keep(run, name="last", out=store, **FEW))
    assert (last.steps, "weights_of_step" in last.provenance()) == ([6], False)
    assert train_grid([often], out=tmp_path / "none")[0].path == store / "last"


def test_a_figure_is_drawn_from_kept_models_alone(tmp_path, monkeypatch):
    study = studies()["yang24.fig2"]
    measured = reproduce(study, "smoke", out=tmp_path / "first", runs=tmp_path / "runs")
    for path in (tmp_path / "runs").glob("*/config.json"):
        opened = Run.open(path.parent)
        keep(opened, out=tmp_path / "models", points=opened.experiment.train.points, prompts=8)
    monkeypatch.setattr(kept, "store", lambda: tmp_path / "models")
    monkeypatch.setattr(kept, "LOCAL", tmp_path / "nowhere")
    again = reproduce(study, "smoke", out=tmp_path / "second", runs=tmp_path / "none")
    assert again.measured
    assert again.table.to_data() == measured.table.to_data()
    assert [path.name for path in (tmp_path / "none").iterdir()] == ["readings"]  # nothing was trained


def test_a_finished_run_comes_before_a_kept_model(run, store):
    [found] = train_grid([TINY], out=run.path.parent)
    assert found.path == run.path


def test_a_kept_model_of_an_older_config_still_counts(store, tmp_path):
    """A field that has come since has its default there."""
    file = store / "tiny.linear" / "config.json"
    data = read_json(file)
    del data["train"]["pool"]
    write_json(file, data)
    [weights] = (store / "tiny.linear" / "checkpoints").iterdir()
    tensors, about = read_tensors(weights)
    write_tensors(weights, tensors, {**about, "experiment": hash_of(data)})
    [found] = train_grid([TINY], out=tmp_path)
    assert found.path == store / "tiny.linear"
    assert found.experiment == TINY


def test_a_kept_model_of_foreign_code_stands_for_nothing(store, tmp_path):
    file = store / "tiny.linear" / "config.json"
    data = read_json(file)
    data["task"]["type"] = "somewhere:Else"
    write_json(file, data)
    assert grid.kept_by_hash({TINY.hash}) == {}


# where they lie


def test_the_store_is_in_the_checkout_or_in_the_package(tmp_path):
    assert kept.store() == STORE
    assert kept.own_results() == ROOT / "results"
    installed = tmp_path / "site-packages" / "looped"
    assert kept.store(installed) == installed / "kept"
    assert kept.own_results(installed) is None
    assert kept.results_with_claims(installed) == installed / "results"
    assert kept.results_with_claims() == kept.own_results()
    vendored = tmp_path / "src" / "looped"  # sources without the repository around them
    assert kept.store(vendored) == vendored / "kept"


def test_a_wheel_carries_the_store_and_the_verdicts(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    path = Path(*WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(path) as packed:
        names = {name for name in packed.namelist() if name.startswith("looped/kept/")}
        packed.extractall(tmp_path, [name for name in packed.namelist() if name.startswith("looped/results/")])
    files = {file.relative_to(STORE).as_posix() for file in STORE.rglob("*") if file.is_file()}
    large = {name for name in files if name.startswith("gao24.") and name.endswith(".safetensors")}
    assert names == {f"looped/kept/{name}" for name in files - large}
    assert "looped/kept/README.md" in names  # git keeps no empty folder, and the build needs it
    packaged = kept.results_with_claims(tmp_path / "looped")
    assert claims_in([packaged]) == claims_in([ROOT / "results"])
    assert path.stat().st_size < 20_000_000


def test_a_model_whose_weights_a_wheel_lacks_says_where_they_are(store):
    shutil.rmtree(store / "tiny.linear" / "checkpoints")
    assert "weights in looped's repository" in model_line(summary(store / "tiny.linear"))
    with pytest.raises(ValueError, match=r"tiny\.linear are too large for the installed package\. They are in"):
        looped.load("tiny.linear")


# those that come with looped


def test_every_kept_model_is_whole_and_results_stay_small():
    folders = [path for path in STORE.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == set(kept.kept_models())
    for path in folders:
        run = Run.open(path)
        assert run.latest().finished == ("weights_of_step" not in run.provenance()), path
        assert {key.partition("/")[0] for key in run.latest().tensors} == {"model"}, path
        origin = run.provenance()
        assert all(origin[key] for key in ("command", "commit", "device")), path
        assert origin["train_seconds"] >= 0, path
        found = read_record(path)
        assert all(found["provenance"][key] for key in ("command", "commit", "device")), path
        assert "+" not in origin["commit"] + found["provenance"]["commit"], path  # sources that somebody can find again
        assert (found["trained_loops"], found["task"]) == (run.experiment.model.loops, repr(run.experiment.task)), path
    sizes = {path: path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 50_000_000  # what travels to a GPU machine is limited
    assert [path for path, size in sizes.items() if size > MAX_BYTES] == []


@pytest.mark.parametrize("name", list(kept.kept_models()))
def test_kept_models_are_as_read_record(name):
    """The same prompts on any machine, so only rounding differs."""
    run, was = Run.open(STORE / name), read_record(STORE / name)["check"]
    options = {key: was[key] for key in ("points", "prompts", "seed")}
    now = check(run.model(), run.experiment.task, **options)
    assert (now["x"], now["loops"]) == (was["x"], was["loops"])
    for mean, before, low, high in zip(now["mean"], was["mean"], was["low"], was["high"], strict=True):
        assert low <= mean <= high
        assert mean == pytest.approx(before, rel=0.02)


def test_a_model_that_is_not_as_recorded_is_noticed(store):
    """What the test above would say, were the weights not those that were judged."""
    path = store / "tiny.linear"
    run, was = Run.open(path), read_record(path)["check"]
    weights = {key: 1.1 * value for key, value in run.latest().tensors.items()}
    run.save(Checkpoint(6, True, weights))
    now = check(run.model(), TINY.task, points=5)
    assert now["mean"] != pytest.approx(was["mean"], rel=0.02)
    assert json.loads((path / "config.json").read_text()) == TINY.to_data()
