"""The one trainer: sample, unroll, loss, clip, step; save, resume, stop."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from looped.experiment import Experiment, TrainConfig
from looped.prompt import Prompt
from looped.tasks.task import Task
from looped.training.optim import Optimizers, clip_gradients
from looped.training.run import Checkpoint, Run, load_weights

Progress = Callable[[int, dict[str, float]], None]
"""(steps done, last metrics) -> None."""


class Interrupted(Exception):
    """Training was asked to stop; everything up to then is saved."""


class Diverged(Exception):
    """The loss stopped being finite."""


def stream(seed: int, purpose: str) -> int:
    """The seed of one of a run's independent random streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:7], "big")


def train(
    experiment: Experiment,
    *,
    out: str | Path = "runs",
    folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Run:
    """Train, or go on training, or find that it is done already; the run folder is named by the config's hash.

    `folder` names the run folder itself instead. Ctrl-C and SIGTERM save and raise `Interrupted`; calling again goes
    on exactly where it stopped.
    """
    path = Path(folder) if folder is not None else Path(out) / f"{experiment.name}-{experiment.hash}"
    run = Run.create(path, experiment)
    checkpoint = run.latest()
    if checkpoint is None or not checkpoint.finished:
        Trainer(run, torch.device(device)).run_all(checkpoint, progress)
    return run


class Trainer:
    """One run in progress."""

    def __init__(self, run: Run, device: torch.device):
        if run.experiment.train is None:
            raise ValueError(f"{run.path} was imported or constructed, not trained: there is nothing to train.")
        self.run, self.device = run, device
        self.task: Task = run.experiment.task
        self.config: TrainConfig = run.experiment.train
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(self.config.seed, "weights"))
            self.model = run.experiment.model.build().to(device).train()
        if self.config.start is not None:
            load_weights(self.model, Path(self.config.start))
        self.optimizers = Optimizers(self.model, self.config.optimizer)
        self.average = None if self.config.average is None else self.weights(copy=True)
        self.generator = torch.Generator(device).manual_seed(stream(self.config.seed, "prompts"))
        self.pool = self._draw_pool()
        # loss, error and gradient norm summed since the last line, and the first step whose loss was not finite
        self.sums = torch.zeros(3, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=device)
        self.done = 0
        self.spent = 0.0

    def run_all(self, checkpoint: Checkpoint | None, progress: Progress | None = None) -> None:
        """All steps that are left, with metrics and checkpoints on the way."""
        if checkpoint is not None:
            self.restore(checkpoint)
        self.run.rewind_metrics(self.done)
        earlier = self.run.provenance().get("train_seconds", 0.0) if self.done else 0.0
        started = time.monotonic()
        board = _board(self.run.path, self.done)
        line: dict[str, float] = {}
        with stop_signals() as stopping, contextlib.closing(board):
            while self.done < self.config.steps:
                self.step(self.done)
                self.done += 1
                last = self.done == self.config.steps
                if self.done % self.config.log_every == 0 or last:
                    line = self.metrics()
                    self.run.append_metrics(line)
                    for key, value in line.items():
                        board.add_scalar(key, value, self.done)
                self.spent = earlier + time.monotonic() - started
                if self.done % self.config.checkpoint_every == 0 or last or stopping.is_set():
                    self.save()
                if progress is not None:
                    progress(self.done, line)
                if stopping.is_set() and not last:
                    raise Interrupted(
                        f"stopped at step {self.done} of {self.config.steps}; saved in {self.run.path}. "
                        f"Go on with: looped train --resume {self.run.path}"
                    )

    def step(self, step: int) -> None:
        """One optimiser step; nothing here waits for the device or branches on a tensor's value.

        loss = mean over prompts, scored positions and the last `window` loops of task.error
        """
        config = self.config
        prompt = self.sample(step)
        loops = self.run.experiment.model.loops if config.depth is None else int(config.depth(step, config.steps))
        outputs = self.model(prompt, loops=loops, **config.windows(loops))
        error = self.task.error(outputs, prompt)
        loss = error.mean() if prompt.weights is None else (error * prompt.weights).mean() / prompt.weights.mean()
        loss.backward()
        norm = clip_gradients(self.model, config.optimizer.clip)
        self.optimizers.step(config.optimizer.schedule(step, config.steps))
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self.average is not None:
                decay = min(config.average or 0.0, (step + 1) / (step + 10))
                for name, value in self.weights().items():
                    self.average[name].lerp_(value, 1 - decay)
            last = self._points(step) - 1
            self.sums += torch.stack((loss, error[-1][..., last].mean(), norm))
            bad = ~torch.isfinite(loss) & (self.first_bad < 0)
            self.first_bad.copy_(torch.where(bad, step, self.first_bad))

    def sample(self, step: int) -> Prompt:
        """The prompts of a step: fresh or out of the pool, with the curriculum's masks."""
        config = self.config
        if self.pool is not None:
            index = torch.randint(config.pool or 0, (config.batch,), generator=self.generator, device=self.device)
            prompt = self.pool.rows(index)
        else:
            dims = None if config.dims is None else int(config.dims(step, config.steps))
            prompt = self.task.sample(batch=config.batch, n=config.points, generator=self.generator, dims=dims)
        if config.active_points is None:
            return prompt
        scored = torch.arange(config.points, device=self.device) < self._points(step)
        return Prompt(prompt.xs, prompt.ys, scored.to(prompt.ys.dtype).expand_as(prompt.ys), prompt.truth)

    def metrics(self) -> dict[str, float]:
        """Means since the last line; here, and only here, the host waits for the device."""
        self.check_finite()
        count = (self.done - 1) % self.config.log_every + 1
        loss, error, norm = (self.sums / count).tolist()
        self.sums.zero_()
        rate = self.config.optimizer.schedule(self.done - 1, self.config.steps)
        return {"step": self.done, "loss": loss, "error": error, "gradient_norm": norm, "rate": rate}

    def check_finite(self) -> None:
        """Stop the run where the loss was not finite; the last checkpoint stays as it is."""
        bad = int(self.first_bad)
        if bad >= 0:
            kept = f"step {self.run.steps[-1]}" if self.run.steps else "no step (none was written yet)"
            raise Diverged(
                f"the loss was not finite at step {bad}; the last good checkpoint in {self.run.path} is of {kept}. "
                "Lower the learning rate, or clip."
            )

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        self.check_finite()
        parts = {
            "model": self.weights(),
            "average": self.average or {},
            "optimizer": self.optimizers.tensors(),
            "meter": {"sums": self.sums},
        }
        tensors = {f"{part}/{name}": value for part, group in parts.items() for name, value in group.items()}
        tensors["generator"] = self.generator.get_state()
        finished = self.done == self.config.steps
        self.run.save_provenance(self.device, self.spent)
        self.run.save(Checkpoint(self.done, finished, tensors), keep=self.config.keep_checkpoints)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment of `checkpoint`."""
        try:
            self.model.load_state_dict(checkpoint.part("model"))
            self.optimizers.load(
                {name: value.to(self._home(name, value)) for name, value in checkpoint.part("optimizer").items()}
            )
            self.generator.set_state(checkpoint.tensors["generator"].cpu())
            self.sums.copy_(checkpoint.part("meter")["sums"])
        except (RuntimeError, KeyError) as error:
            raise ValueError(f"the checkpoint in {self.run.path} does not fit its config: {error}.") from None
        if self.average is not None:
            for name, value in checkpoint.part("average").items():
                self.average[name].copy_(value)
        self.done = checkpoint.step

    def weights(self, *, copy: bool = False) -> dict[str, Tensor]:
        """The model's tensors by name."""
        state = self.model.state_dict()
        return {name: value.detach().clone() for name, value in state.items()} if copy else state

    def _home(self, name: str, value: Tensor) -> torch.device:
        return self.device if value.ndim or self.device.type == "cuda" else torch.device("cpu")

    def _points(self, step: int) -> int:
        schedule = self.config.active_points
        return (
            self.config.points if schedule is None else min(self.config.points, int(schedule(step, self.config.steps)))
        )

    def _draw_pool(self) -> Prompt | None:
        if self.config.pool is None:
            return None
        generator = torch.Generator(self.device).manual_seed(stream(self.config.seed, "pool"))
        return self.task.sample(batch=self.config.pool, n=self.config.points, generator=generator)


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; outside the main thread there are no signals to hear."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: event.set()) for number in caught]
    try:
        yield event
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)


def _board(path: Path, step: int):
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)
