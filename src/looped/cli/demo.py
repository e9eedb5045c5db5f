"""`looped demo`: from training to the report in two minutes on a laptop."""

import os
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from looped.cli.evaluate import table
from looped.cli.options import Json, Out, Quiet
from looped.cli.output import number, show
from looped.cli.train import train_with_bar
from looped.evaluation.curves import evaluate
from looped.evaluation.saved import save_evaluation
from looped.experiment import Experiment
from looped.files import write_bytes
from looped.functional.schedules import Trapezoid
from looped.papers import yang24
from looped.report.drawing import adaptive, save_figure
from looped.report.explorer import SHIPPED, write_explorer
from looped.report.page import write_report
from looped.report.plots import evaluation_figure
from looped.training.kept import store
from looped.training.run import Run

TITLE = "A small looped transformer against least squares"
KEPT = "yang24.linear"
LEAD = (
    "One block, applied again and again to the same prompt, has learned to regress from examples alone. With noisy "
    "labels least squares explodes where there are as many examples as dimensions; ridge is the best that any method "
    "can do."
)


def demo(
    seed: Annotated[int, typer.Option(help="One seed gives one result.")] = 0,
    out: Out = "runs",
    open_: Annotated[bool | None, typer.Option("--open/--no-open", help="Open the report in a browser.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a small looped transformer, compare it with least squares and ridge, write the report.

    A decoder block of about 50 thousand weights, looped 8 times, learns linear regression in 5 dimensions from
    examples alone. It then trains for a few seconds on noisy labels, where least squares explodes at k = d. Last, the
    model of the paper's size that comes with looped, `yang24.linear`, is evaluated on a few prompts.

    Example: `looped demo --seed 1`
    """
    silent = quiet or json
    clean, noisy = experiments(seed, out)
    large = Run.open(store() / KEPT)
    points = 2 * clean.task.d + 1
    runs, results = [], []
    for experiment, title in ((clean, "Noiseless labels"), (noisy, "Noisy labels")):
        [run] = train_with_bar(experiment, out=out, device="cpu", quiet=silent)
        result = evaluate(run.model(), experiment.task, points=points, max_loops=4 * experiment.model.loops)
        save_evaluation(run, title, result)
        runs.append(run)
        results.append(result)
        show(None, table(result, title), json=False, quiet=silent)
    # on noiseless data least squares is exact and no contest: the page leads with noise
    small = Run.open(store() / SHIPPED)
    explorer = write_explorer(Path(out) / "explorer.html", model=small.model(), setup=small.setup)
    page = write_report(Path(out) / "report.html", runs=runs[::-1], title=TITLE, lead=LEAD, explorer=explorer.name)
    picture = save_figure(evaluation_figure(results[1], d=clean.task.d), Path(out) / "demo.svg")
    write_bytes(picture, adaptive(picture.read_text()).encode())
    task, trained, k = large.experiment.task, large.experiment.model.loops, large.points - 1
    kept_result = evaluate(large.model(), task, points=k + 1, max_loops=2 * trained, prompts=64, baselines={})
    show(None, table(kept_result, f"{KEPT}, the paper's size, as it comes with looped"), json=False, quiet=silent)
    result, run = results[0], runs[0]
    model_curve, least_squares = result.by_examples[:2]
    figures = {
        "error_k2d": model_curve.at(2 * clean.task.d),
        "error_k2d_4x_loops": result.by_loops.at(4 * clean.model.loops),
        "least_squares_k2d": least_squares.at(2 * clean.task.d),
        "train_seconds": run.provenance()["train_seconds"],
        "parameters": run.model().num_parameters,
        "report": str(page),
        "explorer": str(explorer),
        "seed": seed,
        "kept_error": {"model": KEPT, "k": k, "loops": trained, "error": kept_result.by_examples[0].at(k)},
        "noisy_error_kd": {curve.label: curve.at(clean.task.d) for curve in results[1].by_examples},
    }
    text = (
        f"Error at k={2 * clean.task.d} examples: {number(figures['error_k2d'])} after {clean.model.loops} loops, "
        f"{number(figures['error_k2d_4x_loops'])} after {4 * clean.model.loops} (predicting zero: 1). {KEPT}, kept: "
        f"{number(figures['kept_error']['error'])} at k={k} after {trained}. Report: {page}. To play with: {explorer}"
    )
    show(figures, text, json=json, quiet=quiet)
    if open_ or (open_ is None and not silent and sys.stdout.isatty() and os.environ.get("DISPLAY")):
        webbrowser.open(page.resolve().as_uri())


def experiments(seed: int, out: str) -> tuple[Experiment, Experiment]:
    """The demo's two runs: `yang24.linear` at cpu scale, and the same weights trained on with label noise."""
    clean = yang24.linear("cpu")
    clean = replace(clean, name="demo", train=replace(clean.train, seed=seed))
    noisy = yang24.noisy("cpu")
    optimizer = replace(noisy.train.optimizer, schedule=Trapezoid(warmup=0.1, decay=0.5))
    start = str(Path(out) / clean.folder)
    train = replace(noisy.train, seed=seed, steps=300, dims=None, start=start, optimizer=optimizer)
    return clean, replace(noisy, name="demo-noisy", train=train)
