"""`looped bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from looped.bench.agreement import compare, rounding
from looped.bench.cases import Case, Dtype, chosen_cases, left_out
from looped.bench.measure import Measured, matrix_rate, measure, obstacle, stepper
from looped.bench.results_table import bench_figure, notes, table
from looped.bench.rivals import RIVALS, transformers
from looped.cli.common import Device, Json, Quiet, late, messages, pick_device, print_json, say
from looped.files import finite, write_json
from looped.papers.yang24 import Scale
from looped.report.drawing import save_figure
from looped.training.engine import ENGINES
from looped.training.run import provenance

Count = list[int] | None


def bench(
    engine: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join((*ENGINES, *RIVALS))}; may be repeated. Default: all.")
    ] = None,
    batch: Annotated[Count, typer.Option(help="Prompts a step; may be repeated, as the next three.")] = None,
    loops: Annotated[Count, typer.Option(help="Loops: the paper's b.")] = None,
    window: Annotated[Count, typer.Option(help="Loops with loss and gradient: the paper's T.")] = None,
    points: Annotated[Count, typer.Option(help="Pairs in a prompt.")] = None,
    packed: Annotated[int, typer.Option(help="Models that train side by side.")] = 1,
    dtype: Annotated[Dtype | None, typer.Option(help="Precision; default bfloat16 on a GPU, float32 on a CPU.")] = None,
    scale: Annotated[
        Scale | None, typer.Option(help="Size of the decoder; default paper on a GPU, cpu on a CPU.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Timed steps; default up to 200 in 2 s on a GPU, 50 in 2 s on a CPU.")
    ] = None,
    rivals: Annotated[
        bool | None, typer.Option("--rivals/--no-rivals", help="Also Hugging Face's GPT2Model, eager and compiled.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Instead: do all engines compute the same?")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write bench.json, bench.png and bench.svg there.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Speed and memory of a training step, against what a person would use instead.

    A step is everything: sampling, loops, loss, clipping, Adam. TFLOP/s count the products with the block's weights
    and nothing else; `share` is of a large matrix product measured in the same run; `speed` is against GPT2Model in
    eager PyTorch; `set-up` is compiling, capturing and warming up, which no step's time contains.

    Example: `looped bench --batch 64 --batch 1024 --loops 20 --window 15`
    """
    place = pick_device(device)
    if steps is not None and steps < 1:
        raise ValueError(f"`--steps` must be at least 1; got {steps}.")
    names = _names(engine, rivals)
    precision: Dtype = dtype or ("bfloat16" if place.type == "cuda" and not check else "float32")
    if precision in ("tf32", "bfloat16") and place.type != "cuda":
        raise ValueError(f"`--dtype {precision}` needs a GPU; this is a CPU. Use float32.")
    size: Scale = scale or ("paper" if place.type == "cuda" else "cpu")
    chosen = chosen_cases(size, batch=batch, loops=loops, window=window, points=points)
    as_ever = not any((batch, loops, window, points))
    cases = [
        Case(engine=name, packed=packed, dtype=precision, scale=size, **sizes)
        for sizes in chosen
        for name in names
        if not (as_ever and left_out(name, sizes, chosen))
    ]
    if any(name in RIVALS for name in names):
        transformers()
    for case in cases[: len(names)]:  # what was asked for by name must be there; of the rest the notes tell
        if case.engine in (engine or ()):
            stepper(case, place, steps=1)
    if check:
        _check(cases, names, place, given=dtype is not None, chosen=not as_ever, json=json, quiet=quiet)
        return
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
    found = _measure_all(cases, place, steps, quiet=quiet or json)
    missing = notes(found)
    if all(one.ms is None for one in found):
        raise ValueError(f"nothing could be measured: {missing[0]}")
    data = finite({"provenance": _provenance(place, names), "cases": [one.to_data() for one in found]})
    if out is not None:
        write_json(Path(out) / "bench.json", data)
        for kind in ("png", "svg"):
            save_figure(bench_figure(found), Path(out) / f"bench.{kind}")
    if json:
        print_json(data)
    elif not quiet:
        rate = f"{data['provenance']['device']}; a large matrix product in {precision}: {found[0].rate:.3g} TFLOP/s"
        # a table is as wide as it is, also where the output goes into a file
        Console(stderr=True, width=max(messages.width, 130)).print(table(found, rate))
        for note in missing:
            say(note)
        if out is not None:
            say(f"Saved in {Path(out) / 'bench.json'}, bench.png and bench.svg.")


def _names(engine: Sequence[str] | None, rivals: bool | None) -> list[str]:
    every = (*ENGINES, *RIVALS)
    for name in engine or ():
        if name not in every:
            raise ValueError(f"there is no engine `{name}`. Use one of {', '.join(every)}.")
    asked = [*(engine or ENGINES), *(RIVALS if rivals or (rivals is None and not engine) else ())]
    names = [name for name in dict.fromkeys(asked) if rivals is not False or name not in RIVALS]
    if not names:
        raise ValueError("`--no-rivals` leaves nothing to measure; name an engine of ours, or leave it out.")
    return names


def _measure_all(cases: list[Case], device: torch.device, steps: int | None, *, quiet: bool) -> list[Measured]:
    found = []
    with _bar(len(cases), quiet=quiet) as bar:
        show = _shower(bar)
        show(0, "the device's matrix rate")
        rate = matrix_rate(device, cases[0].dtype)
        for index, case in enumerate(cases):
            show(index, f"{case.engine}, batch {case.batch}, b={case.loops}, T={case.window}, {case.points} points")
            found.append(measure(case, device, rate=rate, steps=steps))
        show(len(cases), "measured")
    return found


def _check(
    cases: list[Case], names: list[str], device: torch.device, *, given: bool, chosen: bool, json: bool, quiet: bool
) -> None:
    if given and cases[0].dtype != "float32":
        raise ValueError("`--check` compares in float32 with TF32 off; leave `--dtype` out.")
    sizes = {(case.batch, case.loops, case.window, case.points) for case in cases}
    if chosen and len(sizes) > 1:
        raise ValueError(f"`--check` compares at one size; got {len(sizes)}. Give each option once.")
    if len(sizes) > 1:
        cases = [case for case in cases if case.batch == 64][:1] or cases[:1]
    others = [name for name in names if name != "plain"]
    if not others:
        raise ValueError("plain is what the others are compared with: name another engine, or leave `--engine` out.")
    if all(obstacle(replace(cases[0], engine=name), device) for name in others):
        raise ValueError(f"nothing to compare with plain: {' and '.join(others)} cannot run here.")
    with _bar(len(others) + 1, quiet=quiet or json) as bar:
        show = _shower(bar)
        show(0, "comparing engines")
        found = compare(cases[0], others, device, progress=lambda done: show(done, "comparing engines"))
        low = rounding(cases[0], others, device) if device.type == "cuda" else []
    holds = all(one.holds is not False for one in (*found, *low))
    if json:
        parts = {"engines": [one.to_data() for one in found], "bfloat16": [one.to_data() for one in low]}
        print_json({"provenance": _provenance(device, names), "holds": holds, **parts})
    elif not quiet:
        for one in (*found, *low):
            say(one.line())
    if not holds:
        raise typer.Exit(1)


def _provenance(device: torch.device, names: Sequence[str]) -> dict[str, Any]:
    rivals = {"transformers": transformers().__version__} if any(name in RIVALS for name in names) else {}
    return {**provenance(device), **rivals}


def _bar(total: int, *, quiet: bool):
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=messages, disable=quiet, transient=True)
    bar.add_task("", total=total)
    return late(bar)


def _shower(bar: Progress) -> Callable[[int, str], None]:
    def show(done: int, text: str) -> None:
        bar.start()
        bar.update(bar.tasks[0].id, completed=done, description=text)

    return show
