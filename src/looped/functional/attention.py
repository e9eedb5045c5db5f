"""Attention as a function of queries, keys and values; what each key weighs is a kernel."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from looped.functional.kernels import Kernel, linear


def softmax(left: Float[Tensor, "*#batch n r"], right: Float[Tensor, "*#batch m r"]) -> Float[Tensor, "*batch n m"]:
    """Exponentials of inner products, normalised over the keys: a column for each query sums to one.

        K_ij = exp<u_i, v_j> / sum_k exp<u_k, v_j>

    Ref: cheng24, Eq. (6). The paper's mask, which leaves the query out as a key, is a choice of `left` here.
    """
    return linear(left, right).softmax(-2)


def kernel_attention(
    queries: Float[Tensor, "*#batch m r"],
    keys: Float[Tensor, "*#batch n r"],
    values: Float[Tensor, "*#batch n v"],
    kernel: Kernel,
) -> Float[Tensor, "*batch m v"]:
    """Every query's sum of values, each weighed by the kernel of its key and the query.

        out_j = sum_i kernel(key_i, query_j) value_i

    Ref: cheng24, Eq. (2). Tokens are rows here, columns in the paper; the paper's h has the key first, and so has
    this. Its mask M = diag(I_n, 0) means that keys and values are those of the n examples alone.
    """
    return kernel(keys, queries).mT @ values


def linear_attention(
    queries: Float[Tensor, "*#batch m r"], keys: Float[Tensor, "*#batch n r"], values: Float[Tensor, "*#batch n v"]
) -> Float[Tensor, "*batch m v"]:
    """Attention without a softmax.

    out_j = sum_i <key_i, query_j> value_i
    """
    return kernel_attention(queries, keys, values, linear)


def softmax_attention(
    queries: Float[Tensor, "*#batch m r"], keys: Float[Tensor, "*#batch n r"], values: Float[Tensor, "*#batch n v"]
) -> Float[Tensor, "*batch m v"]:
    """Attention with weights that are positive and sum to one; no temperature.

    out_j = sum_i softmax_i(<key_i, query_j>) value_i
    """
    return kernel_attention(queries, keys, values, softmax)
