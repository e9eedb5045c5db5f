"""The laboratory for transformers that learn by looping."""

import importlib
import os
from typing import TYPE_CHECKING

from looped.signals import answer_signals

# oneDNN's newest kernels crash on some CPUs (SIGILL in bf16 products); read once, at the first matrix product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

answer_signals()

if TYPE_CHECKING:
    from looped.config import code_of
    from looped.estimator import InContextClassifier as InContextClassifier
    from looped.estimator import InContextRegressor as InContextRegressor
    from looped.evaluation.check import check
    from looped.evaluation.compare import compare
    from looped.evaluation.curves import evaluate
    from looped.evaluation.diagnose import diagnose
    from looped.evaluation.identify import identify
    from looped.experiment import Adam, AdamW, Experiment, Muon, Setup, TrainConfig
    from looped.hub import from_pretrained, save_pretrained
    from looped.models.base import LoopedModel, ModelConfig
    from looped.models.decoder import DecoderConfig, LoopedDecoder
    from looped.models.exit_rules import Budget, StateChange
    from looped.models.loop import settle, unroll
    from looped.prompt import Prompt
    from looped.tasks.regression import LinearRegression, SparseRegression
    from looped.tasks.task import Task
    from looped.training.run import Run, load, save
    from looped.training.trainer import train

__version__ = "0.2.0"

__all__ = [
    "Adam",
    "AdamW",
    "Budget",
    "DecoderConfig",
    "Experiment",
    "LinearRegression",
    "LoopedDecoder",
    "LoopedModel",
    "ModelConfig",
    "Muon",
    "Prompt",
    "Run",
    "Setup",
    "SparseRegression",
    "StateChange",
    "Task",
    "TrainConfig",
    "check",
    "code_of",
    "compare",
    "diagnose",
    "evaluate",
    "from_pretrained",
    "identify",
    "load",
    "save",
    "save_pretrained",
    "settle",
    "train",
    "unroll",
]


PLACES = {
    "config": ("code_of",),
    "estimator": ("InContextClassifier", "InContextRegressor"),
    "evaluation.check": ("check",),
    "evaluation.compare": ("compare",),
    "evaluation.curves": ("evaluate",),
    "evaluation.diagnose": ("diagnose",),
    "evaluation.identify": ("identify",),
    "experiment": ("Adam", "AdamW", "Experiment", "Muon", "Setup", "TrainConfig"),
    "hub": ("from_pretrained", "save_pretrained"),
    "models.base": ("LoopedModel", "ModelConfig"),
    "models.decoder": ("DecoderConfig", "LoopedDecoder"),
    "models.exit_rules": ("Budget", "StateChange"),
    "models.loop": ("settle", "unroll"),
    "prompt": ("Prompt",),
    "tasks.regression": ("LinearRegression", "SparseRegression"),
    "tasks.task": ("Task",),
    "training.run": ("Run", "load", "save"),
    "training.trainer": ("train",),
}
"""Which module has which of these names; those of `estimator` need scikit-learn, so they are not in `__all__`."""


def __getattr__(name: str) -> object:
    """Import a name on its first use, so that `looped --help` does not wait for torch."""
    for place, names in PLACES.items():
        if name in names:
            thing = getattr(importlib.import_module(f"looped.{place}"), name)
            globals()[name] = thing
            return thing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What can be imported from here."""
    return sorted({*globals(), *__all__})
