"""Losses of restricted linear attention in the d-dimensional space: the models' own forward passes, closed forms."""

import math

import pytest
import torch

from looped.models.fast_losses import restricted_loss as losses
from looped.models.fast_losses.batch_last import to_last
from looped.models.kernel_transformer import restricted
from looped.prompt import Prompt
from looped.tasks.isotropic import IsotropicRegression

D, N = 4, 7


def wishart(count: int, seed: int) -> torch.Tensor:
    """Sample covariances of N Gaussian examples."""
    z = torch.randn(count, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return z.mT @ z / N


def scores(models: int, layers: int) -> torch.Tensor:
    """Weights that are not symmetric: a transposed A must be noticed."""
    generator = torch.Generator().manual_seed(layers)
    return 0.2 * torch.randn(models, layers, D, D, dtype=torch.float64, generator=generator)


def model_of(score, loops):
    model = restricted(d=D, loops=loops, layers=score.shape[0]).build().double()
    model.put(score=score)
    return model


@pytest.mark.parametrize("layers", [1, 4])
def test_fast_path_is_the_models_own_forward(layers):
    """Predictions in the d-dimensional space against attention over all tokens, models of several depths."""
    task = IsotropicRegression(d=D, centres=(1.0, 3.0), half=0.5)
    prompt = task.sample(batch=12, n=N + 1, generator=torch.Generator().manual_seed(1)).to(torch.float64)
    depths, score = [4, 3, 1], scores(3, layers)
    s, w = prompt.truth["s"].double(), prompt.truth["w"].double()
    # labels again, in float64
    prompt = Prompt(prompt.xs, torch.einsum("bnd,bd->bn", prompt.xs, w))
    z = prompt.xs[:, :-1] / s.sqrt()[:, None, None]
    left = losses.residual(score, depths, to_last((z.mT @ z / N)[None]), s[None], w.T[None])
    fast = torch.einsum("bd,mdb->mb", prompt.xs[:, -1], w.T - left)
    for index, loops in enumerate(depths):
        forward = model_of(score[index], loops).predict(prompt)[:, 0]
        torch.testing.assert_close(fast[index], forward, rtol=1e-10, atol=1e-10)


def test_fast_gradients_are_the_models_own():
    covariance = wishart(9, 0)
    score = scores(2, 3).requires_grad_()
    w = torch.randn(9, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scale = torch.rand(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 1
    fast = torch.autograd.grad(
        losses.sampled_loss(score, [3, 2], to_last(covariance[None]), scale, w.T[None]).sum(), score
    )[0]
    total = torch.zeros((), dtype=torch.float64)
    for index, layers in enumerate([3, 2]):
        e = w
        for t in range(layers):
            e = e - scale[index, :, None] * torch.einsum("bd,bde,ef->bf", e, covariance, score[index, t])
        total = total + e.square().sum(-1).mean() / D
    slow = torch.autograd.grad(total, score)[0]
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    assert torch.equal(fast[1, 2], torch.zeros(D, D, dtype=torch.float64))


@pytest.mark.parametrize("layers", [1, 3])
def test_closed_form_is_the_loss_on_whitened_prompts(layers):
    """Lemma 4: prompts with XX'/n = s I; the error is bilinear, so w and x_q along the axes give the expectation."""
    score, loops = scores(1, layers), 3
    for s in (0.7, 2.0, 5.0):
        task = IsotropicRegression(d=D, centres=(s,), half=0.0, exact=True)
        xs = task.sample(batch=1, n=N + 1, generator=torch.Generator().manual_seed(3)).xs.double()[:, :-1]
        values, vectors = torch.linalg.eigh(xs.mT @ xs / N)
        xs = xs @ (vectors / values.sqrt()[:, None] @ vectors.mT) * math.sqrt(s)  # the sampler whitens to float32
        total = 0.0
        for i in range(D):
            for j in range(D):
                w, query = torch.eye(D).double()[i] / math.sqrt(s), torch.eye(D).double()[j] * math.sqrt(s)
                pairs = torch.cat([xs, query[None, None]], 1)
                basis = Prompt(pairs, pairs @ w)
                total += float(model_of(score[0], loops).predict(basis)[0, 0] - basis.ys[0, -1]) ** 2
        closed = losses.exact_loss(score, [loops], torch.tensor([[s]], dtype=torch.float64))
        assert float(closed) == pytest.approx(total / D, rel=1e-10)
        root = math.sqrt(s) * torch.eye(D, dtype=torch.float64)[None]
        assert float(losses.anisotropic_loss(score, [loops], root)) == pytest.approx(total / D, rel=1e-10)
        ones = torch.full((1, 1), s, dtype=torch.float64)
        eye = torch.eye(D, dtype=torch.float64)[None]
        assert float(losses.covariance_loss(score, [loops], eye, ones)) == pytest.approx(total / D, rel=1e-10)


def test_covariance_loss_is_the_mean_over_weights():
    score, covariance = scores(2, 2), wishart(5, 0)
    scale = torch.full((1, 5), 1.7, dtype=torch.float64)
    axes = torch.eye(D, dtype=torch.float64)
    left = [
        losses.residual(score, [2, 1], to_last(covariance[None]), scale, axis[None, :, None].expand(1, D, 5))
        for axis in axes
    ]
    total = losses.covariance_loss(score, [2, 1], covariance, scale)
    torch.testing.assert_close(total, torch.stack(left).square().sum((0, 2)) / D, rtol=1e-10, atol=1e-12)


def test_depths_must_descend():
    with pytest.raises(ValueError, match="deepest first"):
        losses.exact_loss(scores(2, 3), [1, 3], torch.ones(1, 1, dtype=torch.float64))
