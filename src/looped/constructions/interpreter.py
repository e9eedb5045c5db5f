"""Runs a program literally, with sums, arg-maxima and masks in NumPy: no softmax, no ReLU, no weights."""

import numpy as np
from jaxtyping import Float

from looped.constructions.language import Array, Attend, Layer, Match, Program, Put, Stream, Sum

TIE = 1e-6
"""Scores that differ by less than this count as equal; position vectors differ by far more."""


def interpret(
    program: Program, tokens: Float[Array, "batch seq token"], *, loops: int = 1
) -> Float[Array, "batch answers outputs"]:
    """The program's answers after `loops` loops."""
    tokens = np.array(tokens, dtype=np.float64)
    if program.tokens == "apart" and program.query == "last":
        tokens[:, -1] = 0.0
    state = tokens @ program.stream.write(program.inputs).T + program.table()[: tokens.shape[1]]
    if program.query == "last":
        marks = program.mark_table()
        state[:, -len(marks) :] += marks
    visible = np.tril(np.ones((tokens.shape[1], tokens.shape[1]), bool)) if program.causal else np.array(True)
    for layer in (*program.pre, *program.loop * loops, *program.post):
        state = _run_layer(layer, program.stream, state, visible)
    if program.tokens == "apart":
        state = state[:, (0 if program.read == "x" else 1) :: 2]
    if program.query == "last":
        state = state[:, -1:]
    return state @ program.stream.read(program.output).T


def _run_layer(layer: Layer, stream: Stream, state: Array, visible: Array) -> Float[Array, "batch seq width"]:
    """Run a layer: all of its attention at once, then all of its MLP rows."""
    added = np.zeros_like(state)
    for operation in layer.attention:
        scores = _scores(operation, stream, state)
        if isinstance(operation, Attend):
            scores = np.where(visible, scores, -np.inf)
            best = (scores >= scores.max(-1, keepdims=True) - TIE).astype(float)
            weights = best / best.sum(-1, keepdims=True)
        else:
            _check_anchor(operation, stream, state, scores)
            weights = scores * visible
            if operation.match is not None:
                weights = weights * (_scores(operation.match, stream, state) >= operation.match.top - TIE)
        added += weights @ (state @ stream.read(operation.value).T) @ stream.write(operation.to).T
    state = state + added
    return state + sum((_put(put, stream, state) for put in layer.mlp), np.zeros_like(state))


def _scores(operation: Attend | Sum | Match, stream: Stream, state: Array) -> Float[Array, "batch i j"]:
    return (state @ stream.read(operation.query).T) @ (state @ stream.read(operation.key).T).swapaxes(-1, -2)


def _check_anchor(total: Sum, stream: Stream, state: Array, scores: Array) -> None:
    """Refuse a program in which the anchor alone would not normalise the compiled heads."""
    anchor = state[..., stream.at(total.anchor)][..., 0] > 0.5
    values = np.abs(state @ stream.read(total.value).T).sum(-1)
    if not anchor.any() or values[anchor].max() > TIE or np.abs(scores.swapaxes(-1, -2)[anchor]).max() > TIE:
        raise ValueError(
            f"a sum needs a token where `{total.anchor}` is 1, with value and scores 0; got "
            f"{'one whose value or scores are not 0' if anchor.any() else 'no such token'}. Choose another anchor, or "
            "set its subspaces to 0 first."
        )


def _put(put: Put, stream: Stream, state: Array) -> Array:
    value = state @ stream.read(put.value).T
    value = np.where(value > 0, value, put.slope * value)
    for gate in put.unless:
        value = np.where(np.abs(state @ stream.coordinate(gate).T) < TIE, value, 0.0)
    return value @ stream.write(put.to).T
