"""The spectral radius of a step's Jacobian, for every prompt of a batch at once and without forming it."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from looped.models.base import LoopedModel
from looped.models.loop import Context, State, leaves, tree_map
from looped.models.query_stream import query_stream, supports_query_stream


@torch.no_grad()
def spectral_radius(
    model: LoopedModel, state: State, context: Context, *, t: int, generator: torch.Generator
) -> Float[Tensor, " batch"]:
    """The largest |eigenvalue| of d step(state) / d state for every prompt; prompts do not depend on each other.

    In a causal model a token's new state depends on itself and on earlier tokens, so the Jacobian is block triangular.
    Its eigenvalues are those of the diagonal blocks d token / d the same token. Only these are iterated, all in one
    pass; the chain from token to token, which would slow power iteration down, drops out.
    """
    if supports_query_stream(model) and isinstance(state, Tensor) and state.ndim == 3:
        batch, twice = len(state), tree_map(lambda leaf: torch.cat((leaf, leaf)), context)
        with query_stream(model, batch):
            diagonal = linearised(lambda tokens: model.step(torch.cat((state, tokens)), twice, t)[batch:], state)
        return dominant(diagonal, normal_like(state, generator)).amax(-1)
    sizes = [leaf.flatten(1).shape[1] for leaf in leaves(state)]

    def flattened(tree: State) -> Tensor:
        return torch.cat([leaf.flatten(1) for leaf in leaves(tree)], 1)

    def split(flat: Tensor) -> State:
        pieces = iter(flat.split(sizes, 1))
        return tree_map(lambda leaf: next(pieces).reshape(leaf.shape), state)

    whole = linearised(lambda flat: flattened(model.step(split(flat), context, t)), flattened(state))
    return dominant(whole, normal_like(flattened(state), generator))


def linearised(function: Callable[[Tensor], Tensor], point: Tensor) -> Callable[[Tensor], Tensor]:
    """v -> J v, J the Jacobian of `function` at `point`.

    J'u is linear in u, so its derivative along v is J v. The graph of J'u is built once and serves all v.
    """
    # the fused kernels of attention have no second derivative
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        point = point.detach().requires_grad_()
        out = function(point)
        dual = torch.zeros_like(out).requires_grad_()
        (pulled,) = torch.autograd.grad(out, point, dual, create_graph=True, materialize_grads=True)

    def apply(vector: Tensor) -> Tensor:
        (pushed,) = torch.autograd.grad(pulled, dual, vector, retain_graph=True, materialize_grads=True)
        return pushed

    return apply


def dominant(
    apply: Callable[[Tensor], Tensor], start: Float[Tensor, "*blocks size"], *, iterations: int = 40, subspace: int = 20
) -> Float[Tensor, "*blocks"]:
    """The largest |eigenvalue| of many linear maps at once: power iteration, then a few steps of Arnoldi.

        v <- J v / |J v|,  then eigenvalues of H = V'JV,  V an orthonormal basis of v, Jv, .., J^{subspace-1} v

    Power iteration alone never settles when the largest eigenvalues are a complex pair; H holds both of them.
    """
    v = _unit(start)
    for _ in range(iterations):
        v = _unit(apply(v))
    size = min(subspace, v.shape[-1])
    basis = [v]
    small = v.new_zeros(*v.shape[:-1], size, size)
    for j in range(size):
        image = apply(basis[j])
        outside, before = image, image.norm(dim=-1)
        for _ in range(2):  # once loses orthogonality
            for i, direction in enumerate(basis):
                along = (direction * outside).sum(-1)
                small[..., i, j] += along
                outside = outside - along[..., None] * direction
        length = outside.norm(dim=-1)
        # in an invariant subspace only rounding is left; rows and columns of zeros add only eigenvalues 0
        new = length > 100 * torch.finfo(v.dtype).eps * before
        if j + 1 < size:
            small[..., j + 1, j] = torch.where(new, length, 0.0)
            basis.append(torch.where(new[..., None], _unit(outside), 0.0))
    return torch.linalg.eigvals(small).abs().amax(-1)


def _unit(vector: Tensor) -> Tensor:
    """Length 1; a vector of zeros stays."""
    return vector / vector.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(vector.dtype).tiny)


def normal_like(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of its shape."""
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
