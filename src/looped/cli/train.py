"""`looped train` and `looped import`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from looped.cli import options
from looped.cli.output import number, show, training_bar
from looped.config import override
from looped.experiment import Experiment
from looped.files import quoted
from looped.recipes import experiment as find_experiment
from looped.training.determinism import check_determinism
from looped.training.distributed import leads
from looped.training.importer import import_checkpoint
from looped.training.kept import refuse_training
from looped.training.run import Run
from looped.training.stopping import Interrupted, NotSaved
from looped.training.threads import at_threads
from looped.training.tracking import check as check_trackers
from looped.training.trainer import Diverged, train_seeds
from looped.training.trainer import train as train_one

MAX_SEEDS = 1000
"""More models than this in one batch are a typo."""


def train(
    recipe: options.Recipe = None,
    scale: options.RecipeScale = None,
    set_: options.Set = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set train.seed=...")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train this many seeds, from --seed up, as one batch.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Resume this run, or with --set train.steps=N extend it.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="RUN", help="Start from this run's or kept model's weights.")
    ] = None,
    track: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also wandb or mlflow, offline.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default as many as the run began with.")] = None,
    check: Annotated[bool, typer.Option("--check-determinism", help="Train a few steps twice and compare.")] = False,
    code: options.Code = None,
    out: options.Out = "runs",
    device: options.Device = "auto",
    engine: Annotated[str, typer.Option(help="plain, graph or fused; auto: the fastest that runs here.")] = "auto",
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model; resume it if it was stopped; do nothing if it is finished.

    The run folder is named after the hash of the resolved config: the same command twice trains once. Ctrl-C saves, and
    the same command resumes exactly from there. To share a batch among processes, use
    `torchrun --nproc-per-node 2 -m looped train ...`.

    Example: `looped train yang24.linear --scale cpu --set train.steps=500 --seed 1`
    """
    if (recipe is None) == (resume is None):
        raise ValueError("say what to train: a recipe (`looped list` shows them), or `--resume RUN`.")
    if resume is not None:
        if any(option is not None for option in (scale, seed, seeds, start)):
            raise ValueError("a resumed run keeps its config; leave --scale, --seed, --seeds, --start out.")
        resumed = _extended(Run.open(resume, options.load_user_code(code)), set_ or [])
        refuse_training(resumed.path)
        experiment, folder = resumed.experiment, resumed.path
    else:
        experiment, folder = find_experiment(recipe or "", scale), None
        settings = [*(set_ or []), *([f"train.seed={seed}"] if seed is not None else [])]
        experiment = override(experiment, settings, options.load_user_code(code))
        if start is not None:
            experiment = replace(experiment, train=replace(experiment.train, start=start))
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        bound = "at least 1" if seeds < 1 else f"at most {MAX_SEEDS:,}"
        raise ValueError(f"`--seeds` must be {bound}; got {seeds}.")
    first = experiment.train.seed
    numbers = None if seeds is None else range(first, first + seeds)
    check_trackers(track or [])
    if check:
        _check(experiment, numbers, device, engine, threads, json=json, quiet=quiet)
        return
    try:
        silent = quiet or json or not leads()
        more = {"yes": yes, "out": out, "engine": engine, "threads": threads, "track": track or ()}
        runs = train_with_bar(experiment, device=device, quiet=silent, seeds=numbers, folder=folder, **more)
    except (Interrupted, Diverged) as error:
        if leads() or isinstance(error, NotSaved):
            raise
        raise typer.Exit(1) from None  # all ranks stop together, and rank 0 prints the reason
    if not leads():
        return
    summaries = [summarize(run) for run in runs]
    files = [*([recipe.partition(":")[0]] if recipe is not None and ".py" in recipe else []), *(code or [])]
    next_step = f"Next: looped evaluate {quoted(runs[0].path)}{options.code_options(files)}"
    data = summaries if seeds is not None else summaries[0]
    show(data, *map(_summary_line, summaries), notes=[next_step], json=json, quiet=quiet)


def _extended(run: Run, settings: list[str]) -> Run:
    """The run, or where `train.steps` is set, the one that goes on from its end."""
    if not settings:
        return run
    asked = override(run.experiment, settings)
    if replace(asked, train=replace(asked.train, steps=run.experiment.train.steps)) != run.experiment:
        raise ValueError(f"a resumed run keeps its config but for train.steps; got {' '.join(settings)}.")
    return run.extend(asked.train.steps)


def train_with_bar(
    experiment: Experiment,
    *,
    device: str,
    quiet: bool,
    yes: bool = True,
    seeds: range | None = None,
    folder: Path | None = None,
    **more: Any,
) -> list[Run]:
    """Train with a progress bar: one run, or several seeds as one batch; `more` are options of the trainer."""
    with training_bar(experiment.name, experiment.train.steps, quiet=quiet, yes=yes) as bar:
        more |= {"device": options.pick_device(device), "progress": bar}
        if seeds is None:
            return [train_one(experiment, folder=folder, **more)]
        return train_seeds(experiment, seeds, **more)


def _check(
    experiment: Experiment,
    seeds: range | None,
    device: str,
    engine: str,
    threads: int | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Print whether training twice gives the same bits; exit with code 1 if it does not."""
    place = options.pick_device(device)
    with at_threads(threads) as count:
        difference = check_determinism(experiment, seeds=seeds, device=place, engine=engine)
    data: dict[str, Any] = {"equal": difference is None, "threads": count, "device": str(place)}
    text = f"equal: the same few steps twice gave the same bits ({place}, {count} threads)."
    if difference is not None:
        data |= {"first": difference.name, "size": difference.size}
        text = (
            f"{difference.tensors} of {difference.of} tensors differ after the same few steps; the first is "
            f"`{difference.name}`, by up to {number(difference.size)} ({place}, {count} threads)."
        )
    if leads():
        show(data, text, json=json, quiet=quiet and difference is None)
    if difference is not None:
        raise typer.Exit(1)


def summarize(run: Run) -> dict[str, Any]:
    """A run's last logged step, loss and error."""
    last = (run.metrics() or [{"step": 0, "loss": None, "error": None}])[-1]
    return {
        "run": str(run.path),
        "name": run.setup.name,
        **{key: last[key] for key in ("step", "loss", "error")},
        "parameters": run.model().num_parameters,
        "train_seconds": run.provenance().get("train_seconds"),
    }


def _summary_line(summary: dict[str, Any]) -> str:
    loss, error = ("not logged" if summary[key] is None else number(summary[key]) for key in ("loss", "error"))
    return f"{summary['run']}: loss {loss}, error {error} after {summary['step']} steps."


def import_file(
    file: Annotated[str, typer.Argument(help="A .pt file of the published yang24 or Garg et al. program.")],
    out: options.RunFolder,
    heads: Annotated[int, typer.Option(help="Attention heads; the file does not say.")],
    loops: Annotated[int | None, typer.Option(help="Loops; a one-layer yang24 file gets 20, others none.")] = None,
    inject: Annotated[
        Literal["add", "multiply", "none"] | None, typer.Option(help="How loops read the prompt.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn a checkpoint of the published programs into a run.

    torch's weights-only reader reads the file; nothing in it is executed.

    Example: `looped import state.pt --out runs/published --heads 8 --loops 20`
    """
    run, taken = import_checkpoint(file, out, heads=heads, loops=loops, inject=inject)
    data = {"run": str(run.path), "taken_as": taken, "parameters": run.model().num_parameters}
    show(data, f"{run.path}: {taken}.", json=json, quiet=quiet)
