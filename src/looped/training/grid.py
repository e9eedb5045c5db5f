"""Experiments of a figure as one sweep: finished runs and kept models are used, and seeds train as one stack."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from looped.experiment import Experiment, Setup, known_hashes
from looped.files import Busy, read_json
from looped.training.executors import Executor
from looped.training.folder import checkpoint_steps, read_checkpoint
from looped.training.kept import kept_models
from looped.training.run import Run
from looped.training.sweep import sweep
from looped.training.trainer import Diverged
from looped.training.trials import Standing, standing, trial


def train_grid(
    experiments: Sequence[Experiment],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    progress: Callable[[str, float], None] = lambda what, share: None,
    trained: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """The run of every experiment, in the order given; what is neither in `out` nor a kept model is trained.

    The experiments are the trials of a sweep: other grids and sweeps share their folders, and a stopped grid goes on
    where it stopped. `progress` gets what is being trained and the share of the steps that is done; `trained` gets
    every run at the end. Where a run diverges, or another process trains it, the others are still trained; then
    `Diverged` or `Busy` is raised.
    """
    every = [trial(experiment, out) for experiment in experiments]
    shipped = kept_by_hash({cell.experiment.hash for cell in every})
    used = {
        cell.path: Run(shipped[cell.experiment.hash], cell.experiment)
        for cell in every
        if cell.experiment.hash in shipped and standing(cell.path).status != "finished"
    }
    trials = list({cell.path: cell for cell in every if cell.path not in used}.values())
    if used and not trials:
        progress("all are kept models", 1.0)
    total, share = sum(cell.steps for cell in trials), 0.0
    done = [0] * len(trials)
    finished: set[int] = set()
    stepped = 0

    def tell(index: int, stand: Standing) -> None:
        nonlocal share, stepped
        stepped += stand.step - done[index]
        done[index] = stand.step
        if stand.status == "finished":
            finished.add(index)
        share = max(share, stepped / total)  # the bar never goes back, even where a run does
        progress(f"{trials[index].experiment.name} ({len(finished)} of {len(trials)} runs done)", share)

    stands = sweep(trials, Executor(device=torch.device(device).type), tell=tell)
    for status, kind in (("failed", ValueError), ("diverged", Diverged), ("busy", Busy)):
        troubles = [stand.message for stand in stands if stand.status == status]
        reasons = " ".join(dict.fromkeys(troubles))
        if troubles and kind is Busy:
            raise Busy(f"all is trained but what another process trains. {reasons} Then run this again.")
        if troubles:
            raise kind(f"{len(troubles)} of {len(trials)} runs {status}. {reasons}")
    runs = [used.get(cell.path) or Run.create(cell.path, cell.experiment) for cell in every]
    for run in runs:
        trained(run)
    return runs


def kept_by_hash(wanted: Collection[str]) -> dict[str, Path]:
    """The kept models of experiments with the `wanted` hashes, as this library writes them today."""
    by_hash: dict[str, Path] = {}
    for path in kept_models().values():
        with contextlib.suppress(ValueError, OSError):  # damaged, or it names code that was not handed over
            config = read_json(path / "config.json")
            setup = Setup.from_data(config)
            if setup.hash in wanted and setup.hash not in by_hash:
                [step] = checkpoint_steps(path)
                # not weights of another config under this name, nor of an earlier step
                checkpoint = read_checkpoint(path, step)
                if checkpoint.finished and checkpoint.experiment in known_hashes(config, setup):
                    by_hash[setup.hash] = path
    return by_hash
