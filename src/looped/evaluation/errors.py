"""Errors of a model or a baseline, prompt by prompt and position by position.

Where each x is its own query, one pass answers all positions. Where a shift gives position i another query, a causal
decoder still needs one pass, over twice the rows (`looped.models.query_stream`); any other predictor is asked n times.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.streams import generator_of, seeded
from looped.models.base import LoopedModel
from looped.models.fusing import obstacle
from looped.models.loop import check_loops, unroll
from looped.models.query_stream import query_stream, supports_query_stream
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.questions import Questions
from looped.tasks.shifts import Shift, Shifted
from looped.tasks.task import Task

CHUNK = 256
GPU_CHUNK = 2048
"""Prompts in one forward pass."""
MOST_PROMPTS = 10**5
"""More prompts than this are a typo: an interval would be narrower than the rounding of what is printed."""

Baseline = Callable[[Prompt], Tensor]
Progress = Callable[[str, float], None]
"""(what is done, the share of it that is done) -> None."""
Predictor = LoopedModel | Baseline


class Errors(NamedTuple):
    """The errors of one predictor, a row for every prompt."""

    values: Float[Tensor, "prompts positions"]
    """At every position, after `loops` loops."""
    positions: list[int]
    """How many examples each column has seen; positions without a query, a weight or an answer are left out."""
    by_loop: Float[Tensor, "prompts loops"]
    """At the last position, or over the scored tokens of a sequence, after 1, 2, ... loops; once for a baseline."""


def measure_errors(
    predict: Predictor,
    task: Task,
    *,
    shifts: Iterable[Shift] = (),
    points: int,
    prompts: int,
    loops: int | None = None,
    max_loops: int | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Errors:
    """Errors under shifts in units of the unshifted task, as yang24 draws them (App. D).

    `predict` is a model, run for `loops` loops (default: as trained) and at least for `max_loops`, or a baseline. One
    seed names the same prompts for every predictor. `dtype` is that of the model unless given, float32 for a baseline.
    """
    like = weight_of(predict) if isinstance(predict, LoopedModel) else torch.empty(0)
    shifts = tuple(shifts)
    drawn_from = Shifted(task=task, shifts=shifts) if shifts else task
    questions = draw_questions(drawn_from, points=points, prompts=prompts, seed=seed)
    questions = questions.to(like.device).to(like.dtype if dtype is None else dtype)
    return errors_of(predict, task, questions, loops=loops, max_loops=max_loops)


def draw_questions(task: Task, *, points: int, prompts: int, seed: int) -> Questions:
    """Fresh prompts, drawn on the CPU wherever the model lies, so that one seed names the same prompts everywhere."""
    questions = task.questions(batch=prompts, n=points, generator=generator_of(seed))
    questions.prompt.check_finite()
    return questions


@torch.no_grad()
@seeded(0, "evaluation")
def errors_of(
    predict: Predictor,
    task: Task,
    questions: Questions,
    *,
    loops: int | None = None,
    max_loops: int | None = None,
    progress: Progress | None = None,
) -> Errors:
    """Errors of a predictor, scored by `task`: after `loops` loops, and after every loop up to `max_loops`."""
    if not isinstance(predict, LoopedModel):
        errors = _score(task, _answer(predict, questions), questions)
        # a slow baseline answers some positions only, and is not a number at the others
        answered = (~errors.isnan().all(0)).nonzero().flatten().tolist()
        return _selected(errors, _last_errors(errors[None], questions).T, questions, answered or range(errors.shape[1]))
    loops = predict.config.loops if loops is None else loops
    check_loops(loops)
    max_loops = max(loops, max_loops or 0)
    at_loops, by_loop = [], []
    size = CHUNK if weight_of(predict).device.type == "cpu" else GPU_CHUNK
    firsts = range(0, questions.prompt.places[0], size)
    count = loop_counter(progress, len(firsts) * max_loops)
    for first in firsts:
        part = questions.rows(slice(first, first + size))
        # errors are collected, never states: 1280 prompts x 500 loops of states would be tens of gigabytes
        errors = _errors_by_loop(predict, task, part, max_loops, count)
        at_loops.append(errors[loops - 1])
        by_loop.append(_last_errors(errors, part).T)
    values = torch.cat(at_loops)
    # a model that reads the last pair as its query answers there alone
    answered = range(questions.prompt.num_positions - values.shape[-1], questions.prompt.num_positions)
    return _selected(values, torch.cat(by_loop), questions, answered)


def loop_counter(progress: Progress | None, total: int) -> Callable[[], None]:
    """A function to call after each of `total` loops; it reports the share that is done."""
    done = itertools.count(1)
    return (lambda: None) if progress is None else (lambda: progress("loops", next(done) / total))


def check_prompts(prompts: int, *, least: int = 2, why: str = "for an interval") -> None:
    """Refuse fewer prompts than a reading needs, and more than anybody can want."""
    if prompts < least:
        raise ValueError(f"`prompts` must be at least {least}, {why}; got {prompts}.")
    if prompts > MOST_PROMPTS:
        raise ValueError(f"`prompts` must be at most {MOST_PROMPTS:,}; got {prompts}.")


def weight_of(model: LoopedModel) -> Tensor:
    """A weight of the model, for its device and precision; an empty tensor where it has none."""
    return next(model.parameters(), torch.empty(0))


def over_tokens(errors: Float[Tensor, "*loops batch n"], weights: Tensor | None) -> Float[Tensor, "*loops batch"]:
    """The mean error over the scored tokens of each sequence; not a number where none is scored."""
    weights = torch.ones_like(errors) if weights is None else weights
    return (errors * weights).sum(-1) / weights.sum(-1)


def _selected(errors: Tensor, by_loop: Tensor, questions: Questions, answered: Iterable[int]) -> Errors:
    """The errors at positions that were asked, answered and have weight."""
    first = questions.prompt.num_positions - errors.shape[-1]
    positions = sorted({*answered} & {*_defined(questions)})
    weights = questions.prompt.weights
    if weights is None or first > 0:
        return Errors(errors[:, [position - first for position in positions]], positions, by_loop)
    scored = weights.any(0).tolist()
    positions = [position for position in positions if scored[position]]
    errors, share = errors[:, positions], (weights / weights.mean(0))[:, positions]
    # the mean at a position is over the prompts that score it, and its interval that of a ratio of means
    mean = (errors * share).mean(0)
    return Errors(mean + (errors - mean) * share, positions, by_loop)


def _defined(questions: Questions) -> list[int]:
    """The positions that have a query."""
    if questions.defined is None:
        return list(range(questions.prompt.num_positions))
    return questions.defined.nonzero().flatten().tolist()


def _last_errors(errors: Float[Tensor, "loops batch positions"], part: Questions) -> Float[Tensor, "loops batch"]:
    """The errors at the last position that has a query, or the mean over the scored tokens of a sequence."""
    if not isinstance(part.prompt, Prompt):
        # a sequence too long to have a scored token has no error
        scored = slice(None) if part.prompt.weights is None else part.prompt.weights.sum(-1) > 0
        return over_tokens(errors, part.prompt.weights)[:, scored]
    points, last = part.prompt.num_examples, _defined(part)[-1]
    column = last - (points - errors.shape[-1])
    if column < 0:
        raise ValueError(
            f"this model answers the last pair only, after {points - 1} examples, where the shift defines no query. "
            f"Lower `points` to {last + 1}."
        )
    return errors[:, :, column]


def _errors_by_loop(model: LoopedModel, task: Task, part: Questions, loops: int, count: Callable[[], None]) -> Tensor:
    """Errors after every loop; on a GPU by one captured loop, where our kernels run the model."""
    weight = weight_of(model)
    if part.queries is None:
        if weight.is_cuda and weight.dtype is torch.float32 and obstacle(model) is None:
            from looped.models.gpu.replay import answers_by_loop

            return _score(task, answers_by_loop(cast(Any, model), part.prompt, loops=loops), part)
        return _unrolled(model, part.prompt, loops, lambda outputs: _score(task, outputs, part), count)
    if not supports_query_stream(model):
        return _score(task, _answer(lambda prompt: model(prompt, loops=loops, keep=loops), part), part)
    prompt = cast(Prompt, part.prompt)
    batch = len(prompt.xs)
    both = Prompt(torch.cat((prompt.xs, part.queries.xs)), torch.cat((prompt.ys, prompt.ys)))
    with query_stream(model, batch):
        return _unrolled(model, both, loops, lambda outputs: _score(task, outputs[batch:], part), count)


def _unrolled(
    model: LoopedModel,
    prompt: AnyPrompt,
    loops: int,
    score: Callable[[Tensor], Tensor],
    count: Callable[[], None],
) -> Tensor:
    """What `score` makes of the model's answers after every loop, each of which is counted."""

    def collect(state: Any, context: Any) -> Tensor:
        count()
        return score(model.readout(state, context))

    context = model.embed(prompt)
    return unroll(model.step, model.start(context), context, loops=loops, grad=None, keep=loops, collect=collect)


def _score(task: Task, answers: Tensor, questions: Questions) -> Tensor:
    return task.error(answers, questions.judged)  # type: ignore[arg-type]


def _answer(predict: Callable[[Any], Tensor], questions: Questions) -> Float[Tensor, "*loops batch positions"]:
    """All answers by definition: for every i a prompt of the first i examples and query i, and its last answer.

    The query's label, which nobody may read, is the true one. A model that reads the last pair as its query is asked
    about the whole prompt only.
    """
    prompt, queries = questions.prompt, questions.queries
    if queries is None or not isinstance(prompt, Prompt):
        return predict(prompt)

    def answer(i: int) -> Tensor:
        xs = torch.cat((prompt.xs[:, :i], queries.xs[:, i : i + 1]), 1)
        ys = torch.cat((prompt.ys[:, :i], queries.ys[:, i : i + 1]), 1)
        return predict(Prompt(xs, ys))

    n = prompt.num_examples
    last = answer(n - 1)
    if last.shape[-1] < n:
        return last
    return torch.stack([*(answer(i)[..., -1] for i in range(n - 1)), last[..., -1]], -1)
