"""Models of a user's own as runs: saved from a loop of one's own, resumed by the printed line, extended."""

import io
import re
import shlex
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from outside_model import Gated, GatedConfig, Waves, gated
from tiny import assert_same_run, metrics, stop_at, tiny
from torch import nn

import looped
from looped.config import code_places, load_code
from looped.experiment import training
from looped.functional.schedules import Ramp, Trapezoid
from looped.training.importer import import_checkpoint
from looped.training.stopping import Interrupted
from looped.training.trainer import train
from training.test_importer import HEADS, reference, some_prompt, tensors, written

CODE = [GatedConfig, Waves]
FALLING = replace(tiny("x").train.optimizer, schedule=Trapezoid(warmup=0.5, decay=0.5))


@pytest.fixture
def folder(tmp_path):
    """A folder for files of the user's own, whose modules are forgotten afterwards."""
    before = {*sys.modules}
    yield tmp_path
    sys.path[:] = [place for place in sys.path if not place.startswith(str(tmp_path))]
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def saved(path, **more):
    torch.manual_seed(3)
    model = GatedConfig(loops=3, noise=0.0).build()
    return model, looped.save(model, Waves(d=2), path, **more)


def test_a_saved_model_comes_back_with_its_weights(tmp_path, generator):
    model, run = saved(tmp_path / "by hand", points=5)
    assert run.setup.name == "by_hand"
    prompt = Waves(d=2).sample(batch=3, n=4, generator=generator)
    loaded = looped.load(run.path, code=CODE)
    assert isinstance(loaded, Gated)
    assert torch.equal(loaded.predict(prompt), model.eval().predict(prompt))


@pytest.mark.parametrize("command", [["evaluate", "--prompts", 8], ["diagnose", "--prompts", 16], ["report"]])
def test_commands_take_a_saved_model(folder, call, command):
    own = folder / "saved_own.py"
    own.write_text(Path(__file__).with_name("outside_model.py").read_text())
    module = load_code(own)
    looped.save(module.GatedConfig(loops=3).build(), module.Waves(d=2), folder / "runs" / "mine", points=5)
    name, *more = command
    place = folder / "runs" / "mine" if name != "report" else folder / "runs"
    more += ["--out", folder / "page.html"] if name == "report" else []
    code, _, error = call(name, place, *more, "--code", own)
    assert code == 0, error


def test_a_model_saved_again_replaces_the_one_before(tmp_path, generator):
    model, run = saved(tmp_path / "run")
    with torch.no_grad():
        model.strength.fill_(7.0)
    looped.save(model, Waves(d=2), run.path)
    assert looped.load(run.path, code=CODE).strength == 7.0


def test_a_compiled_model_is_saved_as_what_was_compiled(tmp_path):
    model, compiled = GatedConfig(loops=3).build(), nn.Module()
    compiled._orig_mod = model  # as in what torch.compile gives
    run = looped.save(compiled, Waves(d=2), tmp_path / "run")
    assert torch.equal(looped.load(run.path, code=CODE).read_in.weight, model.read_in.weight)


@pytest.mark.usefixtures("unchecked")
def test_what_no_command_could_take_is_not_saved(tmp_path):
    model = GatedConfig(loops=3).build()
    with pytest.raises(ValueError, match="`save` takes a `LoopedModel` and a `Task`; got Linear and Waves"):
        looped.save(nn.Linear(2, 2), Waves(d=2), tmp_path / "run")
    with pytest.raises(ValueError, match="`points` must be at least 1; got 0"):
        looped.save(model, Waves(d=2), tmp_path / "run", points=0)
    model.read_out = nn.Linear(8, 2)
    with pytest.raises(ValueError, match=r"do not fit what `model.config.build\(\)` makes: .*read_out"):
        looped.save(model, Waves(d=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    trained = train(training(gated(), steps=1), out=tmp_path)
    with pytest.raises(ValueError, match=r"holds another experiment\. Choose another folder"):
        looped.save(GatedConfig(loops=3).build(), Waves(d=2), trained.path)


def test_a_file_may_import_its_siblings(folder, call):
    own = Path(__file__).with_name("outside_model.py").read_text()
    (folder / "sibling_model.py").write_text(own)
    (folder / "sibling_recipe.py").write_text(
        "from sibling_model import gated\n\n\ndef recipe():\n    return gated()\n"
    )
    code, _, error = call("train", f"{folder / 'sibling_recipe.py'}:recipe", "--out", folder, "--set", "train.steps=1")
    assert code == 0, error


def test_the_printed_line_resumes_a_run_of_own_code(folder, call):
    """Typed in another process, which has not imported the file; its name has a space."""
    own = folder / "a folder" / "resumed_own.py"
    own.parent.mkdir()
    own.write_text(Path(__file__).with_name("outside_model.py").read_text())
    with pytest.raises(Interrupted) as stopped:
        train(load_code(own).gated(), out=folder, progress=stop_at(3))
    said = re.search(r"looped (train --resume .*)", str(stopped.value))[1]
    del sys.modules["resumed_own"]
    code, _, error = call(*shlex.split(said))
    assert code == 0, error


@pytest.mark.parametrize("more", [{}, {"optimizer": FALLING, "dims": Ramp(start=1, stop=2, share=1.0), "average": 0.9}])
def test_an_extended_run_is_a_longer_training_bit_for_bit(tmp_path, more):
    """Extended twice, against one training from the start under the config that says so."""
    base = training(gated(), steps=4, log_every=3, **more)
    if "dims" in more:
        base = replace(base, task=looped.LinearRegression(d=2))
    run = train(base, out=tmp_path / "parts")
    for steps in (7, 9):
        longer = run.extend(steps)
        run = train(longer.experiment, folder=longer.path)
    assert run.experiment.train.extended == (4, 7)
    assert [line["step"] for line in run.metrics()] == [3, 4, 6, 7, 9]
    assert_same_run(run, train(run.experiment, out=tmp_path / "whole"))
    assert run.path != train(training(base, steps=9), out=tmp_path / "parts").path
    assert run.provenance()["train_seconds"] > 0


def test_schedules_are_those_of_the_steps_at_that_time():
    train = replace(tiny("x", steps=8, optimizer=FALLING).train, extended=(4,))
    assert [train.value(FALLING.schedule, step) for step in range(8)] == [0.5, 1.0, 1.0, 0.5, 1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("extended", [(8,), (4, 4), (0,), (5, 3)])
def test_steps_before_an_extension_must_ascend(extended):
    with pytest.raises(ValueError, match="`extended` holds fewer steps than steps=8, ascending"):
        replace(tiny("x", steps=8).train, extended=extended)


def test_resume_with_more_steps_extends(tmp_path, call):
    run = train(tiny("short", steps=3), out=tmp_path)
    extend = ["train", "--resume", run.path, "--set"]
    for setting, message in [
        ("train.steps=3", f"`train.steps` must be above the 3 that {run.path} has; got 3."),
        ("train.batch=4", "a resumed run keeps its config but for train.steps; got train.batch=4."),
    ]:
        assert call(*extend, setting)[::2] == (2, f"looped: {message}\n")
    code, out, _ = call(*extend, "train.steps=5")
    assert code == 0
    assert "after 5 steps" in out
    (longer,) = (path for path in tmp_path.glob("short-*") if path != run.path)
    before = metrics(looped.Run.open(longer))
    assert call(*extend, "train.steps=5")[0] == 0  # finished: nothing is trained
    assert metrics(looped.Run.open(longer)) == before
    assert looped.Run.open(run.path).latest().step == 3


def test_an_unfinished_run_is_finished_before_it_is_extended(tmp_path):
    with pytest.raises(Interrupted):
        train(tiny("cut", steps=6), out=tmp_path, progress=stop_at(3))
    with pytest.raises(ValueError, match=r"is not finished: its last checkpoint is of step 3\. Finish it, then extend"):
        looped.Run.open(next(tmp_path.glob("cut-*"))).extend(9)


def test_a_compiled_checkpoint_and_injection_by_multiplication_are_imported(tmp_path):
    state, prompt = tensors(), some_prompt()
    compiled = {f"_orig_mod.{name}": value for name, value in state.items()}
    file = written(tmp_path, {"model": compiled})
    run, said = import_checkpoint(file, tmp_path / "run", heads=HEADS, loops=4, inject="multiply")
    wanted = reference(state, "yang24").looped(prompt.xs.numpy(), prompt.ys.numpy(), 4, "multiply")[-1]
    torch.testing.assert_close(run.model().predict(prompt).numpy(), wanted, rtol=1e-9, atol=1e-10)
    assert "injection multiply" in said
    with pytest.raises(ValueError, match="holds weights twice"):
        import_checkpoint(written(tmp_path, {**state, **compiled}), tmp_path / "other", heads=HEADS)


def test_a_notebook_shows_progress_and_a_script_does_not(tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    looped.train(tiny("x", steps=3), out=tmp_path / "script")
    assert screen.getvalue() == ""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    looped.train(tiny("x", steps=3), out=tmp_path / "notebook")
    last = screen.getvalue().splitlines()[-1]
    assert re.fullmatch(r"x: 3 of 3 steps, loss [\d.]+, error [\d.]+ *", last)


def test_the_top_level_has_what_looks_at_models():
    assert callable(looped.diagnose)
    assert callable(looped.identify)
    assert callable(looped.evaluate)


def test_a_class_of_a_notebook_has_no_file_to_hand_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.setattr(GatedConfig, "__module__", "__main__")
    assert code_places(GatedConfig(loops=3)) == {}
