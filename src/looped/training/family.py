"""Whole families of small models (seeds x settings), trained as one batch of models.

A family is a module, or a dict of tensors, in which every weight has the models as its first axis. A loss gives one
number a model and mixes nothing between models; its sum is differentiated, so that each model is trained as if alone.

    identity = {"d": 10, "loops": 4, "seeds": 8, "steps": 1000}
    family = build_family(restricted(d=10, loops=4), seeds=range(8))
    trained = train_family(
        family, loss, folder=family_folder("runs", "mine", identity), identity=identity, steps=1000,
        optimizer=AdamW(), draw=draw, every=100, generators=[generator],
    )
    trained.losses[-1]          # one number a model

A family's folder is like a run's (`training/folder.py`). Killed in the middle, the same call goes on where the last
checkpoint was and ends with the same bits on the CPU; called again when it is finished, it loads the result.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.config import encode
from looped.experiment import OptimizerConfig, hash_of, is_plain
from looped.functional.counts import check_at_least
from looped.functional.streams import stream
from looped.models.base import LoopedModel, ModelConfig
from looped.models.blocks import stack
from looped.models.loop import leaves, tree_map
from looped.training.clip import Clip
from looped.training.folder import Checkpoint, Folder, begin, traceless
from looped.training.optim import Optimizers
from looped.training.rollback import Rollback, RollbackAdam
from looped.training.stopping import writing
from looped.training.threads import at_threads, recorded
from looped.training.training_loop import TrainingLoop

Family = nn.Module | Mapping[str, Tensor]
"""Models of one shape side by side: every weight has them as its first axis."""
Loss = Callable[[Any, Any], Tensor]
"""(family, batch) -> (models,): one loss a model."""
Draw = Callable[[int], Any]
"""step -> batch: a tensor or nested tuple of tensors whose shapes never change."""
_BUILDING = threading.Lock()
"""Threads that build families take turns: torch's global generator is one for all of them."""
WARM_STEPS = 3
"""Plain steps before a step is captured as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A family after training."""

    family: Any
    """The family: the module that was given, trained in place, or a dict of tensors."""
    steps: list[int]
    """The steps, from 0, before which `losses` and `watched` were read."""
    losses: Float[Tensor, "logged models"]
    """The loss at each of these steps, before the step's update; not finite where a model diverged."""
    watched: Tensor | None
    """What `watch` gave at each of these steps and after the last one, `(logged + 1, ...)`."""
    returns: Float[Tensor, " models"] | None
    """How often each model went back, under a rollback rule."""
    seconds: float
    """How long it trained, over all processes that did."""
    folder: Folder | None
    """Its folder, whose `provenance()` has command, commit, device and `train_seconds`."""


def build_family(
    config: ModelConfig, seeds: Sequence[int], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> LoopedModel:
    """One model for each seed, each with the weights it would have alone, as one stack."""
    models = []
    for seed in seeds:
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, "weights"))
            models.append(config.build())
    return stack(models).to(device, dtype)


def family_folder(out: str | Path, name: str, identity: Mapping[str, Any]) -> Path:
    """Where a family lies: `out`/NAME-HASH, with the hash of what it is."""
    if not is_plain(name):
        raise ValueError(f"`name` names a folder: letters, digits, '.', '_' and '-'; got {name!r}.")
    return Path(out) / f"{name}-{hash_of(identity)}"


def train_family(
    family: Family,
    loss: Loss,
    *,
    folder: str | Path | None,
    identity: Mapping[str, Any] | None = None,
    steps: int,
    optimizer: OptimizerConfig,
    clip: Clip | None = None,
    rollback: Rollback | None = None,
    draw: Draw | None = None,
    every: int = 1,
    generators: Sequence[torch.Generator] = (),
    log_every: int = 1,
    checkpoint_seconds: float = 10.0,
    watch: Callable[[Any], Tensor] | None = None,
    progress: Callable[[int], None] | None = None,
    graph: bool = False,
) -> Trained:
    """Train every model of a family as if each were alone, or go on training it, or load it where it is finished.

        weights <- optimizer(clip(gradient of the sum over models of loss(family, batch)))

    A module is trained in place; a dict is copied first. `draw` gives the batch, anew every `every` steps; without it
    the batch is None. `draw` may read only `step` and the `generators`, which the trainer saves and restores. Losses,
    and what `watch` gives, are logged every `log_every` steps. `optimizer.clip` clips each model as a whole; `clip` can
    do more. With `rollback` a model whose loss jumps goes back. With `graph`, on a GPU, the step is captured once and
    replayed.

    `folder` is the family's folder (`family_folder`), `identity` all that decides what is trained, as JSON data; with
    `folder=None` nothing is written. A checkpoint is written every `checkpoint_seconds` and at Ctrl-C or SIGTERM, which
    raise `Interrupted`. `Busy` is raised where another process trains the family.
    """
    counts = {"steps": steps, "every": every, "log_every": log_every}
    check_at_least(1, **counts)
    if optimizer.clip is not None and clip is not None:
        raise ValueError("gradients are clipped once; got `optimizer.clip` and `clip`. Set one of them to None.")
    if folder is not None and identity is None:
        raise ValueError("a `folder` needs the family's `identity`: all that decides what is trained, as JSON data.")
    module = family if isinstance(family, nn.Module) else nn.ParameterDict({k: v.clone() for k, v in family.items()})
    clip = Clip(norm=optimizer.clip) if optimizer.clip is not None else clip
    rules = {"optimizer": optimizer, "clip": clip, "rollback": rollback}
    config = {} if identity is None else _config(identity, counts, rules)
    opened = None if folder is None else Folder(Path(folder), hash_of(config))
    training = FamilyTrainer(
        module, loss, opened, **counts, **rules, draw=draw, generators=generators, watch=watch, graph=graph,
        checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip

    def tell(done: int) -> None:
        if progress is not None and (done - 1) % log_every == 0:
            progress(done)

    if opened is None:
        training.run(tell)
    else:
        _train_in_folder(training, opened, config, tell)
    return training.result(family)


def _config(identity: Mapping[str, Any], counts: Mapping[str, int], rules: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json holds: the identity, and the settings that the trainer knows."""
    encoded = {name: encode(rule, without="defaults") for name, rule in rules.items() if rule is not None}
    # through JSON, as it is read back: lists for tuples
    return json.loads(json.dumps({"family": identity, "training": {**counts, **encoded}}))


def _train_in_folder(
    training: FamilyTrainer, folder: Folder, config: Mapping[str, Any], tell: Callable[[int], None]
) -> None:
    with traceless([folder.path]), contextlib.ExitStack() as locks:
        begin(folder.path, config, "family")
        finished = folder.finished(training.steps)
        if not finished:  # else nothing is written, not even a lock
            locks.enter_context(at_threads(recorded(folder)))
            with writing(folder):
                locks.enter_context(folder.lock())
                folder.tidy()
        checkpoint = folder.latest(mend=not finished)
        training.restore([] if checkpoint is None else [checkpoint])
        training.run(tell)


class FamilyTrainer(TrainingLoop):
    """A family in progress; its step is run plainly, or replayed from a CUDA graph."""

    def __init__(
        self, family: nn.Module, loss: Loss, folder: Folder | None, *, steps: int, every: int, log_every: int,
        optimizer: OptimizerConfig, clip: Clip | None, rollback: Rollback | None, draw: Draw | None,
        generators: Sequence[torch.Generator], watch: Callable[[Any], Tensor] | None, graph: bool,
        checkpoint_seconds: float,
    ):  # fmt: skip
        self.weights = [weight for weight in family.parameters() if weight.requires_grad]
        super().__init__([] if folder is None else [folder], self.weights[0].device, steps=steps, keep_checkpoints=2)
        self.family, self.loss, self.clip, self.draw, self.watch = family, loss, clip, draw, watch
        self.every, self.log_every, self.schedule = every, log_every, optimizer.schedule
        self.on_gpu = self.device.type == "cuda"
        self.optimizer: Optimizers | RollbackAdam = (
            Optimizers(family, optimizer, captured=self.on_gpu, stacked=True)
            if rollback is None
            else RollbackAdam(family, optimizer, rollback)
        )
        # a captured step reads the factor on the rate where it lies
        self.factor: float | Tensor = torch.ones((), device=self.device) if self.on_gpu else 1.0
        self.batch: Any = None
        self.generators = list(generators)
        self.before_draw = [generator.get_state() for generator in self.generators]
        self.losses: list[Tensor] = []
        self.watched: list[Tensor] = []
        self.output = torch.zeros(())
        self.captures, self.graph, self.num_plain_steps = graph and self.on_gpu, None, 0
        self.checkpoint_seconds = checkpoint_seconds

    def step(self, now: int) -> None:
        """One update of every model; nothing in it waits for the device."""
        if self.draw is not None and now % self.every == 0:
            self._put_batch(now)
        logged = now % self.log_every == 0
        if logged:
            self._watch()
        if self.captures and self.num_plain_steps == WARM_STEPS:
            self._capture()
        self._set_factor(self.schedule(now, self.steps))
        if self.graph is None:
            self._update()
            self.num_plain_steps += 1
        else:
            self.graph.replay()
        if logged:
            self.losses.append(self.output.clone())

    def finish(self) -> None:
        """Let a model whose last update was a jump go back, and look at the family once more."""
        if isinstance(self.optimizer, RollbackAdam):
            with torch.no_grad():
                self.optimizer.finish(self.loss(self.family, self.batch))
        self._watch()

    def checkpoint_due(self) -> bool:
        """Every `checkpoint_seconds`; the moment does not change what is trained."""
        return bool(self.folders) and time.monotonic() - self.saved_at >= self.checkpoint_seconds

    def checkpoints(self) -> list[dict[str, Tensor]]:
        """Weights, optimiser and random state, and all that was logged."""
        if not self.folders:
            return []
        # the batch is not saved but drawn again: in the middle of its steps that takes the state before its draw
        random = self._random_state() if self.done % self.every == 0 else self.before_draw
        return [
            {
                **{f"model/{name}": value.detach() for name, value in self.family.state_dict().items()},
                **{f"optimizer/{name}": value for name, value in self.optimizer.tensors().items()},
                **{f"generator/{index}": value for index, value in enumerate(random)},
                "steps": torch.tensor(self._logged_steps()),
                "losses": torch.stack(self.losses),
                **({"watched": torch.stack(self.watched)} if self.watched else {}),
            }
        ]

    def load(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Take everything that `checkpoints` gave, and draw the batch again."""
        (checkpoint,) = checkpoints
        self.family.load_state_dict(checkpoint.part("model"))
        state = {name: value.to(self.device) for name, value in checkpoint.part("optimizer").items()}
        self.optimizer.load(state)
        tensors = checkpoint.tensors
        for index, generator in enumerate(self.generators):
            generator.set_state(tensors[f"generator/{index}"])
        self.losses = list(tensors["losses"].to(self.device))
        self.watched = list(tensors["watched"].to(self.device)) if "watched" in tensors else []
        begun = checkpoint.step % self.every
        if self.draw is not None and begun and not checkpoint.finished:
            self._put_batch(checkpoint.step - begun)

    def result(self, family: Family) -> Trained:
        """What came out, `family` being what was handed in."""
        weights = {name: weight.detach() for name, weight in self.family.named_parameters()}
        return Trained(
            family=family if self.family is family else weights,
            steps=self._logged_steps(),
            losses=torch.stack(self.losses),
            watched=torch.stack(self.watched) if self.watched else None,
            returns=self.optimizer.returns if isinstance(self.optimizer, RollbackAdam) else None,
            seconds=self.folders[0].provenance().get("train_seconds", 0.0) if self.folders else self.seconds,
            folder=self.folders[0] if self.folders else None,
        )

    def _logged_steps(self) -> list[int]:
        return list(range(0, self.done, self.log_every))

    def _random_state(self) -> list[Tensor]:
        return [generator.get_state() for generator in self.generators]

    def _put_batch(self, step: int) -> None:
        """Draw a batch to read from now on; for a captured step it is copied to where the first one lay."""
        assert self.draw is not None
        self.before_draw = self._random_state()
        batch = self.draw(step)
        if self.graph is None:
            self.batch = batch
        else:
            for old, new in zip(leaves(self.batch), leaves(batch), strict=True):
                old.copy_(new)

    def _set_factor(self, factor: float) -> None:
        if isinstance(self.optimizer, RollbackAdam):
            self.optimizer.set_rate(factor)
        elif isinstance(self.factor, Tensor):
            self.factor.fill_(factor)
        else:
            self.factor = factor

    def _update(self) -> None:
        losses = self.loss(self.family, self.batch)
        # not backward(): it would bind the weights to the stream they were first used on
        gradients = torch.autograd.grad(losses.sum(), self.weights, allow_unused=True)
        self.output = losses.detach()
        if isinstance(self.optimizer, RollbackAdam):
            self.optimizer.step(self.output, gradients, self.clip)
            return
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        if self.clip is not None:
            self.clip([gradient for gradient in gradients if gradient is not None])
        self.optimizer.step(self.factor)

    def _capture(self) -> None:
        """Record the step as a CUDA graph; where that fails, plain steps go on."""
        self.batch = tree_map(torch.clone, self.batch)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._update()
        except RuntimeError as error:
            warnings.warn(f"the step could not be captured as a CUDA graph and runs plainly: {error}", stacklevel=2)
            torch.cuda.synchronize()
            self.captures = False
        else:
            self.graph = graph

    def _watch(self) -> None:
        if self.watch is not None:
            with torch.no_grad():
                self.watched.append(self.watch(self.family).detach().clone())
