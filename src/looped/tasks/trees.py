"""Decision trees on the signs of coordinates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True, kw_only=True)
class DecisionTree(Task):
    """A complete binary tree: an inner node reads the sign of one random coordinate, a leaf is a normal number.

        node_0 = 0,  node_{t+1} = 2 node_t + 1 + [x_{feature(node_t)} > 0],  y = leaf(node_depth)

    Ref: yang24, Sec. 5.4 and App. A, after Garg et al. 2022. The children of node i are 2i + 1 (sign -) and 2i + 2.
    """

    depth: int = 4
    """Splits between the root and a leaf."""
    degree: ClassVar[int] = 0
    """A tree reads only signs, so f(c x) = f(x)."""
    captured: ClassVar[bool] = True
    """Sampling stays on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.depth <= 16:
            raise ValueError(f"`depth` must be in [0, 16], for 2^depth leaves a prompt; got {self.depth}.")

    @property
    def label_variance(self) -> float:
        """1: a label is one leaf."""
        return 1.0

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh x, split features and leaves for every prompt; features are drawn among the active coordinates."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        xs = torch.randn(batch, n, self.d, generator=generator, device=device) * mask
        keys = torch.rand(batch, 2**self.depth - 1, generator=generator, device=device, dtype=torch.float64)
        truth = {
            "features": (keys * (self.d if dims is None else dims)).long(),
            "leaves": torch.randn(batch, 2**self.depth, generator=generator, device=device),
        }
        return Prompt(xs, self.labels(xs, truth), truth=truth)

    def labels(self, xs: Float[Tensor, "batch n d"], truth: Mapping[str, Tensor]) -> Float[Tensor, "batch n"]:
        """The leaves that the trees in `truth` reach from `xs`, level by level for all points of all prompts."""
        features: Int[Tensor, "batch inner"] = truth["features"]
        positive = xs > 0
        node = torch.zeros(xs.shape[:-1], dtype=torch.long, device=xs.device)
        for _ in range(self.depth):
            feature = features.gather(1, node)
            node = 2 * node + 1 + positive.gather(2, feature[..., None]).squeeze(-1)
        return truth["leaves"].to(xs).gather(1, node - (2**self.depth - 1))
