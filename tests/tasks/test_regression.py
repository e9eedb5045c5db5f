from itertools import combinations

import pytest
import torch
from scipy import stats

from looped.tasks.regression import LinearRegression, SparseRegression
from tasks.drawing import draw


def test_labels_are_linear_in_x():
    prompt = draw(LinearRegression(d=5), batch=50)
    labels = (prompt.xs.double() * prompt.truth["w"].double()[:, None]).sum(-1)
    torch.testing.assert_close(prompt.ys.double(), labels, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["x", "w"])
def test_x_and_w_are_standard_normal(name):
    prompt = draw(LinearRegression(d=5), batch=5000)
    values = prompt.xs[:, 0] if name == "x" else prompt.truth["w"]
    assert stats.kstest(values.flatten().numpy(), "norm").pvalue > 0.01
    correlation = torch.corrcoef(values.T) - torch.eye(5)
    assert correlation.abs().max() < 4 / 5000**0.5


def test_w_does_not_depend_on_x():
    prompt = draw(LinearRegression(d=1), batch=5000, n=1)
    pairs = torch.stack((prompt.xs[:, 0, 0], prompt.truth["w"][:, 0]))
    assert torch.corrcoef(pairs)[0, 1].abs() < 4 / 5000**0.5


@pytest.mark.parametrize("make", [LinearRegression, SparseRegression])
def test_noise_is_normal_with_its_standard_deviation(make):
    prompt = draw(make(d=5, noise=0.3), batch=2000)
    noise = prompt.ys.double() - torch.einsum("bnd,bd->bn", prompt.xs.double(), prompt.truth["w"].double())
    assert stats.kstest(noise.flatten().numpy() / 0.3, "norm").pvalue > 0.01


def test_noise_leaves_x_and_w_as_they_were():
    clean, noisy = (draw(LinearRegression(d=3, noise=noise), batch=5) for noise in (0.0, 1.0))
    assert torch.equal(clean.xs, noisy.xs)
    assert torch.equal(clean.truth["w"], noisy.truth["w"])


@pytest.mark.parametrize("dims", [None, 6, 4, 3, torch.tensor(5)])
def test_sparse_support_is_uniform_among_the_active_places(dims):
    active = 6 if dims is None else int(dims)
    w = draw(SparseRegression(d=6, nonzero=3), batch=6000, n=1, dims=dims).truth["w"]
    support = w != 0
    assert (support.sum(1) == 3).all()
    assert not support[:, active:].any()
    codes = (support[:, :active].long() * 2 ** torch.arange(active)).sum(1)
    every = [sum(2**place for place in places) for places in combinations(range(active), 3)]
    counts = [int((codes == code).sum()) for code in every]
    assert sum(counts) == 6000
    assert len(every) == 1 or stats.chisquare(counts).pvalue > 0.01


def test_sparse_entries_are_standard_normal():
    w = draw(SparseRegression(d=6, nonzero=3), batch=2000, n=1).truth["w"]
    assert stats.kstest(w[w != 0].numpy(), "norm").pvalue > 0.01


def test_fewer_active_places_than_nonzeros_are_all_used():
    w = draw(SparseRegression(d=6, nonzero=3), batch=100, dims=2).truth["w"]
    assert (w[:, :2] != 0).all()
    assert (w[:, 2:] == 0).all()


def test_all_nonzero_is_plain_linear_regression():
    assert SparseRegression(d=4, nonzero=4).label_variance == LinearRegression(d=4).label_variance
    assert (draw(SparseRegression(d=4, nonzero=4), batch=100).truth["w"] != 0).all()


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (LinearRegression, {"d": 0}, "`d` must be at least 1; got 0"),
        (LinearRegression, {"d": -3}, "`d` must be at least 1; got -3"),
        (LinearRegression, {"noise": -0.1}, "`noise` is a standard deviation, at least 0; got -0.1"),
        (SparseRegression, {"noise": -0.1}, "`noise` is a standard deviation"),
        (SparseRegression, {"d": 5, "nonzero": 6}, r"`nonzero` must be in \[1, d=5\]; got 6"),
        (SparseRegression, {"nonzero": 0}, r"`nonzero` must be in \[1, d=20\]; got 0"),
    ],
)
def test_bad_fields_are_refused(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields)
