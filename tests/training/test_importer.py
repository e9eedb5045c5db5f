import os
import pickle

import numpy as np
import pytest
import torch

import looped
from looped.experiment import Setup
from looped.training.importer import import_checkpoint
from looped.training.run import Run
from models.reference import LAYOUTS, PREFIX, Published, published_state

SIZES = {"d": 3, "width": 16, "positions": 14}
HEADS = 4


def tensors(layout="yang24", *, layers=1, dtype=torch.float64, seed=0):
    state = published_state(layout, layers=layers, **SIZES, seed=seed)
    cast = {name: torch.as_tensor(value) for name, value in state.items()}
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in cast.items()}


def written(tmp_path, content, name="state.pt"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


def some_prompt(batch=2, n=5):
    rng = np.random.default_rng(3)
    return looped.Prompt(torch.tensor(rng.normal(size=(batch, n, 3))), torch.tensor(rng.normal(size=(batch, n))))


def reference(state, layout):
    arrays = {
        name: value.double().numpy() if value.is_floating_point() else value.numpy() for name, value in state.items()
    }
    return Published(arrays, layout, heads=HEADS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("loops", [None, 4])
@pytest.mark.parametrize("wrap", [None, "model", "model_state_dict"])
def test_a_published_file_becomes_a_model(layout, layers, loops, wrap, tmp_path):
    state = tensors(layout, layers=layers)
    content = state if wrap is None else {wrap: state, "step": 7, "optimizer": {"lr": 0.1}}
    import_checkpoint(written(tmp_path, content), tmp_path / "run", heads=HEADS, loops=loops)
    model, prompt = looped.load(tmp_path / "run"), some_prompt()
    arguments = prompt.xs.numpy(), prompt.ys.numpy()
    taken = loops or (20 if layout == "yang24" and layers == 1 else 1)
    assert model.config.loops == taken
    wanted = reference(state, layout).looped(*arguments, loops=taken)[-1]
    assert np.abs(model.predict(prompt).numpy() - wanted).max() < 1e-10 * max(1, np.abs(wanted).max())
    if taken == 1:
        assert np.allclose(wanted, reference(state, layout).unlooped(*arguments), atol=1e-12)


def test_weight_tying(tmp_path):
    state, prompt = tensors(), some_prompt()
    run, said = import_checkpoint(written(tmp_path, state), tmp_path / "run", heads=HEADS, loops=6, inject="none")
    wanted = reference(state, "yang24").looped(prompt.xs.numpy(), prompt.ys.numpy(), 6, "none")[-1]
    assert np.abs(run.model().predict(prompt).numpy() - wanted).max() < 1e-10
    assert "injection none" in said


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_files_keep_their_precision_and_predict_as_the_readme_does(dtype, tmp_path):
    state = tensors(dtype=dtype)
    import_checkpoint(written(tmp_path, state), tmp_path / "run", heads=HEADS)
    model = looped.load(str(tmp_path / "run"))
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert torch.equal(model.blocks[0].mlp.fc.weight, state["_backbone.transformer.h.0.mlp.c_fc.weight"])
    out = model.predict(some_prompt(), loops=20)
    assert (out.dtype, out.shape) == (dtype, (2, 5))
    assert torch.equal(out, model.predict(some_prompt()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_programs_do_not_use_is_ignored(layout, tmp_path):
    state, root = tensors(layout, layers=2), PREFIX[layout]
    bare = {
        name: value for name, value in state.items() if not name.endswith(("wte.weight", ".attn.bias", "masked_bias"))
    }
    extra = {
        **bare,
        f"{root}wte.weight": torch.randn(50, 16),
        **{f"{root}h.{i}.attn.bias": torch.ones(1, 1, 9, 9, dtype=torch.uint8) for i in range(2)},
        **{f"{root}h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)},
    }
    outputs = []
    for name, content in (("bare", bare), ("extra", extra)):
        run, _ = import_checkpoint(written(tmp_path, content, f"{name}.pt"), tmp_path / name, heads=HEADS)
        outputs.append(run.model().predict(some_prompt()))
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("layout", "layers", "arguments", "said"),
    [
        ("yang24", 1, {}, "yang24 layout, taken as 20 loops of 1 layer(s), injection add, 4 heads"),
        ("yang24", 1, {"loops": 7}, "yang24 layout, taken as 7 loops of 1 layer(s), injection add, 4 heads"),
        ("yang24", 3, {}, "yang24 layout, taken as unlooped, 3 layer(s), 4 heads"),
        ("garg", 1, {}, "Garg et al. layout, taken as unlooped, 1 layer(s), 4 heads"),
        ("garg", 2, {"loops": 3}, "Garg et al. layout, taken as 3 loops of 2 layer(s), injection add, 4 heads"),
    ],
)
def test_it_says_how_the_file_was_taken(layout, layers, arguments, said, tmp_path):
    file = written(tmp_path, tensors(layout, layers=layers))
    assert import_checkpoint(file, tmp_path / "run", heads=HEADS, **arguments)[1] == said


def test_the_run_folder_is_an_ordinary_one(tmp_path):
    file = written(tmp_path, tensors(), "my model (3).pt")
    import_checkpoint(file, tmp_path / "run", heads=HEADS)
    run = Run.open(tmp_path / "run")
    assert run.setup.name == "my_model__3_"
    assert type(run.setup) is Setup
    assert run.setup.task.d == 3
    assert run.latest().finished
    assert run.provenance()["imported_from"] == "my model (3).pt"
    assert not list(tmp_path.rglob("run/**/*.pt"))
    evaluation = looped.evaluate(run.model(), run.setup.task, points=4, prompts=8)
    assert evaluation.by_examples[0].x == [0, 1, 2, 3]


def test_importing_again_into_the_same_folder(tmp_path):
    file = written(tmp_path, tensors())
    import_checkpoint(file, tmp_path / "run", heads=HEADS)
    import_checkpoint(file, tmp_path / "run", heads=HEADS)
    with pytest.raises(ValueError, match="holds another experiment"):
        import_checkpoint(file, tmp_path / "run", heads=2)


# hostile and damaged input


class Malicious:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def refused(file, message):
    """One line that names the file, and nothing written."""
    with pytest.raises(ValueError, match=message) as caught:
        import_checkpoint(file, file.parent / "run", heads=HEADS)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert file.name in text
    assert not (file.parent / "run").exists()


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "inside a state dict"])
def test_a_malicious_pickle_is_not_run(kind, tmp_path):
    trap, file = tmp_path / "trap", tmp_path / "state.pt"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Malicious(trap)))
    elif kind == "inside a state dict":
        torch.save({**tensors(), "_backbone.transformer.extra": Malicious(trap)}, file)
    else:
        torch.save(Malicious(trap), file, _use_new_zipfile_serialization=kind == "zip")
    refused(file, "will not be unpickled")
    assert not trap.exists()
    if kind != "inside a state dict":
        with open(file, "rb") as opened:
            torch.load(opened, weights_only=False) if kind != "pickle" else pickle.load(opened)
        assert trap.exists(), "the trap works"


def test_files_that_are_no_checkpoint(tmp_path):
    whole = written(tmp_path, tensors()).read_bytes()
    flipped = bytearray(whole)
    flipped[-30] ^= 0xFF
    contents = {
        "plain.pt": pickle.dumps({"_read_in.weight": [1.0, 2.0]}),
        "truncated.pt": whole[: len(whole) // 2],
        "head.pt": whole[:100],
        "text.pt": b"epoch,loss\n1,0.5\n",
        "empty.pt": b"",
        "zeros.pt": bytes(1000),
        "flipped in the index.pt": bytes(flipped),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, "is not a weights-only .pt file")


def test_what_is_not_a_file(tmp_path):
    refused(tmp_path / "missing.pt", "missing.pt is not a file")
    (tmp_path / "folder.pt").mkdir()
    refused(tmp_path / "folder.pt", "folder.pt is not a file")


NO_STATE = "holds no state dict"
NO_DECODER = "holds no decoder of yang24 or Garg et al.: it has no `_read_in.w"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(torch.zeros(3), NO_STATE, id="tensor"),
        pytest.param([torch.zeros(3)], NO_STATE, id="list"),
        pytest.param({"step": 3}, NO_STATE, id="numbers"),
        pytest.param({"model": {"step": 3}}, NO_STATE, id="numbers under model"),
        pytest.param({"model": [1, 2]}, NO_STATE, id="list under model"),
        pytest.param({**tensors(), "step": 3}, NO_STATE, id="number among tensors"),
        pytest.param({}, NO_DECODER, id="empty"),
        pytest.param({"weight": torch.zeros(2, 2)}, NO_DECODER, id="another model's"),
    ],
)
def test_files_without_a_state_dict_or_with_that_of_another_model(content, message, tmp_path):
    refused(written(tmp_path, content), message)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(published_state("yang24", layers=1, **SIZES)))
def test_a_missing_weight_is_refused(layout, name, tmp_path):
    state = tensors(layout)
    del state[name.replace(PREFIX["yang24"], PREFIX[layout])]
    refused(written(tmp_path, state), "decoder of yang24 or Garg et al.: .*(issing|it has no)")


@pytest.mark.parametrize(
    "name",
    [
        "extra.weight",
        "blocks.x.weight",
        "read_in.weight",
        "_backbone.transformer.h.0.attn.c_extra.weight",
        "_backbone.transformer.h.5.ln_1.weight",
        "_backbone.transformer.h.999999999.ln_1.weight",
        "_backbone.h.0.ln_1.weight",
    ],
)
def test_a_weight_too_many_is_refused(name, tmp_path):
    state = {**tensors(), name: torch.zeros(16, dtype=torch.float64)}
    refused(written(tmp_path, state), "does not hold a decoder")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    ["_read_in.weight", "_read_out.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "ln_f.bias"],
)
@pytest.mark.parametrize("shape", [(), (5,), (4, 5), (4, 3, 2)], ids=str)
def test_a_misshapen_weight_is_refused(layout, name, shape, tmp_path):
    state = tensors(layout)
    full = name if name.startswith("_") else PREFIX[layout] + name
    assert full in state
    state[full] = torch.zeros(shape, dtype=torch.float64)
    refused(written(tmp_path, state), "does not hold a decoder")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad, tmp_path):
    state = tensors()
    state["_backbone.transformer.h.0.mlp.c_fc.weight"][3, 2] = bad
    refused(written(tmp_path, state), r"not finite, in `_backbone\.transformer\.h\.0\.mlp\.c_fc\.weight`")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_weights_that_are_no_floats_are_refused(dtype, tmp_path):
    state = {name: torch.ones_like(value, dtype=dtype) for name, value in tensors().items()}
    refused(written(tmp_path, state), "floating")


def test_heads_and_loops_must_make_sense(tmp_path):
    file = written(tmp_path, tensors())
    for arguments, message in (
        ({"heads": 0}, "`heads` must be at least 1; got 0"),
        ({"heads": 3}, "`width` must be a multiple of heads=3; got 16"),
        ({"heads": 4, "loops": 0}, "`loops` must be at least 1; got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            import_checkpoint(file, tmp_path / "run", **arguments)
        assert not (tmp_path / "run").exists()
