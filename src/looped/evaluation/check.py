"""Is a model and its task what they seem to be? Every finding is measured, says so in one line, and has a remedy.

A fault makes numbers wrong or training useless. A property is allowed, and worth knowing.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import Findings
from looped.evaluation.errors import weight_of
from looped.evaluation.properties import (
    SAME_ANSWER,
    between_prompts,
    loops_read_prompt,
    reads_label,
    reads_later,
    relative_change,
    repeats_weights,
    seeded,
    with_other_label,
)
from looped.functional.streams import stream
from looped.models.base import LoopedModel
from looped.models.loop import leaves, tree_map
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task

BATCH, MANY = 4, 2048
"""Prompts that the model is tried on, and pairs' prompts that the task's variance is measured on."""
OFF = 0.1
"""`label_variance` is wrong where predicting zero surely scores this far from 1."""
Verdict = Literal["fine", "property", "fault"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check measured."""

    check: str
    """Its name."""
    verdict: Verdict
    """fine, property or fault."""
    text: str
    """What was measured, and the remedy."""


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


class _Given(NamedTuple):
    """What every check reads."""

    model: LoopedModel
    task: Task
    prompt: AnyPrompt
    other: AnyPrompt
    seed: int
    random: bool

    def answer(self, prompt: AnyPrompt, loops: int | None = None) -> Tensor:
        """The model's answers, from a seeded start."""
        with torch.no_grad(), seeded(self.seed):
            return self.model(prompt, loops=loops)[-1]


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
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1; got {steps}.")
    most = model.config.max_examples
    points = min(2 * task.d + 1, 10**9 if most is None else most + 1) if points is None else points
    weight = weight_of(model)

    def draw(number: int, batch: int = BATCH) -> AnyPrompt:
        generator = torch.Generator().manual_seed(stream(seed, f"check {number}") % 2**32)
        prompt = task.sample(batch=batch, n=points, generator=generator)
        prompt.check_finite()
        return prompt.to(weight.device).to(weight.dtype)

    copied = copy.deepcopy(model).eval()
    given = _Given(copied, task, draw(0), draw(1), seed, False)
    findings: list[Finding] = []

    def judge(name: str, measure: Callable[[], Iterator[Finding]]) -> bool:
        """Add findings; whether the check could be made at all."""
        try:
            findings.extend(measure())
        except Exception as error:  # the user's code may raise anything
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            findings.append(_fault(name, f"it stops with {text}. Mend that first; later checks were left out."))
            return False
        return True

    if (
        judge("shapes", lambda: _shapes(given, [draw(number) for number in range(2, 6)]))
        and judge("in place", lambda: _in_place(given))
        and judge("random", lambda: _random(given))
    ):
        given = given._replace(
            random=any(finding.check == "random" and finding.verdict != "fine" for finding in findings)
        )
        judge("variance", lambda: _variance(given, draw(6, MANY if isinstance(given.prompt, Prompt) else 16 * BATCH)))
        windows = {"grad": grad, "keep": min(window, copied.config.loops)}
        if judge("training", lambda: _training(given, draw, windows, steps, learning_rate)):
            for name, measure in CHECKS.items():
                judge(name, functools.partial(measure, given))
    return Checked(task=repr(task), prompts=BATCH, level=0.999, findings=findings)


def _fine(name: str, text: str) -> Finding:
    return Finding(check=name, verdict="fine", text=text)


def _property(name: str, text: str) -> Finding:
    return Finding(check=name, verdict="property", text=text)


def _fault(name: str, text: str) -> Finding:
    return Finding(check=name, verdict="fault", text=text)


def _shapes(given: _Given, draws: list[AnyPrompt]) -> Iterator[Finding]:
    """Answers and states have shapes that depend on the prompt's shape alone, and scores one number a position."""

    def shapes(prompt: AnyPrompt) -> list[tuple[int, ...]]:
        with torch.no_grad(), seeded(given.seed):
            context = given.model.embed(prompt)
            states = [given.model.start(context)]
            for t in range(min(2, given.model.config.loops)):
                states.append(given.model.step(states[-1], context, t))
            answers = given.model.readout(states[-1], context)
        errors = given.task.error(answers, prompt)  # type: ignore[arg-type]
        return [tuple(part.shape) for part in (answers, errors, *leaves(context), *(leaves(states)))]

    seen = {tuple(shapes(prompt)) for prompt in (given.prompt, *draws)}
    answers, errors = next(iter(seen))[:2]
    batch, n = given.prompt.places
    if len(seen) > 1:
        yield _fault("shapes", "shapes change with the numbers in a prompt. Mask entries instead of dropping them.")
    elif answers[0] != batch or errors not in {(batch, n), (batch, 1)}:
        yield _fault(
            "shapes",
            f"answers are {answers} and their errors {errors} for {batch} prompts of {n} positions. Answer every "
            "position, (batch, n), or the last one, (batch, 1).",
        )
    else:
        yield _fine("shapes", f"answers are {answers} for {batch} prompts of {n} positions, whatever is in them.")


def _in_place(given: _Given) -> Iterator[Finding]:
    """A step and a readout leave state, context and prompt as they are."""
    model, prompt = given.model, given.prompt.clone()
    with torch.no_grad(), seeded(given.seed):
        context = model.embed(prompt)
        state = model.start(context)
        state = model.step(tree_map(torch.clone, state), context, 0)
        before = [tree_map(torch.clone, part) for part in (state, context)]
        model.step(state, context, min(1, model.config.loops - 1))
        model.readout(state, context)
    named = {"state": (state, before[0]), "context": (context, before[1])}
    changed = [
        name
        for name, (new, old) in named.items()
        if not all(torch.equal(*pair) for pair in zip(leaves(new), leaves(old), strict=True))
    ]
    changed += ["prompt"] * any(
        not torch.equal(*pair) for pair in zip(prompt.tensors(), given.prompt.tensors(), strict=True)
    )
    if changed:
        yield _fault("in place", f"the {changed[0]} is written to. Return new tensors (`state + x`, not `state += x`).")
    else:
        yield _fine("in place", "a loop leaves its state, the context and the prompt as they are.")


def _random(given: _Given) -> Iterator[Finding]:
    """Equal prompts and equal seeds give equal answers."""
    usual, again = given.answer(given.prompt), given.answer(given.prompt)
    another = given._replace(seed=given.seed + 1).answer(given.prompt)
    if relative_change(again, usual) > SAME_ANSWER:
        yield _fault(
            "random", "answers differ under one seed. Draw from torch's generator (`torch.randn_like`); keep no memory."
        )
    elif relative_change(another, usual) > SAME_ANSWER:
        yield _property("random", "it draws numbers, which torch's seed names: one seed, one answer.")
    else:
        yield _fine("random", "equal prompts give equal answers.")


def _variance(given: _Given, many: AnyPrompt) -> Iterator[Finding]:
    """Predicting zero scores 1 on average."""
    answers = given.answer(given.prompt)
    zeros = answers.new_zeros(len(many.tensors()[0]), *answers.shape[1:])
    errors = given.task.error(zeros, many)  # type: ignore[arg-type]
    weights = torch.ones_like(errors) if many.weights is None else many.weights[..., -errors.shape[-1] :]
    scores = (errors * weights).sum(-1) / weights.mean(0).sum()
    mean, low, high = (float(part) for part in bootstrap(scores, level=0.999, seed=given.seed))
    measured = f"predicting zero scores {mean:.3g} [{low:.3g}, {high:.3g}]"
    if low > 1 + OFF or high < 1 - OFF:
        right = f"`label_variance` must be E[y^2], {mean * given.task.label_variance:.3g} here"
        yield _fault("variance", f"{measured} and not 1. {right}; it is {given.task.label_variance:.3g}.")
    else:
        yield _fine("variance", f"{measured}.")


def _training(
    given: _Given, draw: Callable[[int], AnyPrompt], windows: dict[str, int | None], steps: int, learning_rate: float
) -> Iterator[Finding]:
    """In a few steps of Adam every parameter gets a gradient and all stays finite; the copy keeps what it learned."""
    model, task = given.model.train(), given.task
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        yield _property("training", "it has no weights to train.")
        return
    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    silent, errors = set(weights), []
    with seeded(given.seed), torch.enable_grad():
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
        yield _fault(
            "gradient", f"no gradient reaches {names}. Use it in every step, or take it out; check `train.grad`."
        )
    else:
        yield _fine("gradient", f"all {len(weights)} parameters get a gradient.")
    if not all(bool(value.isfinite()) for value in (*errors, *(weight.detach().sum() for weight in weights.values()))):
        yield _fault("training", f"{steps} steps of Adam overflow. Scale the start down, or normalise in the loop.")
    else:
        yield _fine("training", f"{steps} steps of Adam at {learning_rate:g}: error {first:.3g}, then {last:.3g}.")


def _label(given: _Given) -> Iterator[Finding]:
    """No answer reads the label it should predict."""
    if not isinstance(given.prompt, Prompt):
        return
    assert isinstance(given.other, Prompt)
    if not given.model.config.hides_labels:
        last = with_other_label(given.prompt, given.other, given.prompt.num_examples - 1)
        change = relative_change(given.answer(last), given.answer(given.prompt))
        yield _property(
            "label", f"the last label changes the answer by {change:.2g}; the config has `hides_labels=False`."
        )
        return
    at = reads_label(given.answer, given.prompt, given.other)
    if at is not None:
        yield _fault(
            "label", f"the answer at pair {at + 1} changes with that pair's own label. Hide or shift the labels."
        )
    else:
        yield _fine("label", "no answer reads the label that it should predict.")


def _causal(given: _Given) -> Iterator[Finding]:
    """An answer reads only what comes before it."""
    if not given.model.config.hides_labels:
        return
    unit = "pair" if isinstance(given.prompt, Prompt) else "token"
    at = reads_later(given.answer, given.prompt, given.other)
    if at is not None:
        remedy = "Mask what comes later, or answer the last pair alone"
        yield _fault("causal", f"the answer at {unit} {at + 1} changes with later {unit}s. {remedy}.")
    elif given.answer(given.prompt).shape[1] == 1 and given.prompt.num_positions > 1:
        yield _property("causal", "it answers the last pair alone: it has no answers for shorter prompts.")
    else:
        yield _fine("causal", f"no answer reads later {unit}s.")


def _alone(given: _Given) -> Iterator[Finding]:
    """Prompts of a batch do not mix."""
    if given.random:
        return  # a prompt alone draws other numbers
    change = relative_change(given.answer(given.prompt.rows(slice(1))), given.answer(given.prompt)[:1])
    if change > 10 * SAME_ANSWER:
        yield _fault(
            "batch", f"a prompt alone is answered otherwise than in a batch ({change:.2g}). Normalise per prompt."
        )
    else:
        yield _fine("batch", "a prompt is answered alike alone and in a batch.")


def _constant(given: _Given) -> Iterator[Finding]:
    """Different prompts get different answers."""
    spread = between_prompts(given.answer(given.prompt))
    if spread < SAME_ANSWER:
        yield _fault(
            "constant", "after training every prompt still gets the same answer. Look for what cuts the prompt off."
        )
    else:
        yield _fine("constant", f"answers to different prompts differ by {spread:.2g} of their size.")


def _loops(given: _Given) -> Iterator[Finding]:
    """Loops do something, with the same weights, and read the prompt."""
    model, trained = given.model, given.model.config.loops
    if not repeats_weights(model, given.prompt, seed=given.seed):
        what = "there is one loop" if trained == 1 else "its loops share no weights"
        yield _property("unlooped", f"{what}, so nothing is repeated. Raise `loops`, or take it as a rival.")
    else:
        change = relative_change(given.answer(given.prompt, 1), given.answer(given.prompt, trained))
        if change < SAME_ANSWER:
            text = f"answers after 1 loop and after {trained} are the same. Let `step` change what `readout` reads."
            yield _fault("loops", text)
        else:
            more = relative_change(given.answer(given.prompt, 2 * trained), given.answer(given.prompt, trained))
            yield _fine("loops", f"the trained loops change answers by {change:.2g}, as many more by {more:.2g}.")
    if trained == 1:
        return
    reads, declared = loops_read_prompt(model, given.prompt, given.other, seed=given.seed), model.config.injects
    if reads:
        yield _fine("prompt", "every loop reads the prompt.")
    elif declared:
        yield _fault("prompt", "no loop reads the prompt; the config says `injects`. Let `step` read the context.")
    else:
        yield _property(
            "prompt", "the prompt enters by the first state alone. Let `step` read the context to inject it."
        )


CHECKS: dict[str, Callable[[_Given], Iterator[Finding]]] = {
    "label": _label,
    "causal": _causal,
    "batch": _alone,
    "constant": _constant,
    "loops": _loops,
}
"""Checks of the trained copy: fresh weights may be zero and hide what the model reads."""
