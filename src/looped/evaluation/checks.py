"""The checks of a model and its task, one function each: it yields what it measured, in a line, with the remedy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.properties import (
    SAME_ANSWER,
    between_prompts,
    loops_read_prompt,
    reads_label,
    reads_later,
    relative_change,
    repeats_weights,
    with_other_label,
)
from looped.functional.streams import seeded
from looped.models.base import LoopedModel
from looped.models.loop import leaves, tree_map
from looped.prompt import AnyPrompt, Prompt
from looped.tasks.task import Task

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


class Given(NamedTuple):
    """What every check reads."""

    model: LoopedModel
    task: Task
    prompt: AnyPrompt
    other: AnyPrompt
    seed: int
    random: bool

    def answer(self, prompt: AnyPrompt, loops: int | None = None) -> Tensor:
        """The model's answers, from a seeded start."""
        with torch.no_grad(), seeded(self.seed, "model"):
            return self.model(prompt, loops=loops)[-1]


def fine(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(check=name, verdict="fine", text=text)


def allowed(name: str, text: str) -> Finding:
    """A property."""
    return Finding(check=name, verdict="property", text=text)


def fault(name: str, text: str) -> Finding:
    """A fault; the text ends with its remedy."""
    return Finding(check=name, verdict="fault", text=text)


def shapes_fit(given: Given, draws: list[AnyPrompt]) -> Iterator[Finding]:
    """Answers and states have shapes that depend on the prompt's shape alone, and scores one number a position."""

    def shapes(prompt: AnyPrompt) -> list[tuple[int, ...]]:
        with torch.no_grad(), seeded(given.seed, "model"):
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
        yield fault("shapes", "shapes change with the numbers in a prompt. Mask entries instead of dropping them.")
    elif answers[0] != batch or errors not in {(batch, n), (batch, 1)}:
        yield fault(
            "shapes",
            f"answers are {answers} and their errors {errors} for {batch} prompts of {n} positions. Answer every "
            "position, (batch, n), or the last one, (batch, 1).",
        )
    else:
        yield fine("shapes", f"answers are {answers} for {batch} prompts of {n} positions, whatever is in them.")


def nothing_in_place(given: Given) -> Iterator[Finding]:
    """A step and a readout leave state, context and prompt as they are."""
    model, prompt = given.model, given.prompt.clone()
    with torch.no_grad(), seeded(given.seed, "model"):
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
        yield fault("in place", f"the {changed[0]} is written to. Return new tensors (`state + x`, not `state += x`).")
    else:
        yield fine("in place", "a loop leaves its state, the context and the prompt as they are.")


def one_seed_one_answer(given: Given) -> Iterator[Finding]:
    """Equal prompts and equal seeds give equal answers."""
    usual, again = given.answer(given.prompt), given.answer(given.prompt)
    another = given._replace(seed=given.seed + 1).answer(given.prompt)
    if relative_change(again, usual) > SAME_ANSWER:
        yield fault(
            "random", "answers differ under one seed. Draw from torch's generator (`torch.randn_like`); keep no memory."
        )
    elif relative_change(another, usual) > SAME_ANSWER:
        yield allowed("random", "it draws numbers, which torch's seed names: one seed, one answer.")
    else:
        yield fine("random", "equal prompts give equal answers.")


def zero_scores_one(given: Given, many: AnyPrompt) -> Iterator[Finding]:
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
        yield fault("variance", f"{measured} and not 1. {right}; it is {given.task.label_variance:.3g}.")
    else:
        yield fine("variance", f"{measured}.")


def _label(given: Given) -> Iterator[Finding]:
    """No answer reads the label it should predict."""
    if not isinstance(given.prompt, Prompt):
        return
    assert isinstance(given.other, Prompt)
    if not given.model.config.hides_labels:
        last = with_other_label(given.prompt, given.other, given.prompt.num_examples - 1)
        change = relative_change(given.answer(last), given.answer(given.prompt))
        yield allowed(
            "label", f"the last label changes the answer by {change:.2g}; the config has `hides_labels=False`."
        )
        return
    at = reads_label(given.answer, given.prompt, given.other)
    if at is not None:
        yield fault(
            "label", f"the answer at pair {at + 1} changes with that pair's own label. Hide or shift the labels."
        )
    else:
        yield fine("label", "no answer reads the label that it should predict.")


def _causal(given: Given) -> Iterator[Finding]:
    """An answer reads only what comes before it."""
    if not given.model.config.hides_labels:
        return
    unit = "pair" if isinstance(given.prompt, Prompt) else "token"
    at = reads_later(given.answer, given.prompt, given.other)
    if at is not None:
        remedy = "Mask what comes later, or answer the last pair alone"
        yield fault("causal", f"the answer at {unit} {at + 1} changes with later {unit}s. {remedy}.")
    elif given.answer(given.prompt).shape[1] == 1 and given.prompt.num_positions > 1:
        yield allowed("causal", "it answers the last pair alone: it has no answers for shorter prompts.")
    else:
        yield fine("causal", f"no answer reads later {unit}s.")


def _alone(given: Given) -> Iterator[Finding]:
    """Prompts of a batch do not mix."""
    if given.random:
        return  # a prompt alone draws other numbers
    change = relative_change(given.answer(given.prompt.rows(slice(1))), given.answer(given.prompt)[:1])
    if change > 10 * SAME_ANSWER:
        yield fault(
            "batch", f"a prompt alone is answered otherwise than in a batch ({change:.2g}). Normalise per prompt."
        )
    else:
        yield fine("batch", "a prompt is answered alike alone and in a batch.")


def _constant(given: Given) -> Iterator[Finding]:
    """Different prompts get different answers."""
    spread = between_prompts(given.answer(given.prompt))
    if spread < SAME_ANSWER:
        yield fault(
            "constant", "after training every prompt still gets the same answer. Look for what cuts the prompt off."
        )
    else:
        yield fine("constant", f"answers to different prompts differ by {spread:.2g} of their size.")


def _loops(given: Given) -> Iterator[Finding]:
    """Loops do something, with the same weights, and read the prompt."""
    model, trained = given.model, given.model.config.loops
    if not repeats_weights(model, given.prompt, seed=given.seed):
        what = "there is one loop" if trained == 1 else "its loops share no weights"
        yield allowed("unlooped", f"{what}, so nothing is repeated. Raise `loops`, or keep it to compare with.")
    else:
        change = relative_change(given.answer(given.prompt, 1), given.answer(given.prompt, trained))
        if change < SAME_ANSWER:
            text = f"answers after 1 loop and after {trained} are the same. Let `step` change what `readout` reads."
            yield fault("loops", text)
        else:
            more = relative_change(given.answer(given.prompt, 2 * trained), given.answer(given.prompt, trained))
            yield fine("loops", f"the trained loops change answers by {change:.2g}, as many more by {more:.2g}.")
    if trained == 1:
        return
    reads, declared = loops_read_prompt(model, given.prompt, given.other, seed=given.seed), model.config.injects
    if reads:
        yield fine("prompt", "every loop reads the prompt.")
    elif declared:
        yield fault("prompt", "no loop reads the prompt; the config says `injects`. Let `step` read the context.")
    else:
        yield allowed("prompt", "the prompt enters by the first state alone. Let `step` read the context to inject it.")


TRAINED: dict[str, Callable[[Given], Iterator[Finding]]] = {
    "label": _label,
    "causal": _causal,
    "batch": _alone,
    "constant": _constant,
    "loops": _loops,
}
"""Checks of the trained copy: fresh weights may be zero and hide what the model reads."""
