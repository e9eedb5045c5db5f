import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.config import decode, encode
from looped.experiment import Setup
from looped.models.decoder import DecoderConfig
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.shifts import (
    CovarianceWindow,
    DifferentOrthants,
    EqualQuery,
    HalfSubspace,
    NoisyOutputs,
    OrthogonalQuery,
    ScaledLabels,
    ScaledX,
    Shifted,
    SkewedCovariance,
    shifts_by_name,
)
from looped.tasks.task import Task
from looped.tasks.trees import DecisionTree

ALL = [
    SkewedCovariance(),
    HalfSubspace(),
    ScaledX(factor=0.5),
    CovarianceWindow(),
    OrthogonalQuery(),
    EqualQuery(),
    DifferentOrthants(),
    DifferentOrthants(opposite=True),
    NoisyOutputs(),
    NoisyOutputs(std=2.0, rescale=False),
    ScaledLabels(factor=2.0),
]
LABELLED = [
    LinearRegression(d=6),
    SparseRegression(d=6, nonzero=2),
    DecisionTree(d=6, depth=2),
    ReLUNetwork(d=6, hidden=10),
]
names = [f"{index}-{type(shift).__name__}" for index, shift in enumerate(ALL)]


def ask(task, *shifts, method="questions", batch=50, n=9, seed=0, dims=None):
    draw = getattr(Shifted(task=task, shifts=shifts), method)
    return draw(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), dims=dims)


sample = partial(ask, method="sample")


def test_no_shift_changes_nothing():
    for task in (*LABELLED, LinearRegression(d=3, noise=1.0), GaussianProcess()):
        plain = task.sample(batch=5, n=7, generator=torch.Generator().manual_seed(3))
        shifted = sample(task, batch=5, seed=3, n=7)
        assert torch.equal(plain.xs, shifted.xs)
        assert torch.equal(plain.ys, shifted.ys)
        assert all(torch.equal(plain.truth[name], shifted.truth[name]) for name in plain.truth)
        assert Shifted(task=task).label_variance == task.label_variance


def test_skewed_covariance_has_condition_number_400_and_trace_d():
    """Against the covariance of many x of one prompt, whose eigenvalues are 1/i^2 up to sampling."""
    xs = ask(LinearRegression(d=20), SkewedCovariance(), batch=3, n=50_000).prompt.xs.double()
    expected = 1 / np.arange(1, 21) ** 2
    expected *= 20 / expected.sum()
    assert expected[0] / expected[-1] == pytest.approx(400)
    bases = []
    for prompt in xs:
        values, vectors = np.linalg.eigh(np.cov(prompt.numpy().T))
        assert values[::-1] == pytest.approx(expected, rel=0.05)
        assert values.sum() == pytest.approx(20, rel=0.05)
        assert values[-1] / values[0] == pytest.approx(400, rel=0.05)
        bases.append(vectors[:, -1])
    overlaps = np.abs(np.triu(np.array(bases) @ np.array(bases).T, 1)).max()
    assert overlaps < 0.95, "every prompt has axes of its own"


def test_the_rotation_is_uniform():
    """The leading axis points everywhere: its second moments are I / d."""
    xs = ask(LinearRegression(d=3), SkewedCovariance(), batch=4000, n=200).prompt.xs.double().numpy()
    leading = np.linalg.eigh(xs.transpose(0, 2, 1) @ xs)[1][:, :, -1]
    assert leading.T @ leading / len(leading) == pytest.approx(np.eye(3) / 3, abs=0.03)


@pytest.mark.parametrize("d", [1, 4, 7])
def test_half_subspace_has_half_the_rank_and_the_same_length(d):
    rank = max(1, d // 2)
    xs = ask(LinearRegression(d=d), HalfSubspace(), batch=400, n=2 * d + 3).prompt.xs.double()
    values = np.linalg.svd(xs.numpy(), compute_uv=False)
    assert (values[:, rank - 1] > 1e-3).all()
    assert (values[:, rank:] < 1e-4).all()
    assert xs.square().sum(-1).mean() == pytest.approx(d, rel=0.1)


@pytest.mark.parametrize("factor", [1 / 3, 1 / 2, 2.0, 3.0])
@pytest.mark.parametrize("task", LABELLED, ids=lambda task: type(task).__name__)
def test_scaled_x_is_labelled_at_the_scaled_x(task, factor):
    plain, prompt = sample(task), sample(task, ScaledX(factor=factor))
    assert torch.allclose(prompt.xs, factor * plain.xs)
    assert torch.allclose(prompt.ys, factor**task.degree * plain.ys, rtol=1e-4, atol=1e-5)
    assert torch.allclose(prompt.ys, task.labels(prompt.xs, prompt.truth))
    variance = task.label_variance * factor ** (2 * task.degree)
    assert Shifted(task=task, shifts=(ScaledX(factor=factor),)).label_variance == pytest.approx(variance)


def test_scaled_labels_are_scaled_and_the_truth_is_gone():
    plain, prompt = sample(GaussianProcess()), sample(GaussianProcess(), ScaledLabels(factor=3.0))
    assert torch.equal(prompt.xs, plain.xs)
    assert torch.allclose(prompt.ys, 3 * plain.ys)
    assert prompt.truth == {}, "w would no longer be what made the labels"


def test_covariance_window_scales_x_and_leaves_labels():
    task = LinearRegression(d=4)
    plain, prompt = sample(task, batch=4000), sample(task, CovarianceWindow(centre=3.0, half=1.0), batch=4000)
    scale = (prompt.xs / plain.xs).square().double().flatten(1)
    assert (scale.amax(1) / scale.amin(1)).max() == pytest.approx(1, rel=1e-4), "one s a prompt"
    s = scale[:, 0]
    assert s.min() >= 2 - 1e-4
    assert s.max() <= 4 + 1e-4
    assert s.mean() == pytest.approx(3, abs=0.05)
    assert s.var() == pytest.approx(1 / 3, rel=0.1)
    assert torch.allclose(prompt.ys, plain.ys, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(d=st.integers(1, 7), n=st.integers(1, 10), seed=st.integers(0, 100))
def test_orthogonal_query_is_orthogonal_and_keeps_its_norm(d, n, seed):
    task = LinearRegression(d=d)
    plain = sample(task, batch=4, n=n, seed=seed)
    asked = ask(task, OrthogonalQuery(), batch=4, n=n, seed=seed)
    assert torch.equal(asked.prompt.xs, plain.xs), "examples are as they were"
    assert asked.defined.tolist() == [i < d for i in range(n)]
    for i in range(min(n, d)):
        query, before = asked.judged.xs[:, i], plain.xs[:, :i]
        assert torch.allclose(query.norm(dim=-1), plain.xs[:, i].norm(dim=-1), rtol=1e-5)
        lengths = query.norm(dim=-1, keepdim=True) * before.norm(dim=-1) + 1e-30
        cosines = torch.einsum("bd,bid->bi", query, before) / lengths
        assert (cosines.abs() < 1e-5).all()
        assert (torch.einsum("bd,bd->b", query, plain.xs[:, i]) > 0).all(), "what is left of x_i, not its opposite"
    assert torch.allclose(asked.judged.ys, torch.einsum("bnd,bd->bn", asked.judged.xs, plain.truth["w"]), atol=1e-5)


def test_orthogonal_query_is_the_residual_of_numpys_projection():
    asked = ask(LinearRegression(d=5), OrthogonalQuery(), batch=1, n=5)
    xs = asked.prompt.xs[0].double().numpy()
    for i in range(1, 5):
        basis = np.linalg.svd(xs[:i], full_matrices=False)[2]
        outside = xs[i] - basis.T @ (basis @ xs[i])
        outside *= np.linalg.norm(xs[i]) / np.linalg.norm(outside)
        assert asked.judged.xs[0, i].numpy() == pytest.approx(outside, abs=1e-4)


def test_in_half_a_space_orthogonal_queries_end_earlier():
    asked = ask(LinearRegression(d=6), OrthogonalQuery(), HalfSubspace(), n=7)
    assert asked.defined.tolist() == [True] * 3 + [False] * 4
    assert (torch.einsum("bd,bd->b", asked.judged.xs[:, 2], asked.prompt.xs[:, 1]).abs() < 1e-4).all()


def test_equal_query_is_an_earlier_example_drawn_uniformly():
    asked = ask(LinearRegression(d=3), EqualQuery(), batch=3000, n=5)
    same = (asked.judged.xs[:, :, None] == asked.prompt.xs[:, None]).all(-1)
    assert (same.sum(-1) == 1).all()
    chosen = same.int().argmax(-1)
    assert (chosen[:, 0] == 0).all()
    for i in range(1, 5):
        counts = torch.bincount(chosen[:, i], minlength=5)
        assert (counts[i:] == 0).all(), "never a later one"
        assert counts[:i].double().numpy() / 3000 == pytest.approx([1 / i] * i, abs=0.04)
    assert torch.equal(asked.judged.ys, asked.prompt.ys.gather(1, chosen))


@pytest.mark.parametrize("opposite", [False, True])
def test_orthants_have_one_sign_pattern_a_prompt(opposite):
    task = LinearRegression(d=3)
    plain, asked = sample(task, batch=2000), ask(task, DifferentOrthants(opposite=opposite), batch=2000)
    signs = asked.prompt.xs.sign()
    assert (signs == signs[:, :1]).all()
    assert torch.equal(asked.prompt.xs.abs(), plain.xs.abs())
    patterns = signs[:, 0].unique(dim=0, return_counts=True)[1]
    assert len(patterns) == 8, "every orthant comes up"
    assert patterns.double().numpy() / 2000 == pytest.approx([1 / 8] * 8, abs=0.03)
    if opposite:
        assert (asked.judged.xs.sign() == -signs).all()
    else:
        assert torch.equal(asked.judged.xs, plain.xs), "as drawn"
        share = (asked.judged.xs.sign() == signs).all(-1).double().mean()
        assert share == pytest.approx(1 / 8, abs=0.02)


def test_noisy_outputs_keep_the_variance_and_their_noise_is_independent():
    task = LinearRegression(d=4)
    plain, noisy = sample(task, batch=5000), sample(task, NoisyOutputs(std=2.0), batch=5000)
    assert torch.equal(plain.xs, noisy.xs)
    assert noisy.ys.double().var() == pytest.approx(4, rel=0.05)
    noise = (noisy.ys / 0.5**0.5 - plain.ys).double()
    assert noise.var() == pytest.approx(4, rel=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.05)
    correlation = np.corrcoef(torch.cat((noise[:, :2], plain.ys[:, :2].double()), 1).T.numpy())
    assert correlation == pytest.approx(np.eye(4), abs=0.06)


@pytest.mark.parametrize("shift", ALL, ids=names)
@pytest.mark.parametrize("task", [*LABELLED, LinearRegression(d=6, noise=1.0)], ids=lambda task: type(task).__name__)
def test_declared_variance_is_measured(task, shift):
    shifted = Shifted(task=task, shifts=(shift,))
    asked = ask(task, shift, batch=20_000, n=4)
    for ys in (asked.prompt.ys.double(), asked.judged.ys.double()):
        by_prompt = ys.square().mean(1)
        tolerance = 4 * by_prompt.std().item() / len(by_prompt) ** 0.5
        assert by_prompt.mean().item() == pytest.approx(shifted.label_variance, abs=tolerance)


def test_shifts_compose_in_the_order_of_their_stages():
    """x first, then the query, then labels, whatever the order in which they are given."""
    task = LinearRegression(d=5)
    shifts = (ScaledLabels(factor=2.0), OrthogonalQuery(), ScaledX(factor=3.0))
    first, second = ask(task, *shifts, n=5), ask(task, *shifts[::-1], n=5)
    assert torch.equal(first.judged.xs, second.judged.xs)
    assert torch.equal(first.judged.ys, second.judged.ys)
    plain = ask(task, OrthogonalQuery(), n=5)
    assert torch.allclose(first.judged.xs, 3 * plain.judged.xs, rtol=1e-4, atol=1e-4)
    assert torch.allclose(first.judged.ys, 6 * plain.judged.ys, rtol=1e-4, atol=1e-3)
    assert Shifted(task=task, shifts=shifts).label_variance == 36 * 5
    noisy = Shifted(task=task, shifts=(NoisyOutputs(std=1.0, rescale=False), ScaledLabels(factor=2.0), ScaledX()))
    assert noisy.label_variance == 4 * (9 * 5 + 1)


@pytest.mark.parametrize("shift", ALL, ids=names)
@pytest.mark.parametrize("dims", [1, 3, torch.tensor(3)], ids=str)
def test_inactive_coordinates_stay_zero(shift, dims):
    asked = ask(LinearRegression(d=6), shift, dims=dims)
    for xs in (asked.prompt.xs, asked.judged.xs):
        assert (xs[..., int(dims) :] == 0).all()
        assert xs[..., : int(dims)].any()
    assert asked.prompt.xs.isfinite().all()
    if isinstance(shift, OrthogonalQuery):
        assert int(asked.defined.sum()) == int(dims)


def test_skew_acts_among_the_active_coordinates():
    xs = ask(LinearRegression(d=5), SkewedCovariance(), batch=1, n=20_000, dims=3).prompt.xs[0, :, :3].double()
    expected = np.array([1, 1 / 4, 1 / 9])
    assert np.linalg.eigvalsh(np.cov(xs.T.numpy()))[::-1] == pytest.approx(expected * 3 / expected.sum(), rel=0.1)


@pytest.mark.parametrize("shift", ALL, ids=names)
def test_one_seed_gives_one_prompt_and_the_global_generator_is_left_alone(shift):
    before = torch.get_rng_state()
    first, second = ask(LinearRegression(d=6), shift), ask(LinearRegression(d=6), shift)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.judged.xs, second.judged.xs)
    assert torch.equal(first.judged.ys, second.judged.ys)
    assert not torch.equal(first.judged.ys, ask(LinearRegression(d=6), shift, seed=1).judged.ys)


def test_a_prompt_asks_its_last_query():
    task, n = LinearRegression(d=6), 4
    asked = ask(task, OrthogonalQuery(), n=n)
    prompt = sample(task, OrthogonalQuery(), n=n)
    assert torch.equal(prompt.xs[:, :-1], asked.prompt.xs[:, :-1])
    assert torch.equal(prompt.xs[:, -1], asked.judged.xs[:, -1])
    assert torch.equal(prompt.ys[:, -1], asked.judged.ys[:, -1])
    assert prompt.weights is not None
    assert prompt.weights.sum(1).eq(1).all()
    assert prompt.weights[:, -1].eq(1).all()
    with pytest.raises(ValueError, match="no query after 6 examples"):
        sample(task, OrthogonalQuery(), n=7)
    with pytest.raises(ValueError, match="no query after 3 examples"):
        sample(task, OrthogonalQuery(), n=4, dims=3)


@pytest.mark.parametrize("shift", ALL, ids=names)
def test_configs_go_through_json(shift):
    task = Shifted(task=SparseRegression(d=4, nonzero=2), shifts=(shift, NoisyOutputs(std=0.5)))
    assert decode(json.loads(json.dumps(encode(task))), Task, "task") == task
    experiment = Setup(task=task, model=DecoderConfig(d=4))
    data = json.loads(json.dumps(experiment.to_data()))
    assert Setup.from_data(data) == experiment
    assert Setup.from_data(data).hash == experiment.hash
    assert repr(task).startswith("Shifted(task=SparseRegression(d=4")


def test_every_shift_is_frozen_and_tested():
    kinds = {type(shift) for shift in ALL}
    assert {*shifts_by_name().values()} == kinds
    for shift in ALL:
        with pytest.raises(dataclasses.FrozenInstanceError):
            shift.stage = 5


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="may change the query; got OrthogonalQuery and EqualQuery"):
        Shifted(task=LinearRegression(d=3), shifts=(OrthogonalQuery(), EqualQuery()))
    with pytest.raises(ValueError, match="GaussianProcess cannot label new x"):
        sample(GaussianProcess(), SkewedCovariance())
    for kind in (ScaledX, ScaledLabels):
        with pytest.raises(ValueError, match=r"`factor` must be between 1e-06 and 1e\+06; got -1"):
            kind(factor=-1.0)
    with pytest.raises(ValueError, match="`std` must be between"):
        NoisyOutputs(std=0.0)
    with pytest.raises(ValueError, match="s is a variance"):
        CovarianceWindow(centre=1.0, half=1.0)
