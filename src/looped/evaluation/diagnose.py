"""Is a looped model stable past its trained loops, and if not, why?

The same prompts show the error and the change of the state loop by loop, the spectral radius of the step's Jacobian
where the state ends, and whether random starts end at the same predictions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.curves import Curve, Findings
from looped.evaluation.errors import over_tokens, weight_of
from looped.evaluation.radius import normal_like, spectral_radius
from looped.functional.streams import generator_of, stream
from looped.models.base import LoopedModel
from looped.models.kernel_transformer import KernelTransformerConfig
from looped.models.loop import Context, State, check_loops, leaves, tree_map
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task

WORSE = 2.0
"""The error counts as worse than the best one from this factor on, intervals apart..."""
ROUNDING = 1e-6
"""... and only if it is larger by more than this, in units of predicting zero: below that it is rounding."""
SETTLED = 1e-3
"""A state has settled when a loop moves it by less than this fraction of its length."""
SAME = 1e-2
"""Predictions are the same when they differ by less than this fraction of their size."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a number is distributed over prompts."""

    median: float
    """The median."""
    low: float
    """The 5% quantile."""
    high: float
    """The 95% quantile."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Findings):
    """How a model behaves when it is looped far beyond its trained loops."""

    trained_loops: int
    """The loops the model was trained with."""
    loops: int
    """The loops it was run for."""
    error: Curve
    """Error by loop, at the last pair, or over all scored tokens of a sequence."""
    change: Curve
    """|state - previous| / |state| by loop."""
    best_loop: int
    """The loop of the smallest mean error."""
    diverges_at: int | None
    """The first loop from which the error's interval stays above `WORSE` times the best one's; None: there is none."""
    overflows_at: int | None
    """The first loop after which some state, or its error, is not finite."""
    settled: float
    """Share of the prompts whose state the last loop moved by less than `SETTLED`."""
    radius: Spread | None = None
    """Spectral radius of the step's Jacobian at the last state; None where that is not finite."""
    repelled: float | None = None
    """Share of the prompts whose radius is above 1: a disturbance of their last state grows."""
    starts: int = 0
    """How many random starts were tried; 0 where the prompt enters by the first state alone."""
    apart: float | None = None
    """Root mean square distance of predictions from random starts to the usual ones, over their size, if finite."""
    same: float | None = None
    """Share of the prompts whose predictions from every random start are within `SAME` of the usual ones."""
    verdict: str = ""
    """The diagnosis in words."""


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
    """Run a model for `loops` loops (default: four times the trained ones) and say whether it is stable.

    Random starts are normal, as large as the last state. They are informative only where every loop reads the prompt:
    without injection another start is another prompt.
    """
    trained = model.config.loops
    _check(model, prompts, starts)
    loops = 4 * trained if loops is None else loops
    if loops <= trained:
        raise ValueError(f"`loops` must be above the trained loops={trained}, to see past them; got {loops}.")
    check_loops(loops)
    weight = weight_of(model)
    # on the CPU, as `evaluate` draws them; the random starts on the model's device
    prompt = task.sample(batch=prompts, n=points, generator=generator_of(seed))
    prompt = prompt.to(weight.device).to(weight.dtype)
    generator = torch.Generator(weight.device).manual_seed(stream(seed, "starts"))
    prompt.check_finite()
    context = model.embed(prompt)
    state, errors, changes, overflow = _run_loops(model, task, prompt, context, loops)
    error, change = (
        Curve.over_prompts(label, range(1, loops + 1), values, level=level, seed=seed)
        for label, values in (("error", errors), ("state change", changes))
    )
    fixed_point: dict[str, Any] = {}
    if overflow is None:
        radii = spectral_radius(model, state, context, t=loops, generator=generator).double().cpu()
        if bool(radii.isfinite().all()):
            low, median, high = radii.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
            fixed_point["radius"] = Spread(median=median, low=low, high=high)
            fixed_point["repelled"] = float((radii > 1).double().mean())
        if model.config.injects:
            distances = _start_distances(model, state, context, loops, starts, generator)
            apart = float(distances.square().mean().sqrt())
            same = float((distances.amax(0) < SAME).double().mean())
            fixed_point |= {"starts": starts, "apart": apart if math.isfinite(apart) else None, "same": same}
    diagnosis = Diagnosis(
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
        **fixed_point,
    )
    return replace(diagnosis, verdict=verdict(diagnosis))


def diverging_loop(error: Curve) -> int | None:
    """The first loop from which the error stays surely worse than its best: the rule of `diverges_at`.

        low(t) > WORSE high(best) + ROUNDING,  best = the loop of the least mean

    An error that is not finite is worse than any other.
    """
    best = error.x.index(_best(error.mean))
    bound = WORSE * error.high[best] + ROUNDING
    if not math.isfinite(bound):
        return error.x[0]
    fine = [best, *(at for at in range(best + 1, len(error.x)) if error.low[at] <= bound)]
    return next(iter(error.x[fine[-1] + 1 :]), None)


def verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis in a few sentences."""
    last, best = diagnosis.error.mean[-1], diagnosis.error.at(diagnosis.best_loop)
    past = f"after {diagnosis.loops} loops (trained with {diagnosis.trained_loops})"
    if diagnosis.overflows_at == 1:
        return "Unstable: the state or its error overflows in the first loop. Rescale the task's x and y, or retrain."
    if diagnosis.overflows_at is not None:
        return (
            f"Unstable: the state or its error overflows at loop {diagnosis.overflows_at}. Before that the error was "
            f"best at loop {diagnosis.best_loop} ({best:.3g}). {_advice(diagnosis)}"
        )
    parts = []
    if diagnosis.diverges_at is not None:
        parts.append(
            f"Unstable: the error is best at loop {diagnosis.best_loop} ({best:.3g}), from loop "
            f"{diagnosis.diverges_at} on it stays more than {WORSE:g} times that, and {past} it is {last:.3g}."
        )
    elif diagnosis.error.low[-1] > diagnosis.error.high[diagnosis.best_loop - 1] + ROUNDING:
        parts.append(
            f"Drifts: {past} the error is {last:.3g}, surely above its best ({best:.3g}, at loop "
            f"{diagnosis.best_loop}), but not surely {WORSE:g} times that."
        )
    else:
        parts.append(f"Stable: {past} the error is {last:.3g}; its best was {best:.3g}, at loop {diagnosis.best_loop}.")
    still = f"{diagnosis.settled:.0%} of the prompts have settled (a loop moves their state by less than {SETTLED:.1%})"
    parts.append(f"{still}." if diagnosis.settled >= 0.9 else f"The state keeps moving: {still}.")
    radius, repelled = diagnosis.radius, diagnosis.repelled
    if radius is not None and repelled is not None:
        measured = f"spectral radius {radius.median:.4g}, {radius.low:.4g} to {radius.high:.4g} for most prompts"
        if repelled >= 0.5:
            parts.append(f"The last state repels ({measured}): a small disturbance grows, no fixed point holds it.")
        elif diagnosis.diverges_at is not None:
            parts.append(f"The last state attracts ({measured}): there is a fixed point, at the wrong answer.")
        else:
            parts.append(f"The last state attracts ({measured}): a small disturbance dies out.")
        if 0 < repelled < 0.5:
            parts.append(f"For {repelled:.0%} of the prompts it repels.")
    parts.append(_starts_in_words(diagnosis))
    if diagnosis.diverges_at is not None:
        parts.append(_advice(diagnosis))
    return " ".join(parts)


def _starts_in_words(diagnosis: Diagnosis) -> str:
    if diagnosis.same is not None and diagnosis.apart is None:
        return "Path dependent: from random starts the predictions overflow."
    if diagnosis.same is None or diagnosis.apart is None:
        return "The prompt enters by the first state alone, so random starts say nothing."
    if diagnosis.same >= 0.9:
        return f"Path independent: {diagnosis.same:.0%} of the prompts end at the same predictions from random starts."
    return (
        f"Path dependent: random starts end {diagnosis.apart:.2g} of a prediction's size away, and only "
        f"{diagnosis.same:.0%} of the prompts where they usually do."
    )


def _advice(diagnosis: Diagnosis) -> str:
    if diagnosis.starts == 0 and diagnosis.overflows_at is None:
        return f"Run it for {diagnosis.best_loop} loops, or train it with the prompt injected in every loop."
    return f"Run it for {diagnosis.best_loop} loops, or train it with more loops."


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
    if starts > 1000:
        raise ValueError(f"`starts` must be at most 1,000; got {starts}.")


def _run_loops(
    model: LoopedModel, task: Task, prompt: AnyPrompt, context: Context, loops: int
) -> tuple[State, Float[Tensor, "batch loops"], Float[Tensor, "batch loops"], int | None]:
    """The last state, every loop's error and state change, and the first loop after which one of them is not finite."""
    state, errors, changes, overflow = model.start(context), [], [], None
    for t in range(loops):
        previous, state = state, model.step(state, context, t)
        by_position = task.error(model.readout(state, context), prompt)  # type: ignore[arg-type]
        single = isinstance(prompt, Prompt)
        errors.append(by_position[:, -1] if single else over_tokens(by_position, prompt.weights))
        moved = [new - old for new, old in zip(leaves(state), leaves(previous), strict=True)]
        size = _length(leaves(state))
        changes.append(_length(moved) / size.clamp(min=torch.finfo(size.dtype).tiny))  # a state of zeros stays itself
        watched = (*leaves(state), errors[-1], changes[-1])
        if overflow is None and not all(bool(tensor.isfinite().all()) for tensor in watched):
            overflow = t + 1
    return state, torch.stack(errors, 1), torch.stack(changes, 1), overflow


def _length(parts: Sequence[Tensor]) -> Float[Tensor, " batch"]:
    return torch.stack([part.flatten(1).square().sum(1) for part in parts]).sum(0).sqrt()


def _start_distances(
    model: LoopedModel, state: State, context: Context, loops: int, starts: int, generator: torch.Generator
) -> Float[Tensor, "starts batch"]:
    """The distance of predictions from random starts to the usual ones, over the size of the latter."""
    usual = model.readout(state, context).flatten(1)
    size = usual.square().mean().sqrt().clamp(min=torch.finfo(usual.dtype).tiny)
    distances = []
    for _ in range(starts):
        other = tree_map(lambda leaf: normal_like(leaf, generator) * leaf.square().mean().sqrt(), state)
        for t in range(loops):
            other = model.step(other, context, t)
        apart = model.readout(other, context).flatten(1) - usual
        distances.append(apart.square().mean(1).sqrt() / size)
    return torch.stack(distances)


def _best(means: Sequence[float]) -> int:
    return 1 + min(range(len(means)), key=lambda at: means[at] if math.isfinite(means[at]) else math.inf)
