"""What a model does with its prompt and its weights, measured: nothing here is read off a config."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from looped.functional.streams import seeded
from looped.models.base import LoopedModel
from looped.models.loop import State, leaves, tree_map
from looped.prompt import AnyPrompt, Prompt, Sequence

SAME_ANSWER = 1e-4
"""Two answers are the same when they differ by less than this fraction of their size: more than rounding leaves."""
P = TypeVar("P", bound=AnyPrompt)


def with_other_end(prompt: P, other: P, at: int) -> P:
    """`prompt` up to and with pair (or token) number `at`, and the rest of `other` after it."""

    def cut(name: str) -> Tensor:
        return torch.cat((getattr(prompt, name)[:, : at + 1], getattr(other, name)[:, at + 1 :]), 1)

    if isinstance(prompt, Sequence):
        return Sequence(cut("tokens"), prompt.targets)  # type: ignore[return-value]
    return Prompt(cut("xs"), cut("ys"))  # type: ignore[return-value]


def with_other_label(prompt: Prompt, other: Prompt, at: int) -> Prompt:
    """The prompt with one label exchanged."""
    ys = prompt.ys.clone()
    ys[:, at] = other.ys[:, at]
    return Prompt(prompt.xs, ys)


def relative_change(new: Tensor, old: Tensor) -> float:
    """|new - old| / |old| over all entries; infinite where the shapes or what is finite differ."""
    if new.shape != old.shape or not bool((new.isfinite() == old.isfinite()).all()):
        return float("inf")
    fine = old.isfinite()
    size = old[fine].double().square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return float(((new - old)[fine].double().square().mean().sqrt() / size).nan_to_num(0.0))


def between_prompts(answers: Tensor) -> float:
    """How far the answers to different prompts are apart, over their size."""
    answers = answers.double()
    size = answers.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return float((answers - answers.mean(0)).square().mean().sqrt() / size)


@torch.no_grad()
def reads_label(answer: Callable[[Prompt], Tensor], prompt: Prompt, other: Prompt) -> int | None:
    """A position whose answer changes with the very label that it should predict; None if there is none."""
    usual, n = _drawn_alike(answer, prompt), prompt.num_examples
    skipped = n - usual.shape[1]  # a model may answer the last positions alone
    for at in _spread(skipped, n):
        changed = _drawn_alike(answer, with_other_label(prompt, other, at))
        if relative_change(changed[:, at - skipped], usual[:, at - skipped]) > SAME_ANSWER:
            return at
    return None


@torch.no_grad()
def reads_later(answer: Callable[[P], Tensor], prompt: P, other: P) -> int | None:
    """A position whose answer changes with pairs or tokens that come after its own x; None if there is none."""
    usual, n = _drawn_alike(answer, prompt), prompt.num_positions
    skipped = n - usual.shape[1]
    for at in _spread(skipped, n - 1):
        first = at + 1 - skipped
        changed = _drawn_alike(answer, with_other_end(prompt, other, at))
        if relative_change(changed[:, :first], usual[:, :first]) > SAME_ANSWER:
            return at
    return None


def _drawn_alike(answer: Callable[[P], Tensor], prompt: P) -> Tensor:
    """The answer, with the same draws for every prompt where a model draws random numbers."""
    with seeded(0, "model"):
        return answer(prompt)


@torch.no_grad()
def loops_read_prompt(model: LoopedModel, prompt: AnyPrompt, other: AnyPrompt, *, seed: int = 0) -> bool:
    """Whether a loop, given the same state, does something else for another prompt."""
    t = model.config.loops - 1
    state, states = state_after(model, prompt, t, seed=seed), []
    for shown in (prompt, other):
        with seeded(seed, "model"):
            # a copy: a step that writes into its state must not change the other one's
            states.append(leaves(model.step(tree_map(torch.clone, state), model.embed(shown), t)))
    return any(relative_change(new, old) > SAME_ANSWER for old, new in zip(*states, strict=True))


def state_after(model: LoopedModel, prompt: AnyPrompt, loops: int, *, seed: int = 0) -> State:
    """The state after `loops` loops, from a seeded start."""
    with seeded(seed, "model"):
        context = model.embed(prompt)
        state = model.start(context)
        for t in range(loops):
            state = model.step(state, context, t)
    return state


def repeats_weights(model: LoopedModel, prompt: AnyPrompt, *, seed: int = 0) -> bool:
    """Whether the last trained loop applies mostly weights that earlier loops apply too.

    A weight is applied by a loop if the loop's new state has a gradient along it.
    """
    loops, weights = model.config.loops, [weight for weight in model.parameters() if weight.requires_grad]
    if loops == 1 or not weights:
        return loops > 1
    earlier = last = torch.zeros(0, dtype=torch.bool)
    with seeded(seed, "model"), torch.no_grad():
        context = model.embed(prompt)
        state = model.start(context)
        for t in range(loops):
            with torch.enable_grad():
                state = model.step(state, context, t)
                # weighed at random: the sum of a normalised state has no gradient
                total = sum((leaf * torch.randn_like(leaf)).sum() for leaf in leaves(state) if leaf.requires_grad)
                if not isinstance(total, Tensor):  # no weight acts in the loop
                    return True
                slopes = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
            earlier = earlier | last if t > 1 else last
            last = torch.cat([slope.flatten() != 0 for slope in slopes])
            state = tree_map(Tensor.detach, state)
    return 2 * int((earlier & last).sum()) >= int(last.sum())


def _spread(first: int, end: int) -> list[int]:
    """A few positions from `first` up to `end`, both ends among them."""
    return sorted({first, (first + end) // 2, end - 1} & {*range(first, end)})
