"""Errors under shifts: every position is scored by its own definition, in as few passes as the model allows.

A shift of the examples or the labels needs one pass, as ever. A shift of the query gives position i a query that is
not the example which later positions see there. A causal decoder answers all of them in one pass over twice the rows
(`looped.models.query_stream`); any other predictor is asked n times, with the first i examples and query i.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from looped.config import nearest, override
from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import CHUNK, Baseline, Curve, Evaluation, baselines_for, judged_loops
from looped.models.base import LoopedModel
from looped.models.query_stream import query_stream, supports_query_stream
from looped.prompt import Prompt
from looped.tasks.shifts import Questions, Shift, Shifted
from looped.tasks.task import Task


@torch.no_grad()
def shifted_errors(
    predict: LoopedModel | Callable[[Prompt], Tensor],
    task: Task,
    shifts: Sequence[Shift],
    *,
    prompts: int,
    points: int,
    seed: int = 0,
    loops: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "batch n"]:
    """Squared error at every position under shifts, in units of the unshifted task, as yang24 draws it (App. D).

    `predict` is a model, run for `loops` loops, or a baseline (Prompt -> predictions). One seed gives everybody the
    same prompts; `device` and `dtype` are the model's unless given, and for a baseline the CPU and float32. NaN where
    the shift defines no query. A model that answers the last pair only gives one column.
    """
    weight = next(predict.parameters(), torch.empty(0)) if isinstance(predict, LoopedModel) else torch.empty(0)
    device, dtype = weight.device if device is None else device, weight.dtype if dtype is None else dtype
    asked = ask(task, shifts, prompts=prompts, points=points, seed=seed, device=device, dtype=dtype)
    return answer_errors(predict, task, asked, loops=loops)[-1]


def ask(
    task: Task,
    shifts: Sequence[Shift],
    *,
    prompts: int,
    points: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Questions:
    """The prompts and queries that `shifted_errors` judges: draw them once where many predictors are compared."""
    shifted = Shifted(task=task, shifts=tuple(shifts))
    asked = shifted.questions(batch=prompts, n=points, generator=torch.Generator().manual_seed(seed))
    return asked.to(device).to(dtype)


@torch.no_grad()
def answer_errors(
    predict: LoopedModel | Callable[[Prompt], Tensor],
    task: Task,
    asked: Questions,
    *,
    loops: int | None = None,
    keep: int = 1,
) -> Float[Tensor, "kept batch n"]:
    """Errors after each of the last `keep` loops, in units of `task`; a baseline has one."""
    if not isinstance(predict, LoopedModel):
        answers = _one_by_one(lambda part: predict(part)[None], asked)
        return _scored(task, answers, asked)
    parts = []
    for first in range(0, len(asked.queries), CHUNK):
        part = asked.rows(slice(first, first + CHUNK))
        parts.append(_scored(task, _answers(predict, part, loops, keep), part))
    return torch.cat(parts, 1)


def _answers(model: LoopedModel, asked: Questions, loops: int | None, keep: int) -> Tensor:
    """Predictions (kept, batch, n) of the answers."""
    prompt = asked.prompt
    if asked.own:
        return model(prompt, loops=loops, keep=keep)
    if not supports_query_stream(model):
        return _one_by_one(lambda part: model(part, loops=loops, keep=keep), asked)
    both = Prompt(torch.cat((prompt.xs, asked.queries)), torch.cat((prompt.ys, prompt.ys)))
    with query_stream(model, len(prompt.xs)):
        return model(both, loops=loops, keep=keep)[:, len(prompt.xs) :]


def _one_by_one(predict: Callable[[Prompt], Tensor], asked: Questions) -> Tensor:
    """The definition itself: for every i a prompt of the first i examples and query i, and its last answer.

    The query's label, which nobody may read, is that of the query all the same. A model that takes the last pair as
    its query is asked about the whole prompt only, as ever.
    """
    prompt, n = asked.prompt, asked.prompt.num_examples
    if asked.own:
        return predict(prompt)

    def answer(i: int) -> Tensor:
        xs = torch.cat((prompt.xs[:, :i], asked.queries[:, i : i + 1]), 1)
        ys = torch.cat((prompt.ys[:, :i], asked.answers[:, i : i + 1]), 1)
        return predict(Prompt(xs, ys))

    last = answer(n - 1)
    if last.shape[-1] < n:
        return last
    return torch.stack([*(answer(i)[..., -1] for i in range(n - 1)), last[..., -1]], -1)


def _scored(task: Task, answers: Tensor, asked: Questions) -> Tensor:
    judged = asked.prompt if asked.own else Prompt(asked.queries, asked.answers, truth=asked.prompt.truth)
    errors = task.error(answers, judged)
    return errors if asked.own else errors.masked_fill(~asked.defined[-errors.shape[-1] :], torch.nan)


def evaluate_shifted(
    model: LoopedModel,
    task: Task,
    shifts: Sequence[Shift],
    *,
    points: int,
    loops: int | None = None,
    max_loops: int | None = None,
    prompts: int = 1280,
    seed: int = 0,
    level: float = 0.9,
    label: str = "looped transformer",
    baselines: dict[str, Baseline] | None = None,
) -> Evaluation:
    """Like `evaluate`, under shifts, in units of the shifted labels: predicting zero scores 1.

    Positions that a shift leaves undefined are left out, and the curve by loops is that of the last one defined.
    """
    trained = model.config.loops
    loops, max_loops = judged_loops(trained, loops, max_loops, prompts)
    shifted = Shifted(task=task, shifts=tuple(shifts))
    weight = next(model.parameters(), torch.empty(0))
    asked = ask(task, shifts, prompts=prompts, points=points, seed=seed, device=weight.device, dtype=weight.dtype)
    unit = task.label_variance / shifted.label_variance
    places = [i for i, known in enumerate(cast(list[bool], asked.defined.tolist())) if known]

    def curve(name: str, values: Tensor, x: list[int]) -> Curve:
        interval = bootstrap(unit * values, level=level, seed=seed)
        return Curve(label=name, x=x, **{key: value.tolist() for key, value in interval._asdict().items()})

    def by_examples(name: str, errors: Tensor) -> Curve:
        # not a number: no query is defined there, or a slow baseline left the position out
        kept = (~errors.isnan().all(0)).nonzero().flatten().tolist()
        return curve(name, errors[:, kept], [points - errors.shape[-1] + i for i in kept])

    errors = answer_errors(model, task, asked, loops=max_loops, keep=max_loops)
    first = points - errors.shape[-1]
    if places[-1] < first:
        raise ValueError(
            f"this model answers the last pair only, after {points - 1} examples, where the shift defines no query. "
            f"Lower `points` to {places[-1] + 1}."
        )
    curves = [by_examples(label, errors[loops - 1])]
    for name, baseline in (baselines_for(task) if baselines is None else baselines).items():
        curves.append(by_examples(name, answer_errors(baseline, task, asked)[-1]))
    return Evaluation(
        task=repr(shifted),
        prompts=prompts,
        level=level,
        loops=loops,
        trained_loops=trained,
        by_examples=curves,
        by_loops=curve(label, errors[:, :, places[-1] - first].T, list(range(1, max_loops + 1))),
    )


def shifts_by_name() -> dict[str, type[Shift]]:
    """The shifts under the names a command takes: `SkewedCovariance` is skewed-covariance."""
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower(): kind for kind in Shift.__subclasses__()}


def read_shift(text: str) -> Shift:
    """A shift as typed: its name or an unambiguous beginning of it, and fields, as in `scaled-x:factor=2`."""
    known = shifts_by_name()
    name, _, fields = text.strip().partition(":")
    found = [name] if name in known else [one for one in known if name and one.startswith(name)]
    if len(found) != 1:
        remedy = f"It may be {' or '.join(found)}." if found else nearest(name, known)
        raise ValueError(f"no shift is called `{name}`. {remedy}")
    return override(known[found[0]](), [one for one in fields.split(",") if one.strip()])
