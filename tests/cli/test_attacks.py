"""Hostile and careless input found by hand: one line, exit 1 or 2, and nothing written that was not there before."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

import looped.__main__
from looped.cli import main
from looped.cli.failures import explained
from looped.cli.output import Pace
from looped.config import decode
from looped.constructions.ready import READY
from looped.files import digest, locked, log, read_tensors
from looped.models.patterns import ScorePattern
from looped.training.stopping import stop_signals

SMOKE = ("yang24.linear", "--scale", "smoke", "--set", "train.steps=4", "--set", "train.checkpoint_every=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with checkpoints of steps 2 and 4; tests take a copy."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.raises(SystemExit) as ended:
        main(["train", *SMOKE, "--device", "cpu", "--out", str(out), "--quiet"])
    assert ended.value.code == 0
    (folder,) = out.iterdir()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def evaluate(run):
    return "evaluate", run, "--prompts", 8, "--device", "cpu"


def resume(run):
    return "train", "--resume", run, "--device", "cpu"


def rewrite(run, change, step=4, **facts):
    """Change a checkpoint's tensors and facts, with a right checksum; later checkpoints go."""
    for file in sorted((run / "checkpoints").iterdir()):
        if int(file.stem.partition("-")[2]) > step:
            file.unlink()
    tensors, about = read_tensors(run / "checkpoints" / f"step-{step:08d}.safetensors")
    text = json.dumps({**about, **facts})
    tensors = {name: value for name, tensor in tensors.items() if (value := change(name, tensor)) is not None}
    whole = save(tensors, metadata={"looped": f"{digest(tensors, text)} {text}"})
    (run / "checkpoints" / f"step-{step:08d}.safetensors").write_bytes(whole)


def weights(change):
    return lambda name, tensor: change(tensor) if name.startswith("model/blocks") else tensor


def edit(file, **fields):
    """Change the training fields of a config."""
    data = json.loads(file.read_text())
    data["train"] |= fields
    file.write_text(json.dumps(data))


# wrong answers taken as right

SPOILED = {
    "nan": lambda tensor: tensor * torch.nan,
    "inf": lambda tensor: tensor + torch.inf,
    "int8": lambda tensor: tensor.to(torch.int8),
    "bool": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_weights_that_are_not_finite_floats_are_refused_wherever_they_are_read(kind, run, refused, tmp_path):
    rewrite(run, weights(SPOILED[kind]), step=2)
    said = "not finite" if kind in ("nan", "inf") else f"as torch.{kind}"
    start = ("train", *SMOKE, "--device", "cpu", "--start", run, "--out", tmp_path / "new")
    for command in (evaluate(run), resume(run), start):
        error = refused(*command)
        assert said in error
        assert "step-00000002.safetensors holds" in error
    assert not (run / "evaluations").exists()


def test_half_precision_weights_are_still_weights(run, call):
    rewrite(run, weights(lambda tensor: tensor.half()))
    assert call(*evaluate(run), "--quiet")[0] == 0


def test_training_goes_on_only_with_its_whole_optimiser(run, refused):
    rewrite(run, lambda name, tensor: None if name.startswith("optimizer/") else tensor, step=2)
    assert "it has no 'optimizer'" in refused(*resume(run))


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("optimizer/norm.bias/exp_avg", lambda tensor: None),
        ("optimizer/norm.bias/", lambda tensor: None),
        ("optimizer/norm.bias/exp_avg", lambda tensor: tensor[:-1]),
        ("optimizer/blocks.0.mlp.fc.weight/momentum", lambda tensor: tensor[:-1]),
    ],
)
def test_training_goes_on_only_with_all_of_a_weights_optimiser(part, change, run, refused):
    rewrite(run, lambda name, tensor: change(tensor) if name.startswith(part) else tensor, step=2)
    error = refused(*resume(run))
    assert "does not fit its config" in error
    assert part.removesuffix("/") in error


@pytest.mark.parametrize("fields", [{"steps": 10**9}, {"start": "../../../etc"}])
def test_a_finished_run_is_not_that_of_another_config(fields, run, refused):
    edit(run / "config.json", **fields)
    assert "was written under another" in refused(*resume(run))


def test_a_run_starts_from_a_run_beside_it_and_from_no_other(run, refused, call):
    edit(run / "config.json", start="../elsewhere/run")
    shutil.rmtree(run / "checkpoints")
    elsewhere = shutil.copytree(run, run.parent.parent / "elsewhere" / "run")
    try:
        assert "there is no run folder ../elsewhere/run" in refused(*resume(run))
    finally:
        shutil.rmtree(elsewhere.parent)


def test_what_is_read_under_an_edited_config_says_so(run, call, caplog):
    data = json.loads((run / "config.json").read_text())
    data["task"]["noise"] = 1.0
    (run / "config.json").write_text(json.dumps(data))
    code, out, _ = call(*evaluate(run), "--json")
    assert (code, json.loads(out)["name"]) == (0, "edited config, 8 prompts")
    assert "config.json is not the one its weights were trained under" in caplog.text


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64, 10**40])
def test_a_training_seed_has_64_bits(seed, refused, tmp_path):
    error = refused("train", *SMOKE, "--seed", seed, "--out", tmp_path / "new")
    assert error == f"looped: `seed` must be at least -2^63 and below 2^63; got {seed}.\n"


@pytest.mark.parametrize(("seed", "same"), [(-1, 2**32 - 1), (2**32, 0), (2**63, 0)])
def test_two_seeds_of_prompts_are_never_the_same_prompts(seed, same, run, refused):
    drawn = [torch.rand(3, generator=torch.Generator().manual_seed(number)) for number in (seed, same)]
    assert torch.equal(*drawn), "torch's generator reads 32 bits"
    assert f"`seed` must be in [0, 4,294,967,295]; got {seed}." in refused(*evaluate(run), "--seed", seed)


@pytest.mark.parametrize("seed", [2**64, 10**40])
@pytest.mark.parametrize("command", ["evaluate", "identify", "diagnose", "keep", "compare"])
def test_a_seed_that_torch_cannot_hold_is_refused_by_all_that_draw_prompts(command, seed, run, refused, tmp_path):
    twin = shutil.copytree(run, tmp_path / "twin")
    more = {"keep": ("--out", tmp_path / "models"), "compare": (twin,)}.get(command, ())
    error = refused(command, run, *more, "--prompts", 8, "--device", "cpu", "--seed", seed)
    assert f"`seed` must be in [0, 4,294,967,295]; got {seed}." in error


# data that is no data

DEEP = '{"a": ' * 900 + "1" + "}" * 900
LONG = "1" + "0" * 400


@pytest.mark.parametrize("text", [DEEP, "[" * 900 + "]" * 900, "[" * 100_000, LONG, "1" * 5000])
@pytest.mark.parametrize("name", ["config.json", "provenance.json", "metrics.jsonl"])
def test_json_that_is_too_deep_or_too_long_is_damage_to_its_file(name, text, run, refused):
    line = (
        f'{{"step": 4, "loss": {text}, "error": 1.0}}\n' if name == "metrics.jsonl" else f'{{"format": 2, "x": {text}}}'
    )
    (run / name).write_text(line)
    error = refused("report", run, "--out", run.parent / "page.html")
    assert str(run / name) in error
    assert any(reason in error for reason in ("nested more than 100 deep", "a whole number of"))
    assert not (run.parent / "page.html").exists()
    if name == "config.json":
        assert str(run / name) in refused(*evaluate(run))


def test_a_date_in_a_sweeps_file_is_no_value(refused, tmp_path):
    (tmp_path / "sweep.toml").write_text(
        'recipe = "yang24.linear"\nscale = "smoke"\n[grid]\n"train.seed" = [2020-01-01]\n'
    )
    error = refused("sweep", "--file", tmp_path / "sweep.toml", "--list", "--out", tmp_path / "runs")
    assert "sweep.toml holds a date or a time" in error


@pytest.mark.parametrize(
    "shift",
    [
        *("scaled-x:factor=1e300", "scaled-x:factor=1e30", "scaled-x:factor=1e-300", "scaled-labels:factor=1e30"),
        *("noisy:std=1e300", "covariance:centre=1e30"),
    ],
)
def test_a_shift_out_of_the_range_of_floats_is_refused(shift, run, refused):
    assert "must be between 1e-06 and 1e+06; got 1e" in refused(*evaluate(run), "--shift", shift)


@pytest.mark.parametrize("kind", ["sparse", "compressed", "nested", "meta", "eight bits"])
def test_only_dense_floats_with_numbers_are_imported(kind, refused, tmp_path):
    change = {
        "sparse": torch.Tensor.to_sparse,
        "compressed": torch.Tensor.to_sparse_csr,
        "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
        "meta": lambda tensor: tensor.to("meta"),
        "eight bits": lambda tensor: tensor.to(torch.float8_e4m3fn),
    }[kind]
    with warnings.catch_warnings():  # torch warns that these kinds are young
        warnings.simplefilter("ignore")
        torch.save({"_read_in.weight": change(torch.ones(4, 3))}, tmp_path / "state.pt")
        error = refused("import", tmp_path / "state.pt", "--out", tmp_path / "in", "--heads", 2)
    assert "state.pt holds" in error
    assert "_read_in.weight" in error
    assert not (tmp_path / "in").exists()


# escapes and markup

UGLY = "[/nope] [bold]x[/] :smile: \x1b[31mred\x07 \x9b2J \u202etxt"
SAFE = "[/nope] [bold]x[/] :smile: \\x1b[31mred\\x07 \\x9b2J \\u202etxt"


def test_what_a_user_names_is_printed_as_it_is_but_for_what_steers_a_terminal(run, call):
    code, out, error = call(*evaluate(run), "--name", UGLY)
    assert code == 0
    assert SAFE in " ".join(out.split())
    assert not any(letter in out + error for letter in "\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    "words",
    [
        ("train", UGLY),
        ("list", UGLY),
        ("evaluate", UGLY),
        ("construct", UGLY),
        ("train", "yang24.linear", "--set", UGLY),
        ("sweep", "yang24.linear", f"{UGLY}=1"),
        ("sweep", "--file", f"{UGLY}.toml"),
        ("report", UGLY),
        ("import", UGLY, "--heads", "2", "--out", "nowhere"),
        ("list", f"--{UGLY}"),
    ],
)
def test_a_refusal_quotes_what_it_got_without_control_characters(words, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = refused(*words)
    assert "\\x1b[31mred" in error
    assert not any(letter in error for letter in "\x1b\x07\x9b\u202e")
    assert not list(tmp_path.iterdir())


def test_names_in_files_are_printed_without_control_characters(refused, tmp_path):
    torch.save({"_read_in.weight": torch.ones(4, 3), UGLY: torch.ones(1).long()}, tmp_path / "state.pt")
    (tmp_path / "sweep.toml").write_text('recipe = "yang24.linear"\nscale = "smoke"\n[grid]\n"a\\u001b[31m" = [1]\n')
    for command in (
        ("import", tmp_path / "state.pt", "--out", tmp_path / "in", "--heads", 2),
        ("sweep", "--file", tmp_path / "sweep.toml", "--list"),
    ):
        error = refused(*command)
        assert "\x1b" not in error
        assert "\\x1b[31m" in error


@pytest.mark.parametrize("part", ["name", "task", "model", "train"])
def test_names_in_a_config_are_printed_without_control_characters(part, run, refused):
    data = json.loads((run / "config.json").read_text())
    (data if part == "name" else data[part])[UGLY if part != "name" else "name"] = UGLY
    (run / "config.json").write_text(json.dumps(data))
    for command in (evaluate(run), resume(run), ("report", run, "--out", run.parent / "page.html")):
        error = refused(*command)
        assert "\\x1b[31mred" in error
        assert not any(letter in error for letter in "\x1b\x07\x9b\u202e")


def test_a_warning_in_the_log_has_no_control_characters(caplog):
    log.warning("%s is damaged", UGLY)
    assert caplog.messages == [f"{SAFE} is damaged"]


# the user's own code

OWN = """
from dataclasses import dataclass
import torch
from torch import nn
from looped import DecoderConfig, Experiment, Prompt, TrainConfig
from looped.models.base import LoopedModel, ModelConfig
from looped.tasks.task import Task

@dataclass(frozen=True, kw_only=True)
class Fine(Task):
    d: int = 2
    @property
    def label_variance(self):
        return 1.0
    def sample(self, *, batch, n, generator, dims=None):
        xs = torch.randn(batch, n, 2, generator=generator)
        return Prompt(xs, xs.sum(-1))

@dataclass(frozen=True, kw_only=True)
class Bad(Fine):
    BODY

class Unread(LoopedModel):
    pass

@dataclass(frozen=True, kw_only=True)
class UnreadConfig(ModelConfig):
    d: int = 2
    def build(self):
        return Unread(self)

def bad():
    model = DecoderConfig(d=2, width=8, heads=2, positions=16, loops=2)
    return Experiment(name="own", task=Bad(), model=model, train=TrainConfig(steps=1, batch=4, points=5))

def unread():
    return Experiment(name="own", task=Fine(), model=UnreadConfig(), train=TrainConfig(steps=1))

def late():
    return {}["no such key"]
"""
SAMPLE = "def sample(self, *, batch, n, generator, dims=None):"
VARIANCE = "label_variance = property(lambda self: VALUE)"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{SAMPLE} return torch.ones(4, 5, 2), torch.ones(4, 5)", "while looped used `Bad` (PLACE, line 19)"),
        (
            f"{SAMPLE} return Fine.sample(self, batch=4, n=n + 1, generator=generator)",
            "pairs, the query included; got 4",
        ),
        (f"{SAMPLE} return Fine.sample(self, batch=1, n=n, generator=generator)", "Bad must give 4 prompts of 5 pairs"),
        (f"{SAMPLE} raise SystemExit(3)", "PLACE, line 21: SystemExit: 3."),
        (f"{SAMPLE} pass", "while looped used `Bad` (PLACE, line 19)"),
        (f"{SAMPLE} return {{}}['key']", "PLACE, line 21: KeyError: 'key'. `--debug` shows the trace."),
        (f"{SAMPLE} return self.sample(batch=1, n=1, generator=None)", "PLACE, line 21: RecursionError"),
        (f"{SAMPLE} raise ValueError('two\\nlines')", "PLACE, line 21: ValueError: two lines."),
        (f"{SAMPLE} return Prompt(torch.ones(4, 5, 2).int(), torch.ones(4, 5))", "holds floats"),
        ("def sample(self, *, batch, n, generator): pass", "unexpected keyword argument 'dims'. That came while"),
        (VARIANCE.replace("VALUE", "'1'"), "'Tensor' and 'str'. That came while looped used `Bad` (PLACE, line 19)"),
        (VARIANCE.replace("VALUE", "float('nan')"), "`label_variance` of Bad must be a number above 0; got nan."),
        (f"{SAMPLE} return Prompt(torch.ones(4, 5, 2), torch.ones(4, 5) * torch.nan)", "`ys` of a prompt must be"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_error_in_a_users_own_task_names_the_file_and_the_line(body, reason, call, tmp_path):
    file = tmp_path / f"{tmp_path.name}.py"  # a name of its own: modules stay
    file.write_text(OWN.replace("BODY", body))
    code, out, error = call("train", f"{file}:bad", "--device", "cpu", "--out", tmp_path / "runs", "--quiet")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert reason.replace("PLACE", str(file)) in error
    assert not (tmp_path / "runs").exists()


def test_an_error_in_a_users_own_model_or_recipe_names_the_file_and_the_line(refused, tmp_path):
    file = tmp_path / "broken_model.py"
    file.write_text(OWN.replace("BODY", "pass"))
    error = refused("train", f"{file}:unread", "--device", "cpu", "--out", tmp_path / "runs")
    assert f"{file}, line 30: TypeError: Can't instantiate abstract class Unread" in error
    assert "readout" in error
    error = refused("train", f"{file}:late", "--out", tmp_path / "runs")
    assert error.endswith(f"gives no experiment: KeyError: 'no such key'. ({file}, line 40)\n")


OWN_THINGS = """
from looped.tasks.shifts import Shift

class Moved(Shift):
    pass

def nothing(*given):
    pass

def ends(*given):
    raise SystemExit(3)
"""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("command", "option", "name", "reason"),
    [
        ("evaluate", "--baseline", "nothing", "AttributeError: 'NoneType' object has no attribute 'shape'. That came"),
        ("identify", "--algorithm", "nothing", "while looped used `nothing` (PLACE, line 7)"),
        ("evaluate", "--baseline", "ends", "PLACE, line 11: SystemExit: 3."),
        ("evaluate", "--shift", "Moved", "Can't instantiate abstract class Moved"),
    ],
)
def test_an_error_that_an_own_baseline_algorithm_or_shift_causes_names_it(
    command, option, name, reason, run, refused, tmp_path
):
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(OWN_THINGS)
    error = refused(command, run, "--prompts", 8, "--device", "cpu", option, f"{file}:{name}")
    assert reason.replace("PLACE", str(file)) in error


@pytest.mark.usefixtures("unchecked")
def test_a_model_that_answers_a_vector_is_not_judged_as_if_it_answered_pairs():
    model = READY["chen24.thm4.2"](3, 6, 4).model
    with pytest.raises(ValueError, match="this one gives 3 numbers"):
        looped.evaluate(model, looped.LinearRegression(d=3), points=7, prompts=8)


def test_a_class_that_only_others_are_made_of_is_no_part_of_a_config():
    with pytest.raises(ValueError, match="`scores` is incomplete: Can't instantiate abstract class ScorePattern"):
        decode({}, ScorePattern, "scores")


def test_debug_shows_the_trace_before_the_line(call, tmp_path):
    file = tmp_path / "own_trace.py"
    file.write_text(OWN.replace("BODY", "pass"))
    code, out, error = call("train", f"{file}:late", "--debug")
    assert (code, out) == (2, "")
    assert error.startswith("Traceback (most recent call last)")
    assert error.splitlines()[-1].startswith("looped: ")
    assert call("--debug", "list", "nothing")[2].endswith(
        "Valid: " + call("list", "nothing")[2].partition("Valid: ")[2]
    )


def test_an_error_of_looped_itself_keeps_its_trace(monkeypatch):
    monkeypatch.setattr("looped.cli._application", lambda functions: {}.__getitem__)  # takes no options
    with pytest.raises(TypeError, match="no keyword arguments"):
        main(["list"])


# what would never end

TYPOS = {
    "layers": ("train", *SMOKE, "--set", "model.layers=20000"),
    "more layers": ("train", *SMOKE, "--set", "model.layers=100000"),
    "loops": ("train", *SMOKE, "--set", "model.loops=1000000"),
    "seeds": ("train", *SMOKE, "--seeds", "9999"),
    "diagnose": ("diagnose", "RUN", "--loops", "1000000000"),
    "starts": ("diagnose", "RUN", "--starts", "1000000"),
    "identify": ("identify", "RUN", "--max-steps", "1000000"),
    "identified loops": ("identify", "RUN", "--loops", "10000"),
    "points": ("diagnose", "RUN", "--points", "10000000"),
    "judged points": ("evaluate", "RUN", "--points", "1000000000000"),
    "prompts": ("evaluate", "RUN", "--prompts", "10000000"),
    "diagnosed prompts": ("diagnose", "RUN", "--prompts", "1000000"),
    "identified prompts": ("identify", "RUN", "--prompts", "1000000"),
    "late loops": ("evaluate", "RUN", "--max-loops", "1000000"),
    "construct": ("construct", "gao24.thm4.1", "--loops", "1000000"),
    "examples": ("construct", "gao24.thm4.1", "--examples", "1000000"),
}


@pytest.mark.parametrize("name", TYPOS)
def test_sizes_that_nobody_can_want_are_refused_at_once(name, run, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    error = refused(*(str(run) if word == "RUN" else word for word in TYPOS[name]))
    assert "at most 1" in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_comparison_has_no_more_prompts_than_other_readings(run, refused, tmp_path):
    twin = shutil.copytree(run, tmp_path / "twin")
    error = refused("compare", run, twin, "--device", "cpu", "--prompts", 10**7)
    assert error == "looped: `prompts` must be at most 100,000; got 10000000.\n"


@pytest.mark.parametrize("command", [evaluate, resume, lambda run: ("report", run, "--out", run.parent / "page.html")])
def test_a_config_of_a_thousand_million_layers_is_refused_by_all_that_read_it(command, run, refused):
    data = json.loads((run / "config.json").read_text())
    data["model"]["layers"] = 10**9
    (run / "config.json").write_text(json.dumps(data))
    assert "`layers` must be at most 1,000; got 1000000000." in refused(*command(run))


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "provenance.json", "evaluations/01-x.json"])
def test_only_files_are_read_from_a_run_folder(name, kind, run, refused):
    put(run / name, kind)
    assert f"{run / name} is a pipe or a device" in refused("report", run, "--out", run.parent / "page.html")
    if name != "evaluations/01-x.json":
        assert "is a pipe or a device" in refused(*resume(run))


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "provenance.json", "evaluations/01-x.json"])
def test_a_pipe_or_a_device_in_a_run_folder_does_not_stop_an_evaluation(name, kind, run, call):
    put(run / name, kind)
    code, out, _ = call(*evaluate(run), "--name", "y")
    assert (code, "by loops at k=6" in out) == (0, True)


def put(file, kind):
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", [evaluate, lambda run: ("report", run, "--out", run.parent / "page.html")])
def test_a_pipe_or_a_device_in_place_of_a_checkpoint_is_a_damaged_checkpoint(command, kind, run, call, caplog):
    put(run / "checkpoints" / "step-00000004.safetensors", kind)
    assert call(*command(run), "--quiet")[0] == 0
    if command is evaluate:
        assert "step-00000004.safetensors is damaged; the checkpoint before it, of step 2, is used." in caplog.text


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="only Linux says how much memory is available")
def test_memory_is_bounded_by_what_the_machine_has(call, refused, monkeypatch, tmp_path):
    bounds = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("resource.getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: bounds.append((kind, *limits)))
    assert call("list", "shifts", "--quiet")[0] == 0
    ((kind, soft, hard),) = bounds
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (kind, hard) == (resource.RLIMIT_DATA, resource.RLIM_INFINITY)
    assert 0.01 * machine < soft <= machine
    # what torch says beyond that bound is one line
    words = (*SMOKE, "--set", "train.batch=1000000000000000", "--device", "cpu", "--out", tmp_path / "runs")
    assert "a step of 1,000,000,000,000,000 prompts of 7 pairs would take" in refused("train", *words)
    reason, code = explained(RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory"))
    assert (reason[:42], code) == ("that needs more memory than there is. Ask ", 2)


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("model.width=4096", "weights would take 15 GB of memory"),
        ("train.batch=1000000", "a step of 1,000,000 prompts of 7 pairs would take"),
        ("train.points=90000", "a step of 8 prompts of 90,000 pairs would take"),
    ],
)
def test_what_the_machine_has_no_memory_for_is_refused_before_it_is_built(field, what, refused, monkeypatch, tmp_path):
    monkeypatch.setattr("looped.functional.memory.available", lambda: 10**9)
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: None)  # or the rest of the tests gets 1 GB too
    words = (*SMOKE, "--set", "train.batch=8", "--set", "model.positions=180000", "--set", field)
    error = refused("train", *words, "--device", "cpu", "--out", tmp_path / "runs")
    assert what in error
    assert "and 1 GB are free." in error
    assert not (tmp_path / "runs").exists()


class Clock:
    """Every look at it takes a second."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1
        return self.now


def test_a_work_that_would_take_absurdly_long_is_asked_about(run, refused, call, monkeypatch, tmp_path):
    monkeypatch.setattr("looped.cli.output.time", Clock())
    words = ("train", *SMOKE, "--device", "cpu", "--out", tmp_path / "new")
    code, _, error = call(*words, "--set", "train.steps=1000000000")
    bar, line = error.splitlines()
    assert (code, bar.split()[:2]) == (2, ["yang24.linear", "1/1000000000"])
    assert line == "looped: that would take about 32 years here. Set `train.steps` lower, or say `--yes`."
    few = ("evaluate", run, "--prompts", 2, "--device", "cpu", "--no-baselines", "--max-loops")
    assert "would take about 2 hours here. Ask for fewer loops or prompts, or" in refused(*few, 9000)
    assert call(*few, 4000, "--yes", "--quiet")[0] == 0


def test_a_work_that_slows_down_is_not_thrown_away(monkeypatch):
    monkeypatch.setattr("looped.cli.output.time", Clock())
    pace = Pace(100.0, yes=False, remedy="Less")
    for share in (0.1, 0.2, 0.2001, 0.2002):  # 10 s in all, by its first two reports
        pace.check(share)
    slow = Pace(100.0, yes=False, remedy="Less")
    slow.check(0.0)
    with pytest.raises(ValueError, match="about 17 minutes here"):
        slow.check(0.001)


# files that are not what they seem


def test_an_evaluation_is_not_written_through_a_link(run, refused, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run / "evaluations").symlink_to(tmp_path / "elsewhere")
    assert "evaluations is a link" in refused(*evaluate(run))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_model_here_that_hides_one_that_comes_with_looped_is_said(run, call, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "results" / "models" / "yang24.linear")
    (tmp_path / "results" / "models" / "yang24.linear" / "kept.json").write_text("{}")
    assert call("evaluate", "yang24.linear", "--prompts", 8, "--points", 5, "--device", "cpu", "--quiet")[0] == 0
    assert "yang24.linear is the model in results/models, not the one" in caplog.text


def test_one_kept_model_is_written_by_one_process_at_a_time(run, refused, call, tmp_path):
    keep = ("keep", run, "--name", "mine", "--prompts", 8, "--device", "cpu", "--out", tmp_path / "models")
    (tmp_path / "models").mkdir()
    with locked(tmp_path / "models" / ".mine.lock", "mine"):
        for command in (keep, (*keep, "--again")):
            assert "mine is being written by another process" in refused(*command)
    assert call(*keep, "--quiet")[0] == 0
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["mine"]


def test_a_nul_character_is_refused_in_words(refused):
    assert "holds a NUL character" in refused("evaluate", "a\x00b")


# messages, and where they are printed


@pytest.mark.parametrize(("how", "encoding"), [(">&- 2>&-", "utf-8"), (">&-", "utf-8"), ("", "ascii"), ("", "latin-1")])
def test_a_closed_stream_or_a_terminal_of_few_letters_is_no_error(how, encoding, run):
    words = f"-m looped evaluate '{run}' --prompts 4 --device cpu --no-baselines --name '\u65e5\u672c \u00e9'"
    environment = {"PYTHONPATH": str(Path(looped.__file__).parents[1]), "PYTHONIOENCODING": encoding, "HOME": "/none"}
    ended = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' {words} {how}"],
        capture_output=True,
        encoding=encoding,
        check=False,
        env=os.environ | environment,
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False)
    if not how:
        assert ("\\u65e5\\u672c é" if encoding == "latin-1" else "\\u65e5\\u672c \\xe9") in ended.stdout
    assert len(list((run / "evaluations").iterdir())) == 1


NOBODY = """
import pwd, runpy

def no_entry(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = no_entry
runpy.run_module("looped", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("words", [("train", *SMOKE, "--device", "cpu"), ("report", "RUN")])
def test_a_user_without_a_home_and_without_a_name_is_no_error(words, run, tmp_path):
    (tmp_path / "nobody.py").write_text(NOBODY)
    names = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    ended = subprocess.run(
        [sys.executable, "nobody.py", *(str(run) if word == "RUN" else word for word in words), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(looped.__file__).parents[1])},
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_an_error_in_a_runs_config_names_the_file(run, refused):
    edit(run / "config.json", window=99)
    assert refused(*evaluate(run)).startswith(f"looped: {run / 'config.json'}: `window` must be in [1, loops=4]")


def test_weights_are_not_read_beside_a_config_that_is_none(run):
    opened = looped.Run.open(run)
    (run / "config.json").write_text("3")
    with pytest.raises(ValueError, match=r"config\.json must hold a config; got int\. Restore it from a copy\."):
        opened.model()


@dataclass(frozen=True, kw_only=True)
class Extreme(looped.LinearRegression):
    """Prompts whose X'X is near the largest float."""

    size: float

    def sample(self, **sizes):
        prompt = super().sample(**sizes)
        return looped.Prompt(prompt.xs.double() * self.size, prompt.ys.double())


@pytest.mark.parametrize("size", [1e100, 1e-100])
def test_no_algorithm_is_fitted_to_prompts_of_extreme_size(size):
    model = looped.DecoderConfig(d=2, width=8, heads=2, loops=2, positions=16).build().double()
    with pytest.raises(ValueError, match=r"no algorithm can be fitted to these prompts: .* or of extreme size"):
        looped.identify(model, Extreme(d=2, size=size), points=7, prompts=8)


def test_one_bad_run_does_not_stop_the_page_of_the_others(run, call, caplog):
    for name, file in (("bad", "config.json"), ("worse", "provenance.json"), ("worst", "metrics.jsonl")):
        (shutil.copytree(run, run.parent / name) / file).write_text("3\n")
    code, out, error = call("report", run.parent, "--out", run.parent / "page.html")
    assert (code, error) == (0, "")
    assert out.endswith("page.html: 1 run.\n")
    assert [f"left out: {run.parent / name}/" in caplog.text for name in ("bad", "worse", "worst")] == [True] * 3
    assert call("report", run.parent / "bad", "--out", run.parent / "page.html")[0] == 2


def test_a_run_that_cannot_be_written_is_evaluated_all_the_same(run, call, monkeypatch):
    def full(path, data):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("looped.evaluation.saved.write_json", full)
    code, out, error = call(*evaluate(run))
    assert (code, error) == (0, f"Not saved: {run} cannot be written (Read-only file system).\n")
    assert "by loops at k=6" in out


def test_a_path_with_a_space_is_quoted_where_it_is_to_be_typed(run, call):
    moved = run.rename(run.parent / "a run")
    assert call(*evaluate(moved))[2].endswith(f"Next: looped report '{moved}'\n")


def test_a_second_interrupt_does_not_wait_for_the_step():
    told = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        with stop_signals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)  # what a scheduler repeats still waits for the save
            assert not told
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM], "where the training ends as if there had been no signal it is handed on"


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "signal.raise_signal(signal.SIGINT)", "swallowed", "pass"])
def test_an_interrupt_at_any_moment_is_one_line(body, monkeypatch, capsys):
    def command(imported):
        imported()
        if body == "swallowed":  # by a library that is imported late, and then lacks a part
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise AttributeError("module 'numpy' has no attribute 'multiply'")
        exec(body, {"signal": signal})
        sys.exit(0)

    monkeypatch.setattr("looped.cli.main", command)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, looped.signals.stop_at_once) for number in numbers]
    try:
        with pytest.raises(SystemExit) as ended:
            looped.__main__.main()
        assert ended.value.code == (0 if body == "pass" else f"looped: {looped.signals.STOPPED}")
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2, "while Python ends"
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
