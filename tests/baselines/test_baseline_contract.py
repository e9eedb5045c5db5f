"""What every baseline must do. A new baseline goes into `BASELINES`."""

from functools import partial

import pytest
import torch

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


@pytest.mark.parametrize("name", BASELINES)
def test_it_reads_only_the_pairs_before_and_starts_at_zero(name):
    generator = torch.Generator().manual_seed(0)
    xs = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    prompt, baseline = Prompt(xs, torch.randn(3, 9, generator=generator, dtype=torch.float64)), BASELINES[name]
    whole = baseline(prompt)
    assert whole.shape == (3, 9)
    assert whole.dtype == torch.float64
    assert not whole[:, 0].any()
    assert whole[:, 1:].any()
    for i in range(9):
        xs, ys = prompt.xs.clone(), prompt.ys.clone()
        xs[:, i + 1 :], ys[:, i:] = 3.0, 99
        torch.testing.assert_close(baseline(Prompt(xs, ys))[:, : i + 1], whole[:, : i + 1], rtol=1e-11, atol=1e-12)
