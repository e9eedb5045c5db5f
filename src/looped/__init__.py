"""The laboratory for transformers that learn by looping."""

import os
import sys
from typing import TYPE_CHECKING

# oneDNN's newest kernels crash on some CPUs (SIGILL in bf16 products); read once, at the first matrix product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

try:
    from looped.config import code_of
    from looped.evaluation.curves import evaluate
    from looped.evaluation.diagnose import diagnose
    from looped.evaluation.identify import identify
    from looped.experiment import Adam, AdamW, Experiment, Muon, Setup, TrainConfig
    from looped.models.base import LoopedModel, ModelConfig
    from looped.models.decoder import DecoderConfig, LoopedDecoder
    from looped.models.exit_rules import Budget, StateChange
    from looped.models.loop import settle, unroll
    from looped.prompt import Prompt
    from looped.tasks.regression import LinearRegression, SparseRegression
    from looped.tasks.task import Task
    from looped.training.run import Run, load, save
    from looped.training.trainer import train
except KeyboardInterrupt:
    # Ctrl-C while the command still imports torch; `python -m looped` has not set sys.argv[0] by then
    if os.path.splitext(os.path.basename(sys.argv[0]))[0] != "looped" and "-m looped" not in " ".join(sys.orig_argv):
        raise
    sys.exit("looped: stopped.")

if TYPE_CHECKING:
    from looped.estimator import InContextRegressor as InContextRegressor

__version__ = "0.1.0"

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
    "code_of",
    "diagnose",
    "evaluate",
    "identify",
    "load",
    "save",
    "settle",
    "train",
    "unroll",
]


def __getattr__(name: str) -> object:
    """Import `InContextRegressor` on first use; it is not in `__all__`, since it needs scikit-learn."""
    if name == "InContextRegressor":
        from looped.estimator import InContextRegressor

        return InContextRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
