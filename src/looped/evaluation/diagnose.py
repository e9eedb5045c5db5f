"""What do the loops of a model do: has it learned, do they help, and where do they end?

The same prompts show the error and the state loop by loop. Everything that is said about an error rests on paired
differences over these prompts; everything about a state is said of a share of them. The words are in `verdicts`.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import Curve
from looped.evaluation.diagnosis import (
    BEHAVIOURS,
    GROWN,
    MARGIN,
    MOST_PERIOD,
    ROUNDING,
    SAME,
    SETTLED,
    WORSE,
    Diagnosis,
    Estimate,
    Spread,
)
from looped.evaluation.errors import Progress, check_prompts, loop_counter, over_tokens, weight_of
from looped.evaluation.properties import between_prompts, loops_read_prompt, relative_change, repeats_weights
from looped.evaluation.radius import normal_like, spectral_radius
from looped.evaluation.verdicts import kind, verdict
from looped.functional.counts import check_at_least
from looped.functional.streams import generator_of, seeded, stream
from looped.models.base import LoopedModel
from looped.models.loop import Context, State, check_loops, leaves, rows, tree_map
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task


class _Ran(NamedTuple):
    """What the loops left behind, prompt by prompt."""

    state: State
    errors: Float[Tensor, "batch loops"]
    changes: Float[Tensor, "batch loops"]
    answers: dict[int, Tensor]
    """After one loop, and after the trained loops."""
    behaviour: list[str]
    """What each prompt's state does in the end: one of `BEHAVIOURS`."""
    periods: list[int]
    """The loops of each prompt's cycle; 0 where it does not cycle."""
    overflow: int | None
    """The first loop after which something is not finite."""


@torch.no_grad()
@seeded(0, "evaluation")
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
    progress: Progress | None = None,
) -> Diagnosis:
    """Run a model for `loops` loops (default: four times the trained ones) and say what they do.

    A model whose loops share no weights is run for its trained loops alone. Random starts are normal, as large as the
    last state. They are informative only where every loop reads the prompt: else another start is another prompt.
    """
    trained = model.config.loops
    check_loops(trained if loops is None else loops)
    check_prompts(prompts)
    check_at_least(1, starts=starts)
    if starts > 1000:
        raise ValueError(f"`starts` must be at most 1,000; got {starts}.")
    weight = weight_of(model)
    # on the CPU, as `evaluate` draws them; the random starts on the model's device
    prompt, other = (
        task.draw(batch=batch, n=points, generator=generator_of(number)).to(weight.device).to(weight.dtype)
        for batch, number in ((prompts, seed), (2, stream(seed, "other prompts") % 2**32))
    )
    prompt.check_finite()
    few = prompt.rows(slice(2))
    repeats = repeats_weights(model, few, seed=seed)
    if repeats and loops is not None and loops <= trained:
        raise ValueError(f"`loops` must be above the trained loops={trained}, to see past them; got {loops}.")
    if not repeats and loops not in (None, trained):
        raise ValueError(
            f"loops of this model share no weights, so there are none past the trained {trained}; got `loops`={loops}. "
            "Leave it out."
        )
    loops = (loops or 4 * trained) if repeats else trained
    with seeded(seed, "model"):
        context = model.embed(prompt)
        count = loop_counter(progress, loops)  # those from random starts, of those that settle, show when they come
        ran = _run_loops(model, task, prompt, context, loops, count, repeats=repeats)
    injects = ran.overflow in (None, *range(trained + 1, loops + 1)) and loops_read_prompt(model, few, other, seed=seed)
    settles = torch.tensor([word == "settles" for word in ran.behaviour], dtype=torch.bool)
    fixed_point: dict[str, Any] = {}
    if int(settles.sum()) > 1:
        fixed_point["settled_stay"] = _stays(ran.errors[settles.to(weight.device)], level, seed)
    if repeats and bool(settles.any()):
        chosen = settles.to(weight.device)
        ends = rows(ran.state, chosen), rows(context, chosen)
        generator = torch.Generator(weight.device).manual_seed(stream(seed, "starts"))
        with seeded(seed, "model"):
            fixed_point |= _fixed_point(model, *ends, loops, starts if injects else 0, generator)
    zero, base = _zero_errors(task, prompt, ran.answers[trained]), best_of_others(ran.errors)
    estimates = {
        "gain": zero - ran.errors[:, trained - 1],
        "help": ran.errors[:, 0] - ran.errors[:, trained - 1],
        "rise": ran.errors[:, -1] - base,
    }
    periods = [period for period in ran.periods if period]
    diagnosis = Diagnosis(
        task=repr(task),
        prompts=prompts,
        level=level,
        trained_loops=trained,
        loops=loops,
        looped=repeats,
        injects=injects,
        error=Curve.over_prompts("error", range(1, loops + 1), ran.errors, level=level, seed=seed),
        change=Curve.over_prompts("state change", range(1, loops + 1), ran.changes, level=level, seed=seed),
        zero=float(zero.mean()),
        **{name: Estimate.of(values, level, seed) for name, values in estimates.items()},
        between_prompts=between_prompts(ran.answers[trained]),
        between_loops=relative_change(ran.answers[1], ran.answers[trained]),
        best_loop=best_loop(ran.errors.mean(0).tolist()),
        diverges_at=diverging_loop(ran.errors, level=level, seed=seed),
        overflows_at=ran.overflow,
        shares={
            word: Estimate.share(torch.tensor([word == behaviour for behaviour in ran.behaviour]), level)
            for word in BEHAVIOURS
            if repeats
        },
        period=max(set(periods), key=periods.count) if periods else None,
        **fixed_point,
    )
    diagnosis = replace(diagnosis, kind=kind(diagnosis))
    return replace(diagnosis, verdict=verdict(diagnosis))


def diverging_loop(errors: Float[Tensor, "batch loops"], *, level: float = 0.9, seed: int = 0) -> int | None:
    """The first loop from which the error stays surely worse than its best: the rule of `diverges_at`.

        low of mean(e(t) - WORSE e(best)) > ROUNDING, paired over prompts

    An error that is not finite is worse than any other.
    """
    excess = errors - WORSE * best_of_others(errors)[:, None]
    surely = bootstrap(excess.nan_to_num(0.0, 0.0, 0.0), level=level, seed=seed).low > ROUNDING
    worse = surely | ~excess.isfinite().all(0).cpu()
    fine = [-1, *(at for at, is_worse in enumerate(worse.tolist()) if not is_worse)]
    return fine[-1] + 2 if fine[-1] + 2 <= errors.shape[1] else None


def best_of_others(errors: Float[Tensor, "batch loops"]) -> Float[Tensor, " batch"]:
    """Each prompt's error after the loop that is best for the other half of the prompts.

    A best loop that is chosen on the prompts it is judged by looks better than it is.
    """
    half = len(errors) // 2
    parts = (errors[:half], errors[half:])
    best = [best_loop(part.mean(0).tolist()) - 1 for part in parts]
    return torch.cat((parts[0][:, best[1]], parts[1][:, best[0]]))


def _stays(errors: Float[Tensor, "batch loops"], level: float, seed: int) -> bool:
    """Whether the last error is surely less than `MARGIN` above the best."""
    base = best_of_others(errors)
    rise = Estimate.of(errors[:, -1] - base, level, seed)
    return rise.high < MARGIN * float(base.mean()) + ROUNDING


def best_loop(means: Sequence[float]) -> int:
    """The loop of the smallest error, counted from 1."""
    return 1 + min(range(len(means)), key=lambda at: means[at] if math.isfinite(means[at]) else math.inf)


def _run_loops(
    model: LoopedModel,
    task: Task,
    prompt: AnyPrompt,
    context: Context,
    loops: int,
    count: Callable[[], None],
    *,
    repeats: bool,
) -> _Ran:
    """Every loop's errors and state changes, the last state, and what each prompt's state does there."""
    trained, span = model.config.loops, min(MOST_PERIOD, loops // 2)
    state, errors, changes, overflow = model.start(context), [], [], None
    answers: dict[int, Tensor] = {}
    recent, marks = deque(maxlen=span + 1), {}
    for t in range(loops):
        # a copy, since a step may write into its state
        previous, state = tree_map(torch.clone, state), model.step(state, context, t)
        outputs = model.readout(state, context)
        by_position = task.error(outputs, prompt)  # type: ignore[arg-type]
        single = isinstance(prompt, Prompt)
        errors.append(by_position[:, -1] if single else over_tokens(by_position, prompt.weights))
        changes.append(_distance(state, previous))
        recent.append(state)
        if t + 1 in (1, trained):
            answers[t + 1] = outputs
        if t + 1 in (trained, loops - max(1, loops // 4)):
            marks[t + 1] = state
        watched = (*leaves(state), errors[-1], changes[-1])
        if overflow is None and not all(bool(tensor.isfinite().all()) for tensor in watched):
            overflow = t + 1
        count()
    by_loop, moved = torch.stack(errors, 1), torch.stack(changes, 1)
    if not repeats:
        return _Ran(state, by_loop, moved, answers, [], [], overflow)
    finite = torch.stack([_by_prompt(leaf).isfinite().all(1) for leaf in leaves(state)]).all(0)
    finite &= by_loop.isfinite().all(1) & moved.isfinite().all(1)
    grown = _distance(state, marks[trained], over=marks[trained]) > GROWN
    still = (moved[:, -1] < SETTLED) & (_distance(state, marks[loops - max(1, loops // 4)]) < SAME)
    periods = _periods(list(recent), moved, span)
    facts = zip(*map(Tensor.tolist, (finite, grown, still, periods)), strict=True)
    behaviour = [_behaviour(*fact) for fact in facts]
    cycles = [period if word == "cycles" else 0 for word, period in zip(behaviour, periods.tolist(), strict=True)]
    return _Ran(state, by_loop, moved, answers, behaviour, cycles, overflow)


def _behaviour(is_finite: bool, has_grown: bool, is_still: bool, period: int) -> str:
    """What a prompt's state does: one of `BEHAVIOURS`."""
    if has_grown or not is_finite:
        return "diverges"
    if is_still:
        return "settles"
    return "cycles" if period else "keeps moving"


def _periods(recent: Sequence[State], moved: Float[Tensor, "batch loops"], span: int) -> Tensor:
    """After how many loops each prompt's state comes back, while its loops move it no less than before; else 0.

    |state_t - state_{t-p}| < SETTLED |state_t|,  and a tenth of what one loop moves
    """
    periods = torch.zeros(len(moved), dtype=torch.long, device=moved.device)
    lasting = moved[:, -span:].mean(1) > 0.9 * moved[:, -2 * span : -span].mean(1)
    for period in range(span, 1, -1):
        gap = _distance(recent[-1], recent[-1 - period])
        periods[lasting & (gap < SETTLED) & (gap < 0.1 * moved[:, -1])] = period
    return periods


def _distance(state: State, other: State, *, over: State | None = None) -> Float[Tensor, " batch"]:
    """|state - other| / |state|, prompt by prompt, or over the length of another state."""
    parts = [new - old for new, old in zip(leaves(state), leaves(other), strict=True)]
    size = _length(leaves(state if over is None else over))
    return _length(parts) / size.clamp(min=torch.finfo(size.dtype).tiny)  # a state of zeros stays itself


def _by_prompt(leaf: Tensor) -> Tensor:
    return leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None]


def _length(parts: Sequence[Tensor]) -> Float[Tensor, " batch"]:
    return torch.stack([_by_prompt(part).square().sum(1) for part in parts]).sum(0).sqrt()


def _fixed_point(
    model: LoopedModel, state: State, context: Context, loops: int, starts: int, generator: torch.Generator
) -> dict[str, Any]:
    """Whether settled states attract, and whether random starts end there too."""
    fields: dict[str, Any] = {}
    radii = spectral_radius(model, state, context, t=loops, generator=generator).double().cpu()
    if bool(radii.isfinite().all()):
        low, median, high = radii.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
        fields |= {
            "radius": Spread(median=median, low=low, high=high),
            "repelled": float((radii > 1 + SETTLED).double().mean()),
        }
    if starts:
        distances = _start_distances(model, state, context, loops, starts, generator)
        apart = float(distances.square().mean().sqrt())
        same = float((distances.amax(0) < SAME).double().mean())
        fields |= {"starts": starts, "apart": apart if math.isfinite(apart) else None, "same": same}
    return fields


def _start_distances(
    model: LoopedModel, state: State, context: Context, loops: int, starts: int, generator: torch.Generator
) -> Float[Tensor, "starts batch"]:
    """The distance of predictions from random starts to the usual ones, over the size of the latter."""
    usual = _by_prompt(model.readout(state, context))
    size = usual.square().mean().sqrt().clamp(min=torch.finfo(usual.dtype).tiny)
    distances = []
    for _ in range(starts):
        other = tree_map(lambda leaf: normal_like(leaf, generator) * leaf.square().mean().sqrt(), state)
        for t in range(loops):
            other = model.step(other, context, t)
        apart = _by_prompt(model.readout(other, context)) - usual
        distances.append(apart.square().mean(1).sqrt() / size)
    return torch.stack(distances)


def _zero_errors(task: Task, prompt: AnyPrompt, answers: Tensor) -> Float[Tensor, " batch"]:
    """The error of predicting zero, where the model's is read."""
    by_position = task.error(torch.zeros_like(answers), prompt)  # type: ignore[arg-type]
    return by_position[:, -1] if isinstance(prompt, Prompt) else over_tokens(by_position, prompt.weights)
