"""Is a model and its task what they seem to be? Every finding is measured, says so in one line, and has a remedy.

A fault makes numbers wrong or training useless. A property is allowed, and worth knowing.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from looped.evaluation import checks
from looped.evaluation.checks import Finding, Given, allowed, fault, fine
from looped.evaluation.curves import Findings
from looped.evaluation.errors import weight_of
from looped.files import one_line
from looped.functional.counts import check_at_least
from looped.functional.streams import seeded, stream
from looped.models.base import LoopedModel
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task

BATCH, MANY = 4, 2048
"""Prompts that the model is tried on, and pairs' prompts that the task's variance is measured on."""


@dataclass(frozen=True, kw_only=True)
class Checked(Findings):
    """All findings about a model and a task."""

    findings: list[Finding]
    """In the order in which they were measured."""

    @property
    def faults(self) -> list[Finding]:
        """Those that need a remedy."""
        return [finding for finding in self.findings if finding.verdict == "fault"]

    def __str__(self) -> str:
        return "\n".join(f"{finding.verdict:9}{finding.check}: {finding.text}" for finding in self.findings)


def check(
    model: LoopedModel,
    task: Task,
    *,
    points: int | None = None,
    grad: int | None = None,
    window: int = 1,
    steps: int = 20,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> Checked:
    """Try a model on prompts of a task, train a copy of it for `steps` steps of Adam, and try that copy.

    `grad` and `window` are those of the training, as in `TrainConfig`. The model itself stays as it is.
    """
    if not isinstance(model, LoopedModel):
        raise ValueError(f"`model` must be a `LoopedModel`; got {type(model).__name__}. Build it from its config.")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a `Task`; got {type(task).__name__}. Use such as `LinearRegression(d=20)`.")
    check_at_least(1, steps=steps)
    most = model.config.max_examples
    points = min(2 * task.d + 1, 10**9 if most is None else most + 1) if points is None else points
    if points < 2:
        raise ValueError(f"`points` must be at least 2, an example and a query; got {points}.")
    weight = weight_of(model)

    def draw(number: int, batch: int = BATCH) -> AnyPrompt:
        generator = torch.Generator().manual_seed(stream(seed, f"check {number}") % 2**32)
        prompt = task.draw(batch=batch, n=points, generator=generator)
        prompt.check_finite()
        return prompt.to(weight.device).to(weight.dtype)

    try:
        prompts = [draw(number) for number in range(6)]
    except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError) as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(
            f"no prompts can be drawn from this task; `sample` stops with {text}. Mend it first."
        ) from None
    copied = copy.deepcopy(model).eval()
    given = Given(copied, task, prompts[0], prompts[1], seed, False)
    findings: list[Finding] = []

    def judge(name: str, measure: Callable[[], Iterator[Finding]]) -> bool:
        """Add findings; whether the check could be made at all."""
        try:
            findings.extend(measure())
        except Exception as error:  # the user's code may raise anything
            text = f"{type(error).__name__}: {one_line(error)}"
            findings.append(fault(name, f"it stops with {text}. Mend that first; later checks were left out."))
            return False
        return True

    if (
        judge("shapes", lambda: checks.shapes_fit(given, prompts[2:]))
        and judge("in place", lambda: checks.nothing_in_place(given))
        and judge("random", lambda: checks.one_seed_one_answer(given))
    ):
        given = given._replace(
            random=any(finding.check == "random" and finding.verdict != "fine" for finding in findings)
        )
        judge(
            "variance",
            lambda: checks.zero_scores_one(given, draw(6, MANY if isinstance(given.prompt, Prompt) else 16 * BATCH)),
        )
        windows = {"grad": grad, "keep": min(window, copied.config.loops)}
        if judge("training", lambda: _training(given, draw, windows, steps, learning_rate)):
            for name, measure in checks.TRAINED.items():
                judge(name, functools.partial(measure, given))
    return Checked(task=repr(task), prompts=BATCH, level=0.999, findings=findings)


def _training(
    given: Given, draw: Callable[[int], AnyPrompt], windows: dict[str, int | None], steps: int, learning_rate: float
) -> Iterator[Finding]:
    """In a few steps of Adam every parameter gets a gradient and all stays finite; the copy keeps what it learned."""
    model, task = given.model.train(), given.task
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        yield allowed("training", "it has no weights to train.")
        return
    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    silent, errors = set(weights), []
    with seeded(given.seed, "model"), torch.enable_grad():
        for step in range(steps):
            prompt = draw(100 + step)
            outputs = model(prompt, **windows)
            loss = task.error(outputs, prompt).mean()  # type: ignore[arg-type]
            errors.append(loss.detach())
            if not loss.requires_grad:
                break
            optimizer.zero_grad()
            loss.backward()
            silent -= {name for name in silent if (slope := weights[name].grad) is not None and bool(slope.any())}
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
    model.eval()
    first, last = (float(torch.stack(part).mean()) for part in (errors[:5], errors[-5:]))
    if silent:
        names = ", ".join(sorted(silent)[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
        yield fault(
            "gradient", f"no gradient reaches {names}. Use it in every step, or take it out; check `train.grad`."
        )
    else:
        yield fine("gradient", f"all {len(weights)} parameters get a gradient.")
    if not all(bool(value.isfinite()) for value in (*errors, *(weight.detach().sum() for weight in weights.values()))):
        yield fault("training", f"{steps} steps of Adam overflow. Scale the start down, or normalise in the loop.")
    else:
        yield fine("training", f"{steps} steps of Adam at {learning_rate:g}: error {first:.3g}, then {last:.3g}.")
