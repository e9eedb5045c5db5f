"""A task, a model and a recipe in a file outside the library train, resume and evaluate like ours."""

import importlib.util
import json
import signal
import sys
from dataclasses import dataclass, replace

import pytest
import torch

import looped
from looped.recipes import load_code

OWN = '''
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from looped import Experiment, LinearRegression, LoopedModel, ModelConfig, Muon, Prompt, Task, TrainConfig
from looped.models.blocks import Block, Linear


@dataclass(frozen=True, kw_only=True)
class Cubic(Task):
    """y = (w'x)^3."""

    label_variance = 15.0 * 8

    def sample(self, *, batch, n, generator, dims=None):
        xs = torch.randn(batch, n, self.d, generator=generator, device=generator.device)
        w = torch.randn(batch, self.d, generator=generator, device=generator.device)
        return Prompt(xs, torch.einsum("bnd,bd->bn", xs, w) ** 3)


@dataclass(frozen=True, kw_only=True)
class Small(ModelConfig):
    """One block over the pairs, each shifted by one, so that no x sees its own y."""

    width: int = 8

    def build(self):
        return SmallModel(self)


class Context(NamedTuple):
    tokens: Tensor


class SmallModel(LoopedModel):
    def __init__(self, config):
        super().__init__(config)
        self.read_in = Linear(3, config.width)
        self.block = Block(config.width, heads=2)
        self.read_out = Linear(config.width, 1)

    def embed(self, prompt):
        before = torch.nn.functional.pad(prompt.ys, (1, 0))[..., :-1, None]
        return Context(self.read_in(torch.cat((prompt.xs, before), dim=-1)))

    def start(self, context):
        return torch.zeros_like(context.tokens)

    def step(self, state, context, t):
        return self.block(state + context.tokens)

    def readout(self, state, context):
        return self.read_out(state).squeeze(-1)


def tiny() -> Experiment:
    """A recipe."""
    train = TrainConfig(
        steps=8, batch=4, points=4, log_every=3, optimizer=Muon(learning_rate=0.01)
    )
    return Experiment(name="own", task=Cubic(d=2), model=Small(loops=2), train=train)


def not_an_experiment():
    return 7
'''


@pytest.fixture
def own(tmp_path, request):
    """The user's file, under a name that no other test has imported."""
    stem = f"own_{abs(hash(request.node.nodeid))}"
    file = tmp_path / f"{stem}.py"
    file.write_text(OWN)
    yield file
    sys.modules.pop(stem, None)


def forget(file):
    """As in a new process: the file is not imported."""
    sys.modules.pop(file.stem, None)


def test_it_trains_resumes_and_evaluates(own, call, tmp_path):
    recipe = f"{own}:tiny"
    code, whole, _ = call("train", recipe, "--out", tmp_path / "whole", "--json")
    assert code == 0
    whole = looped.Run.open(json.loads(whole)["run"], looped.code_of(load_code(own)))

    experiment = load_code(own).tiny()
    with pytest.raises(Exception, match="stopped at step 4"):
        looped.train(
            experiment,
            out=tmp_path / "parts",
            progress=lambda done, line: signal.raise_signal(signal.SIGINT) if done == 3 else None,
        )
    folder = tmp_path / "parts" / whole.path.name
    forget(own)
    code, _, error = call("train", "--resume", folder)
    assert code == 2
    assert "names code outside looped" in error
    assert "--code FILE.py" in error
    code, _, _ = call("train", "--resume", folder, "--code", own, "--quiet")
    assert code == 0
    resumed = looped.Run.open(folder, looped.code_of(load_code(own)))
    for name, value in whole.latest().tensors.items():
        assert torch.equal(value, resumed.latest().tensors[name])
    assert (folder / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()

    forget(own)
    code, _, error = call("evaluate", folder, "--prompts", 8)
    assert (code, len(error.splitlines())) == (2, 1)
    code, out, _ = call("evaluate", folder, "--code", own, "--prompts", 8, "--json")
    assert code == 0
    assert json.loads(out)["task"] == "Cubic(d=2)"
    code, out, _ = call("report", tmp_path / "parts", "--code", own, "--out", tmp_path / "page.html", "--json")
    assert code == 0
    assert json.loads(out)["runs"] == [str(folder)]


def test_the_next_command_gets_the_file_too(own, call, tmp_path):
    code, _, error = call("train", f"{own}:tiny", "--out", tmp_path / "runs")
    assert code == 0
    said = " ".join(error.split()).partition("Next: looped ")[2].split()
    assert (said[0], said[2:]) == ("evaluate", ["--code", str(own)])
    forget(own)
    code, _, error = call(*said, "--prompts", 8)
    assert code == 0
    assert error.split()[-5:] == ["looped", "report", said[1], "--code", str(own)]
    _, _, error = call("train", "yang24.linear", "--scale", "smoke", "--set", "train.steps=1", "--out", tmp_path)
    assert "--code" not in error


def test_its_fields_can_be_set(own, call, tmp_path):
    code, out, _ = call("train", f"{own}:tiny", "--set", "model.width=4", "--seed", 3, "--out", tmp_path, "--json")
    assert code == 0
    experiment = looped.Run.open(json.loads(out)["run"], looped.code_of(load_code(own))).experiment
    assert (experiment.model.width, experiment.train.seed) == (4, 3)


def test_a_run_of_ours_is_judged_on_a_task_of_theirs(own, call, tmp_path):
    smoke = ["--scale", "smoke", "--set", "train.steps=2", "--set", "task.d=2", "--set", "model.d=2"]
    _, out, _ = call("train", "yang24.linear", *smoke, "--out", tmp_path, "--json")
    run = json.loads(out)["run"]
    code, out, _ = call("evaluate", run, "--task", f"{own}:tiny", "--prompts", 8, "--json")
    assert code == 0
    assert json.loads(out)["task"] == "Cubic(d=2)"


@pytest.mark.parametrize(
    ("ending", "options", "message"),
    [
        (":nothing", [], "which is no such function"),
        ("", [], "a recipe of your own reads `file.py:function`"),
        (":not_an_experiment", [], "must give an `Experiment`; got int"),
        (":tiny", ["--scale", "smoke"], "comes in one scale only"),
    ],
)
def test_a_recipe_or_scale_that_is_none_is_refused(own, call, ending, options, message):
    code, out, error = call("train", f"{own}{ending}", *options)
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert message in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken_own.py", "def f(:", "cannot be imported: SyntaxError"),
        ("raising_own.py", "raise RuntimeError('two\\nlines')", "cannot be imported: RuntimeError: two lines"),
        ("json.py", "", "is named like the module `json`; rename the file"),
        ("looped.py", "", "is named like the module `looped`; rename the file"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(call, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    code, _, error = call("train", f"{tmp_path / name}:recipe")
    assert (code, len(error.splitlines())) == (2, 1)
    assert message in error
    assert name.removesuffix(".py") in ("json", "looped") or name.removesuffix(".py") not in sys.modules


def test_no_file_is_one_line(call, tmp_path):
    code, _, error = call("train", f"{tmp_path / 'none.py'}:recipe")
    assert code == 2
    assert error == f"looped: {tmp_path / 'none.py'} is not a file.\n"


# the README's six lines


@dataclass(frozen=True, kw_only=True)
class Sine(looped.LinearRegression):
    """y = sin(w'x)."""

    label_variance = 0.5

    def sample(self, **sizes):
        prompt = super().sample(**sizes)
        return replace(prompt, ys=prompt.ys.sin())


def sine():
    train = looped.TrainConfig(steps=3, batch=4, points=4)
    model = looped.DecoderConfig(d=2, width=8, heads=2, loops=2, positions=8)
    return looped.Experiment(name="sine", task=Sine(d=2), model=model, train=train)


def test_a_run_of_a_script_is_loaded_with_the_code_that_defines_it(tmp_path, generator):
    run = looped.train(sine(), out=tmp_path)
    data = json.loads((run.path / "config.json").read_text())
    assert data["task"]["type"] == f"{__name__}:Sine"
    with pytest.raises(ValueError, match="names code outside looped"):
        looped.load(run.path)
    prompt = sine().task.sample(batch=3, n=4, generator=generator)
    for code in ([Sine], [sys.modules[__name__]]):
        model = looped.load(run.path, code=code)
        assert model.predict(prompt, loops=5).shape == (3, 4)
    result = looped.evaluate(model, sine().task, points=4, prompts=8)
    assert result.by_examples[0].x == [0, 1, 2, 3]


def test_a_scripts_own_things_are_named_after_its_file(tmp_path, monkeypatch):
    """`python my_script.py` trains under `my_script:...`, so that `--code my_script.py` finds it later."""
    script = tmp_path / "my_own_script.py"
    script.write_text(OWN)
    spec = importlib.util.spec_from_file_location("__main__", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "__main__", module)
    spec.loader.exec_module(module)
    run = looped.train(module.tiny(), out=tmp_path)
    assert json.loads((run.path / "config.json").read_text())["task"]["type"] == "my_own_script:Cubic"
    try:
        assert type(looped.load(run.path, code=[load_code(script)])).__name__ == "SmallModel"
    finally:
        sys.modules.pop("my_own_script", None)


def test_the_loop_can_be_the_users_own(generator):
    """Your own optimiser loop: model(prompt, loops=...), task.error, states and unroll are plain and public."""
    experiment = sine()
    model = experiment.model.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prompt = experiment.task.sample(batch=4, n=4, generator=generator)
    loss = experiment.task.error(model(prompt, loops=3, keep=2), prompt).mean()
    loss.backward()
    optimizer.step()
    states = model.states(prompt, 3)
    context = model.embed(prompt)
    unrolled = looped.unroll(model.step, model.start(context), context, loops=3, collect=model.readout)
    torch.testing.assert_close(model.readout(states[-1], context), unrolled[-1])
