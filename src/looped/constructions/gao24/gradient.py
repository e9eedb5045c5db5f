"""gao24, Lemma A.2 and Theorem 3.1: gradient descent on multivariate regression, also on a representation of x."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from looped.constructions.language import Array, Attend, Coordinate, Layer, Program, Put, Read, Stream, Sum, Write
from looped.constructions.position_vectors import Rotations, rotations

IS_X = ("is_x", 0)
"""Flag: 1 only at x tokens."""


@dataclass(frozen=True)
class Dense:
    """A layer of a representation: leaky(weight h + bias)."""

    weight: Float[Array, "out in"]
    bias: Float[Array, "out"]
    slope: float = 0.01
    """Slope of the leaky ReLU below 0; 0 is ReLU, 1 the identity."""

    def __call__(self, h: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Apply the layer to the last axis."""
        v = h @ self.weight.T + self.bias
        return np.where(v > 0, v, self.slope * v)


def represent(phi: Sequence[Dense], h: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
    """Phi(h): all layers in turn."""
    for layer in phi:
        h = layer(h)
    return h


def descent_layer(*targets: str, eta: float, unless: Coordinate) -> Layer:
    """One gradient step on L(A) = 1/2N sum_j |A f_j - y_j|^2, as its effect on every A f_i in the `targets`.

        A_{k+1} f_i = A_k f_i - eta sum_j (A_k f_j - y_j) (f_j / N)' f_i

    Ref: gao24, Lemma A.2. The query is `f`; the key is `scaled` = f / N, which is 0 at the prompt's query; the value is
    `residual`. The step size is in the value map, not in the MLP, which sets `residual` to 0 where `unless` is 0.
    Without that the algebra is the same, but the anchor multiplies the rounding error it holds by e^C.
    """
    to = dict.fromkeys(targets, -eta)
    step = Sum(query={"f": 1.0}, key={"scaled": 1.0}, value={"residual": 1.0}, to=to, anchor="last")
    return Layer(attention=(step,), mlp=(Put.clear("residual", unless),))


def lemma_a2(*, d: int, outputs: int, num_examples: int, eta: float) -> Program:
    """A layer of two heads that takes one gradient step; tokens are (x, y, x/N, A x - y), as the lemma has them.

        A_{k+1} = A_k - eta / N sum_j (A_k x_j - y_j) x_j'

    Ref: gao24, Lemma A.2. The answers are A x - y at the examples and A x at x_test, the last token but one; the last
    token is the anchor.
    """
    sizes = {"f": d, "y": outputs, "scaled": d, "residual": outputs}
    turns = np.tile([[1.0], [0.0]], (num_examples + 1, 1))
    return Program(
        stream=Stream(sizes | {"is_x": 1, "last": 1, "one": 1}),
        inputs=side_by_side(sizes),
        positions={"is_x": turns, "last": np.eye(len(turns))[:, -1:], "one": np.ones_like(turns)},
        loop=(descent_layer("residual", eta=eta, unless=IS_X),),
        output={"residual": 1.0},
        d=sum(sizes.values()),
        query="every",
    )


def lemma_a2_tokens(
    xs: Float[Array, "batch n d"],
    ys: Float[Array, "batch n outputs"],
    query: Float[Array, "batch d"],
    start: Float[Array, "outputs d"],
) -> Float[Array, "batch seq token"]:
    """The prompt of Lemma A.2 at A_0 = `start`: x and y tokens in turn, then x_test, then an empty label token."""
    batch, n, d = xs.shape
    outputs = ys.shape[-1]
    tokens = np.zeros((batch, 2 * n + 2, 2 * (d + outputs)))
    f, y, scaled, residual = np.split(tokens, np.cumsum([d, outputs, d]), axis=-1)
    f[:, 0:-2:2], f[:, -2] = xs, query
    y[:, 1:-2:2] = ys
    scaled[:, 0:-2:2] = xs / n
    residual[:, 0:-2:2], residual[:, -2] = xs @ start.T - ys, query @ start.T
    return tokens


def theorem_31(phi: Sequence[Dense], *, outputs: int, num_examples: int, eta: float) -> Program:
    """Regression with representation: pre computes Phi(x) and copies y to its x, the loop descends, post reads out.

        answer = A_T Phi(x_test),  A_{k+1} = A_k - eta / N sum_j (A_k Phi(x_j) - y_j) Phi(x_j)',  A_0 = 0

    Ref: gao24, Theorem 3.1: pre has L+1 layers, loop and post have one. Pre needs one head where the paper allows two;
    L layers would also be enough, because a layer's attention and MLP can do both of its jobs. The prompt's last pair
    is the query. With fewer examples than `num_examples` = N the step is smaller in proportion.
    """
    d, width = phi[0].weight.shape[1], phi[-1].weight.shape[0]
    place = rotations(num_examples + 1)
    hidden = max(layer.weight.shape[0] for layer in phi)
    pick = np.eye(width, hidden)
    sizes = {"x": d, "y": outputs, "h": hidden, "f": width, "scaled": width, "residual": outputs, "out": outputs}
    flags = {"position": place.dim, "is_x": 1, "is_y": 1, "test": 1, "last": 1, "one": 1}
    label = Layer(
        attention=(fetch(value={"y": 2.0}, to={"residual": -1.0}),),
        mlp=(
            Put.clear("residual", IS_X),
            Put(value={"h": pick}, to={"f": 1.0}),
            Put(value={"h": pick / num_examples}, to={"scaled": 1.0}, unless=(("test", 0),)),
        ),
    )
    return Program(
        stream=Stream(sizes | flags),
        inputs={"x": np.eye(d, d + outputs), "y": np.eye(outputs, d + outputs, d)},
        positions=pair_positions(place, num_examples + 1),
        marks={"test": np.array([[1.0], [0.0]]), "last": np.array([[0.0], [1.0]])},
        pre=(*representation(phi, reads={"x": np.eye(d)}, unless=(("is_y", 0),)), label),
        loop=(descent_layer("residual", eta=eta, unless=IS_X),),
        post=(Layer(attention=(fetch(value={"residual": 2.0}, to={"out": 1.0}),)),),
        d=d,
        tokens="apart",
        read="y",
    )


def representation(phi: Sequence[Dense], *, reads: Read, unless: tuple[Coordinate, ...] = ()) -> tuple[Layer, ...]:
    """Phi in subspace `h`, one MLP for each of its layers, blocked by `unless`; attention does nothing.

    h <- h + leaky(W h + b) - h
    """
    hidden = max(layer.weight.shape[0] for layer in phi)
    layers = []
    for index, dense in enumerate(phi):
        out, inner = dense.weight.shape
        sources = {"h": np.eye(inner, hidden)} if index else reads
        weights = {name: dense.weight @ np.asarray(matrix) for name, matrix in sources.items()}
        value = weights | {"one": dense.bias[:, None]}
        put = Put(value=value, to={"h": np.eye(hidden, out)}, slope=dense.slope, unless=unless)
        layers.append(Layer(mlp=(put, Put.clear("h")) if index else (put,)))
    return tuple(layers)


def fetch(shift: float | Array = 1.0, *, value: Read, to: Write) -> Attend:
    """The mean of the values at position `shift` p_t; by default p_t itself, which the two tokens of a pair share."""
    return Attend(query={"position": shift}, key={"position": 1.0}, value=value, to=to)


def pair_positions(place: Rotations, num_pairs: int, *, x: str = "is_x", y: str = "is_y") -> dict[str, Array]:
    """A position for each pair, shared by its two tokens; flags for x and y tokens; and the constant 1."""
    turns = np.tile([[1.0], [0.0]], (num_pairs, 1))
    positions = np.repeat(place.table(range(num_pairs)), 2, axis=0)
    return {"position": positions, x: turns, y: 1.0 - turns, "one": np.ones_like(turns)}


def side_by_side(sizes: dict[str, int]) -> dict[str, Array]:
    """Input matrices that give each subspace the next coordinates of the token."""
    return {name: Stream(sizes).read({name: 1.0}) for name in sizes}
