"""Labels from a Gaussian process whose covariance is any symmetric kernel, positive semidefinite or not."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional import kernels
from looped.functional.kernels import Kernel
from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask

SPREAD = (1.0, 1.0, 0.25, 2.25, 1.0)
"""The eigenvalues of cheng24's covariance."""


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Task):
    """Y | X ~ N(0, K_+(X)), x = Sigma^{1/2} xi, xi uniform on the unit sphere. Ref: cheng24, Def. 3.3, App. H.1."""

    d: int = 5
    """Dimension of x."""
    kernel: Kernel = kernels.exp
    """K, any symmetric function; where it is not positive semidefinite, its eigenvalues count by absolute value."""
    eigenvalues: tuple[float, ...] = SPREAD
    """D, the eigenvalues of Sigma = U'DU."""
    rotation: int | None = 0
    """The seed of the uniformly random orthogonal U, which differs between the paper's runs; None is U = I."""
    whiten: bool = True
    """Whether K reads xi = Sigma^{-1/2} x, as in cheng24's Example 7 and as its theorems need, or x."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.eigenvalues) != self.d:
            raise ValueError(f"`eigenvalues` must be d={self.d} numbers; got {len(self.eigenvalues)}. Set both.")
        if min(self.eigenvalues) <= 0:
            raise ValueError(f"`eigenvalues` must be above 0; got {min(self.eigenvalues)}.")

    @cached_property
    def root(self) -> Float[Tensor, "d d"]:
        """Sigma^{1/2} = U' D^{1/2} U, symmetric, in float64."""
        spread = torch.tensor(self.eigenvalues, dtype=torch.float64).sqrt()
        if self.rotation is None:
            return spread.diag()
        generator = torch.Generator().manual_seed(self.rotation)
        normal = torch.randn(self.d, self.d, dtype=torch.float64, generator=generator)
        basis, triangle = torch.linalg.qr(normal)
        basis = basis * triangle.diagonal().sign()
        return (basis * spread) @ basis.T

    @cached_property
    def label_variance(self) -> float:
        """E[K(x, x)]: exact where K is constant on the sphere, else a mean over 65,536 fixed directions, good to 1e-3.

        Where K is not positive semidefinite, K_+ makes E[y^2] larger: for relu by 3% at n = 15 and 12% at n = 31.
        """
        xi = _sphere(2**16, 1, torch.ones(self.d, dtype=torch.float64), torch.Generator().manual_seed(0))
        return float(self.raw_gram(xi if self.whiten else xi @ self.root).mean())

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x and a fresh function for every prompt; `dims` restricts xi and Sigma^{1/2} to those coordinates."""
        mask = active_mask(self.d, dims, generator.device)
        xi = _sphere(batch, n, mask, generator)
        xs = xi @ (self.root.to(mask) * mask[:, None] * mask)
        gram = kernels.absolute(self.raw_gram(xi if self.whiten else xs))
        return Prompt(xs, draw(gram, generator), truth={"gram": gram})

    def raw_gram(self, inputs: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n n"]:
        """K(u_i, u_j), before eigenvalues lose their sign."""
        return self.kernel(inputs, inputs)

    def gram(self, xs: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n n"]:
        """K_+(X), the covariance of the labels of all pairs together.

            K_ij = kernel(Sigma^{-1/2} x_i, Sigma^{-1/2} x_j)

        Ref: cheng24, Example 7; Definition 3.3 has no Sigma, and `whiten` = False means that.
        """
        inputs = xs @ torch.linalg.inv(self.root).to(xs) if self.whiten else xs
        return kernels.absolute(self.raw_gram(inputs))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One summand of a composite kernel: weight K(G u, G v), G diagonal."""

    kernel: Kernel
    """K."""
    weight: float = 1.0
    """What multiplies it."""
    scales: tuple[float, ...] | None = None
    """The diagonal of G; None is G = I."""


@dataclass(frozen=True, kw_only=True)
class MixedProcess(GaussianProcess):
    """A Gaussian process with a sum of kernels. Ref: cheng24, Prop. D.1, Fig. 4; the default is Figure 4(c).

        K(u, v) = 1/2 (u1 v1 + u2 v2) + 1/2 exp((u3 v3 + u4 v4 + u5 v5) / 2)

    The paper's G_2 = diag(0, 0, 1, 1, 1) lacks the 1/sqrt(2) that its formula has.
    """

    parts: tuple[Part, ...] = (
        Part(kernel=kernels.linear, weight=0.5, scales=(1.0, 1.0, 0.0, 0.0, 0.0)),
        Part(kernel=kernels.exp, weight=0.5, scales=(0.0, 0.0, 0.5**0.5, 0.5**0.5, 0.5**0.5)),
    )
    """The summands."""
    kernel: Kernel = field(init=False, repr=False, compare=False, default=kernels.exp)
    """Not read: each part has its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.parts:
            if part.scales is not None and len(part.scales) != self.d:
                raise ValueError(f"`scales` must be d={self.d} numbers; got {len(part.scales)}. Set both.")

    def raw_gram(self, inputs: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n n"]:
        """The weighted sum of the parts' Gram matrices."""
        total = inputs.new_zeros(())
        for part in self.parts:
            scaled = inputs if part.scales is None else inputs * inputs.new_tensor(part.scales)
            total = total + part.weight * part.kernel(scaled, scaled)
        return total


def draw(gram: Float[Tensor, "*batch n n"], generator: torch.Generator) -> Float[Tensor, "*batch n"]:
    """One draw from N(0, gram) for each matrix; an eigenvalue that rounding made negative counts by its absolute value.

    y = U |D|^{1/2} z,  gram = U D U',  z ~ N(0, I)
    """
    values, vectors = torch.linalg.eigh(gram)
    normal = torch.randn(values.shape, dtype=gram.dtype, device=gram.device, generator=generator)
    return torch.einsum("...ij,...j->...i", vectors, values.abs().sqrt() * normal)


def _sphere(batch: int, n: int, mask: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform points on the unit sphere of the active coordinates."""
    normal = torch.randn(batch, n, len(mask), dtype=mask.dtype, device=mask.device, generator=generator) * mask
    return normal / normal.norm(dim=-1, keepdim=True)
