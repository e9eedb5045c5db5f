"""Whether engines agree with the plain one: gradients at the initial weights, and losses of the first steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Comparison:
    """An engine's numbers against the plain engine's."""

    holds: bool | None
    """Whether the differences are within their limits; None if the engine cannot run here."""
    line: str
    """The differences and limits for people."""
    data: dict[str, Any]
    """The same as JSON data."""


def rounding(case: Case, engines: Sequence[str], device: torch.device, *, steps: int = STEPS) -> list[Comparison]:
    """Compare each of our engines in bfloat16 with the plain one in float32 and in bfloat16; only on a GPU."""
    case = replace(case, packed=SEEDS)
    with precision("float32"):
        exact = first_losses(replace(case, engine="plain", dtype="float32"), device, steps)

    def far(low: Case) -> float:
        return float(((first_losses(low, device, steps) - exact).abs() / exact).max())

    low_cases = [replace(case, engine=name, dtype="bfloat16") for name in engines if name in ENGINES[1:]]
    spread = far(replace(case, engine="plain", dtype="bfloat16"))
    comparisons = []
    for low in low_cases:
        if obstacle(low, device):
            continue
        losses = far(low)
        holds = losses <= WITHIN * spread
        line = (
            f"{low.engine}, bfloat16: losses of {steps} steps, {SEEDS} seeds, {losses:.1e} from float32; "
            f"{'within' if holds else 'NOT WITHIN'} {WITHIN:g} times plain's own {spread:.1e}."
        )
        measured = {"engine": low.engine, "losses": losses, "spread": spread, "steps": steps}
        comparisons.append(Comparison(holds, line, {**measured, "within": WITHIN, "seeds": SEEDS, "holds": holds}))
    return comparisons


def compare(
    case: Case,
    engines: Sequence[str],
    device: torch.device,
    *,
    steps: int = STEPS,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Comparison]:
    """Compare each engine with the plain one in float32 without TF32, on the same prompts from the same weights."""
    plain = replace(case, engine="plain", dtype="float32")
    with precision("float32"):
        expected = first_gradients(plain, device), first_losses(plain, device, steps)
        comparisons = []
        for name in engines:
            progress(len(comparisons) + 1)
            if name != "plain":
                comparisons.append(_compare(replace(plain, engine=name), device, *expected))
    return comparisons


def _compare(case: Case, device: torch.device, gradients: Tensor, losses: Tensor) -> Comparison:
    difference = drift = holds = None
    if note := obstacle(case, device):
        line = f"{case.engine}: cannot run here: {note}"
    else:
        difference = float(((first_gradients(case, device) - gradients).norm(dim=1) / gradients.norm(dim=1)).max())
        drift = float(((first_losses(case, device, len(losses)) - losses).abs() / losses.abs()).max())
        holds = difference <= GRADIENTS and drift <= LOSSES
        line = (
            f"{case.engine}: {'agrees' if holds else 'DOES NOT AGREE'} with plain; "
            f"gradients to {difference:.1e} (limit {GRADIENTS:.0e}), "
            f"losses of {len(losses)} steps to {drift:.1e} (limit {LOSSES:.0e})."
        )
    measured = {"engine": case.engine, "gradients": difference, "losses": drift}
    limits = {"gradients_limit": GRADIENTS, "losses_limit": LOSSES}
    return Comparison(holds, line, {**measured, **limits, "holds": holds, "note": note})


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
        state = trained.optimizers.tensors()
        means = {name: value for name, value in state.items() if name.endswith("/exp_avg")}
    return torch.cat([means[name].double().flatten() for name in sorted(means)])
