"""Trains runs: sample, unroll, loss, clip, step. One model, or several that differ in their seeds as one stack."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from looped.experiment import Experiment, TrainConfig
from looped.functional.streams import stream
from looped.models.blocks import stack
from looped.prompt import AnyPrompt, Prompt
from looped.training.batches import Batches, Now
from looped.training.distributed import ALONE, Team
from looped.training.distributed import join as join_ranks
from looped.training.dropout import add_dropout
from looped.training.engine import Plain, check_engine, choose
from looped.training.folder import Checkpoint, checkpoint_path, traceless
from looped.training.kept import locate, refuse_training
from looped.training.optim import Optimizers
from looped.training.pieces import follow
from looped.training.run import Run, check_weights, digest, load_weights
from looped.training.stacks import last_common_checkpoints
from looped.training.stopping import Interrupted, stop_signals, writing
from looped.training.threads import at_threads, check_threads, recorded
from looped.training.tracking import Board, boards
from looped.training.training_loop import TrainingLoop

Progress = Callable[[int, dict[str, float]], None]
"""(steps done, last metrics of the first model) -> None."""


class Diverged(Exception):
    """The loss stopped being finite."""


def train(
    experiment: Experiment,
    *,
    out: str | Path = "runs",
    folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    engine: str = "auto",
    progress: Progress | None = None,
    threads: int | None = None,
    track: Sequence[str] = (),
) -> Run:
    """Train an experiment, or go on training it, or return its finished run.

    The run folder is `out`/NAME-HASH, or `folder`. Ctrl-C and SIGTERM save and raise `Interrupted`; the next call goes
    on exactly where this one stopped. `Busy` is raised where another process trains the run. `engine` is how a step is
    run (`training/engine.py`), not what it computes. `threads` is the number of torch threads (None: the number the run
    began with, or torch's own); `track` names trackers besides TensorBoard. In a torchrun job every rank calls this;
    `LostRank` is raised where one of them is gone.
    """
    _check_experiment(experiment)
    path = Path(folder) if folder is not None else Path(out) / experiment.folder
    return _train({path: experiment}, device, engine, progress, threads, track)[0]


def train_seeds(
    experiment: Experiment,
    seeds: Sequence[int],
    *,
    out: str | Path = "runs",
    device: str | torch.device = "cpu",
    engine: str = "auto",
    progress: Progress | None = None,
    threads: int | None = None,
    track: Sequence[str] = (),
) -> list[Run]:
    """Train one model a seed, all as one stack of models; each run equals training it alone, up to rounding."""
    _check_experiment(experiment)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must differ from each other; got {list(seeds)}.")
    members = [replace(experiment, train=replace(experiment.train, seed=seed)) for seed in seeds]
    paths = {Path(out) / member.folder: member for member in members}
    return _train(paths, device, engine, progress, threads, track)


def _check_experiment(given: object) -> None:
    if not isinstance(given, Experiment):
        raise ValueError(
            f"`experiment` must be an `Experiment`; got {type(given).__name__}. A recipe's is "
            "`looped.recipes.experiment(NAME)`."
        )


def _train(
    experiments: Mapping[Path, Experiment],
    device: str | torch.device,
    engine: str,
    progress: Progress | None,
    threads: int | None,
    track: Sequence[str],
) -> list[Run]:
    """Train runs that stand at the same step together, each locked for this process."""
    check_engine(engine)
    check_threads(threads)
    team = join_ranks(device)
    with traceless([*experiments] if team.leads else []), contextlib.ExitStack() as held:
        runs = [team.open(path, experiment) for path, experiment in experiments.items()]
        if all(run.finished(run.experiment.train.steps) for run in runs):
            return runs  # nothing is written, not even a lock
        for run in runs:
            refuse_training(run.path)
        held.enter_context(team.reporting(runs))
        held.enter_context(at_threads(threads or recorded(runs[0], ranks=team.size)))
        # in one order: of two processes that want the same runs, one gets them all
        for run in sorted(runs, key=lambda run: str(run.path)):
            with writing(run):
                held.enter_context(run.lock())
                run.tidy()
        # read again under the lock: a run may have ended just now
        latest = team.checkpoints(runs, lambda: last_common_checkpoints(runs, [run.latest(mend=True) for run in runs]))
        groups: dict[int, list[int]] = {}
        for index, checkpoint in enumerate(latest):
            if checkpoint is not None and checkpoint.finished:
                runs[index].check(checkpoint)
            if checkpoint is None or not checkpoint.finished:
                groups.setdefault(0 if checkpoint is None else checkpoint.step, []).append(index)
        stopping = held.enter_context(stop_signals())
        for members in groups.values():
            if stopping.is_set():  # in the last step of the group before
                raise Interrupted(f"stopped between runs; everything is saved in {runs[0].path.parent}.")
            trainer = Trainer([runs[index] for index in members], team.place(device), engine, team)
            trainer.restore([checkpoint for index in members if (checkpoint := latest[index]) is not None])
            trainer.run_all(progress if team.leads else None, track)
        return runs


class Trainer(TrainingLoop):
    """One or several runs in progress; several differ in their seeds alone and are one stack of models."""

    def __init__(self, runs: Sequence[Run], device: torch.device, engine: str = "auto", team: Team = ALONE):
        self.experiment, self.task = runs[0].experiment, runs[0].experiment.task
        self.config: TrainConfig = self.experiment.train
        keep = self.config.keep_checkpoints
        super().__init__(runs, device, steps=self.config.steps, keep_checkpoints=keep, team=team)
        self.runs = list(runs)
        self.seeds = [run.experiment.train.seed for run in runs]
        self.stacked = len(runs) > 1
        # bfloat16 is the precision of the passes; everything else stays in float32
        self.dtype = torch.float64 if self.config.dtype == "float64" else torch.float32
        # `train.start` is a name: which weights it meant is part of what the run records
        known = self.runs[0].provenance() if self.runs[0].steps else {}
        self.began: dict[str, Any] = {key: value for key, value in known.items() if key == "start"}
        models = [self._build(seed) for seed in self.seeds]
        self.model = stack(models) if self.stacked else models[0]
        self.batches = Batches(self.experiment, self.seeds, device=device, dtype=self.dtype, causal=self.model.causal)
        self.engine, self.passes = choose(self, engine)
        if self.config.dropout:
            add_dropout(self.passes.low, self.config.dropout, self.batches.generators)
        captured = not isinstance(self.engine, Plain)
        self.optimizers = Optimizers(self.model, self.config.optimizer, captured=captured, dtype=self.passes.dtype)
        self.average = None if self.config.average is None else {k: v.clone() for k, v in self.weights().items()}
        # loss, error, gradient norm of each model since the last line; first step with a loss not finite, or `steps`
        self.sums = torch.zeros(3, len(runs), device=device)
        self.first_bad = torch.full((len(runs),), self.config.steps, device=device)
        self.boards: list[list[Board]] = []
        self.line: dict[str, float] = {}

    def run_all(self, progress: Progress | None = None, track: Sequence[str] = ()) -> None:
        """Do all steps that are left, with metrics and checkpoints on the way."""
        self.team.check_same(self.weights(), self.batches.generators)
        for run in self.runs:
            with writing(run):
                run.rewind_metrics(self.done)
        with stop_signals(), contextlib.ExitStack() as files:
            for run in self.runs:
                with writing(run):
                    self.boards.append(files.enter_context(boards(run, self.done, track)))
            try:
                self.run(None if progress is None else lambda done: progress(done, self.line))
            except KeyboardInterrupt:  # the second Ctrl-C
                raise Interrupted(f"stopped at once: {self.runs[0].progress}. {self.runs[0].resume}") from None

    def step(self, now: int) -> None:
        """One optimiser step, by the engine; nothing in it waits for the device or branches on a tensor's value."""
        self.engine.step(now)

    def learn(self, prompt: Any, outputs: Tensor, now: Now, whole: AnyPrompt | None = None) -> None:
        """Judge the outputs and update the weights; `prompt` are this rank's rows of the `whole` batch.

        loss = mean over prompts, positions by their weights and the last `window` loops of task.error, model by model
        """
        batch: AnyPrompt = prompt if whole is None else whole
        error = self.task.error(outputs, prompt)
        if self.config.emphasis and error.shape[-1] < prompt.places[-1]:
            raise ValueError(
                "`emphasis` weighs the pairs that a model answers, and this one answers the last alone; "
                f"got {self.config.emphasis}. Set `train.emphasis=0`."
            )
        loss = self._weighted(error, prompt, batch)
        for weight, gradient in zip(self.passes.weights, self.passes.gradients(loss), strict=True):
            weight.grad = gradient
        self.team.add_gradients(self.model)
        norm = self.optimizers.clip(self.model, stacked=self.stacked)
        self.optimizers.step(now.rate)
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self.average is not None:
                follow([*self.average.values()], [*self.weights().values()], now.decay)
            # of pairs the last one, with the most examples before it; of a sequence every token that is scored
            pairs, end, loss = isinstance(prompt, Prompt), error[-1:], loss.detach()
            end = _at(end, now.points) if pairs else end
            last = _share(self._mean(end), prompt, batch) if pairs else self._weighted(end, prompt, batch)
            self.team.add(loss, last)
            torch._foreach_add_([*self.sums], [part.reshape(-1) for part in (loss, last, norm)])  # pyright: ignore[reportPrivateImportUsage]
            # not isfinite: that is four kernels of a captured step, and this is two
            bad = (loss - loss).reshape(-1) != 0
            torch.minimum(self.first_bad, torch.where(bad, now.step, self.first_bad), out=self.first_bad)

    def log(self) -> None:
        """Write a line of metrics where one is due."""
        if self.done % self.config.log_every and self.done < self.steps:
            return
        lines = self.metrics()
        self.line = lines[0]
        for run, trackers, line in zip(self.runs, self.boards, lines, strict=True):
            with writing(run):
                run.append_metrics(line)
                for tracker, (key, value) in itertools.product(trackers, line.items()):
                    tracker.add_scalar(key, value, self.done)

    def metrics(self) -> list[dict[str, float]]:
        """Means since the last line for each model; here, and only here, the host waits for the device."""
        self.check_finite()
        count = (self.done - 1) % self.config.log_every + 1
        rate = self.config.optimizer.schedule(self.done - 1, self.config.steps)
        means = (self.sums / count).T.tolist()
        self.sums.zero_()
        names = ("loss", "error", "gradient_norm")
        return [{"step": self.done, **dict(zip(names, mean, strict=True)), "rate": rate} for mean in means]

    def check_finite(self) -> None:
        """Stop where a loss was not finite; the last checkpoints stay as they are."""
        for run, bad in zip(self.runs, self.first_bad.tolist(), strict=True):
            if bad < self.config.steps:
                self._diverged(run, f"the loss was not finite at step {bad}")

    def checkpoint_due(self) -> bool:
        """Every `checkpoint_every` steps."""
        return self.done % self.config.checkpoint_every == 0

    def checkpoints(self) -> list[dict[str, Tensor]]:
        """Weights, averages, optimiser and random state of every run; refused where no run could go on from it."""
        self.check_finite()
        # a finite loss can have a gradient that is not, and the update comes after the loss
        if not all(bool(value.isfinite().all()) for value in self.weights().values()):
            self._diverged(self.runs[0], f"the weights were not finite after step {self.done - 1}")
        parts = {"model": self.weights(), "average": self.average or {}, "optimizer": self.optimizers.tensors()}
        flat = {f"{part}/{name}": value for part, group in parts.items() for name, value in group.items()}
        return [
            {
                # a stack's tensors have the models as first axis; a lone number, such as Adam's count, is common to all
                **{name: value[index] if self.stacked and value.ndim else value for name, value in flat.items()},
                "sums": self.sums[:, index],
                "generator": self.batches.generators[index].get_state(),
            }
            for index in range(len(self.runs))
        ]

    def facts(self) -> dict[str, Any]:
        """The models and ranks that trained together, and the weights that training started from."""
        return {"models_in_one_batch": len(self.runs), "ranks": self.team.size, **self.began}

    def load(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Take everything that `checkpoints` gave."""
        for run, checkpoint in zip(self.runs, checkpoints, strict=True):
            for part in ("model", "average"):
                check_weights(checkpoint.part(part), self.weights(), checkpoint_path(run.path, checkpoint.step))
            if not checkpoint.part("optimizer"):
                raise KeyError("optimizer")
        self.model.load_state_dict(self._joined(checkpoints, "model"))
        self.optimizers.load(self._joined(checkpoints, "optimizer"))
        for index, checkpoint in enumerate(checkpoints):
            self.batches.generators[index].set_state(checkpoint.tensors["generator"])
            self.sums[:, index] = checkpoint.tensors["sums"].to(self.device)
        if self.average is not None:
            for name, value in self._joined(checkpoints, "average").items():
                self.average[name].copy_(value)

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def _diverged(self, run: Run, what: str) -> NoReturn:
        self.task.check(torch.Generator(self.device).manual_seed(0), batch=self.config.batch, n=self.config.points)
        last = f"is of step {run.steps[-1]}" if run.steps else "does not exist: none was written yet"
        raise Diverged(f"{what}; the last good checkpoint in {run.path} {last}. Lower the learning rate, or clip.")

    def _build(self, seed: int):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "weights"))
            model = self.experiment.model.build()
        if self.config.start is not None and not self.runs[0].steps:
            load_weights(model, locate(self.config.start, beside=self.runs[0].path.parent))
            self.began = {"start": digest(model.state_dict())}
        return model.to(self.device, self.dtype).train()

    def _mean(self, values: Tensor) -> Tensor:
        """Mean over all but the axis of models, the second of (loops, models, batch, n)."""
        return values.transpose(0, 1).flatten(1).mean(1) if self.stacked else values.mean()

    def _weighted(self, error: Tensor, prompt: AnyPrompt, whole: AnyPrompt) -> Tensor:
        """The share of this rank in the mean over the scored positions of the whole batch, each by its weight."""
        if prompt.weights is None or whole.weights is None:
            return _share(self._mean(error), prompt, whole)
        here, everywhere = (weights[..., -error.shape[-1] :] for weights in (prompt.weights, whole.weights))
        total = self._mean(everywhere.expand(len(error), *everywhere.shape))
        return _share(self._mean(error * here), prompt, whole) / total

    def _joined(self, checkpoints: Sequence[Checkpoint], part: str) -> dict[str, Tensor]:
        parts = [checkpoint.part(part) for checkpoint in checkpoints]
        lone = {name for name, value in parts[0].items() if value.ndim == 0 and name.endswith("/step")}
        return {
            name: value.to(self.device)
            if not self.stacked or name in lone
            else torch.stack([tensors[name] for tensors in parts]).to(self.device)
            for name, value in parts[0].items()
        }


def _at(errors: Tensor, points: int | Tensor) -> Tensor:
    """The last scored position of (..., positions); a model that reads the last pair as its query has only one."""
    if isinstance(points, int):
        return errors[..., :points][..., -1:]
    return errors.index_select(-1, (points.long().clamp(max=errors.shape[-1]) - 1).view(1))


def _share(mean: Tensor, prompt: AnyPrompt, whole: AnyPrompt) -> Tensor:
    """The share of this rank in the global mean: all of it in a process on its own."""
    rows, all_rows = prompt.places[-2], whole.places[-2]
    return mean if rows == all_rows else mean * (rows / all_rows)
