"""An experiment is data: a task, a model, and how to train."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from looped.config import LATER, decode, encode
from looped.functional.counts import check_at_least
from looped.functional.schedules import Schedule, Trapezoid
from looped.models.base import ModelConfig
from looped.models.gradients import GradientRule
from looped.tasks.task import SequenceTask, Task
from looped.upgrade import CARRIED_OVER, upgrade

Scale = Literal["smoke", "cpu", "paper"]
"""Sizes in which a recipe comes and a study is measured."""
SCALES: tuple[Scale, ...] = get_args(Scale)
FORMAT = 2
"""Version of the config on disk; `looped.upgrade` reads the one before."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What every optimiser has; each is a class of its own, so that no option can be set and then ignored."""

    learning_rate: float = 1e-4
    """Adam's learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    clip: float | None = None
    """Largest gradient norm; None leaves gradients alone."""
    schedule: Schedule = field(default_factory=Trapezoid)
    """Factor on every rate."""

    def __post_init__(self) -> None:
        if type(self) is OptimizerConfig:
            raise ValueError("an optimiser is `Adam`, `AdamW` or `Muon`; got the `OptimizerConfig` they share.")
        _check_above_zero(self, "learning_rate", "clip")


@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerConfig):
    """Adam for every weight."""


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay, for every weight."""

    weight_decay: float = 0.0
    """A step shrinks the weights by this times the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(0, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerConfig):
    """Muon for the matrices, Adam for vectors and for what `LoopedModel.left_to_adam` names: embeddings, read-out..."""

    muon_learning_rate: float = 0.01
    """Muon's learning rate, in units of the update's root mean square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_above_zero(self, "muon_learning_rate")


def _check_above_zero(config: OptimizerConfig, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"`{name}` must be above 0; got {value}.")


MAX_STEPS = 10**9
"""More steps than this are a typo: they would take years."""
SEEDS = 2**63
"""Seeds lie in [-SEEDS, SEEDS): larger numbers are no integers to many programs that read a config."""
MAX_EMPHASIS = 10
"""Larger powers score little but the last few pairs of a prompt."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train: steps, prompts, windows, curricula, optimiser, seed."""

    steps: int = 1000
    """Optimiser steps."""
    extended: tuple[int, ...] = field(default=(), metadata=LATER)
    """The steps it had before it was extended, once or more: up to each of these, schedules are those of that many."""
    batch: int = 64
    """Prompts a step."""
    points: int = 41
    """Pairs in a prompt, the last one a query with k = points - 1 examples before it."""
    window: int = 1
    """Predictions of the last `window` loops enter the loss: the paper's T."""
    grad: int | None = None
    """The last `grad` loops carry gradient; None: all. Weight tying needs all."""
    gradient: GradientRule | None = field(default=None, metadata=LATER)
    """Another way of the gradient than through the last `grad` loops (`models/gradients.py`); None: that."""
    loop_weights: tuple[float, ...] | None = field(default=None, metadata=LATER)
    """Weights of the window's loops in the loss, the last loop's last; None: all weigh the same."""
    jacobian: float = field(default=0.0, metadata=LATER)
    """Factor of a penalty on the Jacobian of the last loop (`models/gradients.py`); 0: none."""
    depth: Schedule | None = None
    """Added to the model's `loops` at each step, so that a step may have fewer loops or more; None: nothing."""
    dims: Schedule | None = None
    """Active dimensions at each step; None: all. The rest are masked, so shapes stay fixed."""
    active_points: Schedule | None = None
    """Scored pairs at each step; None: all. Later ones get weight 0, so shapes stay fixed."""
    lengths: tuple[int, ...] = field(default=(), metadata=LATER)
    """Each step cuts its prompts to one of these numbers of pairs, drawn anew; (): all have `points`."""
    emphasis: float = field(default=0.0, metadata=LATER)
    """The i-th pair of a prompt has weight i^emphasis in the loss, the logged one too; 0: all pairs weigh the same."""
    dropout: float = field(default=0.0, metadata=LATER)
    """Share of what each block adds to the stream that is set to zero, in the loops that carry gradient."""
    pool: int | None = None
    """Draw prompts from this many fixed ones; None: fresh prompts at every step."""
    optimizer: OptimizerConfig = field(default_factory=Adam)
    """Which optimiser, and its rates."""
    average: float | None = None
    """Decay of a running average of the weights, which the evaluation then reads; None: none."""
    start: str | None = None
    """The weights to start from: a run folder, a kept model's name, or a run beside this one; None: fresh weights."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Precision of weights and prompts; with bfloat16 only the passes have it, on a GPU; weights stay float32."""
    seed: int = 0
    """One seed names a run: weights and prompts."""
    log_every: int = 50
    """Steps between lines in the metrics."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints stay; the one with the lowest logged loss stays as well."""

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "points", "window", "log_every", "checkpoint_every", "keep_checkpoints")
        check_at_least(1, **{name: getattr(self, name) for name in (*counts, "grad", "pool")})
        if self.steps > MAX_STEPS:
            raise ValueError(f"`steps` must be at most {MAX_STEPS:,}; got {self.steps}.")
        if any(end >= after for end, after in zip((0, *self.ends), self.ends, strict=False)):
            raise ValueError(f"`extended` holds fewer steps than steps={self.steps}, ascending; got {self.extended}.")
        if not -SEEDS <= self.seed < SEEDS:
            raise ValueError(f"`seed` must be at least -2^63 and below 2^63; got {self.seed}.")
        for name in ("dims", "active_points"):
            schedule = getattr(self, name)
            if schedule is not None and (least := min(schedule.bounds(end)[0] for end in self.ends)) < 1:
                raise ValueError(f"`{name}` must be at least 1 at every step; got {least}.")
        if self.pool is not None and self.dims is not None:
            raise ValueError("`pool` fixes the prompts, so `dims` cannot change them; set one of the two to null.")
        if self.lengths and not 1 <= min(self.lengths) <= max(self.lengths) <= self.points:
            raise ValueError(f"`lengths` must be in [1, points={self.points}]; got {self.lengths}. Raise `points`.")
        if self.lengths and self.active_points is not None:
            raise ValueError("`lengths` and `active_points` both say how many pairs are scored; set one of the two.")
        if not 0 <= self.emphasis <= MAX_EMPHASIS:
            raise ValueError(f"`emphasis` must be between 0 and {MAX_EMPHASIS}; got {self.emphasis}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1; got {self.dropout}.")
        self._check_loops()
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"`average` must be between 0 and 1; got {self.average}.")

    def _check_loops(self) -> None:
        weights, rule = self.loop_weights, self.gradient
        if weights is not None and (len(weights) != self.window or min(weights) < 0 or not weights[-1]):
            raise ValueError(
                f"`loop_weights` are window={self.window} numbers of at least 0, the last above 0; got {list(weights)}."
            )
        if rule is not None and self.grad is not None:
            raise ValueError(f"`gradient` takes the place of `grad`, which must be null then; got {self.grad}.")
        if rule is not None and rule.last_only and self.window > 1:
            raise ValueError(
                f"{type(rule).__name__} gives gradient to the last loop alone; got window={self.window}. Set it to 1."
            )
        check_at_least(0, jacobian=self.jacobian)

    @property
    def ends(self) -> tuple[int, ...]:
        """The steps that the training had each time: the last are `steps`."""
        return (*self.extended, self.steps)

    def value(self, schedule: Schedule, step: int) -> float:
        """A schedule's value at a step, of the number of steps that the training had then."""
        return schedule(step, next((end for end in self.ends if step < end), self.steps))

    def windows(self, loops: int) -> dict[str, int | None]:
        """`grad` and `keep` at a step of `loops` loops: at most `loops`."""
        return {"grad": None if self.grad is None else min(self.grad, loops), "keep": min(self.window, loops)}


def _one_spelling(data: Any) -> Any:
    """Whole floats as integers, so that `noise=1` and `noise=1.0` have the same hash."""
    if isinstance(data, dict):
        return {key: _one_spelling(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_one_spelling(item) for item in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def hash_of(data: Any) -> str:
    """The hash of a config's data as written: that of an older library may lack a field that was added since."""
    text = json.dumps(_one_spelling(data), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def is_plain(name: str) -> bool:
    """Whether a name can name a folder, and cannot lead out of the folder it is in."""
    return bool(name.strip(".")) and all(letter.isalnum() or letter in "._-" for letter in name)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model and its task, for weights that were imported or constructed."""

    name: str = "experiment"
    """What the run is called."""
    task: Task
    """The function class."""
    model: ModelConfig
    """The model."""

    def __post_init__(self) -> None:
        task, model = self.task, self.model
        if model.d not in (None, task.d):
            raise ValueError(f"`task.d` and `model.d` must agree; got {task.d} and {model.d}.")
        if model.vocabulary != task.vocabulary_size:
            raise ValueError(
                f"`task.vocabulary` and `model.vocabulary` must agree; got {task.vocabulary_size} and "
                f"{model.vocabulary}."
            )
        if not is_plain(self.name):
            raise ValueError(f"`name` names a folder: letters, digits, '.', '_' and '-'; got {self.name!r}.")

    @cached_property
    def hash(self) -> str:
        """Names the run: equal configs, equal hash."""
        return hash_of(self.to_data())

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.name}-{self.hash}"

    def to_data(self, *, complete: bool = False) -> dict[str, Any]:
        """As JSON data; a `LATER` field at its default is left out, unless `complete`, which is for people."""
        return {"format": FORMAT, **encode(self, without="nothing" if complete else "later")}

    @staticmethod
    def from_data(data: Any, code: Mapping[str, Any] | None = None) -> Setup:
        """The `Setup` or `Experiment` that `to_data` wrote, here or in the version before.

        `code` holds classes from outside the library.
        """
        if not isinstance(data, dict) or type(data.get("format")) is not int:
            raise ValueError("this is not a looped config: it has no `format` number.")
        if data["format"] > FORMAT:
            raise ValueError(
                f"this config was written by a newer looped (format {data['format']}; this one reads up to {FORMAT}). "
                "Upgrade looped."
            )
        fields = upgrade(data) if data["format"] < FORMAT else data
        return decode({key: fields[key] for key in fields if key not in ("format", CARRIED_OVER)}, Setup, "", code)


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """One training run, complete: the same data gives the same run."""

    train: TrainConfig
    """How to train."""

    def __post_init__(self) -> None:
        super().__post_init__()
        train, loops = self.train, self.model.loops
        for name, value in (("window", train.window), ("grad", train.grad)):
            if value is not None and value > loops:
                raise ValueError(f"`{name}` must be in [1, loops={loops}]; got {value}. Lower it or raise `loops`.")
        depth = train.depth
        fewest = loops if depth is None else loops + min(int(depth.bounds(end)[0]) for end in train.ends)
        if fewest < 1:
            raise ValueError(
                f"`depth` is added to `loops`, and every step needs at least 1 loop; got {fewest} with loops={loops}. "
                "Raise `depth` or `loops`."
            )
        if (train.grad or train.gradient) and self.model.has_read_in and not self.model.injects:
            raise ValueError(
                "without injection the prompt enters by the first state alone: `grad` and `gradient` must be null (all "
                f"loops), or the read-in is never trained; got {train.grad or train.gradient}."
            )
        if train.lengths and isinstance(self.task, SequenceTask):
            raise ValueError(f"`lengths` counts the pairs of a prompt, and a sequence has none; got {train.lengths}.")
        if getattr(self.model, "quantiles", 0) != getattr(self.task, "quantiles", 0):
            raise ValueError("`task.quantiles` and `model.quantiles` must agree: the loss judges what the model gives.")
        if train.emphasis and isinstance(self.task, SequenceTask):
            raise ValueError(f"`emphasis` counts the pairs of a prompt, and a sequence has none; got {train.emphasis}.")
        if self.model.reads_query_last and (train.emphasis or train.active_points is not None):
            raise ValueError(
                "`emphasis` and `active_points` weigh the pairs that a model answers, and this one answers the last "
                f"alone; got {train.emphasis} and {train.active_points}. Set them to 0 and null."
            )
        if isinstance(self.task, SequenceTask) and self.model.sees_next_token:
            raise ValueError("a sequence needs `model.causal=true`: otherwise a token sees the one it is to predict.")

    @staticmethod
    def from_data(data: Any, code: Mapping[str, Any] | None = None) -> Experiment:
        """Read what `to_data` wrote; a `Setup` is refused, since it has nothing to train."""
        return trainable(Setup.from_data(data, code))

    def loops_at(self, step: int) -> int:
        """The loops of a training step: b + depth(step)."""
        depth = self.train.depth
        return self.model.loops + (0 if depth is None else int(self.train.value(depth, step)))


def training(experiment: Experiment, **fields: Any) -> Experiment:
    """The experiment with other training fields."""
    return replace(experiment, train=replace(experiment.train, **fields))


def trainable(setup: Setup) -> Experiment:
    """The setup as an experiment; weights that were imported or constructed are refused."""
    if not isinstance(setup, Experiment):
        raise ValueError(
            f"`{setup.name}` was imported or constructed: there is nothing to train here. Train a recipe, or a run "
            "that a recipe made."
        )
    return setup


def known_hashes(data: Mapping[str, Any], setup: Setup) -> set[str]:
    """The hashes that checkpoints may carry beside a config file with this `data`, which reads as `setup`.

    Today's hash; that of the file as an older version wrote it; and that of before `tools/carry_over.py` rewrote it.
    """
    carried = data.get(CARRIED_OVER)
    earlier = {carried["from"]} if isinstance(carried, dict) and carried.get("to") == setup.hash else set()
    return {setup.hash, hash_of({key: data[key] for key in data if key != CARRIED_OVER}), *earlier}
