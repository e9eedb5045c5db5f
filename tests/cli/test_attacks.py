"""Hostile and careless input found by hand: one line, exit 1 or 2, and nothing written that was not there before."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save

from looped.cli import main
from looped.files import digest, read_tensors

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
    assert not (tmp_path / "new").exists()


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
        ("optimizer/norm.bias/exp_avg", lambda tensor: tensor[:-1]),
        ("optimizer/blocks.0.mlp.fc.weight/momentum", lambda tensor: tensor[:-1]),
    ],
)
def test_training_goes_on_only_with_all_of_a_weights_optimiser(part, change, run, refused):
    rewrite(run, lambda name, tensor: change(tensor) if name == part else tensor, step=2)
    error = refused(*resume(run))
    assert "does not fit its config" in error
    assert part in error


@pytest.mark.parametrize("fields", [{"steps": 10**9}, {"start": "../../../etc"}])
def test_a_finished_run_is_not_that_of_another_config(fields, run, refused):
    edit(run / "config.json", **fields)
    assert "was written under another" in refused(*resume(run))


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64, 10**40])
def test_a_training_seed_has_64_bits(seed, refused, tmp_path):
    error = refused("train", *SMOKE, "--seed", seed, "--out", tmp_path / "new")
    assert error == f"looped: `seed` must be at least -2^63 and below 2^63; got {seed}.\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("seed", "same"), [(-1, 2**32 - 1), (2**32, 0), (2**63, 0)])
def test_two_seeds_of_prompts_are_never_the_same_prompts(seed, same, run, refused):
    drawn = [torch.rand(3, generator=torch.Generator().manual_seed(number)) for number in (seed, same)]
    assert torch.equal(*drawn), "torch's generator reads 32 bits"
    assert f"`seed` must be in [0, 4,294,967,295]; got {seed}." in refused(*evaluate(run), "--seed", seed)
