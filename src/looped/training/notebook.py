"""Progress for a training that is started from Python: in a notebook one line that is written anew, else nothing."""

import sys
import time
from collections.abc import Callable

from looped.experiment import Experiment

PAUSE_S = 0.2
"""Seconds between two pictures of the line."""


def notebook_progress(experiment: Experiment) -> Callable[[int, dict[str, float]], None] | None:
    """What `progress` is unless it is given: a line of step, loss and error below the cell; None outside notebooks."""
    if "ipykernel" not in sys.modules:
        return None
    steps, shown = experiment.train.steps, 0.0

    def report(done: int, line: dict[str, float]) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < PAUSE_S and done < steps:
            return
        shown = now
        numbers = f", loss {line['loss']:.3g}, error {line['error']:.3g}" if line else ""
        text = f"{experiment.name}: {done} of {steps} steps{numbers}"
        sys.stderr.write(f"\r{text:<79}{chr(10) * (done == steps)}")
        sys.stderr.flush()

    return report
