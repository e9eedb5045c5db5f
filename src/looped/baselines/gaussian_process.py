"""The Bayes estimator under a Gaussian process, for every prefix of every prompt."""

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess


@checked
def bayes(prompt: Prompt, task: GaussianProcess) -> Float[Tensor, "batch n"]:
    """Predict y_i by its mean given the i-1 labels before it, in float64: the best prediction at the last position.

        f(x_i) = nu' K^{-1} y,  K and nu blocks of K_+(X)

    Ref: cheng24, Eq. (13), where K is n x n (printed d x d). K_+ is computed from all x of the prompt, so if the kernel
    is not positive semidefinite a shorter prompt has a different estimator.
    """
    return posterior_mean(prompt, task.gram(prompt.xs.double()))


def posterior_mean(prompt: Prompt, gram: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n"]:
    """E[y_i | y_1 .. y_{i-1}] for labels with covariance `gram`, which may be singular.

    f_i = sum_{j<i} L_ij z_j,  L L' = gram,  L z = y
    """
    factor = semidefinite_cholesky(gram)
    ys = prompt.ys.to(gram)
    whitened, predictions = torch.zeros_like(ys), torch.empty_like(ys)
    for i in range(ys.shape[-1]):
        predictions[:, i] = (factor[:, i, :i] * whitened[:, :i]).sum(-1)
        pivot = factor[:, i, i]
        surprise = (ys[:, i] - predictions[:, i]) / torch.where(pivot > 0, pivot, 1.0)
        whitened[:, i] = torch.where(pivot > 0, surprise, 0.0)
    return predictions


def semidefinite_cholesky(gram: Float[Tensor, "*batch n n"], *, relative: float = 1e-11) -> Float[Tensor, "*batch n n"]:
    """A lower triangular L with L L' = gram; columns whose pivot is below `relative` times the diagonal are zero.

    L_ki = (G_ki - sum_{j<i} L_kj L_ij) / L_ii,  k >= i
    """
    factor = torch.zeros_like(gram)
    for i in range(gram.shape[-1]):
        column = gram[..., i:, i] - torch.einsum("...kj,...j->...k", factor[..., i:, :i], factor[..., i, :i])
        pivot = column[..., :1]
        positive = pivot > relative * gram[..., i, i, None]
        factor[..., i:, i] = torch.where(positive, column / torch.where(positive, pivot, 1.0).sqrt(), 0.0)
    return factor
