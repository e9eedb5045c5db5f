"""`looped bench`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from looped.bench.agreement import compare, rounding
from looped.bench.cases import RECIPE, Case, Dtype, chosen_cases, left_out
from looped.bench.measure import Measured, matrix_rate, measure, obstacle, ready
from looped.bench.results_table import bench_figure, notes, table
from looped.bench.rivals import PUBLISHED, RIVALS, transformers
from looped.cli.options import Device, Json, Quiet, pick_device
from looped.cli.output import number, progress_lines, show
from looped.files import finite, write_json
from looped.papers.yang24 import Scale
from looped.report.drawing import save_figure
from looped.training.engine import ENGINES
from looped.training.provenance import provenance

Count = list[int] | None


def bench(
    recipe: Annotated[
        list[str] | None, typer.Option(help=f"Whose model and task; may be repeated. Default: {RECIPE}.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join((*ENGINES, *RIVALS))}; may be repeated. Default: all.")
    ] = None,
    batch: Annotated[Count, typer.Option(help="Prompts a step; may be repeated, like the next three.")] = None,
    loops: Annotated[Count, typer.Option(help="Loops: the paper's b.")] = None,
    window: Annotated[Count, typer.Option(help="Loops with loss and gradient: the paper's T.")] = None,
    points: Annotated[Count, typer.Option(help="Pairs in a prompt.")] = None,
    packed: Annotated[int, typer.Option(help="Models that train side by side.")] = 1,
    dtype: Annotated[Dtype | None, typer.Option(help="Precision; default bfloat16 on a GPU, float32 on a CPU.")] = None,
    scale: Annotated[
        Scale | None, typer.Option(help="The decoder's size; default paper on a GPU, cpu on a CPU.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Timed steps; default 2 s, up to 200 on a GPU, 50 on a CPU.")
    ] = None,
    rivals: Annotated[
        bool | None, typer.Option(help="Also Hugging Face's GPT2Model, eager, compiled, and as the published program.")
    ] = None,
    predict: Annotated[bool, typer.Option("--predict", help="Time predictions, not training steps.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check that all engines compute the same.")] = False,
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Write bench.json, .png and .svg there.")] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure speed and memory of a training step, or of a prediction, against what a person would use instead.

    A step is sampling, loops, loss, clipping and Adam. TFLOP/s count only the products with the blocks' weights;
    `share` is relative to a large matrix product measured in the same run; `speed` is relative to GPT2Model in eager
    PyTorch; `set-up` is compiling, capturing and warming up, which is not part of a step's time. The rival `published`
    takes the step of yang24's published program: float32, in TF32 on a GPU, prompts drawn on the CPU, and a number read
    on the host for every weight. Rivals are written for yang24's decoder.

    Example: `looped bench --batch 64 --batch 1024 --loops 20 --window 15`
    """
    place = pick_device(device)
    if steps is not None and steps < 1:
        raise ValueError(f"`--steps` must be at least 1; got {steps}.")
    if check and dtype not in (None, "float32"):
        raise ValueError("`--check` compares in float32 with TF32 off; leave `--dtype` out.")
    asked = [
        *(engine or (["plain"] if predict else ENGINES)),
        *(RIVALS if rivals or (rivals is None and not engine) else ()),
    ]
    names = [name for name in dict.fromkeys(asked) if rivals is not False or name not in RIVALS]
    if not names:
        raise ValueError("`--no-rivals` leaves nothing to measure; name an engine of ours, or leave it out.")
    precision: Dtype = dtype or ("bfloat16" if place.type == "cuda" and not check else "float32")
    size: Scale = scale or ("paper" if place.type == "cuda" else "cpu")
    sizes = {"batch": batch, "loops": loops, "window": window, "points": points}
    default_sizes = not any(sizes.values())
    cases = []
    for model in dict.fromkeys(recipe or [RECIPE]):
        chosen = chosen_cases(size, model, **sizes)
        base = Case(
            engine=names[0], recipe=model, predicts=predict, packed=packed, dtype=precision, scale=size, **chosen[0]
        )
        cases += [
            replace(base, engine=name, dtype=_precision_of(name, precision), **case)
            for case in chosen
            for name in names
            if not (default_sizes and left_out(name, case, chosen))
        ]
    origin = provenance(place)
    if any(name in RIVALS for name in names):
        origin |= {"transformers": transformers().__version__}
    for case in cases[: len(names)]:  # engines asked for by name must run; the notes list others that cannot
        if case.engine in (engine or ["plain"]):
            ready(case, place, steps=1)
    if check:
        if len({case.sizes for case in cases}) > 1 and not default_sizes:
            raise ValueError("`--check` compares at one size; got several. Give every option once.")
        middle = next((case for case in cases if case.batch == 64), cases[0])
        names = [name for name in names if name != PUBLISHED]  # its prompts are drawn on the CPU
        _check(middle, [name for name in names if name != "plain"], place, origin, json=json, quiet=quiet)
        return
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    measured = _measure_all(cases, place, steps, quiet=quiet or json)
    remarks = notes(measured)
    if all(result.ms is None for result in measured):
        raise ValueError(f"nothing could be measured: {remarks[0]}")
    data = finite({"provenance": origin, "cases": [result.to_data() for result in measured]})
    if out is not None:
        write_json(Path(out) / "bench.json", data)
        for kind in ("png", "svg"):
            save_figure(bench_figure(measured), Path(out) / f"bench.{kind}")
        remarks = [*remarks, f"Saved in {Path(out) / 'bench.json'}, bench.png and bench.svg."]
    title = f"{origin['device']}; a large matrix product in {precision}: {number(measured[0].rate)} TFLOP/s"
    show(data, table(measured, title), notes=remarks, json=json, quiet=quiet)


def _precision_of(engine: str, asked: Dtype) -> Dtype:
    """The published program knows no bfloat16."""
    return "tf32" if engine == PUBLISHED and asked == "bfloat16" else asked


def _measure_all(cases: list[Case], device: torch.device, steps: int | None, *, quiet: bool) -> list[Measured]:
    measured = []
    with progress_lines(quiet=quiet) as report:
        report("bench", 0, "the device's matrix rate")
        rate = matrix_rate(device, cases[0].dtype)
        for index, case in enumerate(cases):
            report("bench", index / len(cases), f"{case.engine}, {case.sizes}")
            measured.append(measure(case, device, rate=rate, steps=steps))
    return measured


def _check(
    case: Case, others: list[str], device: torch.device, origin: dict[str, Any], *, json: bool, quiet: bool
) -> None:
    if not others:
        raise ValueError("the other engines are compared with plain: name another one, or leave `--engine` out.")
    if all(obstacle(replace(case, engine=name), device) for name in others):
        raise ValueError(f"nothing to compare with plain: {' and '.join(others)} cannot run here.")
    with progress_lines(quiet=quiet or json) as report:
        report("comparing engines", 0)
        total = len(others) + 1
        exact = compare(case, others, device, progress=lambda done: report("comparing engines", done / total))
        low = rounding(case, others, device) if device.type == "cuda" else []
    holds = all(comparison.holds is not False for comparison in (*exact, *low))
    data = {
        "provenance": origin,
        "holds": holds,
        "engines": [comparison.data for comparison in exact],
        "bfloat16": [comparison.data for comparison in low],
    }
    show(data, *(comparison.line for comparison in (*exact, *low)), json=json, quiet=quiet)
    if not holds:
        raise typer.Exit(1)
