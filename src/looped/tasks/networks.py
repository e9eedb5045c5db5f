"""Two-layer ReLU networks with random weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least
from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True, kw_only=True)
class ReLUNetwork(Task):
    """A two-layer network with standard normal weights, a fresh one for every prompt.

        y = sqrt(2 / hidden) sum_j v_j relu(w_j'x)

    Ref: yang24, Sec. 5.4 and App. A, after Garg et al. 2022; the factor is in the program, not in the text.
    """

    hidden: int = 100
    """Hidden units: the paper's r."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, hidden=self.hidden)

    @property
    def label_variance(self) -> float:
        """d, since (2 / hidden) hidden E[v^2] E[relu(w'x)^2] = E|x|^2; yang24 divides by d too.

        While fewer coordinates are active, labels are smaller, but errors stay in this unit, as in the paper.
        """
        return float(self.d)

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, w and v for every prompt; w is zero outside the active coordinates."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        xs = torch.randn(batch, n, self.d, generator=generator, device=device) * mask
        truth = {
            "w": torch.randn(batch, self.hidden, self.d, generator=generator, device=device) * mask,
            "v": torch.randn(batch, self.hidden, generator=generator, device=device),
        }
        return Prompt(xs, self.labels(xs, truth), truth=truth)

    def labels(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """The outputs of the networks in `truth` at `xs`."""
        units = torch.relu(xs @ truth["w"].to(xs).mT)
        return (2 / self.hidden) ** 0.5 * (units @ truth["v"].to(xs)[..., None]).squeeze(-1)
