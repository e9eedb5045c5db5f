"""A model as a file for other programs: torch.export's saved program, or ONNX; the number of loops is an input."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop

from looped.experiment import Setup
from looped.files import check_folder, tidied, write_bytes
from looped.models.algoformer import given
from looped.models.base import LoopedModel
from looped.models.loop import check_loops, leaves, tree_map
from looped.prompt import AnyPrompt, Prompt

Format = Literal["onnx", "torch"]
"""A graph for any runtime of ONNX, or a program that `torch.export.load` reads."""
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
"""The ends of the files' names."""
MANY_LOOPS = 50
"""How many loops a file is also tried with, whatever it was trained with."""
ALLOWED = 1e-4
"""A difference that is small whatever the loops do, over the answers' standard deviation."""
CHECK_PROMPTS, CHECK_SEED = 8, 20_240
"""The prompts on which a file is compared with its model."""
Program = Callable[[Sequence[Tensor]], Tensor]
"""What a file computes: its inputs -> the answers."""


@dataclass(frozen=True)
class Difference:
    """How far a file's answers are from the model's, at most, over the standard deviation of the model's answers."""

    loops: int
    """After how many loops."""
    from_model: float
    """From the model in PyTorch."""
    from_float64: float
    """From the model computed in float64."""
    of_model: float
    """How far the model itself is from that."""

    @property
    def is_rounding(self) -> bool:
        """Whether it is small, or at most twice as far from float64 as rounding takes the model's own answers."""
        return self.is_small or self.from_float64 <= 2 * self.of_model

    @property
    def is_small(self) -> bool:
        """Whether the answers are close to the model's, in PyTorch's float32 or in float64."""
        return self.from_model <= ALLOWED or self.from_float64 <= ALLOWED


@dataclass(frozen=True)
class Exported:
    """A file and what was measured about it."""

    path: Path
    """The file."""
    inputs: dict[str, list[str | int]]
    """Its inputs with their shapes; a name stands for any size."""
    checked_by: str | None
    """The program that ran it for the comparison; None: there is none here."""
    differences: list[Difference]
    """From the model in PyTorch; empty where it was not run."""


class _Answering(nn.Module):
    """A model as a function of tensors; `loops` is fixed, or an input where it is None."""

    def __init__(self, model: LoopedModel, loops: int | None):
        super().__init__()
        self.model, self.loops = model, loops

    def answers(self, prompt: AnyPrompt, loops: Tensor | None) -> Tensor:
        """The answers after the loops."""
        if loops is None:
            return self.model(prompt, loops=self.loops)[-1]
        context = self.model.embed(prompt)
        start = self.model.start(context)

        def state_of(parts: Sequence[Tensor]) -> Any:
            remaining = iter(parts)
            return tree_map(lambda _: next(remaining), start)

        def unfinished(t: Tensor, *parts: Tensor) -> Tensor:
            return t < loops

        def loop(t: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
            # every loop of a steady model is that of t = 0; torch wants results that are no inputs
            return t + 1, *(part.clone() for part in leaves(self.model.step(state_of(parts), context, 0)))

        first = torch.zeros((), dtype=torch.int64)
        _, *parts = while_loop(unfinished, loop, (first, *leaves(start)))
        return self.model.readout(state_of(parts), context)


class _OfPairs(_Answering):
    def forward(self, xs: Tensor, ys: Tensor, loops: Tensor | None = None) -> Tensor:
        return self.answers(Prompt(xs, ys), loops)


class _OfSequences(_Answering):
    def forward(self, tokens: Tensor, loops: Tensor | None = None) -> Tensor:
        return self.answers(given(tokens), loops)


def export(
    model: LoopedModel,
    setup: Setup,
    path: str | Path,
    *,
    format: Format = "onnx",
    points: int,
    loops: int | None = None,
) -> Exported:
    """Write a model as one file with batch and length free, and compare what it answers with the model itself.

    The loops are an input, unless `loops` fixes them; prompts of `points` pairs are drawn from the setup's task. ONNX
    needs `pip install 'looped[onnx]'`, and is compared where onnxruntime is installed.
    """
    path, name = Path(path), setup.name
    if loops is not None:
        check_loops(loops)
    elif not model.steady:
        raise ValueError(
            f"the loops of `{name}` differ from each other, so their number cannot be an input. Fix it: "
            f"`--loops {model.config.loops}`."
        )
    if format == "onnx":
        _require_onnx()
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(CHECK_SEED)
    prompt = setup.task.sample(batch=CHECK_PROMPTS, n=max(points, 2), generator=draw)  # a length of 1 would be fixed
    prompt = prompt.to(next((weight.dtype for weight in model.parameters()), torch.float32))
    # memory of their own: the strides of a task's tensors would become conditions of the graph
    inputs = {key: value.clone(memory_format=torch.contiguous_format) for key, value in _inputs(prompt).items()}
    facts = {"model": name, "task": repr(setup.task), "loops": str(model.config.loops)}
    with tidied(path.parent):
        check_folder(path.parent, "a model's file")
        program = _traced(model, inputs, loops, name)
        content = _onnx(program, inputs, loops, facts, name) if format == "onnx" else _saved(program, facts)
        write_bytes(path, content)
    checked_by, run = _runner(content, format)
    differences = [] if run is None else _differences(model, prompt, run, loops)
    return Exported(path, _shapes(inputs, loops), checked_by, differences)


def _inputs(prompt: AnyPrompt) -> dict[str, Tensor]:
    """The tensors that a graph reads, by name."""
    return {"xs": prompt.xs, "ys": prompt.ys} if isinstance(prompt, Prompt) else {"tokens": prompt.tokens}


def _shapes(inputs: Mapping[str, Tensor], loops: int | None) -> dict[str, list[str | int]]:
    shapes: dict[str, list[str | int]] = {name: ["batch", "n", *tensor.shape[2:]] for name, tensor in inputs.items()}
    return shapes if loops is not None else {**shapes, "loops": []}


def _traced(
    model: LoopedModel, inputs: Mapping[str, Tensor], loops: int | None, name: str
) -> torch.export.ExportedProgram:
    """The graph of the model, for any batch and length."""
    module = (_OfPairs if "xs" in inputs else _OfSequences)(model, loops)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes: dict[str, Any] = dict.fromkeys(inputs, free)
    tensors = [*inputs.values()]
    if loops is None:
        shapes, tensors = {**shapes, "loops": None}, [*tensors, torch.tensor(2)]
    try:
        with torch.no_grad(), _silent():
            return torch.export.export(module.eval(), tuple(tensors), dynamic_shapes=shapes)
    except Exception as error:  # of any kind, from torch's compiler
        raise _refused(name, "torch.export", error) from error


def _saved(program: torch.export.ExportedProgram, facts: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with _silent():
        torch.export.save(program, file, extra_files={"model.json": json.dumps(facts)})
    return file.getvalue()


def _onnx(
    program: torch.export.ExportedProgram,
    inputs: Mapping[str, Tensor],
    loops: int | None,
    facts: Mapping[str, str],
    name: str,
) -> bytes:
    names = [*inputs, *([] if loops is not None else ["loops"])]
    try:
        with _silent():
            graph = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=names,
                output_names=["answers"],
                custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            )
    except Exception as error:  # of any kind, from the converter
        raise _refused(name, "ONNX", error) from error
    assert graph is not None
    batch, length, *_ = cast(Any, graph.model.graph.inputs[0].shape)
    graph.rename_axes({batch: "batch", length: "n"})
    graph.model.metadata_props.update(facts)
    return graph.model_proto.SerializeToString()


def _stable_sort(self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """What torch's converter lacks, by ONNX's TopK: of equal values it puts the first one first."""
    import onnxscript

    op: Any = onnxscript.opset18
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _runner(content: bytes, format: Format) -> tuple[str | None, Program | None]:
    """What runs the file here: torch itself, or onnxruntime where it is installed."""
    if format == "torch":
        module = torch.export.load(io.BytesIO(content)).module()
        return "torch", lambda inputs: module(*inputs)
    if importlib.util.find_spec("onnxruntime") is None:
        return None, None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> Tensor:
        numbers = (tensor.numpy() for tensor in inputs)
        return torch.as_tensor(session.run(None, dict(zip(names, numbers, strict=True)))[0])

    return f"onnxruntime {onnxruntime.__version__}", run


@torch.no_grad()
def _differences(model: LoopedModel, prompt: AnyPrompt, run: Program, loops: int | None) -> list[Difference]:
    """Of a file's answers from the model's, after the trained loops and after many, or after the fixed ones.

    Where the model's own answers are not finite there is nothing to compare.
    """
    double = copy.deepcopy(model).double()
    differences = []
    for count in [loops] if loops is not None else sorted({model.config.loops, MANY_LOOPS}):
        own = model(prompt, loops=count)[-1]
        if not own.isfinite().all():
            continue
        answers = run([*_inputs(prompt).values(), *([] if loops is not None else [torch.tensor(count)])])
        unit = own.std().clamp(min=torch.finfo(own.dtype).tiny)
        exact = double(prompt.to(torch.float64), loops=count)[-1]
        pairs = ((answers, own), (answers, exact), (own, exact))
        differences.append(Difference(count, *(float((a - b).abs().max() / unit) for a, b in pairs)))
    return differences


def _require_onnx() -> None:
    lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if lacking:
        raise ValueError(f"ONNX needs {' and '.join(lacking)}: pip install 'looped[onnx]', or take `--format torch`.")


def _refused(name: str, program: str, error: BaseException) -> ValueError:
    """One line about what a compiler says on a page: the first line of what was raised first."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ValueError(f"`{name}` cannot be exported: {program} stops at: {reason[:200]}")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the remarks that torch and onnxscript make on their own work."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
