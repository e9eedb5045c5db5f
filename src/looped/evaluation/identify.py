"""Which algorithm does a model run? Its predictions and input gradients, loop by loop, against known algorithms.

Two algorithms can agree in their predictions on the prompts at hand and differ as functions of the query; the gradient
d prediction / d x_q tells them apart (for least squares it is the weight vector). Every algorithm gets its best
parameters, fitted on one half of the prompts; distances are measured on the other half.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.functional import jvp

from looped.evaluation.algorithms import ALGORITHMS, Algorithm, Answers, preconditioned_answers
from looped.evaluation.bootstrap import Interval, bootstrap
from looped.evaluation.curves import Findings
from looped.evaluation.errors import Progress, check_prompts, loop_counter
from looped.evaluation.properties import reads_label
from looped.functional.counts import check_at_least
from looped.functional.streams import generator_of, seeded
from looped.models.base import LoopedModel, only_pairs
from looped.models.loop import check_loops
from looped.prompt import Prompt
from looped.tasks.task import Task

SLACK, ROUNDING = 1.05, 1e-7
"""A simpler algorithm is preferred when its distance is at most `SLACK` times the least, plus `ROUNDING`."""
MOST = 1000
"""More loops or steps are a typo: every loop is compared with every number of steps."""
NAMED = 0.3
"""An algorithm further away than this is not the model's: the answer is `NONE`."""
NONE = "none of these"
OverPrompts = Callable[[Tensor], Interval]
"""A number for each prompt -> their mean and its interval."""
FIRST, NEAR = 8, 4
"""By default loop t is compared with 1 to min(loops, `FIRST`) steps and with t - `NEAR` to t steps. The cost of trying
all counts up to the loops would grow with their cube."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """One algorithm against one loop of the model."""

    algorithm: str
    """Its name."""
    steps: int
    """How many steps of it; 0 where it has none."""
    parameters: dict[str, float]
    """Its best parameters: step size, interval, penalty."""
    distance: float
    """Root mean of both relative squared distances below."""
    low: float
    """Lower end of the distance's interval over prompts."""
    high: float
    """Upper end."""
    predictions: float
    """|f - g| / |f| over predictions."""
    gradients: float
    """The same over d prediction / d x_q."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What one loop, or layer, of the model computes."""

    loop: int
    """How many loops were applied."""
    searched: list[int]
    """The step counts that were tried."""
    best: Match | None
    """The simplest of the nearest algorithms; None where the model still answers 0."""
    name: str
    """The name of that algorithm; `NONE` if it is further than `NAMED` away, or the model answers 0."""
    others: list[Match]
    """The best step count of every algorithm, nearest first."""


@dataclass(frozen=True, kw_only=True)
class Identification(Findings):
    """What a model computes, loop by loop; half of the prompts are to fit, half to judge."""

    examples: int
    """Examples before the query."""
    loops: list[Loop]
    """One entry a loop."""


class _Half(NamedTuple):
    """Half of the prompts with the model's answers at one loop, and their mean squares."""

    prompt: Prompt
    answers: Answers
    sizes: tuple[float, float]


@seeded(0, "evaluation")
def identify(
    model: LoopedModel,
    task: Task,
    *,
    points: int,
    loops: int | None = None,
    max_steps: int | None = None,
    prompts: int = 256,
    seed: int = 0,
    level: float = 0.9,
    algorithms: Sequence[Algorithm] = ALGORITHMS,
    progress: Progress | None = None,
) -> Identification:
    """Compare every loop up to `loops` with 1 to `max_steps` steps of every algorithm, in float64.

        distance^2 = (E (f - g)^2 / E f^2 + E |f' - g'|^2 / E |f'|^2) / 2,  f the model, g the algorithm, ' along x_q

    Without `max_steps`, `FIRST` and `NEAR` say which step counts are tried. `algorithms` are tried simplest first;
    your own are `(*ALGORITHMS, Algorithm.of(function))`.
    """
    loops = model.config.loops if loops is None else loops
    check_loops(loops)
    if points < 3:
        raise ValueError(f"`points` must be at least 3, two examples and a query; got {points}.")
    check_prompts(prompts, least=8, why="half to fit and half to judge")
    if loops > MOST:
        raise ValueError(f"`loops` must be at most {MOST:,} here; got {loops}.")
    check_at_least(1, max_steps=max_steps)
    if max_steps is not None and max_steps > MOST:
        raise ValueError(f"`max_steps` must be at most {MOST:,}; got {max_steps}.")
    model = model.double()
    drawn = task.draw(batch=prompts, n=points, generator=generator_of(seed))
    prompt = only_pairs(drawn, "identify").to(next(model.parameters()).device).to(torch.float64)
    prompt.check_finite()
    by_loop, last = answers_of(model, prompt, loops), prompt.num_examples - 1
    other = prompt.rows(torch.arange(prompts, device=prompt.xs.device).roll(1))
    if reads_label(lambda shown: model(shown, loops=loops)[-1][:, -1:], prompt, other) == last:
        raise ValueError("the answer to the query changes with the query's own label. `looped check` says more.")
    identified, count, interval = [], loop_counter(progress, loops), partial(bootstrap, level=level, seed=seed)
    for loop, answers in enumerate(by_loop, 1):
        try:
            searched = _searched(loop, loops, max_steps)
            identified.append(_identify_loop(loop, prompt, answers, searched, algorithms, interval))
            count()
        except (torch.linalg.LinAlgError, ArithmeticError):  # type: ignore[attr-defined]
            raise ValueError(
                "no algorithm can be fitted to these prompts: their x are all zero, dependent, or of extreme size. "
                "Use a task whose examples differ."
            ) from None
    return Identification(task=repr(task), prompts=prompts, examples=points - 1, level=level, loops=identified)


def answers_of(model: LoopedModel, prompt: Prompt, loops: int) -> list[Answers]:
    """The prediction at the last pair and its gradient along x_q, after every loop."""
    query = prompt.xs[:, -1].clone().requires_grad_()
    asked = Prompt(torch.cat([prompt.xs[:, :-1], query[:, None]], 1), prompt.ys)
    outputs = model(asked, loops=loops, keep=loops)
    if outputs.shape[-1] not in (1, prompt.num_examples):
        raise ValueError("only models that predict the query's label can be identified; this one answers a vector.")
    answers = []
    for predictions in outputs[..., -1]:
        (slope,) = torch.autograd.grad(predictions.sum(), query, retain_graph=True, allow_unused=True)
        answers.append(Answers(predictions.detach(), torch.zeros_like(query) if slope is None else slope))
    return answers


def _searched(loop: int, loops: int, max_steps: int | None) -> list[int]:
    """The step counts to try for a loop, fewest first."""
    if max_steps is not None:
        return list(range(1, max_steps + 1))
    return sorted({*range(1, min(loops, FIRST) + 1), *range(max(1, loop - NEAR), loop + 1)})


def _identify_loop(
    loop: int,
    prompt: Prompt,
    answers: Answers,
    searched: list[int],
    algorithms: Sequence[Algorithm],
    interval: OverPrompts,
) -> Loop:
    half = len(prompt.xs) // 2
    fit, judge = (_half(prompt, answers, part) for part in (slice(half), slice(half, None)))
    if min(*fit.sizes, *judge.sizes) == 0 or not all(map(math.isfinite, (*fit.sizes, *judge.sizes))):
        return Loop(loop=loop, searched=searched, best=None, name=NONE, others=[])
    matches: list[Match] = []
    descents: list[Match] = []
    for algorithm in algorithms:
        counts = searched if algorithm.iterates else [0]
        tried = [match for count in counts for match in _match(algorithm, count, fit, judge, interval)]
        matches += _simplest(tried)
        if algorithm.name == "gradient descent":
            descents = tried
    tried = [match for descent in descents for match in _preconditioned(descent, fit, judge, interval)]
    matches += _simplest(tried)
    nearest = sorted(matches, key=lambda match: match.distance)
    best = next(iter(_simplest(matches)), None)
    name = NONE if best is None or best.distance > NAMED else best.algorithm
    return Loop(loop=loop, searched=searched, best=best, name=name, others=nearest)


def _simplest(matches: list[Match]) -> list[Match]:
    """The first, and so the simplest or shortest, of those about as near as the nearest; empty for no matches."""
    least = min((match.distance for match in matches), default=0.0)
    return [match for match in matches if match.distance <= SLACK * least + ROUNDING][:1]


def _half(prompt: Prompt, answers: Answers, part: slice) -> _Half:
    half = Answers(*(values[part] for values in answers))
    sizes = float(half.predictions.square().mean()), float(half.gradients.square().sum(-1).mean())
    return _Half(prompt.rows(part), half, sizes)


def _apart(half: _Half, given: Answers) -> Float[Tensor, "batch 2"]:
    """Relative squared distances prompt by prompt, of predictions and of gradients."""
    predictions = (half.answers.predictions - given.predictions).square() / half.sizes[0]
    gradients = (half.answers.gradients - given.gradients).square().sum(-1) / half.sizes[1]
    return torch.stack([predictions, gradients], -1)


def _match(algorithm: Algorithm, steps: int, fit: _Half, judge: _Half, interval: OverPrompts) -> list[Match]:
    """The algorithm with its best parameters; empty where nothing finite comes out."""

    def residuals(values: Tensor) -> Tensor:
        given = algorithm.answers(fit.prompt, steps, values)
        predictions = (given.predictions - fit.answers.predictions) / fit.sizes[0] ** 0.5
        gradients = (given.gradients - fit.answers.gradients) / fit.sizes[1] ** 0.5
        return torch.cat([predictions, gradients.flatten()])

    starts = algorithm.starts(fit.prompt)
    best = levenberg(residuals, starts) if algorithm.parameters else starts[0]
    if best is None:
        return []
    given = algorithm.answers(judge.prompt, steps, best)
    named = dict(zip(algorithm.parameters, best.exp().tolist(), strict=True))
    return _finite_match(algorithm.name, steps, named, judge, given, interval)


def _preconditioned(descent: Match, fit: _Half, judge: _Half, interval: OverPrompts) -> list[Match]:
    """Gradient descent with a matrix as its rate, the same in every step, fitted from the plain descent's rate."""
    d, steps = fit.prompt.d, descent.steps
    matrix = (descent.parameters["rate"] * torch.eye(d).to(fit.prompt.xs)).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [matrix], max_iter=100, tolerance_grad=1e-14, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _apart(fit, preconditioned_answers(fit.prompt, steps, matrix)).mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    given = preconditioned_answers(judge.prompt, steps, matrix.detach())
    values = torch.linalg.svdvals(matrix.detach())
    named = {"smallest": float(values[-1]), "largest": float(values[0])}
    return _finite_match("preconditioned descent", steps, named, judge, given, interval)


def _finite_match(
    name: str, steps: int, named: dict[str, float], half: _Half, given: Answers, interval: OverPrompts
) -> list[Match]:
    """The match, unless it is not finite."""
    apart = _apart(half, Answers(given.predictions.detach(), given.gradients.detach()))
    mean, low, high = (max(float(part), 0.0) ** 0.5 for part in interval(apart.mean(-1)[:, None]))
    if not all(map(math.isfinite, (mean, low, high, *named.values()))):
        return []
    predictions, gradients = apart.mean(0).sqrt().tolist()
    distances = {"distance": mean, "low": low, "high": high, "predictions": predictions, "gradients": gradients}
    return [Match(algorithm=name, steps=steps, parameters=named, **distances)]


def levenberg(
    residuals: Callable[[Tensor], Tensor], starts: Float[Tensor, "starts parameters"], *, iterations: int = 40
) -> Float[Tensor, " parameters"] | None:
    """Least squares over a few parameters by Levenberg and Marquardt, from the best of several starts.

    v <- v - (J'J + damping diag(J'J))^{-1} J'r
    """
    sizes = torch.stack([residuals(start).square().sum().nan_to_num(math.inf, math.inf) for start in starts])
    if not bool(sizes.isfinite().any()):
        return None
    values, size, damping = starts[int(sizes.argmin())].clone(), float(sizes.min()), 1e-3
    for _ in range(iterations):
        now = residuals(values)
        units = torch.eye(len(values)).to(values)
        slopes = torch.stack([cast(Tensor, jvp(residuals, values, unit)[1]) for unit in units], -1)
        curvature, slope = slopes.T @ slopes, slopes.T @ now
        if not bool(curvature.isfinite().all()):
            break
        for _ in range(12):
            tiny = 1e-300 * torch.eye(len(values)).to(values)
            damped = curvature + damping * curvature.diagonal().diag() + tiny
            moved = values - torch.linalg.lstsq(damped, slope[:, None]).solution[:, 0]
            new = float(residuals(moved).square().sum().nan_to_num(math.inf, math.inf))
            if new < size:
                break
            damping *= 4
        else:
            break
        gained, values, size, damping = size - new, moved, new, damping / 8
        if gained <= 1e-3 * size or size < 1e-28:
            break
    return values
