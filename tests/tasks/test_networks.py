"""ReLU networks: labels against NumPy in float64, and the distribution of every part."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from looped.tasks.networks import ReLUNetwork
from tasks.drawing import draw


@settings(max_examples=20, deadline=None)
@given(hidden=st.integers(1, 9), d=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_labels_are_the_network_written_out(hidden, d, seed):
    task = ReLUNetwork(d=d, hidden=hidden)
    prompt = draw(task, batch=3, n=5, seed=seed)
    xs, w, v = (tensor.double().numpy() for tensor in (prompt.xs, prompt.truth["w"], prompt.truth["v"]))
    expected = np.zeros((3, 5))
    for unit in range(hidden):
        active = np.maximum(0, np.array([xs[b] @ w[b, unit] for b in range(3)]))
        expected += np.sqrt(2 / hidden) * v[:, unit, None] * active
    np.testing.assert_allclose(prompt.ys, expected, atol=1e-4)
    np.testing.assert_allclose(task.labels(torch.from_numpy(xs), prompt.truth), expected, atol=1e-12)


def test_x_and_weights_are_standard_normal_and_independent():
    prompt = draw(ReLUNetwork(d=3, hidden=4), batch=3000, n=1)
    for values in (prompt.xs, prompt.truth["w"], prompt.truth["v"]):
        assert stats.kstest(values.flatten().numpy(), "norm").pvalue > 0.01
    together = torch.cat([prompt.xs[:, 0], prompt.truth["w"].flatten(1), prompt.truth["v"]], 1).T
    assert (torch.corrcoef(together) - torch.eye(len(together))).abs().max() < 4.5 / 3000**0.5


@pytest.mark.parametrize("hidden", [1, 10, 100])
@pytest.mark.parametrize("dims", [None, 2])
def test_label_variance_is_the_number_of_active_coordinates_at_any_width(hidden, dims):
    prompt = draw(ReLUNetwork(d=5, hidden=hidden), batch=20_000, n=1, dims=dims)
    squares = prompt.ys.double().square().flatten()
    error = 4 * squares.std().item() / len(squares) ** 0.5
    assert squares.mean().item() == pytest.approx(dims or 5, abs=error)
    assert ReLUNetwork(d=5, hidden=hidden).label_variance == 5


def test_labels_of_one_prompt_have_the_kernel_of_a_random_relu_network():
    """E[f(x) f(z)] = |x| |z| (sin a + (pi - a) cos a) / pi, the arc-cosine kernel, for x, z at the angle a."""
    task = ReLUNetwork(d=3, hidden=2)
    xs = torch.tensor([[1.0, 0.5, -0.3], [-0.4, 1.2, 0.8]])
    generator = torch.Generator().manual_seed(0)
    truth = {"w": torch.randn(200_000, 2, 3, generator=generator), "v": torch.randn(200_000, 2, generator=generator)}
    ys = task.labels(xs.expand(200_000, 2, 3), truth).double()
    norms = xs.double().norm(dim=1)
    angle = torch.acos(xs[0].double() @ xs[1].double() / norms.prod())
    kernel = norms.prod() * (angle.sin() + (torch.pi - angle) * angle.cos()) / torch.pi
    product = ys.prod(1)
    assert product.mean().item() == pytest.approx(kernel.item(), abs=4 * product.std().item() / 200_000**0.5)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="`hidden` must be at least 1; got 0"):
        ReLUNetwork(hidden=0)
