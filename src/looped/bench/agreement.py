"""Whether engines agree with the plain one: gradients at the initial weights, and losses of the first steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from looped.bench.cases import Case
from looped.bench.measure import obstacle, precision, release, stepper
from looped.bench.rivals import RivalTrainer
from looped.training.engine import ENGINES
from looped.training.trainer import Trainer

GRADIENTS, LOSSES = 1e-5, 1e-3
"""Limits on the relative difference of the gradients, and of any step's loss."""
WITHIN, SEEDS = 2.0, 3
"""In bfloat16, a loss may be WITHIN times as far from float32 as the plain engine's, at the worst of SEEDS seeds."""
STEPS, GRADIENT_STEPS = 50, 4
"""Several steps' gradients are compared, since an engine may run its first steps plainly and capture a later one."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far an engine's numbers are from the plain engine's."""

    engine: str
    """Its name."""
    gradients: float | None
    """Norm of the gradients' difference over the norm of the plain engine's gradient, the largest of several steps."""
    losses: float | None
    """Largest relative difference of a step's loss."""
    steps: int = STEPS
    """How many losses were compared."""
    note: str = ""
    """Why it cannot run here."""

    @property
    def holds(self) -> bool | None:
        """Whether both limits hold; None if it cannot run here."""
        if self.gradients is None or self.losses is None:
            return None
        return self.gradients <= GRADIENTS and self.losses <= LOSSES

    def line(self) -> str:
        """A line for people."""
        if self.holds is None:
            return f"{self.engine}: cannot run here: {self.note}"
        return (
            f"{self.engine}: {'agrees' if self.holds else 'DOES NOT AGREE'} with plain; "
            f"gradients to {self.gradients:.1e} (limit {GRADIENTS:.0e}), "
            f"losses of {self.steps} steps to {self.losses:.1e} (limit {LOSSES:.0e})."
        )

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        limits = {"gradients_limit": GRADIENTS, "losses_limit": LOSSES}
        measured = {"engine": self.engine, "gradients": self.gradients, "losses": self.losses}
        return {**measured, **limits, "holds": self.holds, "note": self.note}


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """How far bfloat16 takes an engine's losses from float32, compared with the plain engine in bfloat16."""

    engine: str
    """Its name."""
    losses: float
    """Largest relative difference of a step's loss from the plain engine's in float32, over several seeds."""
    spread: float
    """The same for the plain engine in bfloat16."""
    steps: int = STEPS
    """How many losses were compared for each seed."""

    @property
    def holds(self) -> bool:
        """Whether the losses are within the spread."""
        return self.losses <= WITHIN * self.spread

    def line(self) -> str:
        """A line for people."""
        return (
            f"{self.engine}, bfloat16: losses of {self.steps} steps, {SEEDS} seeds, {self.losses:.1e} from float32; "
            f"{'within' if self.holds else 'NOT WITHIN'} {WITHIN:g} times plain's own {self.spread:.1e}."
        )

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "within": WITHIN, "seeds": SEEDS, "holds": self.holds}


def rounding(case: Case, engines: Sequence[str], device: torch.device, *, steps: int = STEPS) -> list[Rounding]:
    """Compare each of our engines in bfloat16 with the plain one in float32 and in bfloat16; only on a GPU."""
    case = replace(case, packed=SEEDS)
    with precision("float32"):
        exact = first_losses(replace(case, engine="plain", dtype="float32"), device, steps)

    def far(name: str) -> float:
        low = replace(case, engine=name, dtype="bfloat16")
        return float(((first_losses(low, device, steps) - exact).abs() / exact).max())

    def runs(name: str) -> bool:
        return name in ENGINES and not obstacle(replace(case, engine=name, dtype="bfloat16"), device)

    spread = far("plain")
    others = [name for name in engines if name != "plain" and runs(name)]
    return [Rounding(engine=name, losses=far(name), spread=spread, steps=steps) for name in others]


def compare(
    case: Case,
    engines: Sequence[str],
    device: torch.device,
    *,
    steps: int = STEPS,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Agreement]:
    """Compare each engine with the plain one in float32 without TF32, on the same prompts from the same weights."""
    case = replace(case, dtype="float32")
    others = [name for name in engines if name != "plain"]
    with precision("float32"):
        plain = replace(case, engine="plain")
        expected = first_gradients(plain, device), first_losses(plain, device, steps)
        progress(1)
        agreements = []
        for index, name in enumerate(others):
            agreements.append(_agreement(replace(case, engine=name), device, *expected))
            progress(index + 2)
    return agreements


def _agreement(case: Case, device: torch.device, gradients: Tensor, losses: Tensor) -> Agreement:
    if note := obstacle(case, device):
        return Agreement(engine=case.engine, gradients=None, losses=None, note=note)
    difference = ((first_gradients(case, device) - gradients).norm(dim=1) / gradients.norm(dim=1)).max()
    drift = ((first_losses(case, device, len(losses)) - losses).abs() / losses.abs()).max()
    return Agreement(engine=case.engine, gradients=float(difference), losses=float(drift), steps=len(losses))


def first_gradients(case: Case, device: torch.device) -> Tensor:
    """(steps, numbers): the gradients of a few steps at the initial weights, read off Adam's running mean.

    g_t = (m_t - beta m_{t-1}) / (1 - beta), at a learning rate that moves no weight
    """
    release(device)
    trained = stepper(case, device, steps=GRADIENT_STEPS, clip=None, rate=1e-30)
    rows, before = [], torch.zeros((), dtype=torch.float64, device=device)
    beta = case.experiment().train.optimizer.betas[0]
    for step in range(GRADIENT_STEPS):
        trained.step(step)
        now = _moments(trained)
        rows.append((now - beta * before) / (1 - beta))
        before = now
    return torch.stack(rows)


def first_losses(case: Case, device: torch.device, steps: int) -> Tensor:
    """(steps, models): the loss of every step of a short training."""
    release(device)
    trained = stepper(case, device, steps=steps)
    rows = []
    for step in range(steps):
        if isinstance(trained, Trainer):
            trained.sums.zero_()
        trained.step(step)
        rows.append(trained.loss.double() if isinstance(trained, RivalTrainer) else trained.sums[0].double())
    return torch.stack(rows)


def _moments(trained: Trainer | RivalTrainer) -> Tensor:
    """Adam's running means of all gradients as one row, sorted by our decoder's names."""
    if isinstance(trained, RivalTrainer):
        models = trained.moments()
        means = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    else:
        means = {
            name.removesuffix("/exp_avg"): value
            for name, value in trained.optimizers.tensors().items()
            if name.endswith("/exp_avg")
        }
    return torch.cat([means[name].double().flatten() for name in sorted(means)])
