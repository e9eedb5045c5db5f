"""Is a looped model stable past its trained loops, and if not, why?

Four measurements on the same prompts: the error and the change of the state loop by loop; the spectral radius of the
step's Jacobian where the state ends; and whether random starts end at the same predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import Curve, over_tokens
from looped.evaluation.radius import spectral_radius
from looped.functional.streams import stream
from looped.models.base import LoopedModel
from looped.models.kernel_transformer import KernelTransformerConfig
from looped.models.loop import Context, State, leaves, tree_map
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task

WORSE = 2.0
"""An error has left the best one when it is this many times larger, intervals apart..."""
ROUNDING = 1e-6
"""... and more than this, in units of predicting zero: below, only rounding is seen."""
SETTLED = 1e-3
"""A state has settled when a loop moves it by less than this part of its length."""
SAME = 1e-2
"""Predictions are the same when they differ by less than this part of their size."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A number over prompts."""

    median: float
    """In the middle."""
    low: float
    """5% of the prompts lie below."""
    high: float
    """95% do."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How a model behaves when it is looped on and on."""

    task: str
    """The task, as written in Python."""
    prompts: int
    """How many prompts were watched."""
    level: float
    """Level of the intervals."""
    trained_loops: int
    """The loops the model was trained with."""
    loops: int
    """The loops it was run for."""
    error: Curve
    """Error by loop, at the last pair, or over all scored tokens of a sequence."""
    change: Curve
    """|state - previous| / |state| by loop."""
    best_loop: int
    """Where the mean error is least."""
    diverges_at: int | None
    """The first loop from which on, to the last, the error's interval lies above `WORSE` times the best one's."""
    overflows_at: int | None
    """The first loop after which some state, or its error, is not finite."""
    settled: float
    """Part of the prompts whose state the last loop moved by less than `SETTLED`."""
    radius: Spread | None
    """Spectral radius of the step's Jacobian at the last state; None where that is not finite."""
    repelled: float | None
    """Part of the prompts whose radius is above 1: a disturbance of their last state grows."""
    starts: int
    """How many random starts were tried; 0 where the prompt enters by the first state alone."""
    apart: float | None
    """Root mean square distance of predictions from random starts to the usual ones, over the latter's size; None where
    it is not finite."""
    same: float | None
    """Part of prompts whose predictions from every random start are within `SAME` of the usual ones."""
    verdict: str
    """All this in plain language."""

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@torch.no_grad()
def diagnose(
    model: LoopedModel,
    task: Task,
    *,
    points: int,
    loops: int | None = None,
    prompts: int = 128,
    starts: int = 3,
    seed: int = 0,
    level: float = 0.9,
) -> Diagnosis:
    """Loop a model on for `loops` loops (four times the trained ones unless given) and say whether it is stable.

    Random starts are normal, as large as the last state. They say something only where every loop reads the prompt:
    without injection another start is another prompt.
    """
    trained = model.config.loops
    _check(model, prompts, starts)
    loops = 4 * trained if loops is None else loops
    if loops <= trained:
        raise ValueError(f"`loops` must be above the trained loops={trained}, to see past them; got {loops}.")
    weight = next(model.parameters(), torch.empty(0))
    # on the CPU, as `evaluate` draws them; the random starts on the model's device
    prompt = task.sample(batch=prompts, n=points, generator=torch.Generator().manual_seed(seed))
    prompt = prompt.to(weight.device).to(weight.dtype)
    generator = torch.Generator(weight.device).manual_seed(stream(seed, "starts"))
    prompt.check_finite()
    context = model.embed(prompt)
    state, errors, changes, overflow = _loop_on(model, task, prompt, context, loops)
    error, change = (_curve(name, one, level, seed) for name, one in (("error", errors), ("state change", changes)))
    radii = spectral_radius(model, state, context, t=loops, generator=generator) if overflow is None else None
    radii = None if radii is None or not bool(radii.isfinite().all()) else radii
    starts = starts if model.config.injects else 0
    distances = _paths(model, state, context, loops, starts, generator) if overflow is None else None
    finding = Diagnosis(
        task=repr(task),
        prompts=prompts,
        level=level,
        trained_loops=trained,
        loops=loops,
        error=error,
        change=change,
        best_loop=_best(error.mean),
        diverges_at=diverging_loop(error),
        overflows_at=overflow,
        settled=float((changes[:, -1] < SETTLED).double().mean()),
        radius=None if radii is None else _spread(radii),
        repelled=None if radii is None else float((radii > 1).double().mean()),
        starts=0 if distances is None else starts,
        apart=None if distances is None else _number(distances.square().mean().sqrt()),
        same=None if distances is None else float((distances.amax(0) < SAME).double().mean()),
        verdict="",
    )
    return Diagnosis(**{**vars(finding), "verdict": verdict(finding)})


def diverging_loop(error: Curve) -> int | None:
    """The first loop from which on, to the last, the error is surely worse than its best: the rule of `diverges_at`.

        low(t) > WORSE high(best) + ROUNDING,  best = the loop of the least mean

    An error that is not finite is worse than any other.
    """
    best = error.x.index(_best(error.mean))
    bound = WORSE * error.high[best] + ROUNDING
    if not math.isfinite(bound):
        return error.x[0]
    found = None
    for loop, low in zip(reversed(error.x[best + 1 :]), reversed(error.low[best + 1 :]), strict=True):
        if math.isfinite(low) and low <= bound:
            break
        found = loop
    return found


def verdict(found: Diagnosis) -> str:
    """A diagnosis in a few sentences."""
    last, best = found.error.mean[-1], found.error.at(found.best_loop)
    past = f"after {found.loops} loops (trained with {found.trained_loops})"
    if found.overflows_at == 1:
        return "Unstable: the state or its error overflows in the first loop. Rescale the task's x and y, or retrain."
    if found.overflows_at is not None:
        return (
            f"Unstable: the state or its error overflows at loop {found.overflows_at}. Before that the error was best "
            f"at loop {found.best_loop} ({best:.3g}). {_advice(found)}"
        )
    parts = []
    if found.diverges_at is not None:
        parts.append(
            f"Unstable: the error is best at loop {found.best_loop} ({best:.3g}), from loop {found.diverges_at} on it "
            f"stays more than {WORSE:g} times that, and {past} it is {last:.3g}."
        )
    elif found.error.low[-1] > found.error.high[found.best_loop - 1] + ROUNDING:
        parts.append(
            f"Drifts: {past} the error is {last:.3g}, surely above its best ({best:.3g}, at loop {found.best_loop}), "
            f"but not surely {WORSE:g} times that."
        )
    else:
        parts.append(f"Stable: {past} the error is {last:.3g}; its best was {best:.3g}, at loop {found.best_loop}.")
    still = f"{found.settled:.0%} of the prompts have settled (a loop moves their state by less than {SETTLED:.1%})"
    parts.append(f"{still[0].upper()}{still[1:]}." if found.settled >= 0.9 else f"The state keeps moving: {still}.")
    radius, repelled = found.radius, found.repelled
    if radius is not None and repelled is not None:
        measured = f"spectral radius {radius.median:.4g}, {radius.low:.4g} to {radius.high:.4g} for most prompts"
        if repelled >= 0.5:
            parts.append(f"The last state repels ({measured}): a small disturbance grows, no fixed point holds it.")
        elif found.diverges_at is not None:
            parts.append(f"The last state attracts ({measured}): there is a fixed point, at the wrong answer.")
        else:
            parts.append(f"The last state attracts ({measured}): a small disturbance dies out.")
        if 0 < repelled < 0.5:
            parts.append(f"For {repelled:.0%} of the prompts it repels.")
    parts.append(_paths_said(found))
    if found.diverges_at is not None:
        parts.append(_advice(found))
    return " ".join(parts)


def _paths_said(found: Diagnosis) -> str:
    if found.same is not None and found.apart is None:
        return "Path dependent: from random starts the predictions overflow."
    if found.same is None or found.apart is None:
        return "The prompt enters by the first state alone, so random starts say nothing."
    if found.same >= 0.9:
        return f"Path independent: {found.same:.0%} of the prompts end at the same predictions from random starts."
    return (
        f"Path dependent: random starts end {found.apart:.2g} of a prediction's size away, and only {found.same:.0%} "
        "of the prompts where they usually do."
    )


def _advice(found: Diagnosis) -> str:
    if found.starts == 0 and found.overflows_at is None:
        return f"Run it for {found.best_loop} loops, or train it with the prompt injected in every loop."
    return f"Run it for {found.best_loop} loops, or train it with more loops."


def _check(model: LoopedModel, prompts: int, starts: int) -> None:
    config = model.config
    if config.loops == 1:
        raise ValueError(
            "this model has one loop: nothing is repeated and nothing can settle. Diagnose a looped model."
        )
    if isinstance(config, KernelTransformerConfig) and config.layers > 1:
        raise ValueError(
            f"this model has {config.layers} layers with weights of their own and loops only the last. "
            "Diagnose a looped model (`layers=1`)."
        )
    if prompts < 2:
        raise ValueError(f"`prompts` must be at least 2, for an interval; got {prompts}.")
    if starts < 1:
        raise ValueError(f"`starts` must be at least 1; got {starts}.")


def _loop_on(
    model: LoopedModel, task: Task, prompt: AnyPrompt, context: Context, loops: int
) -> tuple[State, Float[Tensor, "batch loops"], Float[Tensor, "batch loops"], int | None]:
    """The last state, every loop's error and state change, and the first loop after which one of them is not finite."""
    state, errors, changes, overflow = model.start(context), [], [], None
    for t in range(loops):
        previous, state = state, model.step(state, context, t)
        errors.append(_error(task, model.readout(state, context), prompt))
        moved = [new - old for new, old in zip(leaves(state), leaves(previous), strict=True)]
        size = _length(leaves(state))
        changes.append(_length(moved) / size.clamp(min=torch.finfo(size.dtype).tiny))  # a state of zeros stays itself
        if overflow is None and not all(
            bool(one.isfinite().all()) for one in (*leaves(state), errors[-1], changes[-1])
        ):
            overflow = t + 1
    return state, torch.stack(errors, 1), torch.stack(changes, 1), overflow


def _error(task: Task, outputs: Tensor, prompt: AnyPrompt) -> Float[Tensor, " batch"]:
    errors = task.error(outputs, prompt)  # type: ignore[arg-type]
    if isinstance(prompt, Prompt):
        return errors[:, -1]
    return over_tokens(errors, prompt.weights)


def _length(parts: Sequence[Tensor]) -> Float[Tensor, " batch"]:
    return torch.stack([part.flatten(1).square().sum(1) for part in parts]).sum(0).sqrt()


def _paths(
    model: LoopedModel, state: State, context: Context, loops: int, starts: int, generator: torch.Generator
) -> Float[Tensor, "starts batch"] | None:
    """How far predictions from random starts end from those of the usual start, over the latter's size."""
    usual = model.readout(state, context).flatten(1)
    size = usual.square().mean().sqrt().clamp(min=torch.finfo(usual.dtype).tiny)
    found = []
    for _ in range(starts):
        other = tree_map(lambda leaf: _like(leaf, generator), state)
        for t in range(loops):
            other = model.step(other, context, t)
        apart = model.readout(other, context).flatten(1) - usual
        found.append(apart.square().mean(1).sqrt() / size)
    return torch.stack(found) if found else None


def _number(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


def _like(leaf: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers as large as the leaf's."""
    normal = torch.randn(leaf.shape, generator=generator, device=leaf.device, dtype=leaf.dtype)
    return normal * leaf.square().mean().sqrt()


def _curve(label: str, values: Float[Tensor, "batch loops"], level: float, seed: int) -> Curve:
    interval = bootstrap(values, level=level, seed=seed)
    loops = list(range(1, values.shape[1] + 1))
    return Curve(label=label, x=loops, **{key: value.tolist() for key, value in interval._asdict().items()})


def _best(means: Sequence[float]) -> int:
    return 1 + min(range(len(means)), key=lambda at: means[at] if math.isfinite(means[at]) else math.inf)


def _spread(values: Float[Tensor, " batch"]) -> Spread:
    low, median, high = torch.quantile(values.double().cpu(), torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    return Spread(median=float(median), low=float(low), high=float(high))
