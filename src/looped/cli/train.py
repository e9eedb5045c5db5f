"""`looped train` and `looped import`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from looped.cli.common import Code, Device, Json, Out, Quiet, Set, messages, pick_device, print_json, training_bar
from looped.config import code_of, override
from looped.experiment import Experiment
from looped.recipes import experiment as find_experiment
from looped.recipes import load_code
from looped.training.importer import import_checkpoint
from looped.training.run import Run
from looped.training.trainer import train as run_training


def train(
    recipe: Annotated[str | None, typer.Argument(help="`yang24.linear`, or `my_file.py:my_recipe`.")] = None,
    scale: Annotated[str | None, typer.Option(help="smoke (seconds), cpu (minutes) or paper (a GPU).")] = None,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set train.seed=...")] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run folder instead.")] = None,
    start: Annotated[str | None, typer.Option(metavar="RUN", help="Start from the weights of this run.")] = None,
    code: Code = None,
    out: Out = "runs",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one model, or go on with it, or find that it is done.

    The run folder is named by the hash of the resolved config: the same command twice trains once. Ctrl-C saves, and
    the same command goes on from there, exactly.

    Example: `looped train yang24.linear --scale cpu --set train.steps=500 --seed 1`
    """
    if (recipe is None) == (resume is None):
        raise ValueError("say what to train: a recipe (`looped list` shows them), or `--resume RUN`.")
    if resume is not None:
        if scale is not None or set_ or seed is not None or start is not None:
            raise ValueError("a resumed run keeps its config; leave --scale, --set, --seed and --start out.")
        opened = Run.open(resume, handed_over(code))
        experiment, folder = opened.experiment, opened.path
    else:
        experiment, folder = find_experiment(recipe or "", scale), None
        settings = [*(set_ or []), *([f"train.seed={seed}"] if seed is not None else [])]
        experiment = override(experiment, settings, handed_over(code))
        if start is not None and experiment.train is not None:
            experiment = replace(experiment, train=replace(experiment.train, start=start))
    run = train_with_bar(experiment, out=out, folder=folder, device=device, quiet=quiet or json)
    summary = summarize(run)
    if json:
        print_json(summary)
    elif not quiet:
        messages.print(
            f"{run.path}: loss {summary['loss']:.4f}, error {summary['error']:.4f} after {summary['step']} steps."
        )
        messages.print(f"Next: looped evaluate {run.path}")


def train_with_bar(experiment: Experiment, *, out: str, device: str = "auto", folder=None, quiet: bool = False) -> Run:
    """Train with a progress bar."""
    steps = 0 if experiment.train is None else experiment.train.steps
    with training_bar(experiment.name, steps, quiet=quiet) as bar:
        return run_training(experiment, out=out, folder=folder, device=pick_device(device), progress=bar)


def summarize(run: Run) -> dict[str, Any]:
    """Where a run stands."""
    last = run.metrics()[-1] if run.metrics() else {"step": 0, "loss": None, "error": None}
    facts = {key: last[key] for key in ("step", "loss", "error")}
    return {
        "run": str(run.path),
        "name": run.experiment.name,
        **facts,
        "parameters": run.model().num_parameters,
        "train_seconds": run.provenance().get("train_seconds"),
    }


def handed_over(files: list[str] | None) -> dict[str, Any]:
    """What the user's own files define, for configs to name."""
    return code_of(*(load_code(file) for file in files or []))


def import_file(
    file: Annotated[str, typer.Argument(help="A .pt file of the published yang24 or Garg et al. program.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The run folder to write.")],
    heads: Annotated[int, typer.Option(help="Attention heads; the file does not say.")],
    loops: Annotated[int | None, typer.Option(help="Loops; a one-layer yang24 file gets 20, others none.")] = None,
    inject: Annotated[Literal["add", "none"] | None, typer.Option(help="How loops read the prompt.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn a checkpoint of the published programs into a run.

    The file is read by torch's weights-only reader; nothing in it is executed.

    Example: `looped import state.pt --out runs/published --heads 8 --loops 20`
    """
    run, taken = import_checkpoint(file, out, heads=heads, loops=loops, inject=inject)
    if json:
        print_json({"run": str(run.path), "taken_as": taken, "parameters": run.model().num_parameters})
    elif not quiet:
        messages.print(f"{run.path}: {taken}.")
