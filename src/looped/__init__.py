"""The laboratory for transformers that learn by looping."""

import os
import signal
import sys
from typing import TYPE_CHECKING

# oneDNN's newest kernels crash on some CPUs (SIGILL in bf16 products); read once, at the first matrix product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# `python -m looped` has not set sys.argv[0] by then
_IS_COMMAND = os.path.splitext(os.path.basename(sys.argv[0]))[0] == "looped" or sys.orig_argv[1:3] == ["-m", "looped"]
if _IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
    # Ctrl-C while the command still imports torch, where an exception may be swallowed and leave torch in pieces
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"looped: stopped.\n"), os._exit(1)))

try:
    from looped.config import code_of
    from looped.evaluation.curves import evaluate
    from looped.experiment import Adam, AdamW, Experiment, Muon, Setup, TrainConfig
    from looped.models.base import LoopedModel, ModelConfig
    from looped.models.decoder import DecoderConfig, LoopedDecoder
    from looped.models.exit_rules import Budget, StateChange
    from looped.models.loop import settle, unroll
    from looped.prompt import Prompt
    from looped.tasks.regression import LinearRegression, SparseRegression
    from looped.tasks.task import Task
    from looped.training.run import Run, load
    from looped.training.trainer import train
except KeyboardInterrupt:  # where another handler was set before
    if not _IS_COMMAND:
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
    "evaluate",
    "load",
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
