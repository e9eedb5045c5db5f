"""The looped encoder of tables: against NumPy, and what it promises about order, signs, units and queries."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.functional.kernel_regression import regressions
from looped.models.table_transformer import (
    LINEAR_WITHIN,
    TableTransformerConfig,
    answer_rows,
    compressed,
    standardized,
)
from looped.prompt import Prompt

CONFIG = TableTransformerConfig(d=4, width=8, heads=2, queries=3, quantiles=2, loops=3)
ADVISED = replace(CONFIG, regressions=True)
both = pytest.mark.parametrize("config", [CONFIG, ADVISED], ids=["alone", "with regressions"])


def model(config=CONFIG, seed=0):
    """In float64, far from its small initial weights."""
    torch.manual_seed(seed)
    built = config.build().double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built.eval()


def rows(m=9, queries=5, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(m + queries, d, generator=generator).double() * torch.tensor([1.0, 3.0, 0.2, 5.0][:d]) + 2
    ys = xs[:, 0] - 0.3 * xs[:, 1] + 0.1 * torch.randn(m + queries, generator=generator)
    return xs[:m], ys[:m], xs[m:]


def by_numpy(built, xs, ys, queries):
    """The forward pass for one query at a time, with loops over rows and heads."""
    weight = {name: value.detach().numpy() for name, value in built.named_parameters()}
    width, heads = built.config.width, built.config.heads

    def norm(v, name):
        v = (v - v.mean()) / math.sqrt(v.var() + 1e-5)
        return v * weight[f"{name}.weight"] + weight[f"{name}.bias"]

    def squash(v):
        return v if abs(v) <= LINEAR_WITHIN else math.copysign(LINEAR_WITHIN + math.log(abs(v) - LINEAR_WITHIN + 1), v)

    mean, unit = ys.mean(), ys.std()
    labels = (ys - mean) / unit
    scaled = (np.vstack([xs, queries]) - xs.mean(0)) / xs.std(0)
    strength = scaled[: len(ys)].T @ labels
    order = np.argsort(-abs(strength))
    scaled = (scaled * np.where(strength < 0, -1, 1))[:, order]
    count = math.log(1 + len(ys)) / 4
    tokens = [weight["learned_token"][0]]
    scaled, labels = np.vectorize(squash)(scaled), np.vectorize(squash)(labels)
    shown = np.zeros((len(scaled), 0))
    if built.config.regressions:
        parts = map(torch.from_numpy, (scaled[: len(ys)], labels, scaled[len(ys) :]))
        answered = np.vectorize(squash)(np.vstack(regressions(*parts)))
        losses = np.square(answered[: len(ys)] - labels[:, None]).mean(0)
        shown = np.hstack([answered, np.tile(np.log(np.clip(losses, 1e-4, 10)) / 4, (len(scaled), 1))])
    for index, row in enumerate(scaled):
        known = [labels[index], 1.0] if index < len(ys) else [0.0, 0.0]
        token = np.array([*row, *known, count, *shown[index]])
        tokens.append(weight["read_in.weight"] @ token + weight["read_in.bias"])
    readable = 1 + len(ys)
    state = [np.zeros(width) for _ in tokens]
    for _ in range(built.config.loops):
        stream = [y + p for y, p in zip(state, tokens, strict=True)]
        normed = [norm(v, "block.norm_1") for v in stream]
        q, k, v = np.split(np.stack(normed) @ weight["block.attention.qkv.weight"].T, 3, axis=1)
        q_bias, _, v_bias = np.split(weight["block.attention.qkv.bias"], 3)
        q, v = q + q_bias, v + v_bias
        state = []
        for index, token in enumerate(stream):
            mixed = []
            for head in range(heads):
                part = slice(head * width // heads, (head + 1) * width // heads)
                scores = np.exp(k[:readable, part] @ q[index, part] / math.sqrt(width // heads))
                mixed.append(scores / scores.sum() @ v[:readable, part])
            projected = weight["block.attention.proj.weight"] @ np.concatenate(mixed)
            new = token + projected + weight["block.attention.proj.bias"]
            hidden = weight["block.mlp.fc.weight"] @ norm(new, "block.norm_2") + weight["block.mlp.fc.bias"]
            hidden = hidden / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            new = new + weight["block.mlp.proj.weight"] @ hidden + weight["block.mlp.proj.bias"]
            state.append(norm(new, "norm"))
    asked = np.stack(state[readable:])
    answers = asked @ weight["read_out.weight"].T + weight["read_out.bias"]
    if built.config.regressions:
        shares = asked @ weight["read_out_shares.weight"].T + weight["read_out_shares.bias"]
        answers += (shares * answered[len(ys) :]).sum(1, keepdims=True)
    return mean + unit * answers


@both
def test_equals_numpy(config):
    built, (xs, ys, queries) = model(config), rows()
    expected = by_numpy(built, xs.numpy(), ys.numpy(), queries.numpy())
    np.testing.assert_allclose(answer_rows(built, xs, ys, queries), expected, rtol=1e-10, atol=1e-12)


@both
def test_the_last_pairs_are_queries_in_training_and_the_last_alone_else(config):
    built, (xs, ys, queries) = model(config), rows(m=9, queries=3)
    expected = answer_rows(built, xs, ys, queries)
    # any labels: a query's own is not read
    prompt = Prompt(torch.cat([xs, queries])[None], torch.cat([ys, torch.full((3,), 1e9).double()])[None])
    with torch.no_grad():
        torch.testing.assert_close(built.train()(prompt)[-1][0], expected, rtol=1e-10, atol=1e-10)
    alone = Prompt(torch.cat([xs, queries[:1]])[None], torch.cat([ys, ys[:1]])[None])
    torch.testing.assert_close(built.eval().predict(alone)[0], expected[:1, 0], rtol=1e-10, atol=1e-10)
    # fewer pairs than queries: one example is left
    assert built.train().predict(prompt.head(2)).shape == (1, 1, 3)


@both
def test_the_order_of_rows_and_features_and_their_signs_do_not_matter(config):
    built, (xs, ys, queries) = model(config), rows()
    expected = answer_rows(built, xs, ys, queries)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(answer_rows(built, xs[order], ys[order], queries), expected, rtol=1e-9, atol=1e-9)
    columns, signs = torch.tensor([2, 0, 3, 1]), torch.tensor([1.0, -1.0, -1.0, 1.0]).double()
    moved = answer_rows(built, xs[:, columns] * signs, ys, queries[:, columns] * signs)
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)


@both
def test_units_and_offsets_scale_the_answers(config):
    built, (xs, ys, queries) = model(config), rows()
    expected = answer_rows(built, xs, ys, queries)
    unit, offset = torch.tensor([10.0, 0.1, 3.0, 7.0]).double(), torch.tensor([5.0, -3.0, 0.0, 1.0]).double()
    answers = answer_rows(built, xs * unit + offset, 100 * ys - 7, queries * unit + offset)
    torch.testing.assert_close(answers, 100 * expected - 7, rtol=1e-8, atol=1e-8)


@both
def test_queries_do_not_read_each_other(config):
    built, (xs, ys, queries) = model(config), rows()
    expected = answer_rows(built, xs, ys, queries)
    torch.testing.assert_close(answer_rows(built, xs, ys, queries[2:3]), expected[2:3], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(answer_rows(built, xs[:-1], ys[:-1], queries), expected), "and they do read the examples"


@both
def test_without_examples_and_with_constant_columns_answers_are_finite(config):
    built = model(config)
    zeros = torch.zeros(1, 4).double()
    assert built.predict(Prompt(zeros[None], torch.ones(1, 1).double())).isfinite().all()
    xs, _, queries = rows()
    xs[:, 2], queries[:, 2] = 0.1, 5.0
    assert answer_rows(built, xs, torch.full((9,), 0.3).double(), queries).isfinite().all()


def test_standardized_and_compressed():
    xs = torch.tensor([[1.0, 5.0], [3.0, 5.0]]).double()
    scaled, mean, unit = standardized(xs)
    assert scaled.tolist() == [[-1, 0], [1, 0]]
    assert (mean.tolist(), unit.tolist()) == ([[2, 5]], [[1, 1]])
    values = torch.tensor([-5.0, -3.0, 0.5, 3.0, 4.0]).double()
    expected = torch.tensor([-3 - math.log(3), -3, 0.5, 3, 3 + math.log(2)]).double()
    torch.testing.assert_close(compressed(values), expected)


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"width": 9}, "multiple of heads=2"), ({"queries": 0}, "`queries` must be at least 1"), ({"quantiles": -1}, "0")],
)
def test_bad_fields(fields, said):
    with pytest.raises(ValueError, match=said):
        replace(CONFIG, **fields)


def test_another_dimension_is_refused():
    with pytest.raises(ValueError, match="reads x of dimension 4; got 3"):
        model()(Prompt(torch.zeros(1, 5, 3).double(), torch.zeros(1, 5).double()))
