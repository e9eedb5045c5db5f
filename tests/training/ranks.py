"""What the ranks of test_distributed.py do: `torchrun ranks.py FOLDER`, and a recipe for `torchrun -m looped train`."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from looped.experiment import Adam, Experiment, Muon, TrainConfig
from looped.functional.schedules import Staircase
from looped.models.decoder import DecoderConfig
from looped.tasks.regression import LinearRegression
from looped.training.distributed import join
from looped.training.stopping import Interrupted
from looped.training.trainer import Trainer, train, train_seeds

EXPERIMENT = Experiment(
    name="ranks",
    task=LinearRegression(d=2),
    model=DecoderConfig(d=2, width=8, heads=2, loops=2, positions=8),
    train=TrainConfig(
        steps=50,
        batch=7,  # not a multiple of the ranks
        points=4,
        window=2,
        optimizer=Adam(learning_rate=0.01, clip=1.0),
        log_every=5,
        checkpoint_every=20,
        dtype="float64",
    ),
)
"""In float64, so that what differs by more than rounding is seen."""


def changed(**fields) -> Experiment:
    return replace(EXPERIMENT, train=replace(EXPERIMENT.train, **fields))


SINGLE = changed(dtype="float32")
MUON = changed(
    steps=20,
    batch=5,
    pool=9,
    average=0.9,
    active_points=Staircase(start=2, stop=4, by=1, every=5),
    emphasis=1.0,
    optimizer=Muon(learning_rate=0.01, muon_learning_rate=0.02),
)
STACK = changed(steps=20, batch=6)


def recipe() -> Experiment:
    """The main one; with `DIE_AT_STEP` rank 1 kills itself before that step, as SIGKILL would."""
    if os.environ.get("RANK") == "1" and "DIE_AT_STEP" in os.environ:
        before(int(os.environ["DIE_AT_STEP"]), signal.SIGKILL)
    return EXPERIMENT


def before(step: int, number: int) -> None:
    """Send this process a signal before a step of training."""
    original = Trainer.step

    def interrupted(self, now: int) -> None:
        if now == step:
            Trainer.step = original
            os.kill(os.getpid(), number)
        original(self, now)

    Trainer.step = interrupted


def listening() -> list[str]:
    """The addresses this process listens at, as Linux lists them."""
    own = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


def main(folder: Path) -> None:
    """Train all of them; rank 1 says what it heard."""
    heard = {}
    train(EXPERIMENT, out=folder / "killed")
    train(EXPERIMENT, out=folder / "whole")
    if os.environ["RANK"] == "1":
        before(29, signal.SIGINT)
    try:
        train(EXPERIMENT, out=folder / "stopped")
    except Interrupted as stop:
        heard["stopped"] = str(stop)
    train(EXPERIMENT, out=folder / "stopped")
    train(SINGLE, out=folder / "whole")
    train(MUON, out=folder / "whole")
    train_seeds(STACK, [3, 4, 5], out=folder / "whole")
    heard["listening"] = listening()
    try:
        train(changed(batch=1), out=folder / "small")
    except ValueError as error:
        heard["small"] = str(error)
    heard["size"] = join("cpu").size
    (folder / f"heard-{os.environ['RANK']}.json").write_text(json.dumps(heard))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
