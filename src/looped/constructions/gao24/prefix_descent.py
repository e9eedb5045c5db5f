"""gao24, Lemma A.5 and Theorem 4.2: a decoder that runs gradient descent at every x, on the pairs before it."""

import numpy as np
from jaxtyping import Float

from looped.constructions.gao24.gradient import fetch, pair_positions, side_by_side
from looped.constructions.language import Array, Layer, Match, Program, Put, Stream, Sum
from looped.constructions.position_vectors import rotations


def decoder_layer(*, d: int, num_pairs: int, eta: float) -> Layer:
    """One gradient step at every x token i, on the pairs before it.

        w^i <- w^i - eta / (i-1) sum over j < i of (<w^i, x_j> - y_j) x_j

    Ref: gao24, Lemma A.5. The keys are the y tokens, which hold x_j in `beside`: only those with j < i come before x_i.
    The paper takes <w, x_j> from the x tokens, including x_i, whose term remains. Its two heads hold one term each and
    cancel each other's constants; here both heads hold both terms, so the error of heads at +c and -c falls as c^2. The
    anchor is the first token. 1/(i-1) depends only on the position, so each x token has its own MLP rows.
    """
    top, bottom = np.eye(d + 1, d), np.eye(d + 1, 1, -d)
    query, key = {"w": top, "is_x": bottom}, {"beside": top, "y": -bottom}
    gradient = Sum(query=query, key=key, value={"beside": 1.0}, to={"gradient": 1.0}, anchor="first")
    steps = tuple(
        Put(value={"gradient": -eta / i}, to={"w": 1.0}, unless=(("elsewhere", i),)) for i in range(1, num_pairs)
    )
    return Layer(attention=(gradient,), mlp=(*steps, Put.clear("gradient")))


def lemma_a5(*, d: int, num_pairs: int, eta: float) -> Program:
    """A causal layer of two heads that takes one gradient step at every x; tokens are (x, y, beside, w).

    Ref: gao24, Lemma A.5. Its last line prints w_k^h, the weights at example h; the layer computes with w_k^j, the
    weights at the query. The answer is w, at every token.
    """
    sizes = {"x": d, "y": 1, "beside": d, "w": d}
    flags = {"is_x": 1, "elsewhere": num_pairs, "first": 1, "one": 1}
    return Program(
        stream=Stream(sizes | {"gradient": d} | flags),
        inputs=side_by_side(sizes),
        positions={name: value for name, value in _positions(num_pairs).items() if name in flags},
        loop=(decoder_layer(d=d, num_pairs=num_pairs, eta=eta),),
        output={"w": 1.0},
        d=sum(sizes.values()),
        query="every",
        causal=True,
    )


def lemma_a5_tokens(
    xs: Float[Array, "batch n d"], ys: Float[Array, "batch n"], start: Float[Array, "batch n d"]
) -> Float[Array, "batch seq token"]:
    """The prompt of Lemma A.5: an x token holds x_i and w^i = `start`, a y token holds y_i and x_i."""
    batch, n, d = xs.shape
    tokens = np.zeros((batch, 2 * n, 3 * d + 1))
    tokens[:, 0::2, :d], tokens[:, 0::2, 2 * d + 1 :] = xs, start
    tokens[:, 1::2, d], tokens[:, 1::2, d + 1 : 2 * d + 1] = ys, xs
    return tokens


def theorem_42(*, d: int, num_pairs: int, eta: float) -> Program:
    """Gradient descent in a decoder: at every x_i, only on the pairs before it.

        answer_i = <w_T^i, x_i>,  w_0 = 0,  w^i <- w^i - eta / (i-1) sum over j < i of (<w^i, x_j> - y_j) x_j

    Ref: gao24, Theorem 4.2: pre and loop have one layer and two heads (pre needs only one). Post needs one layer, not
    two: <w, x> within a token is a sum over the tokens at its position that hold an x. Its anchor is the second token,
    the first y, because the first x is a key. The first answer, with no pair before it, is 0.
    """
    place = rotations(num_pairs)
    start = place.table(range(1)).T
    copy = Layer(attention=(fetch(value={"x": 2.0}, to={"beside": 1.0}),), mlp=(Put.clear("beside", ("is_y", 0)),))
    value = {"is_x": 1.0, "first": -1.0}
    same = Match(query={"position": 1.0}, key={"position": 1.0, "second": -start}, top=1.0)
    inner = Sum(query={"w": 1.0}, key={"x": 1.0}, value=value, to={"out": 1.0}, anchor="second", match=same)
    sizes = {"x": d, "y": 1, "beside": d, "w": d, "gradient": d, "out": 1}
    flags = {"position": place.dim, "is_x": 1, "is_y": 1, "elsewhere": num_pairs}
    return Program(
        stream=Stream(sizes | flags | {"first": 1, "second": 1, "one": 1}),
        inputs={"x": np.eye(d, d + 1), "y": np.eye(1, d + 1, d)},
        positions=_positions(num_pairs),
        pre=(copy,),
        loop=(decoder_layer(d=d, num_pairs=num_pairs, eta=eta),),
        post=(Layer(attention=(inner,)),),
        d=d,
        tokens="apart",
        query="every",
        causal=True,
    )


def _positions(num_pairs: int) -> dict[str, Array]:
    """The pairs' positions, flags for the first two tokens, and for each x token a coordinate that is 0 only there."""
    elsewhere = np.ones((2 * num_pairs, num_pairs))
    elsewhere[0::2] -= np.eye(num_pairs)
    first, second = np.eye(2, 2 * num_pairs)[:, :, None]
    pair = pair_positions(rotations(num_pairs), num_pairs)
    return pair | {"elsewhere": elsewhere, "first": first, "second": second}
