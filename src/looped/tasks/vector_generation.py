"""Vector generation: not a label is asked for, but a vector whose label is given."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True, kw_only=True)
class VectorGeneration(Task):
    """Examples y = <theta*, x>, and a number alpha: answer with a vector q for which <theta*, q> is alpha.

        x ~ N(0, I), theta* uniform on the unit sphere, alpha ~ N(0, 1);  the last pair of a prompt is (0, alpha)

    Ref: chen24, Definitions 3.1 to 3.4, which leave the distributions of x and alpha open; x is that of its Section 6.
    """

    @property
    def label_variance(self) -> float:
        """1, of a label as of alpha."""
        return 1.0

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, theta* and alpha for every prompt of n - 1 examples and alpha."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        xs = torch.randn(batch, n, self.d, generator=generator, device=device) * mask
        xs[:, -1] = 0
        theta = torch.nn.functional.normalize(
            torch.randn(batch, self.d, generator=generator, device=device) * mask, dim=-1
        )
        alpha = torch.randn(batch, 1, generator=generator, device=device)
        ys = torch.cat([torch.einsum("bnd,bd->bn", xs[:, :-1], theta), alpha], 1)
        return Prompt(xs, ys, truth={"w": theta})

    def error(self, outputs: Float[Tensor, "*loops batch d"], prompt: Prompt) -> Float[Tensor, "*loops batch 1"]:
        """(<q, theta*> - alpha)^2 at the last pair, in units of answering with q = 0."""
        reached = (outputs * prompt.truth["w"]).sum(-1, keepdim=True)
        return (reached - prompt.ys[..., -1:]).square() / self.label_variance
