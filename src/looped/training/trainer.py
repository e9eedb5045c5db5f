"""The one trainer: sample, unroll, loss, clip, step; save, resume, stop. One model, or many of one shape as one."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from looped.experiment import Experiment, TrainConfig
from looped.files import Busy, locked, tidied
from looped.functional.streams import stream
from looped.models.blocks import stack
from looped.prompt import AnyPrompt, Prompt, join
from looped.tasks.task import SequenceTask
from looped.training.distributed import ALONE, Team
from looped.training.distributed import join as join_ranks
from looped.training.engine import Now, Plain, check_engine, choose
from looped.training.kept import locate, refuse_training
from looped.training.optim import Optimizers
from looped.training.pieces import follow
from looped.training.run import Checkpoint, Run, digest, load_weights, read_checkpoint
from looped.training.stopping import Interrupted, stop_signals, writing
from looped.training.threads import check_threads
from looped.training.threads import threads as with_threads
from looped.training.tracking import board

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
    """Train, or go on training, or find that it is done already; the run folder is named by the config's hash.

    `folder` names the run folder itself instead. Ctrl-C and SIGTERM save and raise `Interrupted`; calling again goes
    on exactly where it stopped. `Busy` where another process trains the run. `engine` is how a step is run
    (`training/engine.py`), not what it computes. `threads` are torch's while it trains (None: the number the run began
    with, or torch's own); `track` names trackers besides TensorBoard. In a torchrun job every rank calls this, and
    `LostRank` comes where one of them is gone.
    """
    _check_experiment(experiment)
    path = Path(folder) if folder is not None else Path(out) / experiment.folder
    team = join_ranks(device)
    with _traceless([path] if team.leads else []):
        return _train([team.open(path, experiment)], team, device, engine, progress, threads, track)[0]


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
    """Train one model for each seed, all as one stack of models: each run equals training it alone, up to rounding."""
    _check_experiment(experiment)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must differ from each other; got {list(seeds)}.")
    members = [replace(experiment, train=replace(experiment.train, seed=seed)) for seed in seeds]
    paths = [Path(out) / one.folder for one in members]
    team = join_ranks(device)
    with _traceless(paths if team.leads else []):
        created = [team.open(path, one) for path, one in zip(paths, members, strict=True)]
        return _train(created, team, device, engine, progress, threads, track)


def _check_experiment(given: object) -> None:
    if not isinstance(given, Experiment):
        raise ValueError(
            f"`experiment` must be an `Experiment`; got {type(given).__name__}. A recipe's is "
            "`looped.recipes.experiment(NAME)`."
        )


@contextlib.contextmanager
def _traceless(paths: Sequence[Path]) -> Iterator[None]:
    """Training that is refused before it wrote anything leaves no run folder that was not there before."""
    new = [path for path in paths if not path.exists()]
    with tidied(*paths):
        try:
            yield
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            for path in [] if isinstance(error, Busy) else filter(Path.exists, new):
                # under the lock: another process may just have begun to train there
                with contextlib.suppress(Busy, OSError), locked(path / "lock", str(path)):
                    if not any((path / "checkpoints").glob("*")) and not (path / "metrics.jsonl").exists():
                        shutil.rmtree(path, ignore_errors=True)
            raise


def _train(
    runs: list[Run],
    team: Team,
    device: str | torch.device,
    engine: str,
    progress: Progress | None,
    threads: int | None,
    track: Sequence[str],
) -> list[Run]:
    """Runs that stand at the same step go on together, each locked for this process."""
    check_engine(engine)
    check_threads(threads)
    if all(_finished(run) for run in runs):
        return runs  # nothing is written, not even a lock
    for run in runs:
        refuse_training(run.path)
    with team.reporting(runs), with_threads(runs[0], threads, ranks=team.size), contextlib.ExitStack() as locks:
        for run in sorted(runs, key=lambda one: str(one.path)):  # of two processes that want several, one gets them
            with writing(run):
                locks.enter_context(team.lock(run))
                run.tidy()
        # again: it may have ended just now
        latest = team.found(runs, lambda: _level(runs, [run.latest(mend=True) for run in runs]))
        groups: dict[int, list[int]] = {}
        for index, checkpoint in enumerate(latest):
            if checkpoint is None or not checkpoint.finished:
                groups.setdefault(0 if checkpoint is None else checkpoint.step, []).append(index)
        stopping = locks.enter_context(stop_signals())
        for members in groups.values():
            if stopping.is_set():  # in the last step of the group before
                raise Interrupted(f"stopped between runs; everything is saved in {runs[0].path.parent}.")
            trainer = Trainer([runs[index] for index in members], team.place(device), engine, team)
            trainer.restore([checkpoint for index in members if (checkpoint := latest[index]) is not None])
            trainer.run_all(progress if team.leads else None, track)
    return runs


def _finished(run: Run) -> bool:
    """Whether no step is left; damage is not looked into here, but under the lock."""
    steps = run.experiment.train.steps
    try:
        return steps in run.steps and read_checkpoint(run.path, steps).finished
    except ValueError:
        return False


def _level(runs: list[Run], latest: list[Checkpoint | None]) -> list[Checkpoint | None]:
    """Back to the last step that a whole stack has, where a kill or damage left its runs at different ones.

    So a stack stays one, and equals an unbroken one bit for bit: apart, its runs would round otherwise.
    """
    latest = list(latest)
    index = {known: i for i, run in enumerate(runs) for known in run.known_hashes()}
    stacks = {found.together for found in latest if found is not None and not found.finished}
    for whole in stacks - {()}:
        members = [index[one] for one in whole if one in index]
        stood = [latest[member] for member in members]
        foreign = any(found is not None and found.together != whole for found in stood)
        if len(members) < len(whole) or foreign or len({found and found.step for found in stood}) == 1:
            continue
        if None in stood:
            every = runs[0].experiment.train.checkpoint_every
            if any(found is not None and found.step > every for found in stood):
                continue  # somebody removed a run: what the others have is not thrown away
            for member in members:  # killed in its first save: back to the start, as if there had been none
                runs[member].prune(max(runs[member].steps, default=0), keep=0)
                latest[member] = None
            continue
        shared = set.intersection(*(set(runs[member].steps) for member in members))
        for step in sorted(shared, reverse=True):
            with contextlib.suppress(ValueError):
                found = [read_checkpoint(runs[member].path, step) for member in members]
                if all(one.together == whole and not one.finished for one in found):
                    for member, one in zip(members, found, strict=True):
                        latest[member] = one
                    break
    return latest


class Trainer:
    """One or several runs in progress; several differ in their seeds alone and are one stack of models."""

    def __init__(self, runs: Sequence[Run], device: torch.device, engine: str = "auto", team: Team = ALONE):
        first = runs[0].experiment
        self.runs, self.device, self.team = list(runs), device, team
        self.experiment, self.task = first, first.task
        self.config: TrainConfig = first.train
        self.seeds = [run.experiment.train.seed for run in runs]
        self.stacked = len(runs) > 1
        # bfloat16 is the precision of the passes; everything else stays in float32
        self.dtype = torch.float64 if self.config.dtype == "float64" else torch.float32
        # `train.start` is a name: which weights it meant is part of what the run records
        known = self.runs[0].provenance() if self.runs[0].steps else {}
        self.began: dict[str, Any] = {key: value for key, value in known.items() if key == "start"}
        models = [self._build(seed) for seed in self.seeds]
        self.model = stack(models) if self.stacked else models[0]
        self.engine, self.passes = choose(self, engine)
        captured = not isinstance(self.engine, Plain)
        self.optimizers = Optimizers(self.model, self.config.optimizer, captured=captured, dtype=self.passes.dtype)
        self.average = None if self.config.average is None else {k: v.clone() for k, v in self.weights().items()}
        self.generators = [torch.Generator(device).manual_seed(stream(seed, "prompts")) for seed in self.seeds]
        self.pool = self._draw_pool()
        # loss, error, gradient norm of each model since the last line; first step with a loss not finite, or `steps`
        self.sums = torch.zeros(3, len(runs), device=device)
        self.first_bad = torch.full((len(runs),), self.config.steps, device=device)
        self.done = 0
        self.spent = 0.0

    def run_all(self, progress: Progress | None = None, track: Sequence[str] = ()) -> None:
        """All steps that are left, with metrics and checkpoints on the way."""
        self.team.check_same(self.weights(), self.generators)
        for run in self.runs:
            with writing(run):
                run.rewind_metrics(self.done)
        earlier = self.runs[0].provenance().get("train_seconds", 0.0) if self.done else 0.0
        started = time.monotonic()
        lines: list[dict[str, float]] = [{}]
        with stop_signals() as stopping, contextlib.ExitStack() as files:
            boards = []
            for run in self.runs:
                with writing(run):
                    boards.append(files.enter_context(board(run, self.done, track)))
            while self.done < self.config.steps:
                self.step(self.done)
                stopping.listen()
                self.done += 1
                last = self.done == self.config.steps
                if self.done % self.config.log_every == 0 or last:
                    lines = self.metrics()
                    for run, shown, line in zip(self.runs, boards, lines, strict=True):
                        with writing(run):
                            run.append_metrics(line)
                            for key, value in line.items():
                                shown.add_scalar(key, value, self.done)
                self.spent = earlier + time.monotonic() - started
                # read once: a signal from here on stops after the next step, and saves there
                stop = self.team.any(stopping.is_set())
                if self.done % self.config.checkpoint_every == 0 or last or stop:
                    self.save()
                if progress is not None:
                    progress(self.done, lines[0])
                if stop and not last:
                    where = ", ".join(str(run.path) for run in self.runs)
                    raise Interrupted(
                        f"stopped at step {self.done} of {self.config.steps}; saved in {where}. "
                        f"Go on with the same command, or: looped train --resume {self.runs[0].path}"
                    )

    def step(self, step: int) -> None:
        """One optimiser step, by the engine; nothing in it waits for the device or branches on a tensor's value."""
        self.engine.step(step)

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
            last = _part(self._mean(end), prompt, batch) if pairs else self._weighted(end, prompt, batch)
            self.team.add(loss, last)
            torch._foreach_add_([*self.sums], [part.reshape(-1) for part in (loss, last, norm)])  # pyright: ignore[reportPrivateImportUsage]
            # not isfinite: that is four kernels of a captured step, and this is two
            bad = (loss - loss).reshape(-1) != 0
            torch.minimum(self.first_bad, torch.where(bad, now.step, self.first_bad), out=self.first_bad)

    def sample(self, step: int) -> AnyPrompt:
        """The prompts of a step."""
        return self.draw(self.now(step))

    def draw(self, now: Now) -> AnyPrompt:
        """Prompts, fresh or out of the pool, with the weights of their pairs; each model has its own."""
        config = self.config
        prompt = join([self._sample(now, index) for index in range(len(self.runs))])
        if config.active_points is None and not config.emphasis:
            return prompt
        # a point of a sequence may be several tokens: a chain of thought is one for every step
        each = prompt.num_positions // config.points
        places = torch.arange(prompt.num_positions, device=self.device)
        weights = (places < each * now.points).to(self.dtype)
        if config.emphasis:
            weights = weights * ((places + 1).to(self.dtype) / config.points) ** config.emphasis
        weights = weights.expand(prompt.places)
        return replace(prompt, weights=weights if prompt.weights is None else weights * prompt.weights)

    def cut(self, prompt: AnyPrompt, step: int) -> AnyPrompt:
        """Without the pairs behind the scored ones, as far as that leaves few different lengths."""
        kept = self.kept_pairs(step)
        return prompt if kept is None else prompt.head(kept)

    def kept_pairs(self, step: int) -> int | None:
        """How many pairs a step's prompts keep: the scored ones, rounded up to a quarter of all; None: all.

        A model that answers every pair from those before it gives the same answers, in less time.
        """
        points = self.config.points
        if self.config.active_points is None or isinstance(self.task, SequenceTask) or not self.model.causal:
            return None
        quarter = -(-points // 4)
        return min(points, -(-self._points(step) // quarter) * quarter)

    def loops(self, step: int) -> tuple[int, dict[str, Any]]:
        """The loops of a step, and of these the gradient's and the loss's."""
        loops = self.experiment.loops_at(step)
        return loops, self.config.windows(loops)

    def now(self, step: int) -> Now:
        """What changes from step to step."""
        config = self.config
        return Now(
            step=step,
            rate=config.optimizer.schedule(step, config.steps),
            dims=None if config.dims is None else int(config.dims(step, config.steps)),
            points=self._points(step),
            # a young average must forget its first weights soon
            decay=min(config.average or 0.0, (step + 1) / (step + 10)),
        )

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

    def save(self) -> None:
        """Write a checkpoint of this moment into every run folder, unless no run could go on from it."""
        self.check_finite()
        # a finite loss can have a gradient that is not, and the update comes after the loss
        if not all(bool(value.isfinite().all()) for value in self.weights().values()):
            self._diverged(self.runs[0], f"the weights were not finite after step {self.done - 1}")
        parts = {"model": self.weights(), "average": self.average or {}, "optimizer": self.optimizers.tensors()}
        flat = {f"{part}/{name}": value for part, group in parts.items() for name, value in group.items()}
        finished = self.done == self.config.steps
        together = tuple(run.experiment.hash for run in self.runs) if self.stacked else ()
        for index, run in enumerate(self.runs):
            # a stack's tensors have the axis of models in front; a lone number, such as Adam's count, is common to all
            own = {name: value[index] if self.stacked and value.ndim else value for name, value in flat.items()}
            tensors = {**own, "sums": self.sums[:, index], "generator": self.generators[index].get_state()}
            with writing(run):
                batch = {"models_in_one_batch": len(self.runs), "ranks": self.team.size}
                run.save_provenance(self.device, self.spent, **batch, **self.began)
                run.save(Checkpoint(self.done, finished, tensors, together))
        for run in self.runs:  # only now: until all have the new one, all have an old one in common
            with writing(run):
                run.prune(self.done, keep=self.config.keep_checkpoints)

    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Go back to the moment of the checkpoints, one for each run; with none, stay at the start."""
        if not checkpoints:
            return
        for run, checkpoint in zip(self.runs, checkpoints, strict=True):
            if self.team.leads:
                run.check(checkpoint)
        try:
            self.model.load_state_dict(self._joined(checkpoints, "model"))
            self.optimizers.load(self._joined(checkpoints, "optimizer"))
            for index, checkpoint in enumerate(checkpoints):
                self.generators[index].set_state(checkpoint.tensors["generator"])
                self.sums[:, index] = checkpoint.tensors["sums"].to(self.device)
            if self.average is not None:
                for name, value in self._joined(checkpoints, "average").items():
                    self.average[name].copy_(value)
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"the checkpoint in {self.runs[0].path} does not fit its config: {reason}.") from None
        self.done = checkpoints[0].step

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def _diverged(self, run: Run, what: str) -> NoReturn:
        kept = f"is of step {run.steps[-1]}" if run.steps else "does not exist: none was written yet"
        raise Diverged(f"{what}; the last good checkpoint in {run.path} {kept}. Lower the learning rate, or clip.")

    def _build(self, seed: int):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "weights"))
            model = self.experiment.model.build()
        if self.config.start is not None and not self.runs[0].steps:
            load_weights(model, locate(self.config.start, beside=self.runs[0].path.parent))
            self.began = {"start": digest(model.state_dict())}
        return model.to(self.device, self.dtype).train()

    def _sample(self, now: Now, index: int) -> AnyPrompt:
        config, generator = self.config, self.generators[index]
        if self.pool is not None:
            rows = torch.randint(config.pool or 0, (config.batch,), generator=generator, device=self.device)
            return self.pool[index].rows(rows)
        prompt = self.task.sample(batch=config.batch, n=config.points, generator=generator, dims=now.dims)
        return prompt.to(self.dtype)

    def _draw_pool(self) -> list[AnyPrompt] | None:
        if self.config.pool is None:
            return None
        generators = [torch.Generator(self.device).manual_seed(stream(seed, "pool")) for seed in self.seeds]
        size = {"batch": self.config.pool, "n": self.config.points}
        return [self.task.sample(**size, generator=one).to(self.dtype) for one in generators]

    def _mean(self, values: Tensor) -> Tensor:
        """Mean over all but the axis of models, which stands second in (kept, models, batch, n)."""
        return values.transpose(0, 1).flatten(1).mean(1) if self.stacked else values.mean()

    def _weighted(self, error: Tensor, prompt: AnyPrompt, whole: AnyPrompt) -> Tensor:
        """Mean over the positions of the whole batch that are scored, each by its weight: what `prompt` adds to it."""
        if prompt.weights is None or whole.weights is None:
            return _part(self._mean(error), prompt, whole)
        own, every = (weights[..., -error.shape[-1] :] for weights in (prompt.weights, whole.weights))
        return _part(self._mean(error * own), prompt, whole) / self._mean(every.expand(len(error), *every.shape))

    def _points(self, step: int) -> int:
        schedule, points = self.config.active_points, self.config.points
        return points if schedule is None else min(points, int(schedule(step, self.config.steps)))

    def _joined(self, checkpoints: Sequence[Checkpoint], part: str) -> dict[str, Tensor]:
        parts = [checkpoint.part(part) for checkpoint in checkpoints]
        lone = {name for name, value in parts[0].items() if value.ndim == 0 and name.endswith("/step")}
        return {
            name: value.to(self.device)
            if not self.stacked or name in lone
            else torch.stack([one[name] for one in parts]).to(self.device)
            for name, value in parts[0].items()
        }


def _at(errors: Tensor, points: int | Tensor) -> Tensor:
    """Of (..., positions) the last one that is scored; a model that reads the last pair as its query has but one."""
    if isinstance(points, int):
        return errors[..., :points][..., -1:]
    return errors.index_select(-1, (points.long().clamp(max=errors.shape[-1]) - 1).view(1))


def _part(mean: Tensor, prompt: AnyPrompt, whole: AnyPrompt) -> Tensor:
    """Of a mean over `prompt` what it adds to that over the whole batch; all of it in a process on its own."""
    own, every = prompt.places[-2], whole.places[-2]
    return mean if own == every else mean * (own / every)
