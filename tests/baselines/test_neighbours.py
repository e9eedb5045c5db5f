import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsRegressor

from looped.baselines import neighbours
from looped.baselines.neighbours import nearest
from looped.prompt import Prompt


def prompts(batch=5, n=12, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(batch, n, d, generator=generator, dtype=torch.float64)
    return Prompt(xs, torch.randn(batch, n, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("k", [1, 3, 7, 50])
@pytest.mark.parametrize(("n", "d"), [(12, 4), (30, 20), (2, 1), (1, 3)])
def test_it_is_scikit_learns_on_every_prefix(k, n, d):
    prompt = prompts(n=n, d=d, seed=k)
    got = nearest(prompt, k).numpy()
    assert (got[:, 0] == 0).all()
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    for b in range(5):
        for i in range(1, n):
            fit = KNeighborsRegressor(min(k, i), algorithm="brute").fit(xs[b, :i], ys[b, :i])
            assert got[b, i] == pytest.approx(fit.predict(xs[b, i : i + 1])[0], rel=1e-8, abs=1e-12)


def test_three_neighbours_unless_told_otherwise():
    prompt = prompts()
    assert torch.equal(nearest(prompt), nearest(prompt, 3))


def test_the_earlier_of_equally_distant_examples_count():
    xs = torch.tensor([[[1.0], [-1.0], [1.0], [0.0]]])
    ys = torch.tensor([[5.0, 7.0, 11.0, 0.0]])
    assert nearest(Prompt(xs, ys), 1)[0].tolist() == [0, 5, 5, 5]
    assert nearest(Prompt(xs, ys), 2)[0].tolist() == [0, 5, 6, 6]


def test_small_distances_far_from_the_origin_are_told_apart():
    """|a|^2 + |b|^2 - 2ab would round them all to 0."""
    xs = 1e8 + torch.tensor([[[0.3], [0.1], [0.2], [0.0]]], dtype=torch.float64)
    prompt = Prompt(xs, torch.tensor([[3.0, 1.0, 2.0, 0.0]], dtype=torch.float64))
    assert nearest(prompt, 1)[0, 3] == 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-150, 150), factor=st.floats(-1e100, 1e100))
def test_scale_of_x_does_not_matter_and_labels_carry_theirs(seed, exponent, factor):
    prompt = prompts(batch=2, n=9, d=3, seed=seed)
    other = Prompt(prompt.xs * 2.0**exponent, prompt.ys * factor)
    torch.testing.assert_close(nearest(other), nearest(prompt) * factor, rtol=1e-12, atol=1e-300)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), shift=st.floats(-10, 10))
def test_a_common_shift_does_not_matter(seed, shift):
    prompt = prompts(batch=2, n=9, d=3, seed=seed)
    torch.testing.assert_close(nearest(Prompt(prompt.xs + shift, prompt.ys)), nearest(prompt), rtol=1e-9, atol=1e-12)


def test_chunks_change_nothing(monkeypatch):
    prompt = prompts(batch=7)
    whole = nearest(prompt)
    monkeypatch.setattr(neighbours, "CHUNK", 300)
    assert torch.equal(nearest(prompt), whole)


def test_alike_examples_and_constant_labels():
    prompt = Prompt(torch.ones(2, 6, 3), torch.full((2, 6), 4.0))
    assert nearest(prompt).tolist() == [[0, 4, 4, 4, 4, 4]] * 2
    assert np.isfinite(nearest(Prompt(torch.zeros(1, 3, 2), torch.zeros(1, 3))).numpy()).all()


def test_no_neighbour_is_refused():
    with pytest.raises(ValueError, match="`k` must be at least 1 neighbour; got 0"):
        nearest(prompts(), 0)
