import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from looped.baselines.gaussian_process import bayes, posterior_mean, semidefinite_cholesky
from looped.functional import kernels
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, draw


def prompts(task, batch, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    xs = task.sample(batch=batch, n=n, generator=generator).xs.double()
    gram = task.gram(xs)
    return Prompt(xs, draw(gram, generator)), gram


def posterior_variance(gram):
    return semidefinite_cholesky(gram).diagonal(dim1=-2, dim2=-1).square()


@pytest.mark.parametrize("kernel", [kernels.exp, kernels.relu, kernels.linear])
def test_every_prefix_is_numpys_conditional_mean_and_variance(kernel):
    task = GaussianProcess(kernel=kernel)
    prompt, gram = prompts(task, 4, 9)
    got, spread = bayes(prompt, task).numpy(), posterior_variance(gram).numpy()
    near = 1e-5 if kernel is kernels.linear else 1e-9  # singular from the sixth label on
    for b in range(4):
        whole, ys = gram[b].numpy(), prompt.ys[b].numpy()
        for i in range(9):
            inverse = np.linalg.pinv(whole[:i, :i], rcond=1e-10, hermitian=True)
            assert got[b, i] == pytest.approx(whole[i, :i] @ inverse @ ys[:i], abs=near)
            assert spread[b, i] == pytest.approx(whole[i, i] - whole[i, :i] @ inverse @ whole[:i, i], abs=near)


def test_it_is_scikit_learns_regressor():
    task = GaussianProcess(kernel=kernels.rbf, whiten=False)
    prompt, _ = prompts(task, 3, 7)
    got = bayes(prompt, task)[:, -1].numpy()
    for b in range(3):
        xs, ys = prompt.xs[b].numpy(), prompt.ys[b].numpy()
        model = GaussianProcessRegressor(RBF(1.0), optimizer=None, alpha=1e-12).fit(xs[:-1], ys[:-1])
        assert got[b] == pytest.approx(model.predict(xs[-1:])[0], abs=1e-6)


@pytest.mark.parametrize("kernel", [kernels.exp, kernels.relu])
def test_its_error_is_the_posterior_variance_and_no_other_estimator_is_better(kernel):
    task = GaussianProcess(kernel=kernel)
    prompt, gram = prompts(task, 6000, 7)
    errors = (bayes(prompt, task) - prompt.ys).square()[:, -1]
    expected = posterior_variance(gram)[:, -1]
    gap = (errors - expected).mean() / ((errors - expected).std() / 6000**0.5)
    assert abs(gap) < 4
    for other in {kernels.linear, kernels.relu, kernels.exp} - {kernel}:
        wrong = bayes(prompt, GaussianProcess(kernel=other))[:, -1]
        assert (wrong - prompt.ys[:, -1]).square().mean() > 1.01 * errors.mean()


def test_more_examples_than_dimensions_leave_nothing_to_guess_for_linear_labels():
    task = GaussianProcess(kernel=kernels.linear)
    prompt, gram = prompts(task, 10, 9)
    torch.testing.assert_close(bayes(prompt, task)[:, 5:], prompt.ys[:, 5:], atol=1e-6, rtol=0)
    assert posterior_variance(gram)[:, 5:].max() < 1e-9
    factor = semidefinite_cholesky(gram)
    torch.testing.assert_close(factor @ factor.mT, gram, atol=1e-9, rtol=0)
    assert torch.equal(factor, factor.tril())


def test_the_first_label_is_guessed_as_zero():
    prompt, gram = prompts(GaussianProcess(), 5, 3)
    assert not posterior_mean(prompt, gram)[:, 0].any()
