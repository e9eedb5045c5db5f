"""k nearest neighbours for every prefix of every prompt."""

import torch
from jaxtyping import Float
from torch import Tensor

from looped.baselines.checked import checked
from looped.prompt import Prompt

CHUNK = 2**22
"""Number of distances in memory at once."""


@checked
def nearest(prompt: Prompt, k: int = 3) -> Float[Tensor, "batch n"]:
    """Predict y_i by the mean label of the k nearest x before it: of all if they are fewer than k, 0 if there are none.

        f(x_i) = (1/k) sum of y_j over the k least |x_i - x_j|, j < i

    Ref: yang24, Fig. 10 (3 neighbours). In float64; of equally distant x the earlier ones are taken.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1 neighbour; got {k}.")
    n = prompt.num_examples
    rows = max(1, CHUNK // n**2)
    xs, ys = prompt.xs.double(), prompt.ys.double()
    return torch.cat([_nearest(x, y, min(k, n)) for x, y in zip(xs.split(rows), ys.split(rows), strict=True)])


def _nearest(xs: Float[Tensor, "batch n d"], ys: Float[Tensor, "batch n"], k: int) -> Float[Tensor, "batch n"]:
    n = xs.shape[1]
    # not |a|^2 + |b|^2 - 2ab, which loses small distances between large x
    distances = torch.cdist(xs, xs, compute_mode="donot_use_mm_for_euclid_dist")
    later = torch.ones(n, n, dtype=torch.bool, device=xs.device).triu()
    distances.masked_fill_(later, torch.inf)
    order = distances.sort(dim=-1, stable=True).indices[..., :k]
    labels = ys[:, None].expand(-1, n, -1).gather(2, order)
    seen = torch.arange(n, device=xs.device)[:, None]
    counted = torch.arange(k, device=xs.device) < seen
    return torch.where(counted, labels, 0.0).sum(-1) / seen[:, 0].clamp(1, k)
