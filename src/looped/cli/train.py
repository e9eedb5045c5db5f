"""`looped train` and `looped import`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from looped.cli.common import Code, Device, Json, Out, Quiet, Set, pick_device, print_json, say, training_bar
from looped.config import code_of, override
from looped.experiment import Experiment
from looped.recipes import experiment as find_experiment
from looped.recipes import load_code
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

MOST_SEEDS = 10_000
"""More models than this in one batch are a slip of the hand."""


def train(
    recipe: Annotated[str | None, typer.Argument(help="`yang24.linear`, or `my_file.py:my_recipe`.")] = None,
    scale: Annotated[str | None, typer.Option(help="smoke (seconds), cpu (minutes) or paper (a GPU).")] = None,
    set_: Set = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set train.seed=...")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train this many seeds, from --seed up, as one batch.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with this run folder instead.")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="RUN", help="Start from the weights of this run or kept model.")
    ] = None,
    track: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also wandb or mlflow, offline.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; else those the run began with.")] = None,
    check: Annotated[bool, typer.Option("--check-determinism", help="Train a few steps twice and compare.")] = False,
    code: Code = None,
    out: Out = "runs",
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="plain, graph or fused; auto: the fastest that runs here.")] = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one model, or go on with it, or find that it is done.

    The run folder is named by the hash of the resolved config: the same command twice trains once. Ctrl-C saves, and
    the same command goes on from there, exactly. Several processes share the batch by
    `torchrun --nproc-per-node 2 -m looped train ...`.

    Example: `looped train yang24.linear --scale cpu --set train.steps=500 --seed 1`
    """
    if (recipe is None) == (resume is None):
        raise ValueError("say what to train: a recipe (`looped list` shows them), or `--resume RUN`.")
    if resume is not None:
        if any(option is not None for option in (scale, set_, seed, seeds, start)):
            raise ValueError("a resumed run keeps its config; leave --scale, --set, --seed, --seeds, --start out.")
        opened = Run.open(resume, handed_over(code))
        refuse_training(opened.path)
        experiment, folder = opened.experiment, opened.path
    else:
        experiment, folder = find_experiment(recipe or "", scale), None
        settings = [*(set_ or []), *([f"train.seed={seed}"] if seed is not None else [])]
        experiment = override(experiment, settings, handed_over(code))
        if start is not None:
            experiment = replace(experiment, train=replace(experiment.train, start=start))
    if seeds is not None and seeds < 1:
        raise ValueError(f"`--seeds` must be at least 1; got {seeds}.")
    if seeds is not None and seeds > MOST_SEEDS:
        raise ValueError(f"`--seeds` must be at most {MOST_SEEDS:,}; got {seeds}.")
    check_trackers(track or [])
    if check:
        _check(experiment, device=device, engine=engine, seeds=seeds, threads=threads, json=json, quiet=quiet)
        return
    try:
        runs = train_with_bar(
            experiment,
            out=out,
            folder=folder,
            device=device,
            engine=engine,
            seeds=seeds,
            quiet=quiet or json or not leads(),
            threads=threads,
            track=track or (),
        )
    except (Interrupted, Diverged) as error:
        if leads() or isinstance(error, NotSaved):
            raise
        raise typer.Exit(1) from None  # all ranks stop together, and rank 0 says so
    if not leads():
        return
    summaries = [summarize(run) for run in runs]
    if json:
        print_json(summaries if seeds is not None else summaries[0])
    elif not quiet:
        for one in summaries:
            loss, error = ("not logged" if one[key] is None else f"{one[key]:.4f}" for key in ("loss", "error"))
            say(f"{one['run']}: loss {loss}, error {error} after {one['step']} steps.")
        own = [*([recipe.partition(":")[0]] if recipe is not None and ".py" in recipe else []), *(code or [])]
        say(f"Next: looped evaluate {runs[0].path}{handing_over(own)}")


def train_with_bar(
    experiment: Experiment,
    *,
    out: str,
    device: str = "auto",
    engine: str = "auto",
    folder: Path | None = None,
    seeds: int | None = None,
    quiet: bool = False,
    threads: int | None = None,
    track: Sequence[str] = (),
) -> list[Run]:
    """Train with a progress bar: one run, or `seeds` of them as one batch."""
    config, place = experiment.train, pick_device(device)
    with training_bar(experiment.name, config.steps, quiet=quiet) as bar:
        how: dict[str, Any] = {"out": out, "device": place, "engine": engine, "progress": bar}
        how |= {"threads": threads, "track": track}
        if seeds is None:
            return [train_one(experiment, folder=folder, **how)]
        return train_seeds(experiment, range(config.seed, config.seed + seeds), **how)


def _check(
    experiment: Experiment,
    *,
    device: str,
    engine: str,
    seeds: int | None,
    threads: int | None,
    json: bool,
    quiet: bool,
) -> None:
    """Say whether training is the same twice; exit code 1 where it is not."""
    place, config = pick_device(device), experiment.train
    with at_threads(threads) as count:
        numbers = None if seeds is None else range(config.seed, config.seed + seeds)
        found = check_determinism(experiment, seeds=numbers, device=place, engine=engine)
    if leads():
        if json:
            facts = {"equal": found is None, "threads": count, "device": str(place)}
            print_json(facts | ({} if found is None else {"first": found.name, "size": found.size}))
        elif found is not None:
            say(
                f"{found.tensors} of {found.of} tensors differ after the same few steps; the first is `{found.name}`, "
                f"by up to {found.size:.3g} ({place}, {count} threads)."
            )
        elif not quiet:
            say(f"equal: the same few steps twice gave the same bits ({place}, {count} threads).")
    if found is not None:
        raise typer.Exit(1)


def summarize(run: Run) -> dict[str, Any]:
    """Where a run stands."""
    last = run.metrics()[-1] if run.metrics() else {"step": 0, "loss": None, "error": None}
    facts = {key: last[key] for key in ("step", "loss", "error")}
    return {
        "run": str(run.path),
        "name": run.setup.name,
        **facts,
        "parameters": run.model().num_parameters,
        "train_seconds": run.provenance().get("train_seconds"),
    }


def handed_over(files: list[str] | None) -> dict[str, Any]:
    """What the user's own files define, for configs to name."""
    return code_of(*(load_code(file) for file in files or []))


def handing_over(files: list[str] | None) -> str:
    """The options by which the next command gets the same files, to stand behind its other words."""
    return "".join(f" --code {shlex.quote(file)}" for file in dict.fromkeys(files or []))


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
        say(f"{run.path}: {taken}.")
