"""Decision trees: labels against a walk written out in Python, and the distribution of every part."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from looped.tasks.trees import DecisionTree
from tasks.drawing import draw


def walk(x, features, leaves):
    """The definition, one point at a time, with the two halves of the tree below each node."""
    inner, left = list(range(len(features))), list(range(len(leaves)))
    node = 0
    while inner and node < len(features):
        right = x[features[node]] > 0
        left = left[len(left) // 2 :] if right else left[: len(left) // 2]
        node = 2 * node + (2 if right else 1)
    assert len(left) == 1
    return leaves[left[0]]


@settings(max_examples=20, deadline=None)
@given(depth=st.integers(0, 6), d=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_labels_are_the_leaves_at_the_end_of_the_walk(depth, d, seed):
    prompt = draw(DecisionTree(d=d, depth=depth), batch=3, n=9, seed=seed)
    xs, features, leaves = prompt.xs.numpy(), prompt.truth["features"].numpy(), prompt.truth["leaves"].numpy()
    assert features.shape == (3, 2**depth - 1)
    assert leaves.shape == (3, 2**depth)
    expected = [[walk(x, features[b], leaves[b]) for x in xs[b]] for b in range(3)]
    np.testing.assert_array_equal(prompt.ys.numpy(), expected)


@pytest.mark.parametrize("dims", [None, 6, 4, 1, torch.tensor(5)])
def test_split_features_are_uniform_among_the_active_coordinates(dims):
    active = 6 if dims is None else int(dims)
    prompt = draw(DecisionTree(d=6, depth=3), batch=2000, n=1, dims=dims)
    features = prompt.truth["features"]
    assert not prompt.xs[..., active:].any()
    assert features.min() >= 0
    assert features.max() < active
    for node in range(7):
        counts = torch.bincount(features[:, node], minlength=active).numpy()
        assert active == 1 or stats.chisquare(counts).pvalue > 1e-3
    if active > 1:  # nodes are independent of each other
        pairs = features[:, 0] * active + features[:, 1]
        assert stats.chisquare(torch.bincount(pairs, minlength=active**2).numpy()).pvalue > 1e-3


def test_leaves_labels_and_x_are_standard_normal():
    prompt = draw(DecisionTree(d=5), batch=2000, n=3)
    assert stats.kstest(prompt.truth["leaves"].flatten().numpy(), "norm").pvalue > 0.01
    assert stats.kstest(prompt.xs.flatten().numpy(), "norm").pvalue > 0.01
    assert stats.kstest(prompt.ys[:, 0].numpy(), "norm").pvalue > 0.01
    assert draw(DecisionTree(d=5), batch=20_000, n=1, seed=1).ys.square().mean().item() == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("depth", [1, 3])
def test_leaves_are_reached_as_often_as_signs_and_features_say(depth):
    """A feature met twice on the way turns the same way twice, so the outer leaves are met more often."""
    expected = np.zeros(2**depth)
    for path in itertools.product(range(4), repeat=depth):
        for signs in itertools.product((0, 1), repeat=4):
            expected[int("".join(str(signs[feature]) for feature in path), 2)] += 1
    prompt = draw(DecisionTree(d=4, depth=depth), batch=4000, n=1)
    reached = (prompt.ys[:, :, None] == prompt.truth["leaves"][:, None]).long().argmax(-1).flatten()
    counts = torch.bincount(reached, minlength=2**depth).numpy()
    assert stats.chisquare(counts, 4000 * expected / expected.sum()).pvalue > 1e-3


def test_depth_is_the_number_of_coordinates_a_label_reads():
    """With all features different, flipping the sign of the `depth` coordinates on the way changes y; others do not."""
    task = DecisionTree(d=15, depth=4)
    generator = torch.Generator().manual_seed(0)
    xs = torch.randn(6, 1, 15, generator=generator)
    truth = {
        "features": torch.rand(6, 15, generator=generator).argsort(1),
        "leaves": torch.randn(6, 16, generator=generator),
    }
    ys = task.labels(xs, truth)
    changed = torch.stack([task.labels(xs * (1 - 2 * (torch.arange(15) == c).float()), truth) != ys for c in range(15)])
    assert (changed.sum(0) == 4).all()
    assert torch.equal(task.labels(3.0 * xs, truth), ys), "only signs are read"


def test_the_tree_does_not_depend_on_x():
    prompt = draw(DecisionTree(d=1, depth=1), batch=5000, n=1)
    x = prompt.xs[:, 0, 0]
    for other in prompt.truth["leaves"].T:
        assert torch.corrcoef(torch.stack((x, other)))[0, 1].abs() < 4 / 5000**0.5
    deep = draw(DecisionTree(d=3, depth=1), batch=5000, n=1)
    pairs = torch.stack((deep.xs[:, 0, 0], deep.truth["features"][:, 0].float()))
    assert torch.corrcoef(pairs)[0, 1].abs() < 4 / 5000**0.5


@pytest.mark.parametrize("depth", [-1, 17])
def test_bad_depths_are_refused(depth):
    with pytest.raises(ValueError, match=rf"`depth` must be in \[0, 16\].*got {depth}"):
        DecisionTree(depth=depth)
