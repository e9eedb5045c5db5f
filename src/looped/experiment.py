"""An experiment is data: a task, a model, and how to train."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from looped.config import LATER, decode, encode
from looped.functional.schedules import Schedule, Trapezoid
from looped.models.base import ModelConfig
from looped.tasks.task import SequenceTask, Task

FORMAT = 1
"""Version of the config on disk."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimiser and its rates."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """Muon takes the blocks' matrices; everything else is then Adam's."""
    learning_rate: float = 1e-4
    """Adam's rate."""
    muon_learning_rate: float = 0.01
    """Muon's rate, in units of the update's root mean square."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    weight_decay: float = 0.0
    """AdamW's decay."""
    clip: float | None = None
    """Largest gradient norm; None leaves gradients alone."""
    schedule: Schedule = field(default_factory=Trapezoid)
    """Factor on every rate."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "muon_learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be above 0; got {value}.")


MOST_STEPS = 10**9
"""More steps than this are a slip of the hand: they would take years."""
MOST_EMPHASIS = 10
"""Larger powers score little but the last few pairs of a prompt."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train: steps, prompts, windows, curricula, optimiser, seed."""

    steps: int = 1000
    """Optimiser steps."""
    batch: int = 64
    """Prompts a step."""
    points: int = 41
    """Pairs in a prompt, the last one a query with k = points - 1 examples before it."""
    window: int = 1
    """Predictions of the last `window` loops enter the loss: the paper's T."""
    grad: int | None = None
    """The last `grad` loops carry gradient; None: all. Weight tying needs all."""
    depth: Schedule | None = None
    """Loops at each step; None: always the model's `loops`."""
    dims: Schedule | None = None
    """Active dimensions at each step; None: all. The rest are masked, so shapes stay fixed."""
    active_points: Schedule | None = None
    """Scored pairs at each step; None: all. Later ones get weight 0, so shapes stay fixed."""
    emphasis: float = field(default=0.0, metadata=LATER)
    """Weight of the i-th pair of a prompt in the loss, i^emphasis, and so in the logged loss; 0: all the same."""
    pool: int | None = None
    """Draw prompts from this many fixed ones; None: fresh prompts at every step."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Which optimiser, and its rates."""
    average: float | None = None
    """Decay of a running average of the weights, which the evaluation then reads; None: none."""
    start: str | None = None
    """Whose weights to start from: a run folder, the name of a kept model or of a run beside this; None: fresh ones."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Precision of weights and prompts; bfloat16 is that of the passes alone, over float32 weights, on a GPU."""
    seed: int = 0
    """One seed names a run: weights and prompts."""
    log_every: int = 50
    """Steps between lines in the metrics."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints stay; the one of the best logged loss stays as well."""

    def __post_init__(self) -> None:
        positive = ("steps", "batch", "points", "window", "log_every", "checkpoint_every", "keep_checkpoints")
        for name in (*positive, "grad", "pool"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1; got {value}.")
        if self.steps > MOST_STEPS:
            raise ValueError(f"`steps` must be at most {MOST_STEPS:,}; got {self.steps}.")
        for name in ("depth", "dims", "active_points"):
            schedule = getattr(self, name)
            if schedule is not None and schedule(0, self.steps) < 1:
                raise ValueError(f"`{name}` must start at 1 or more; got {schedule(0, self.steps)}.")
        if self.pool is not None and self.dims is not None:
            raise ValueError("`pool` fixes the prompts, so `dims` cannot change them; set one of the two to null.")
        if not 0 <= self.emphasis <= MOST_EMPHASIS:
            raise ValueError(f"`emphasis` must be between 0 and {MOST_EMPHASIS}; got {self.emphasis}.")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"`average` must be between 0 and 1; got {self.average}.")

    def windows(self, loops: int) -> dict[str, int | None]:
        """`grad` and `keep` at a step of `loops` loops: never more than there are."""
        return {"grad": None if self.grad is None else min(self.grad, loops), "keep": min(self.window, loops)}


def _one_spelling(data: Any) -> Any:
    """Whole floats as integers: `noise=1` and `noise=1.0` are one config, and its hash is one."""
    if isinstance(data, dict):
        return {key: _one_spelling(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_one_spelling(item) for item in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def hash_of(data: Any) -> str:
    """The hash of a config's data, as it is: an older library's may lack a field that has come since."""
    text = json.dumps(_one_spelling(data), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def is_plain(name: str) -> bool:
    """Whether a name can name a folder, and never leads out of the one it is in."""
    return bool(name.strip(".")) and all(letter.isalnum() or letter in "._-" for letter in name)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training run, complete: the same data gives the same run."""

    name: str = "experiment"
    """What the run is called."""
    task: Task
    """The function class."""
    model: ModelConfig
    """The model."""
    train: TrainConfig | None = None
    """How to train; None for weights that were imported or constructed."""

    def __post_init__(self) -> None:
        loops = self.model.loops
        for name in ("window", "grad"):
            value = getattr(self.train, name, None)
            if value is not None and value > loops:
                raise ValueError(f"`{name}` must be in [1, loops={loops}]; got {value}. Lower it or raise `loops`.")
        if getattr(self.model, "inject", None) == "none" and getattr(self.train, "grad", None) is not None:
            raise ValueError(
                "without injection the prompt enters by the first state alone: `grad` must be null (all loops), "
                f"or the read-in is never trained; got {getattr(self.train, 'grad', None)}."
            )
        for name in ("d", "vocabulary"):
            asked = getattr(self.task, name, None)
            read = getattr(self.model, name, asked)
            if read != asked:
                raise ValueError(f"`task.{name}` and `model.{name}` must agree; got {asked} and {read}.")
        if self.train is not None and self.train.emphasis and isinstance(self.task, SequenceTask):
            raise ValueError(
                f"`emphasis` counts the pairs of a prompt, and a sequence has none; got {self.train.emphasis}."
            )
        asks_everywhere = getattr(self.model, "query", None) == "every" and not getattr(self.model, "causal", True)
        if self.train is not None and isinstance(self.task, SequenceTask) and asks_everywhere:
            raise ValueError("a sequence needs `model.causal=true`: otherwise a token sees the one it is to predict.")
        if not is_plain(self.name):
            raise ValueError(f"`name` names a folder: letters, digits, '.', '_' and '-'; got {self.name!r}.")

    @property
    def hash(self) -> str:
        """Names the run: equal configs, equal hash."""
        return hash_of(self.to_data())

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.name}-{self.hash}"

    def to_data(self, *, complete: bool = False) -> dict[str, Any]:
        """The experiment as JSON data; a field that came later shows once it is set, or, for people, if `complete`."""
        return {"format": FORMAT, **encode(self, without="nothing" if complete else "later")}

    def brief(self) -> dict[str, Any]:
        """As JSON data without what has its default value: a figure's settings, which a new field must not change."""
        return encode(self, without="defaults")

    @staticmethod
    def from_brief(data: Mapping[str, Any]) -> Experiment:
        """Read what `brief` wrote."""
        return Experiment.from_data({"format": FORMAT, **data})

    @staticmethod
    def from_data(data: Any, code: Mapping[str, Any] | None = None) -> Experiment:
        """Read what `to_data` wrote; `code` holds classes from outside the library."""
        if not isinstance(data, dict) or not isinstance(data.get("format"), int):
            raise ValueError("this is not a looped config: it has no `format` number.")
        if data["format"] > FORMAT:
            raise ValueError(
                f"this config was written by a newer looped (format {data['format']}; this one reads up to {FORMAT}). "
                "Upgrade looped."
            )
        return decode({key: value for key, value in data.items() if key != "format"}, Experiment, "", code)
