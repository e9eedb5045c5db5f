"""What every baseline must do. A new baseline goes into `BASELINES`."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares, ridge
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.prompt import Prompt

BASELINES = {
    "least squares": least_squares,
    "ridge": partial(ridge, penalty=0.5),
    "averaging": averaging,
    "lasso": lasso,
    "neighbours": nearest,
    "network": partial(two_layer, hidden=5, steps=5),
    "tree": greedy_tree,
    "tree on signs": on_signs(greedy_tree),
    "boosted": partial(boosted, trees=3),
}


CLOSED_FORM = ["least squares", "ridge", "averaging", "lasso", "neighbours"]


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    return Prompt(xs, torch.randn(3, 9, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("name", BASELINES)
def test_it_reads_only_the_pairs_before_and_starts_at_zero(name):
    prompt, baseline = drawn(0), BASELINES[name]
    whole = baseline(prompt)
    assert whole.shape == (3, 9)
    assert whole.dtype == torch.float64
    assert not whole[:, 0].any()
    assert whole[:, 1:].any()
    for i in range(9):
        xs, ys = prompt.xs.clone(), prompt.ys.clone()
        xs[:, i + 1 :], ys[:, i:] = 3.0, 99
        torch.testing.assert_close(baseline(Prompt(xs, ys))[:, : i + 1], whole[:, : i + 1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CLOSED_FORM)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_order_of_examples_and_coordinates_does_not_matter(name, seed):
    prompt, draws = drawn(seed), np.random.default_rng(seed)
    order, columns = [*draws.permutation(8), 8], draws.permutation(4)
    answer = BASELINES[name](Prompt(prompt.xs[:, order][..., columns], prompt.ys[:, order]))
    torch.testing.assert_close(answer[:, -1], BASELINES[name](prompt)[:, -1], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_it_computes_in_float64(name):
    single = drawn(1).to(torch.float32)
    assert torch.equal(BASELINES[name](single), BASELINES[name](single.to(torch.float64)))
