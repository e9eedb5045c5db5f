"""Planted failures of gao24's theorems: weights with a wrong step, labels, activation or position vectors."""

from dataclasses import replace

import numpy as np
from theorem_plants import Plant

from looped.constructions.language import Layer

PROGRAMS = "looped.constructions.gao24"
SHIFT = "looped.constructions.position_vectors.Rotations.shift"


def wrong_step(layer):
    """The layer with steps that are 1% longer."""
    return lambda *targets, eta, **fields: layer(*targets, eta=1.01 * eta, **fields)


def backwards(shift):
    """Positions are shifted the other way."""
    return lambda place, steps: shift(place, -steps)


def twins(vectors):
    """The first two vectors are equal."""
    return lambda count: np.concatenate([vectors(count)[:1], vectors(count)[:-1]])


def without_mlp(layer):
    """The layer's MLP is left out, M <- M - M S M, and its heads are there twice."""
    return lambda: replace(layer(), mlp=(), attention=layer().attention * 2)


def twice(layer):
    """All heads are there twice: steps twice as long."""
    return lambda **fields: replace(layer(**fields), attention=layer(**fields).attention * 2)


def relu_instead(representation):
    """Phi's weights with ReLU for the leaky ReLU, and one layer that does nothing."""
    return lambda phi, **fields: (*representation([replace(dense, slope=0.0) for dense in phi], **fields), Layer())


def as_printed(program):
    """The states themselves as labels, and post a second time."""
    return lambda **fields: replace(program(**fields | {"invert": False}), post=program(**fields).post * 2)


def doubled_penalty(layer):
    """Twice the penalty, and all heads are there twice."""

    def planted(*, eta, penalty):
        wrong = layer(eta=eta, penalty=2 * penalty)
        return replace(wrong, attention=wrong.attention * 2)

    return planted


def halved_inverses(newton):
    """Newton's iterates without their doubling."""
    return lambda s, start, *, steps: newton(s, start, steps=steps) / 2


PLANTS: list[Plant] = [
    Plant(
        theorem="gao24.lemA.1",
        rows=(0,),
        target="looped.theorems.gao24.lemmas.quasi_orthogonal",
        change=twins,
        why="two positions share a vector",
    ),
    Plant(
        theorem="gao24.lemA.1",
        rows=(1,),
        target="looped.theorems.gao24.lemmas.quasi_orthogonal",
        change=lambda vectors: np.eye,
        why="N dimensions",
    ),
    Plant(theorem="gao24.lemA.1", rows=(2,), target=SHIFT, change=backwards, why="shifted the other way"),
    Plant(
        theorem="gao24.lemA.2",
        rows=(0, 1),
        target=f"{PROGRAMS}.gradient.descent_layer",
        change=wrong_step,
        why="steps 1% too long",
    ),
    Plant(theorem="gao24.lemA.3", rows=(0, 1), target=SHIFT, change=backwards, why="copies of later tokens"),
    Plant(
        theorem="gao24.lemA.4",
        rows=(0, 1, 2),
        target=f"{PROGRAMS}.newton_regression.newton_layer",
        change=without_mlp,
        why="M is not doubled",
    ),
    Plant(
        theorem="gao24.lemA.5",
        rows=(0, 1, 3),
        target=f"{PROGRAMS}.prefix_descent.decoder_layer",
        change=wrong_step,
        why="steps 1% too long",
    ),
    Plant(
        theorem="gao24.sec2.2",
        rows=(0,),
        target=f"{PROGRAMS}.remarks.GATE",
        change=lambda gate: 0.1,
        why="parts that are not at work are not switched off",
    ),
    Plant(
        theorem="gao24.sec2.2",
        rows=(1,),
        target=f"{PROGRAMS}.remarks.fuse",
        change=lambda fuse: lambda model: fuse(model, heads=5),
        why="five heads",
    ),
    Plant(
        theorem="gao24.sec3.1",
        rows=(0, 1, 2),
        target=f"{PROGRAMS}.remarks.ridge_layer",
        change=doubled_penalty,
        why="twice the penalty, by four heads",
    ),
    Plant(
        theorem="gao24.sec5.4",
        rows=(0, 2),
        target=f"{PROGRAMS}.cases.newton",
        change=halved_inverses,
        why="half of every inverse",
    ),
    Plant(
        theorem="gao24.thm3.1",
        rows=(0, 1, 2),
        target=f"{PROGRAMS}.gradient.representation",
        change=relu_instead,
        why="another Phi in the weights, and one layer more",
    ),
    Plant(
        theorem="gao24.thm3.2",
        rows=(0, 1, 2),
        target=f"{PROGRAMS}.sequence.representation",
        change=relu_instead,
        why="another Phi in the weights, and one layer more",
    ),
    Plant(
        theorem="gao24.thm3.3",
        rows=(0, 1, 3, 4),
        target=f"{PROGRAMS}.sequence.theorem_33",
        change=as_printed,
        why="states themselves as labels, and one layer more",
    ),
    Plant(
        theorem="gao24.thm4.1",
        rows=(0, 1, 2, 4, 5),
        target=f"{PROGRAMS}.newton_regression.newton_layer",
        change=without_mlp,
        why="M is not doubled, and there are four heads",
    ),
    Plant(
        theorem="gao24.thm4.2",
        rows=(0, 1, 2),
        target=f"{PROGRAMS}.prefix_descent.decoder_layer",
        change=twice,
        why="steps twice as long, by four heads",
    ),
]
"""Changes under which checks of gao24 fail."""
