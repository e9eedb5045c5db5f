"""Attention as a function of queries, keys and values; a kernel gives each key its weight."""

from jaxtyping import Float
from torch import Tensor

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
