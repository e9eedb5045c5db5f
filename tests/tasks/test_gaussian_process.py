import numpy as np
import pytest
import torch
from scipy.stats import kstest

from looped.functional import kernels
from looped.tasks.gaussian_process import SPREAD, GaussianProcess, MixedProcess, Part, draw

KERNELS = [kernels.linear, kernels.relu, kernels.exp]


def sample(task, batch=20000, n=5, seed=0, **fields):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), **fields)


def test_covariates_are_a_sphere_turned_into_an_ellipsoid():
    task = GaussianProcess()
    xs = sample(task).xs.double()
    assert np.allclose(np.linalg.eigvalsh(task.root.numpy()) ** 2, sorted(SPREAD))
    assert task.root.triu(1).abs().max() > 0.1
    xi = xs @ torch.linalg.inv(task.root)
    torch.testing.assert_close(xi.norm(dim=-1), torch.ones(20000, 5).double(), atol=1e-5, rtol=0)
    second = torch.einsum("bnd,bne->de", xs, xs) / xs[..., 0].numel()
    torch.testing.assert_close(second, task.root @ task.root / 5, atol=0.01, rtol=0)
    # one coordinate of a uniform point of the sphere in R^5, squared, is Beta(1/2, 2)
    assert kstest(xi[:, 0, 0].numpy() ** 2, "beta", (0.5, 2)).pvalue > 1e-3


def test_seeds_turn_the_ellipsoid_and_none_leaves_it_straight():
    assert not torch.allclose(GaussianProcess(rotation=1).root, GaussianProcess(rotation=2).root)
    torch.testing.assert_close(GaussianProcess(rotation=None).root, torch.tensor(SPREAD).double().sqrt().diag())


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_labels_have_the_kernels_covariance_with_absolute_eigenvalues(kernel, whiten):
    task = GaussianProcess(kernel=kernel, whiten=whiten)
    prompt = sample(task, batch=1, n=10)
    xs = prompt.xs[0].double().numpy()
    inputs = xs @ np.linalg.inv(task.root.numpy()) if whiten else xs
    table = {kernels.linear: lambda s: s, kernels.relu: lambda s: np.maximum(s, 0), kernels.exp: np.exp}
    values, vectors = np.linalg.eigh(table[kernel](inputs @ inputs.T))
    expected = (vectors * np.abs(values)) @ vectors.T
    np.testing.assert_allclose(task.gram(prompt.xs.double())[0], expected, atol=1e-6)
    np.testing.assert_allclose(prompt.truth["gram"][0], expected, atol=1e-4)
    if kernel is kernels.relu:
        assert values.min() < -1e-3
    ys = draw(torch.tensor(expected).expand(10000, 10, 10), torch.Generator().manual_seed(1))
    np.testing.assert_allclose(ys.T @ ys / len(ys), expected, atol=0.06 * expected.max())


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_predicting_zero_scores_one(kernel, whiten):
    task = GaussianProcess(kernel=kernel, whiten=whiten)
    prompt = sample(task, batch=20000, n=3)
    assert task.error(torch.zeros_like(prompt.ys), prompt).mean().item() == pytest.approx(1, abs=0.04)


def test_label_variance_is_known_where_the_kernel_is_constant_on_the_sphere():
    known = {kernels.linear: 1.0, kernels.relu: 1.0, kernels.exp: np.e}
    for kernel, variance in known.items():
        assert GaussianProcess(kernel=kernel).label_variance == pytest.approx(variance, rel=1e-12)
    assert GaussianProcess(kernel=kernels.linear, whiten=False).label_variance == pytest.approx(1.1, rel=3e-3)


def test_absolute_eigenvalues_make_relu_labels_larger_than_their_variance_says():
    for n, excess in ((15, 1.03), (31, 1.12)):
        gram = sample(GaussianProcess(kernel=kernels.relu), batch=1000, n=n).truth["gram"]
        assert gram.diagonal(dim1=-2, dim2=-1).mean().item() == pytest.approx(excess, abs=0.006)


def test_only_active_coordinates_move():
    prompt = sample(GaussianProcess(), batch=200, dims=2)
    assert not prompt.xs[..., 2:].any()
    assert torch.linalg.matrix_rank(prompt.xs.flatten(0, 1)) == 2
    assert prompt.ys.isfinite().all()


def test_the_mixed_kernel_is_figure_4c():
    u, v = np.random.default_rng(0).normal(size=(2, 5))
    gram = MixedProcess().raw_gram(torch.tensor(np.stack([u, v])))
    expected = 0.5 * u[:2] @ v[:2] + 0.5 * np.exp(0.5 * u[2:] @ v[2:])
    assert gram[0, 1].item() == pytest.approx(expected)
    # the paper's G_2 = diag(0, 0, 1, 1, 1) does not give its own formula
    printed = Part(kernel=kernels.exp, weight=0.5, scales=(0.0, 0.0, 1.0, 1.0, 1.0))
    other = MixedProcess(parts=(MixedProcess().parts[0], printed)).raw_gram(torch.tensor(np.stack([u, v])))
    assert abs(other[0, 1].item() - expected) > 0.01
    whole = MixedProcess(parts=(Part(kernel=kernels.exp),))
    xs = sample(whole, batch=2).xs.double()
    torch.testing.assert_close(whole.gram(xs), GaussianProcess(kernel=kernels.exp).gram(xs))


def test_errors_say_what_came_and_what_to_do():
    with pytest.raises(ValueError, match="`eigenvalues` must be d=3 numbers; got 5"):
        GaussianProcess(d=3)
    with pytest.raises(ValueError, match="above 0; got -1"):
        GaussianProcess(d=1, eigenvalues=(-1.0,))
    with pytest.raises(ValueError, match="`scales` must be d=5 numbers; got 2"):
        MixedProcess(parts=(Part(kernel=kernels.exp, scales=(1.0, 1.0)),))
