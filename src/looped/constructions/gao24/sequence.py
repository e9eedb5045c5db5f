"""gao24, Lemma A.3, Theorems 3.2 and 3.3: copying, autoregression and chain of thought, by gradient descent."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from looped.constructions.gao24.gradient import Dense, descent_layer, fetch, representation
from looped.constructions.language import Array, Attend, Layer, Program, Put, Stream
from looped.constructions.position_vectors import Rotations, rotations

LAST, EARLIER = ("last", 0), ("earlier", 0)
"""Flags: 1 only at the last token, and 1 everywhere else."""
MARKS = {"last": np.ones((1, 1)), "earlier": -np.ones((1, 1))}
"""The marks that set these flags; every position has `earlier` = 1."""


def copy_layer(place: Rotations, *, d: int, copies: int) -> Layer:
    """Head i fetches the token i places back; the MLP sets copies from before the start to 0.

        copied_t = (x_{t-1}, ..., x_{t-copies}),  x_s = 0 for s < 0

    Ref: gao24, Lemma A.3. The shift p_t -> p_{t-i} is a matrix because positions are rotations.
    """
    heads, rows = [], []
    for i in range(copies):
        slot = np.eye(copies * d, d, -i * d)
        heads.append(fetch(place.shift(-i - 1), value={"x": 1.0}, to={"copied": slot}))
        rows.append(Put(value={"copied": -slot.T}, to={"copied": slot}, unless=(("inside", i),)))
    return Layer(attention=tuple(heads), mlp=tuple(rows))


def lemma_a3(*, d: int, copies: int, seq: int) -> Program:
    """A layer of `copies` = q heads that copies the previous q tokens to the current one; it answers at every token.

    Ref: gao24, Lemma A.3.
    """
    place = rotations(seq + copies)
    return Program(
        stream=Stream({"x": d, "copied": copies * d, "position": place.dim, "inside": copies, "one": 1}),
        inputs={"x": 1.0},
        positions={"position": place.table(range(seq)), "inside": _inside(seq, copies), "one": np.ones((seq, 1))},
        loop=(copy_layer(place, d=d, copies=copies),),
        output={"copied": 1.0},
        d=d,
        query="every",
    )


def theorem_32(phi: Sequence[Dense], *, d: int, order: int, num_examples: int, eta: float) -> Program:
    """AR(q) with representation: pre copies, represents, and fetches the next token as label; the loop descends.

        answer = A_T Phi(x_{N+1-q}, .., x_N),  A_0 = 0,
        A_{k+1} = A_k - eta / N sum_t (A_k Phi(x_{t+1-q}, .., x_t) - x_{t+1}) Phi(..)'

    Ref: gao24, Theorem 3.2, with x_t = 0 before the start. Pre has L+2 layers; the first needs q-1 heads, not q, since
    a token is in its own window, and L+1 layers would be enough. A sequence has no empty token for the anchor, so the
    query's token is the anchor: `prediction` holds its prediction, and an MLP sets its `residual` to 0 in every loop.
    """
    width = phi[-1].weight.shape[0]
    seq, hidden = num_examples + 1, max(layer.weight.shape[0] for layer in phi)
    place = rotations(seq + order)
    sizes = {"x": d, "copied": max(1, order - 1) * d, "h": hidden, "scaled": width}
    flags = {"position": place.dim, "inside": max(1, order - 1), "last": 1, "earlier": 1, "one": 1}
    window: dict[str, Array] = {"x": np.eye(order * d, d, -(order - 1) * d)}
    if order > 1:  # Phi reads oldest first, the copies are newest first
        flipped = np.kron(np.eye(order - 1)[::-1], np.eye(d))
        window["copied"] = np.vstack([flipped, np.zeros((d, (order - 1) * d))])
    pick = np.eye(width, hidden)
    label = Layer(
        attention=(fetch(place.shift(1), value={"x": 1.0}, to={"residual": -1.0}),),
        mlp=(
            Put.clear("residual", EARLIER),
            Put(value={"h": pick}, to={"f": 1.0}),
            Put(value={"h": pick / num_examples}, to={"scaled": 1.0}, unless=(LAST,)),
        ),
    )
    copies = Layer() if order == 1 else copy_layer(place, d=d, copies=order - 1)
    return Program(
        stream=Stream(sizes | {"f": width, "residual": d, "prediction": d, "out": d} | flags),
        inputs={"x": 1.0},
        positions=_positions(place, seq) | {"inside": _inside(seq, max(1, order - 1))},
        marks=MARKS,
        pre=(copies, *representation(phi, reads=window), label),
        loop=(descent_layer("residual", "prediction", eta=eta, unless=EARLIER),),
        post=(Layer(mlp=(Put(value={"prediction": 1.0}, to={"out": 1.0}, unless=(EARLIER,)),)),),
        d=d,
    )


def theorem_33(*, d: int, steps: int, num_examples: int, eta: float, slope: float, invert: bool = True) -> Program:
    """Chain of thought: pre selects the two relevant steps of each chain, the loop descends, post activates.

        answer = leaky(W_T s),  W_0 = 0,  s the last token and l its place in its chain,
        W_{k+1} = W_k - eta / N sum_i (W_k s_i^l - leaky^-1(s_i^{l+1})) (s_i^l)'

    Ref: gao24, Theorem 3.3, with `steps` = L. The filter is ours; it takes one layer of two heads; the paper's takes
    seven layers. One head sends l to every token, the other fetches the next token, and the MLP selects both where a
    token is at place l of its chain. The same weights work for every l. With `invert=False` the labels are the states
    themselves, as printed; the descent then fits leaky(W s) by W s, and never finds W.
    """
    place = rotations(num_examples * (steps + 1) + steps + 1)
    seq = num_examples * (steps + 1) + steps
    sizes = {"x": d, "next": d, "f": d, "scaled": d, "residual": d, "prediction": d, "out": d}
    flags = {"away": steps + 1, "asked": steps + 1, "position": place.dim, "last": 1, "earlier": 1, "one": 1}
    rows = []
    for step in range(steps + 1):
        here = (("away", step), ("asked", step))  # both are 0 where this token and the last one are at `step`
        example = (*here, LAST)
        rows += [
            Put(value={"x": 1.0}, to={"f": 1.0}, unless=here),
            Put(value={"x": 1.0 / num_examples}, to={"scaled": 1.0}, unless=example),
            Put(value={"next": 1.0}, to={"residual": -1.0}, slope=1.0 / slope if invert else 1.0, unless=example),
        ]
    select = Layer(
        attention=(
            Attend(query={"one": 1.0}, key={"last": 1.0}, value={"away": 1.0}, to={"asked": 1.0}),
            fetch(place.shift(1), value={"x": 1.0}, to={"next": 1.0}),
        ),
        mlp=tuple(rows),
    )
    put = Put(value={"prediction": 1.0}, to={"out": 1.0}, slope=slope, unless=(EARLIER,))
    return Program(
        stream=Stream(sizes | flags),
        inputs={"x": 1.0},
        positions=_positions(place, seq) | {"away": 1.0 - np.eye(steps + 1)[np.arange(seq) % (steps + 1)]},
        marks=MARKS,
        pre=(select,),
        loop=(descent_layer("residual", "prediction", eta=eta, unless=EARLIER),),
        post=(Layer(mlp=(put,)),),
        d=d,
    )


def _positions(place: Rotations, seq: int) -> dict[str, Float[Array, "seq _"]]:
    return {"position": place.table(range(seq)), "earlier": np.ones((seq, 1)), "one": np.ones((seq, 1))}


def _inside(seq: int, copies: int) -> Float[Array, "seq copies"]:
    """For each copy whether it lies inside the sequence."""
    return (np.arange(seq)[:, None] > np.arange(copies)).astype(np.float64)
