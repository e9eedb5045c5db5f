"""Trains runs: sample, unroll, loss, clip, step. One model, or several that differ in their seeds as one stack."""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from looped.experiment import Experiment, TrainConfig, training
from looped.files import log
from looped.functional.streams import GlobalStream, seeded
from looped.prompt import AnyPrompt, Prompt
from looped.training.batches import Batches, Now, at_points, share_of
from looped.training.distributed import ALONE, Team
from looped.training.distributed import join as join_ranks
from looped.training.draws import add_noise
from looped.training.dropout import add_dropout
from looped.training.engine import Plain, check_engine, choose
from looped.training.folder import Checkpoint, checkpoint_path, traceless
from looped.training.footprint import IN_TRAINING, check_step_fits, check_weights_fit
from looped.training.joining import NotStackable, draws_random_numbers, few_prompts, join_models
from looped.training.kept import locate, refuse_training
from looped.training.notebook import notebook_progress
from looped.training.optim import Optimizers
from looped.training.passes import ExtraLoss
from looped.training.pieces import follow
from looped.training.run import Run, check_weights, digest, load_weights
from looped.training.stacks import last_common_checkpoints, parts_of
from looped.training.stopping import Interrupted, nothing_to_save, stop_signals, writing
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
    began with, or torch's own); `track` names trackers besides TensorBoard; without `progress` a notebook shows a line.
    In a torchrun job every rank calls this; `LostRank` is raised where one of them is gone.
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
    """Train one model a seed, all as one stack of models; each run equals training it alone, up to rounding.

    Models that no stack can hold are trained one after another; one line says so, and why.
    """
    _check_experiment(experiment)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must differ from each other; got {list(seeds)}.")
    members = [training(experiment, seed=seed) for seed in seeds]
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
    progress = progress or notebook_progress(next(iter(experiments.values())))
    team = join_ranks(device)
    with traceless([*experiments] if team.leads else []), contextlib.ExitStack() as contexts:
        runs = [team.open(path, experiment) for path, experiment in experiments.items()]
        if all(run.finished(run.experiment.train.steps) for run in runs):
            return runs  # nothing is written, not even a lock
        for run in runs:
            refuse_training(run.path)
        contexts.enter_context(team.reporting(runs))
        contexts.enter_context(at_threads(threads or recorded(runs[0], ranks=team.size)))
        # in one order: of two processes that want the same runs, one gets them all
        for run in sorted(runs, key=lambda run: str(run.path)):
            with writing(run):
                contexts.enter_context(run.lock())
                run.tidy()
        # read again under the lock: a run may have ended just now
        latest = team.checkpoints(runs, lambda: last_common_checkpoints(runs, [run.latest(mend=True) for run in runs]))
        groups: dict[int, list[int]] = {}
        for index, checkpoint in enumerate(latest):
            if checkpoint is not None and checkpoint.finished:
                runs[index].check(checkpoint)
            if checkpoint is None or not checkpoint.finished:
                groups.setdefault(0 if checkpoint is None else checkpoint.step, []).append(index)
        # torch's optimizers import it, which takes seconds: before signals wait for the end of a step
        importlib.import_module("torch._dynamo")
        stopping = contexts.enter_context(stop_signals())
        saved = {run.path: checkpoint for run, checkpoint in zip(runs, latest, strict=True)}

        def check_stopping() -> None:
            if stopping.is_set():  # in the last step of the run before
                raise Interrupted(f"stopped between runs; everything is saved in {runs[0].path.parent}.")

        for members in groups.values():
            check_stopping()
            group = [runs[index] for index in members]
            for trainer in trainers(group, team.place(device), engine, team, between=check_stopping):
                checkpoints = [saved[run.path] for run in trainer.runs]
                trainer.restore([checkpoint for checkpoint in checkpoints if checkpoint is not None])
                if team.any(stopping.is_set()):  # the first step, with what it imports and compiles, may take long
                    raise Interrupted(trainer.where_it_stopped())
                trainer.run_all(progress if team.leads else None, track)
        return runs


def trainers(
    runs: Sequence[Run], device: torch.device, engine: str, team: Team, between: Callable[[], None] = lambda: None
) -> Iterator["Trainer"]:
    """One trainer of all runs as a stack; where no stack can hold them, a line that says so, and one after another."""
    try:
        with nothing_to_save(team, _while_built(runs[0])):
            together = Trainer(runs, device, engine, team)
    except NotStackable as error:
        log.warning(f"looped: these {len(runs)} models are trained one after another, not as a stack: {error}.")
    else:
        yield together
        return
    for run in runs:
        between()
        with nothing_to_save(team, _while_built(run)):
            alone = Trainer([run], device, engine, team)
        yield alone


def _while_built(run: Run) -> str:
    return f"stopped while the model was built; {run.progress}. {run.resume}"


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
        if device.type == "cpu":
            check_weights_fit(self.experiment.model, copies=IN_TRAINING * len(runs))
        models = [self._build(seed) for seed in self.seeds]
        if device.type == "cpu":  # a GPU says at once what it has no room for, and our kernels keep less
            check_step_fits(models[0], self.experiment, len(models))
        self.model = join_models(models, self.experiment) if self.stacked else models[0]
        self.draws = GlobalStream(self.seeds[0], "draws", device)
        self.batches = Batches(self.experiment, self.seeds, device=device, dtype=self.dtype, causal=self.model.causal)
        self.engine, self.passes = choose(self, engine)
        add_noise(self.passes.low, self.batches.generators)
        if ExtraLoss.needed(self.passes.low, self.config):
            self.passes.extra = ExtraLoss(self.passes.low, self.config, self.batches.generators)
        if self.config.dropout:
            add_dropout(self.passes.low, self.config.dropout, self.batches.generators)
        captured = not isinstance(self.engine, Plain)
        how = {"captured": captured, "dtype": self.passes.dtype, "stacked": self.stacked}
        self.optimizers = Optimizers(self.model, self.config.optimizer, **how)
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
        with self.draws.drawing():
            self.engine.step(now)

    @cached_property
    def random(self) -> bool:
        """Whether the model draws random numbers of its own; a stack never does."""
        return not self.stacked and draws_random_numbers(self.model, few_prompts(self.model, self.experiment, 0))

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
        loss = self._weighted(self.batches.weigh_loops(error), prompt, batch)
        if self.passes.extra is not None and self.passes.extra.loss is not None:
            loss = loss + share_of(self.passes.extra.loss, prompt, batch)
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
            end = at_points(end, now.points) if pairs else end
            last = share_of(self._mean(end), prompt, batch) if pairs else self._weighted(end, prompt, batch)
            self.team.add(loss, last)
            torch._foreach_add_([*self.sums], [part.reshape(-1) for part in (loss, last, norm)])  # pyright: ignore[reportPrivateImportUsage]
            # not isfinite: that is four kernels of a captured step, and this is two
            bad = (loss - loss).reshape(-1) != 0
            torch.minimum(self.first_bad, torch.where(bad, now.step, self.first_bad), out=self.first_bad)

    def log(self) -> None:
        """Write a line of metrics where one is due."""
        if self.done % self.config.log_every and self.done not in self.config.ends:
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
        last = self.done - 1
        earlier = (end for end in self.config.extended if end < self.done)  # each of them has a line of its own
        count = self.done - max(last - last % self.config.log_every, *earlier, 0)
        rate = self.config.value(self.config.optimizer.schedule, last)
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
                **{f"random/{place}": state for place, state in self.draws.drawn.items()},
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
        before = {name: value.clone() for name, value in self.weights().items()}
        self.model.load_state_dict(parts_of(checkpoints, "model", self.device))
        self.optimizers.load(parts_of(checkpoints, "optimizer", self.device))
        if self.config.start is None:  # else `before` is not what it started from
            self.optimizers.check_complete(before)
        for index, checkpoint in enumerate(checkpoints):
            self.batches.generators[index].set_state(checkpoint.tensors["generator"])
            self.sums[:, index] = checkpoint.tensors["sums"].to(self.device)
        self.draws.go_on(checkpoints[0].part("random"))
        if self.average is not None:
            for name, value in parts_of(checkpoints, "average", self.device).items():
                self.average[name].copy_(value)

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def _diverged(self, run: Run, what: str) -> NoReturn:
        self.task.check(torch.Generator(self.device).manual_seed(0), batch=self.config.batch, n=self.config.points)
        last = f"is of step {run.steps[-1]}" if run.steps else "does not exist: none was written yet"
        raise Diverged(f"{what}; the last good checkpoint in {run.path} {last}. Lower the learning rate, or clip.")

    def _build(self, seed: int):
        try:
            with seeded(seed, "weights"):
                model = self.experiment.model.build()
        except AssertionError as error:  # how torch's layers refuse sizes
            raise ValueError(f"{self.experiment.model} cannot be built: {error}. Change its fields.") from error
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
            return share_of(self._mean(error), prompt, whole)
        here, everywhere = (weights[..., -error.shape[-1] :] for weights in (prompt.weights, whole.weights))
        total = self._mean(everywhere.expand(len(error), *everywhere.shape))
        return share_of(self._mean(error * here), prompt, whole) / total
