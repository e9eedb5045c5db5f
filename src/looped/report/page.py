"""One self-contained page about everything that was run: curves, tables, configs, provenance, theorems.

The page loads nothing and runs no script; its content-security policy enforces that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import looped
from looped.evaluation.curves import Curve, Evaluation
from looped.evaluation.saved import evaluations
from looped.experiment import Experiment
from looped.files import write_bytes
from looped.report import plots
from looped.report.drawing import PALETTE, Figures
from looped.report.findings import findings_section
from looped.report.numbers import duration, number
from looped.report.sections import result_section, theorems_section
from looped.report.subspaces import subspaces_figure
from looped.report.sweeps import sweep_section
from looped.reproduce import Result
from looped.training.run import Run

if TYPE_CHECKING:
    import jinja2

EXACT = 1e-9
"""A mean error below this is rounding: the predictor is exact."""


def write_report(
    out: str | Path,
    *,
    runs: Sequence[Run],
    results: Sequence[Result] = (),
    theorems: Sequence[Mapping[str, Any]] | None = None,
    sweeps: Sequence[Path] = (),
    title: str = "What was run, and what came out",
    lead: str = "",
    explorer: str = "",
) -> Path:
    """Write the page to `out`, a file that ends in .html or a folder for `report.html`; returns the file.

    `explorer` is the name of a loop explorer's page beside it, which it then links.
    `results` are reproduced figures, `theorems` rows of `looped verify --json`, `sweeps` folders that `looped sweep`
    wrote. The page shows them in this order.
    """
    figures = Figures()
    page = (
        environment()
        .get_template("report.html")
        .render(
            title=title,
            lead=lead,
            explorer=explorer,
            runs=[_run(run, f"run-{index}", figures) for index, run in enumerate(runs, 1)],
            sweeps=[sweep_section(folder, figures) for folder in sweeps],
            results=[result_section(result, figures) for result in results],
            theorems=None if theorems is None else theorems_section(theorems, figures),
            version=looped.__version__,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )
    out = Path(out)
    return write_page(out if out.suffix == ".html" else out / "report.html", page)


def write_page(file: Path, page: str) -> Path:
    """Write a page to a file, in a folder that is made if it is missing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, page.encode())
    except OSError as error:
        raise ValueError(f"the page cannot be written to {file}: {error.strerror}. Choose another place.") from None
    return file


def environment() -> jinja2.Environment:
    """What every page of ours is made with: the templates beside this file, and text that is escaped."""
    import jinja2

    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["number"] = number
    return pages


def _run(run: Run, anchor: str, figures: Figures) -> dict[str, Any]:
    experiment, provenance = run.setup, run.provenance()
    train = experiment.train if isinstance(experiment, Experiment) else None
    seconds = provenance.get("train_seconds")
    views = [_evaluation(name, result, experiment.task.d, figures) for name, result in evaluations(run).items()]
    metrics = run.metrics()
    with torch.random.fork_rng(devices=[]):  # counted on a fresh model, since a run may have no checkpoint
        num_parameters = experiment.model.build().num_parameters
    title = f"Training curve of {experiment.name}: loss and error by step."
    facts = {"folder": run.path.name, **provenance, "train_seconds": None}
    return {
        "id": anchor,
        "name": experiment.name,
        "hash": experiment.hash,
        "parameters": f"{num_parameters:,}",
        "seconds": duration(seconds) if seconds else "",
        "progress": _progress(run),
        "evaluations": views,
        "subspaces_svg": _subspaces(run, figures),
        **findings_section(run.path),
        "training_svg": figures(plots.training_figure(metrics), title) if metrics else "",
        "train": train,
        "provenance": [(key, _plain(value)) for key, value in facts.items() if value is not None]
        + ([("training time", duration(seconds))] if seconds else []),
        "config": _config(experiment.to_data(complete=True)),
    }


def _subspaces(run: Run, figures: Figures) -> str:
    """What each named subspace of a constructed model holds, loop by loop, on one prompt of its task."""
    points = run.provenance().get("points")
    if not run.setup.model.subspaces or points is None or not run.steps:
        return ""
    model, task = run.model(), run.setup.task
    prompt = task.sample(batch=1, n=points, generator=torch.Generator().manual_seed(0))
    loops = sorted({0, 1, 2, model.config.loops // 2, model.config.loops})
    picture = subspaces_figure(model, prompt.to(next(model.parameters()).dtype), loops=loops)
    return figures(picture, f"What each subspace of {run.setup.name} holds, loop by loop, for one prompt.")


def _progress(run: Run) -> str:
    if not isinstance(run.setup, Experiment):
        return "no training"
    done, steps = (run.steps or [0])[-1], run.setup.train.steps
    return f"{done:,} steps" if done >= steps else f"stopped at step {done:,} of {steps:,}"


def _evaluation(name: str, result: Evaluation, d: int, figures: Figures) -> dict[str, Any]:
    model, *others = result.by_examples
    labels = [curve.label for curve in result.by_examples]
    k = 2 * d if 2 * d in model.x else model.x[-1]
    trained, loops = result.trained_loops, result.by_loops
    places = [x for x in sorted({1, max(1, d // 2), d, d + 1, 2 * d, 3 * d, model.x[-1]}) if x in model.x]
    rows = [{"x": x, "cells": [_cell(curve, x) for curve in result.by_examples]} for x in places]
    for row in rows:
        row["best"] = min((cell["mean"] for cell in row["cells"] if cell["mean"] == cell["mean"]), default=None)
    loop_places = sorted({1, trained // 2, trained, 2 * trained, 3 * trained, 4 * trained, loops.x[-1]} & {*loops.x})
    far = 4 * trained if 4 * trained in loops.x else loops.x[-1]
    errors = ", ".join(f"{curve.label} {number(curve.at(k))}" for curve in result.by_examples)
    loop_errors = ", ".join(f"{number(loops.at(x))} after {x}" for x in loop_places)
    return {
        "name": name,
        "result": result,
        "level": f"{100 * result.level:g}%",
        "trained": trained,
        "d": d,
        "k": k,
        "last_k": model.x[-1],
        "xs": model.x,
        "model": _cell(model, k),
        "baselines": sorted(
            (_cell(curve, k) for curve in others), key=lambda cell: (math.isnan(cell["mean"]), cell["mean"])
        ),
        "far": _cell(loops, far, trained) if far > trained else None,
        "at_trained": loops.at(trained) if trained in loops.x else None,
        "labels": list(zip(labels, (colour % len(PALETTE) for colour in plots.colours(labels)), strict=True)),
        "rows": rows,
        "loop_rows": [_cell(loops, x, trained) for x in loop_places],
        "notes": [note for curve in others for note in _notes(curve)],
        "examples_svg": figures(
            plots.examples_figure(result.by_examples, d=d),
            f"Error by number of examples, {name}: with {k} examples {errors}.",
        ),
        "loops_svg": figures(
            plots.loops_figure(result), f"Error by loops, {name}, trained with {trained} loops: {loop_errors}."
        ),
    }


def _cell(curve: Curve, x: int, trained: int | None = None) -> dict[str, Any]:
    at = curve.x.index(x)
    times = f"{number(x / trained, 2).rstrip('0').rstrip('.')}×" if trained else ""
    numbers = {"mean": curve.mean[at], "low": curve.low[at], "high": curve.high[at]}
    return {"label": curve.label, "x": x, "times": times, **numbers}


def _notes(curve: Curve) -> list[str]:
    """Remarks on a baseline whose curve leaves the picture."""
    label = curve.label[:1].upper() + curve.label[1:]
    top = max((value for value in curve.mean if math.isfinite(value)), default=0.0)
    exact = [x for x, value in zip(curve.x, curve.mean, strict=True) if value < EXACT]
    notes = [f"{label} is exact from k = {exact[0]} on, below the picture."] if exact else []
    if top > 20:
        notes.append(f"{label} explodes to {number(top, 2)} at k = {curve.x[curve.mean.index(top)]}.")
    return notes


def _config(data: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The config in groups: task, model, train, and the optimiser of `train` as its own group."""
    train = dict(data.get("train", {}))
    optimizer = train.pop("optimizer", {})
    groups = {"task": data["task"], "model": data["model"], "train": train, "optimizer": optimizer}
    return [
        (name, [(key, _class(value) if key == "type" else _plain(value)) for key, value in group.items()])
        for name, group in groups.items()
        if group
    ]


def _class(name: str) -> str:
    return name.rpartition(":")[2]


def _plain(value: Any) -> str:
    """A config value in one line: Ramp(start=2, stop=5, share=0.5)."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key}={_plain(item)}" for key, item in value.items() if key != "type")
        return f"{_class(value['type'])}({inside})" if "type" in value else inside
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
