"""`looped export`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from looped.cli.chosen_run import open_run
from looped.cli.options import Best, Code, Json, Quiet, RunName
from looped.cli.output import number, say, show
from looped.exporting import SUFFIXES, Exported, Format
from looped.exporting import export as export_model


def export(
    model: RunName,
    format: Annotated[Format, typer.Option(help="onnx, or torch for a program of torch.export.")] = "onnx",
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="The file to write; default the model's name.")
    ] = None,
    loops: Annotated[
        int | None, typer.Option(help="Fix the number of loops; default: it is an input of the file.")
    ] = None,
    best: Best = False,
    code: Code = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as a file that other programs run: ONNX, or torch.export's saved program.

    The file's inputs are xs (batch, n, d) and ys (batch, n), or the tokens of a sequence, of any batch and length, and
    the number of loops. What it answers is compared with the model on prompts of its task: ONNX where onnxruntime is
    installed (`pip install 'looped[onnx]'`). Exit 1 if the answers differ by more than rounding.

    Example: `looped export yang24.linear --format onnx`
    """
    chosen = open_run(model, points=None, best=best, code=code)
    path = Path(f"{chosen.run.setup.name}{SUFFIXES[format]}" if out is None else out)
    exported = export_model(
        chosen.model("cpu"), chosen.run.setup, path, format=format, points=chosen.points, loops=loops
    )
    data = {"model": model, "format": format, "bytes": path.stat().st_size, **asdict(exported), "file": str(path)}
    del data["path"]
    show(data, _described(exported), json=json, quiet=quiet)
    if not all(difference.is_rounding for difference in exported.differences):
        say("That is more than rounding: do not use the file.")
        raise typer.Exit(1)


def _described(exported: Exported) -> str:
    """The file, its inputs, and how far its answers are from the model's."""
    inputs = ", ".join(
        f"{name} ({', '.join(map(str, shape))})" if shape else name for name, shape in exported.inputs.items()
    )
    lines = [f"{exported.path}: {exported.path.stat().st_size / 1e6:.2f} MB; inputs {inputs}."]
    if exported.checked_by is None:
        lines.append("Not compared with the model: that needs onnxruntime (pip install 'looped[onnx]').")
    lines += [
        f"After {difference.loops} loops {exported.checked_by} is {number(difference.from_model)} of the answers' "
        f"standard deviation from the model, at most; from float64 {number(difference.from_float64)}, where the model "
        f"is {number(difference.of_model)} away."
        for difference in exported.differences
    ]
    return "\n".join(lines)
