"""Exported files answer what the model answers, for any batch, length and number of loops."""

import json
import subprocess
import sys

import pytest
import torch

import looped
from looped import exporting
from looped.experiment import Setup
from looped.exporting import ALLOWED, Difference, export
from looped.models.kernel_transformer import restricted
from looped.models.table_transformer import TableTransformerConfig
from looped.training.kept import kept_models
from looped.training.run import Run

pytestmark = pytest.mark.usefixtures("unchecked")
TASK = looped.LinearRegression(d=3)
DECODER = looped.DecoderConfig(d=3, width=8, heads=2, loops=3, positions=24)
TABLE = TableTransformerConfig(d=3, width=8, heads=2, loops=3)
LAYERS = restricted(d=3, loops=2, layers=2)


def built(config):
    torch.manual_seed(0)
    return config.build().eval(), Setup(name="tiny", task=TASK, model=config)


def exported(config, path, **options):
    model, setup = built(config)
    return model, export(model, setup, path, points=7, **options)


def prompts(*sizes):
    draw = torch.Generator().manual_seed(1)
    return [TASK.sample(batch=batch, n=n, generator=draw) for batch, n in sizes]


@pytest.mark.parametrize("config", [DECODER, TABLE])
def test_a_graph_of_onnx_takes_any_batch_length_and_loops(config, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    model, result = exported(config, tmp_path / "new" / "tiny.onnx")
    assert result.inputs == {"xs": ["batch", "n", 3], "ys": ["batch", "n"], "loops": []}
    assert [difference.loops for difference in result.differences] == [3, 50]
    assert all(difference.is_rounding for difference in result.differences)
    session = onnxruntime.InferenceSession(result.path, providers=["CPUExecutionProvider"])
    assert [entry.shape for entry in session.get_inputs()] == [["batch", "n", 3], ["batch", "n"], []]
    assert session.get_modelmeta().custom_metadata_map["task"] == repr(TASK)
    for prompt, loops in zip(prompts((1, 5), (4, 3), (2, 11)), (1, 3, 8), strict=True):
        inputs = {"xs": prompt.xs.numpy(), "ys": prompt.ys.numpy(), "loops": torch.tensor(loops).numpy()}
        (answers,) = session.run(None, inputs)
        torch.testing.assert_close(torch.tensor(answers), model(prompt, loops=loops)[-1], rtol=1e-4, atol=1e-6)


def test_a_program_of_torch_takes_any_batch_length_and_loops(tmp_path):
    model, result = exported(DECODER, tmp_path / "tiny.pt2", format="torch")
    assert [(difference.loops, difference.from_model) for difference in result.differences] == [(3, 0), (50, 0)]
    facts = {"model.json": ""}
    program = torch.export.load(result.path, extra_files=facts).module()
    assert json.loads(facts["model.json"])["loops"] == "3"
    for prompt, loops in zip(prompts((4, 3), (2, 11)), (1, 8), strict=True):
        assert torch.equal(program(prompt.xs, prompt.ys, torch.tensor(loops)), model(prompt, loops=loops)[-1])


def test_layers_of_their_own_are_exported_with_a_fixed_number_of_loops(tmp_path):
    model, result = exported(LAYERS, tmp_path / "tiny.pt2", format="torch", loops=2)
    assert list(result.inputs) == ["xs", "ys"]
    (prompt,) = prompts((4, 5))
    assert torch.equal(torch.export.load(result.path).module()(prompt.xs, prompt.ys), model(prompt, loops=2)[-1])
    with pytest.raises(ValueError, match=r"differ from each other.* Fix it: `--loops 2`"):
        exported(LAYERS, tmp_path / "other.pt2")
    assert not (tmp_path / "other.pt2").exists()


def test_a_model_that_torch_cannot_trace_gets_one_line(tmp_path, monkeypatch):
    model, setup = built(DECODER)
    monkeypatch.setattr(model, "start", lambda context: context.tokens * float(context.tokens.sum()))
    with pytest.raises(ValueError, match=r"`tiny` cannot be exported: torch\.export stops at: .+") as refused:
        export(model, setup, tmp_path / "tiny.pt2", format="torch", points=7)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_onnx_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'looped\[onnx\]', or take `--format torch`"):
        exported(DECODER, tmp_path / "tiny.onnx")


@pytest.mark.parametrize(
    ("numbers", "rounding"),
    [((9e-5, 1.0, 0.0), True), ((2e-4, 2e-4, 1e-4), True), ((2e-4, 3e-4, 1e-4), False), ((float("nan"),) * 3, False)],
)
def test_more_than_rounding_is_told(numbers, rounding):
    assert Difference(3, *numbers).is_rounding == rounding


@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_compares_the_file_with_the_model(call, tmp_path, monkeypatch, wrong):
    model, _ = built(DECODER)
    run = looped.save(model, TASK, tmp_path / "run", points=7)
    runner = exporting._runner

    def other(content, format):
        name, run = runner(content, format)
        return name, lambda inputs: run(inputs) + wrong

    monkeypatch.setattr(exporting, "_runner", other)
    command = ("export", run.path, "--format", "torch", "--loops", "2", "--out", tmp_path / "a.pt2")
    code, out, error = call(*command)
    assert code == wrong
    assert out.startswith(f"{tmp_path / 'a.pt2'}: 0.")
    assert "inputs xs (batch, n, 3), ys (batch, n)." in " ".join(out.split())
    assert ("more than rounding" in error) == wrong
    data = json.loads(call(*command, "--json")[1])
    assert data["file"] == str(tmp_path / "a.pt2")
    assert (data["differences"][0]["from_model"] > ALLOWED) == wrong


def test_tensors_are_enough_for_torch_export_and_torch_compile():
    # in an interpreter of its own: torch's compiler does not read the shape checks that tests put around functions
    program = """
import looped, torch
model, (xs, ys) = looped.load("explorer.curves"), (torch.randn(3, 9, 1), torch.randn(3, 9))
free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
with torch.no_grad():
    shapes = {"prompt": free, "ys": free, "loops": None}
    program = torch.export.export(model, (xs, ys), {"loops": 2}, dynamic_shapes=shapes).module()
    print(torch.equal(program(xs[:2, :5], ys[:2, :5], loops=2), model(xs[:2, :5], ys[:2, :5], loops=2)))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    print(torch.equal(compiled(xs, ys, loops=2), model(xs, ys, loops=2)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["True", "True"], ran.stderr[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, path in kept_models().items() if any(path.glob("checkpoints/*"))])
def test_every_kept_model_exports_to_onnx(name, tmp_path):
    run = Run.open(name)
    result = export(run.model(), run.setup, tmp_path / "model.onnx", points=run.points)
    b, many = sorted(result.differences, key=lambda difference: difference.loops == 50)
    assert b.from_model <= ALLOWED
    assert many.from_float64 <= 2 * many.of_model
