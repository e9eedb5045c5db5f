import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st

from looped.constructions.compiler import Limits, construct
from looped.constructions.interpreter import interpret
from looped.constructions.language import Attend, Layer, Match, Program, Put, Stream, Sum
from looped.constructions.position_vectors import quasi_orthogonal, rotations, smallest_gap
from looped.models.algoformer import given

STREAM = Stream({"x": 3, "y": 2, "out": 2, "flag": 1, "last": 1, "one": 1})


def program(layer, *, seq=6, causal=False, flag=None, output="out"):
    flag = np.arange(seq) % 2 if flag is None else flag
    columns = {"flag": flag, "last": np.eye(seq)[0 if causal else -1], "one": np.ones(seq)}
    return Program(
        stream=STREAM,
        inputs={"x": np.eye(3, 5), "y": np.eye(2, 5, 3)},
        positions={name: np.array(value, dtype=float)[:, None] for name, value in columns.items()},
        loop=(layer,),
        output={output: 1.0},
        d=5,
        query="every",
        causal=causal,
    )


def tokens_of(seed, *, seq=6, empty=None):
    tokens = np.random.default_rng(seed).normal(size=(2, seq, 5))
    if empty is not None:
        tokens[:, empty] = 0.0
    return tokens


def compiled(written, tokens, limits=None):
    return construct(written, limits=limits).predict(given(torch.from_numpy(tokens))).numpy()


def relative(got, wanted):
    assert got.shape == wanted.shape
    return np.abs(got - wanted).max() / np.abs(wanted).max()


def test_reads_and_writes_are_matrices_in_named_coordinates():
    assert STREAM.width == 10
    assert STREAM.at("out") == slice(5, 7)
    z = np.arange(10.0)
    assert np.array_equal(STREAM.read({"y": 2.0}) @ z, [6.0, 8.0])
    assert np.array_equal(STREAM.read({"x": np.ones((1, 3)), "one": -1.0}) @ z, [3.0 - 9.0])
    assert np.array_equal(STREAM.write({"out": np.array([[1.0], [3.0]])}) @ [2.0], [0, 0, 0, 0, 0, 2, 6, 0, 0, 0])
    assert np.array_equal(STREAM.coordinate(("y", 1)) @ z, [4.0])


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda: STREAM.read({"z": 1.0}), "the stream has no subspace `z`"),
        (lambda: STREAM.read({"x": 1.0, "y": 1.0}), "all parts of a read must have the same number of rows"),
        (lambda: STREAM.read({"x": np.eye(2)}), "`x` has 3 coordinates; got a matrix of shape (2, 2)"),
        (lambda: Limits(temperature=0.0), "`temperature` must be above 0; got 0.0"),
        (lambda: rotations(5, gap=1.5), "`gap` in (0, 1); got 5 and 1.5"),
    ],
)
def test_mistakes_are_said(broken, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        broken()


@settings(max_examples=15, deadline=None)
@cases(seed=st.integers(0, 10_000), slope=st.floats(0, 5), causal=st.booleans())
def test_rows_are_exact(seed, slope, causal):
    draws = np.random.default_rng(seed)
    rows = (
        Put(value={"x": draws.normal(size=(2, 3)), "one": draws.normal(size=(2, 1))}, to={"out": 1.0}, slope=slope),
        Put(value={"y": 1.0}, to={"out": draws.normal(size=(2, 2))}, unless=(("flag", 0),)),
        Put(value={"y": -1.0}, to={"y": 1.0}),
    )
    written, tokens = program(Layer(mlp=rows), causal=causal), tokens_of(seed)
    wanted = []
    for z in tokens.reshape(-1, 5):
        v = rows[0].value["x"] @ z[:3] + rows[0].value["one"][:, 0]
        out = np.where(v > 0, v, slope * v)
        wanted.append(out + (0 if len(wanted) % 2 else rows[1].to["out"] @ z[3:]))
    wanted = np.reshape(wanted, (2, 6, 2))
    assert relative(interpret(written, tokens), wanted) < 1e-14
    assert relative(compiled(written, tokens), wanted) < 1e-14
    assert np.array_equal(compiled(replace(written, output={"y": 1.0}), tokens), np.zeros((2, 6, 2)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_sum_is_linear_attention_in_the_limit(seed, causal):
    draws = np.random.default_rng(seed)
    a, b, v = draws.normal(size=(4, 3)), draws.normal(size=(4, 2)), draws.normal(size=(2, 3))
    layer = Layer(attention=(Sum(query={"x": a}, key={"y": b}, value={"x": v}, to={"out": 3.0}, anchor="last"),))
    written, tokens = program(layer, causal=causal), tokens_of(seed, empty=0 if causal else -1)
    wanted = np.zeros((2, 6, 2))
    for batch, i, j in np.ndindex(2, 6, 6):
        if j <= i or not causal:
            score = (a @ tokens[batch, i, :3]) @ (b @ tokens[batch, j, 3:])
            wanted[batch, i] += 3 * score * (v @ tokens[batch, j, :3])
    assert relative(interpret(written, tokens), wanted) < 1e-14
    for symmetric, order in ((True, 2), (False, 1)):
        kind = {"symmetric": symmetric}
        coarse, fine = (
            relative(compiled(written, tokens, Limits(temperature=c, **kind)), wanted) for c in (1e-2, 1e-3)
        )
        assert np.log10(coarse / fine) == pytest.approx(order, abs=0.1)
    assert relative(compiled(written, tokens, Limits(temperature=1e-5)), wanted) < 1e-8


def test_a_low_anchor_errs_as_the_tokens_it_does_not_outweigh():
    layer = Layer(attention=(Sum(query={"x": 1.0}, key={"x": 1.0}, value={"y": 1.0}, to={"out": 1.0}, anchor="last"),))
    written, tokens = program(layer), tokens_of(0, empty=-1)
    wanted = interpret(written, tokens)
    errors = [
        relative(compiled(written, tokens, Limits(anchor=high, temperature=1e-5)), wanted) for high in (5, 10, 20)
    ]
    assert errors[0] / errors[1] == pytest.approx(np.exp(5), rel=0.1)
    assert errors[2] < 1e-6 < errors[1] < 1e-3 < errors[0]


def test_a_match_leaves_tokens_out_of_a_sum():
    match = Match(query={"one": 1.0}, key={"flag": -1.0}, top=0.0)
    total = Sum(query={"y": 1.0}, key={"y": 1.0}, value={"y": 1.0}, to={"out": 1.0}, anchor="last", match=match)
    flag = np.array([0.0, 1, 0, 1, 1, 0])
    written, tokens = program(Layer(attention=(total,)), flag=flag), tokens_of(3, empty=-1)
    ys = tokens[:, flag == 0, 3:]
    wanted = np.einsum("bid,bjd,bjm->bim", tokens[..., 3:], ys, ys)
    assert relative(interpret(written, tokens), wanted) < 1e-14
    assert relative(compiled(written, tokens, Limits(temperature=1e-5)), wanted) < 1e-8
    without = program(Layer(attention=(replace(total, match=None),)), flag=flag)
    assert relative(compiled(without, tokens), wanted) > 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_attending_takes_the_mean_over_the_best(causal):
    layer = Layer(attention=(Attend(query={"one": 1.0}, key={"flag": 1.0}, value={"y": 1.0}, to={"out": 1.0}),))
    written, tokens = program(layer, causal=causal), tokens_of(4)
    chosen = [[j for j in range(6) if (j <= i or not causal) and (j % 2 == 1 or (causal and i == 0))] for i in range(6)]
    wanted = np.stack([tokens[:, best, 3:].mean(1) for best in chosen], 1)
    assert relative(interpret(written, tokens), wanted) < 1e-14
    assert relative(compiled(written, tokens), wanted) < 1e-14
    assert relative(compiled(written, tokens, Limits(sharpness=5.0)), wanted) > 1e-4


@pytest.mark.parametrize("empty", [None, 2])
def test_an_anchor_that_gives_or_scores_is_refused(empty):
    layer = Layer(attention=(Sum(query={"x": 1.0}, key={"x": 1.0}, value={"y": 1.0}, to={"out": 1.0}, anchor="last"),))
    with pytest.raises(ValueError, match="a sum needs a token where `last` is 1, with value and scores 0"):
        interpret(program(layer), tokens_of(0, empty=empty))


def test_attention_acts_at_once_then_rows_see_its_result():
    layer = Layer(
        attention=(
            Attend(query={"one": 1.0}, key={"flag": 1.0}, value={"y": 1.0}, to={"y": 1.0}),
            Attend(query={"one": 1.0}, key={"flag": 1.0}, value={"y": 1.0}, to={"out": 1.0}),
        ),
        mlp=(Put(value={"y": 1.0}, to={"out": 10.0}),),
    )
    assert layer.heads == 2
    written, tokens = program(layer), tokens_of(5)
    mean = tokens[:, 1::2, 3:].mean(1, keepdims=True)
    wanted = mean + 10 * (tokens[..., 3:] + mean)
    assert relative(interpret(written, tokens), wanted) < 1e-14
    assert relative(compiled(written, tokens), wanted) < 1e-14


def test_the_shape_is_the_least_that_holds_the_program():
    written = program(Layer(mlp=(Put(value={"x": 1.0}, to={"x": 1.0}),)))
    config = construct(written, loops=7).config
    assert (config.loop.layers, config.loop.heads, config.loop.hidden) == (1, 1, 6)
    assert (config.pre.layers, config.post.layers, config.loops) == (0, 0, 7)
    assert config.subspaces == tuple(STREAM.spaces.items())
    assert written.counts() == {"pre": (0, 0), "loop": (1, 0), "post": (0, 0)}


@pytest.mark.parametrize("count", [2, 7, 40, 300])
@pytest.mark.parametrize("seed", [0, 1])
def test_positions_stand_apart_in_few_dimensions(count, seed):
    vectors, turning = quasi_orthogonal(count, seed=seed), rotations(count, seed=seed)
    table = turning.table(range(count))
    for points in (vectors, table):
        products = points @ points.T
        others = products[~np.eye(count, dtype=bool)]
        assert others.max() <= 1 - 0.5 + 1e-12
        assert np.allclose(np.diag(products), 1.0)
        assert points.shape[1] <= 16 * np.log(count) + 1
    assert smallest_gap(table) == pytest.approx(turning.gap(count), abs=1e-12)
    assert np.abs(turning.shift(-2) @ turning.table(range(2, count + 2)).T - table.T).max() < 1e-12
