"""Runs a program as it is written: sums, arg-maxima and masks in NumPy; no softmax, no ReLU, no weights."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from looped.constructions.language import Array, Attend, Layer, Match, Program, Put, Read, Stream, Sum

TIE = 1e-6
"""Scores this close are equal: the positions of the constructions differ by far more."""


def interpret(
    program: Program, tokens: Float[Array, "batch seq token"], *, loops: int = 1
) -> Float[Array, "batch asked outputs"]:
    """What the program answers after `loops` loops."""
    state = streams(program, tokens, loops=loops)[-1]
    for layer in program.post:
        state = run_layer(layer, program.stream, state, causal=program.causal)
    if program.tokens == "apart":
        state = state[:, (0 if program.read == "x" else 1) :: 2]
    if program.query == "last":
        state = state[:, -1:]
    return state @ program.stream.read(program.output).T


def streams(
    program: Program, tokens: Float[Array, "batch seq token"], *, loops: int = 1
) -> list[Float[Array, "batch seq width"]]:
    """The stream after pre, and after each loop."""
    tokens = np.array(tokens, dtype=np.float64)
    if program.tokens == "apart" and program.query == "last":
        tokens[:, -1] = 0.0
    state = tokens @ program.stream.write(program.inputs).T + program.table()[: tokens.shape[1]]
    if program.query == "last":
        marks = program.mark_table()
        state[:, -len(marks) :] += marks
    for layer in program.pre:
        state = run_layer(layer, program.stream, state, causal=program.causal)
    states = [state]
    for _ in range(loops):
        for layer in program.loop:
            state = run_layer(layer, program.stream, state, causal=program.causal)
        states.append(state)
    return states


def run_layer(
    layer: Layer, stream: Stream, state: Float[Array, "batch seq width"], *, causal: bool
) -> Float[Array, "batch seq width"]:
    """One layer: all of its attention at once, then all of its rows."""
    seen = np.tril(np.ones((state.shape[1], state.shape[1]), bool)) if causal else np.array(True)
    added = np.zeros_like(state)
    for each in layer.attention:
        if isinstance(each, Attend):
            chosen = _best(_scores(each.query, each.key, stream, state), seen).astype(float)
            mixed = chosen / chosen.sum(-1, keepdims=True)
        else:
            scores = _scores(each.query, each.key, stream, state)
            _check_anchor(each, stream, state, scores)
            mixed = scores * seen * _over(each.match, stream, state, seen)
        added += mixed @ (state @ stream.read(each.value).T) @ stream.write(each.to).T
    state = state + added
    return state + sum((_put(put, stream, state) for put in layer.mlp), np.zeros_like(state))


def _scores(query: Read, key: Read, stream: Stream, state: Array) -> Float[Array, "batch i j"]:
    return (state @ stream.read(query).T) @ (state @ stream.read(key).T).swapaxes(-1, -2)


def _best(scores: Array, seen: Array) -> Bool[Array, "batch i j"]:
    scores = np.where(seen, scores, -np.inf)
    return scores >= scores.max(-1, keepdims=True) - TIE


def _over(match: Match | None, stream: Stream, state: Array, seen: Array) -> Array:
    """The tokens that a sum runs over."""
    if match is None:
        return np.array(True)
    return (_scores(match.query, match.key, stream, state) >= match.top - TIE) & seen


def _check_anchor(total: Sum, stream: Stream, state: Array, scores: Array) -> None:
    """Refuse a program whose compiled heads would not be normalised by the anchor alone."""
    anchor = state[..., stream.at(total.anchor)][..., 0] > 0.5
    values = np.abs(state @ stream.read(total.value).T).sum(-1)
    if not anchor.any() or values[anchor].max() > TIE or np.abs(scores.swapaxes(-1, -2)[anchor]).max() > TIE:
        raise ValueError(
            f"a sum needs a token where `{total.anchor}` is 1, with value and scores 0; got "
            f"{'one that breaks this' if anchor.any() else 'none'}. Choose another anchor, or empty it first."
        )


def _put(put: Put, stream: Stream, state: Array) -> Array:
    value = state @ stream.read(put.value).T
    value = np.where(value > 0, value, put.slope * value)
    for each in put.unless:
        value = np.where(np.abs(state @ stream.coordinate(each).T) < TIE, value, 0.0)
    return value @ stream.write(put.to).T
