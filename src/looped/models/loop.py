"""The library's only loop: `unroll` for training and curves, `settle` for inference with an exit rule."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

State = Any
"""A tensor, or a (named) tuple of tensors, batch first."""
Context = Any
"""What every loop may read: a (named) tuple of tensors, batch first."""
Step = Callable[[State, Context, int], State]
"""(state, context, t) -> state: loop number t, counted from 0."""
T = TypeVar("T")


MOST_LOOPS = 10**5
"""More loops than this are a typo: a prompt would take minutes to hours."""
MOST_LAYERS = 1000
"""More layers with weights of their own than this are a typo: building them alone would take minutes."""

MOST_POSITIONS = 10**6
"""More positions than this are a typo: nobody attends over so many tokens."""


def check_loops(loops: int, **windows: int | None) -> None:
    """Refuse a loop count that is below 1 or absurdly large, and any window longer than it."""
    if loops > MOST_LOOPS:
        raise ValueError(f"`loops` must be at most {MOST_LOOPS:,}; got {loops}.")
    if loops < 1:
        raise ValueError(f"`loops` must be at least 1; got {loops}.")
    for name, value in windows.items():
        if value is not None and not 1 <= value <= loops:
            raise ValueError(f"`{name}` must be in [1, loops={loops}]; got {value}. Lower it or raise `loops`.")


def check_layers(layers: int) -> None:
    """Refuse an absurd number of layers, before each is built."""
    if layers > MOST_LAYERS:
        raise ValueError(f"`layers` must be at most {MOST_LAYERS:,}; got {layers}.")


def check_positions(positions: int) -> None:
    """Refuse an absurd number of learned positions."""
    if positions > MOST_POSITIONS:
        raise ValueError(f"`positions` must be at most {MOST_POSITIONS:,}; got {positions}.")


def unroll(
    step: Step,
    state: State,
    context: Context,
    *,
    loops: int,
    grad: int | None = None,
    keep: int = 1,
    collect: Callable[[State, Context], Tensor],
) -> Tensor:
    """Apply `step` `loops` times and stack what `collect` reads off the last `keep` states: see `collected`."""
    return torch.stack(collected(step, state, context, loops=loops, grad=grad, keep=keep, collect=collect))


def collected(
    step: Step,
    state: State,
    context: Context,
    *,
    loops: int,
    grad: int | None = None,
    keep: int = 1,
    collect: Callable[[State, Context], T],
) -> list[T]:
    """Apply `step` `loops` times; what `collect` reads off the last `keep` states.

        state_{t+1} = step(state_t, context, t),  t = 0 .. loops-1

    `grad` is how many of the last loops carry gradient (None: all). The loops before run without a graph, so they cost
    time and no memory. Where gradients are computed `keep` may not be more: those loops would teach nothing.
    """
    check_loops(loops, grad=grad, keep=keep)
    if grad is not None and grad < keep and torch.is_grad_enabled():
        raise ValueError(
            f"`grad`={grad} is less than `keep`={keep}: the first {keep - grad} of the loops that are read would carry "
            f"no gradient. Raise `grad`, lower `keep` (the loss's `window`), or take each loop's loss back by "
            f"`gradient=Truncated(back={grad})`."
        )
    prefix = 0 if grad is None else loops - grad
    results: list[T] = []

    def run(first: int, last: int, state: State) -> State:
        for t in range(first, last):
            state = step(state, context, t)
            if t >= loops - keep:
                results.append(collect(state, context))
        return state

    if prefix:
        with torch.no_grad():
            state = run(0, prefix, state)
        # a part of the state that the step returns unchanged would bring its graph along
        state = tree_map(Tensor.detach, state)
    run(prefix, loops, state)
    return results


ExitRule = Callable[[State, State, Context, int], Tensor]
"""(state, previous, context, t) -> (batch) bool: True where loop t was the last that a prompt needed."""


class Settled(NamedTuple):
    """Predictions where each prompt left the loop, or where each token had enough, and after how many loops."""

    predictions: Tensor
    loops: Int[Tensor, "batch *tokens"]
    finished: Bool[Tensor, "batch *tokens"]
    """False where `max_loops` came before the rule."""


@torch.no_grad()
def settle(
    step: Step,
    state: State,
    context: Context,
    rule: ExitRule,
    *,
    max_loops: int,
    collect: Callable[[State, Context], Tensor],
) -> Settled:
    """Loop each prompt until `rule` lets it go; finished prompts leave the batch and cost nothing more."""
    check_loops(max_loops)
    first = leaves(state)[0]
    active = torch.arange(first.shape[0], device=first.device)
    loops = torch.full_like(active, max_loops)
    finished = torch.zeros_like(active, dtype=torch.bool)
    predictions: Tensor | None = None
    for t in range(max_loops):
        previous, state = state, step(state, context, t)
        done = rule(state, previous, context, t)
        leaving = done | (t == max_loops - 1)
        if not leaving.any():
            continue
        out = collect(rows(state, leaving), rows(context, leaving))
        if predictions is None:
            predictions = out.new_empty(len(loops), *out.shape[1:])
        predictions[active[leaving]] = out
        loops[active[leaving]] = t + 1
        finished[active[done]] = True
        if leaving.all():
            break
        state, context, active = rows(state, ~leaving), rows(context, ~leaving), active[~leaving]
    assert predictions is not None
    return Settled(predictions, loops, finished)


@torch.no_grad()
def settle_tokens(
    step: Step,
    state: State,
    context: Context,
    rule: ExitRule,
    *,
    max_loops: int,
    collect: Callable[[State, Context], Tensor],
) -> Settled:
    """Loop until `rule`, which gives (batch, tokens), lets every token go; until then others read those that stay."""
    check_loops(max_loops)
    loops = finished = None
    for t in range(max_loops):
        new = step(state, context, t)
        leaving = rule(new, state, context, t)
        if loops is None or finished is None:
            loops, finished = torch.full_like(leaving, max_loops, dtype=torch.int64), torch.zeros_like(leaving)
        before, stays = iter(leaves(state)), finished
        state = tree_map(lambda leaf: torch.where(_spread(stays, leaf), next(before), leaf), new)  # noqa: B023
        loops = torch.where(leaving & ~finished, t + 1, loops)
        finished = finished | leaving
        if finished.all():
            break
    assert loops is not None
    assert finished is not None
    return Settled(collect(state, context), loops, finished)


def _spread(mask: Tensor, leaf: Tensor) -> Tensor:
    """A mask of tokens, to be used beside a state of (batch, tokens, ...)."""
    return mask.view(*mask.shape, *[1] * (leaf.ndim - 2))


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tensor or a nested tuple of them."""
    if isinstance(tree, Tensor):
        return [tree]
    return [] if tree is None else [leaf for part in tree for leaf in leaves(part)]


def rows(tree: Any, index: Tensor) -> Any:
    """The prompts at `index` of a tensor or a nested tuple of them."""
    return tree_map(lambda tensor: tensor[index], tree)


def tree_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """`function` of a tensor, or of every tensor in a nested tuple of them; None stays."""
    if tree is None or isinstance(tree, Tensor):
        return None if tree is None else function(tree)
    parts = [tree_map(function, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
