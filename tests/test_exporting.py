"""Exported files answer what the model answers, for any batch, length and number of loops."""

import json
import subprocess
import sys

import onnxruntime
import pytest
import torch

import looped
from looped import exporting
from looped.experiment import Setup
from looped.exporting import Difference, export
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


def test_a_graph_of_onnx_takes_any_batch_length_and_loops(tmp_path):
    model, result = exported(TABLE, tmp_path / "new" / "tiny.onnx")
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
    [
        ((9e-5, 1.0, 0.0), True),
        ((2e-4, 9e-5, 1e-5), True),
        ((2e-4, 2e-4, 1e-4), True),
        ((2e-4, 3e-4, 1e-4), False),
        ((float("nan"),) * 3, False),
    ],
)
def test_more_than_rounding_is_told(numbers, rounding):
    assert Difference(3, *numbers).is_rounding == rounding


def test_loops_that_diverge_are_not_compared():
    model, _ = built(restricted(d=3, loops=1))
    model.requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(1e4)
    (prompt,) = prompts((4, 5))
    differences = exporting._differences(model, prompt, lambda inputs: model(prompt, loops=int(inputs[-1]))[-1], None)
    assert [difference.loops for difference in differences] == [1]


@pytest.fixture
def run(tmp_path):
    return looped.save(built(DECODER)[0], TASK, tmp_path / "run", points=7)


def test_a_program_of_torch_takes_any_batch_length_and_loops(run, call, tmp_path):
    file = tmp_path / "new" / "tiny.pt2"
    code, out, error = call("export", run.path, "--format", "torch", "--out", file, "--json")
    assert (code, error) == (0, "")
    data = json.loads(out)
    assert (data["file"], data["inputs"]["xs"], data["checked_by"]) == (str(file), ["batch", "n", 3], "torch")
    assert [(entry["loops"], entry["from_model"]) for entry in data["differences"]] == [(3, 0), (50, 0)]
    facts = {"model.json": ""}
    program, model = torch.export.load(file, extra_files=facts).module(), run.model()
    assert json.loads(facts["model.json"]) == {"model": "run", "task": repr(TASK), "loops": "3"}
    for prompt, loops in zip(prompts((4, 3), (2, 11)), (1, 8), strict=True):
        assert torch.equal(program(prompt.xs, prompt.ys, torch.tensor(loops)), model(prompt, loops=loops)[-1])


def test_a_file_that_answers_otherwise_is_told(run, call, tmp_path, monkeypatch):
    runner = exporting._runner

    def other(content, format):
        name, answers = runner(content, format)
        return name, lambda inputs: answers(inputs) + 1

    monkeypatch.setattr(exporting, "_runner", other)
    code, out, error = call("export", run.path, "--format", "torch", "--loops", 1, "--out", tmp_path / "a.pt2")
    assert code == 1
    assert out.startswith(f"{tmp_path / 'a.pt2'}: 0.")
    assert "inputs xs (batch, n, 3), ys (batch, n)." in " ".join(out.split())
    assert error == "That is more than rounding: do not use the file.\n"


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
    assert b.is_small  # yang24.sparse to float64 alone: there PyTorch's own float32 is further away than the file
    assert many.from_float64 <= 2 * many.of_model
