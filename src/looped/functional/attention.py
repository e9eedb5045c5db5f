"""Attention as a function of queries, keys and values; a kernel gives each key its weight; rotary positions."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import elu

from looped.functional.kernels import Kernel, linear


def softmax(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """Exponentials of inner products, normalised over the keys: each query's column sums to one.

        K_ij = exp<u_i, v_j> / sum_k exp<u_k, v_j>

    Ref: cheng24, Eq. (6). The paper masks the query as a key; here the caller leaves it out of `left`.
    """
    return linear(left, right).softmax(-2)


def kernel_attention(
    queries: Float[Tensor, "*#batch m r"],
    keys: Float[Tensor, "*#batch n r"],
    values: Float[Tensor, "*#batch n v"],
    kernel: Kernel,
) -> Float[Tensor, "*batch m v"]:
    """For every query, the sum of values weighted by the kernel of key and query.

        out_j = sum_i kernel(key_i, query_j) value_i

    Ref: cheng24, Eq. (2). Tokens are rows here, columns in the paper; the kernel's first argument is the key, as in the
    paper. The paper's mask M = diag(I_n, 0) means that only the n examples are keys and values.
    """
    return kernel(keys, queries).mT @ values


def feature_attention(
    q: Float[Tensor, "*batch n r"], k: Float[Tensor, "*batch n r"], v: Float[Tensor, "*batch n v"], *, is_causal: bool
) -> Float[Tensor, "*batch n v"]:
    """Linear attention: means of values, weighted by inner products of positive features.

        out_i = sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>,  phi(x) = elu(x) + 1;  j <= i if causal

    Ref: Katharopoulos et al. 2020. Their recurrence has linear cost; for our short prompts the table of products is
    faster, and equals it.
    """
    scores = (elu(q) + 1) @ (elu(k) + 1).mT
    scores = scores.tril() if is_causal else scores
    return scores @ v / scores.sum(-1, keepdim=True)


def rotate(x: Float[Tensor, "*batch n r"]) -> Float[Tensor, "*batch n r"]:
    """Rotary positions: turn the pair (x_i, x_{i + r/2}) of token t by the angle t 10000^(-2i/r).

    Inner products of turned vectors depend on the distance of their tokens alone. Ref: Su et al. 2021.
    """
    n, half = x.shape[-2], x.shape[-1] // 2
    exponents = torch.arange(half, dtype=x.dtype, device=x.device) / half
    angles = torch.arange(n, dtype=x.dtype, device=x.device)[:, None] * 10_000.0**-exponents
    left, right = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
