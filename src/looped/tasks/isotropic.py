"""Linear regression whose covariance is a random multiple of the identity: gatmiry24's tasks."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.prompt import Prompt
from looped.tasks.task import Task, active_mask


@dataclass(frozen=True, kw_only=True)
class IsotropicRegression(Task):
    """y = w'x, x ~ N(0, s I), w ~ N(0, I / s), s uniform on the union of windows. Ref: gatmiry24, Section 5."""

    d: int = 10
    """Dimension of x."""
    centres: tuple[float, ...] = (4.5,)
    """The middles of the windows; windows that overlap count once."""
    half: float = 3.5
    """Half the width of each window; 0 makes s one of the centres."""
    exact: bool = False
    """Whether the examples before the last pair are transformed so that XX'/n is exactly s I, as in Lemma 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.centres or self.half < 0 or min(self.centres) - self.half <= 0:
            raise ValueError(
                f"`centres` minus `half` must be above 0: s is a variance; got {self.centres} and {self.half}."
            )

    @property
    def label_variance(self) -> float:
        """E[y^2] = tr(Sigma Sigma^-1) = d, whatever s is."""
        return float(self.d)

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Fresh s, x and w for every prompt; with `exact`, n must be at least d + 1."""
        device = generator.device
        mask = active_mask(self.d, dims, device)
        s = self.scales(batch, generator)
        xs = torch.randn(batch, n, self.d, generator=generator, device=device)
        if self.exact:
            if n - 1 < self.d:
                raise ValueError(f"`exact` needs at least d={self.d} examples before the query; got {n - 1}. Raise n.")
            # in float64: whitening loses digits where n is close to d
            basis = torch.linalg.qr(xs[:, :-1].double()).Q.to(xs.dtype) * (n - 1) ** 0.5
            xs = torch.cat([basis, xs[:, -1:]], 1)
        xs = xs * s.sqrt()[:, None, None] * mask
        w = torch.randn(batch, self.d, generator=generator, device=device) / s.sqrt()[:, None] * mask
        return Prompt(xs, torch.einsum("bnd,bd->bn", xs, w), truth={"w": w, "s": s})

    def scales(self, batch: int, generator: torch.Generator) -> Float[Tensor, " batch"]:
        """s of each prompt: uniform on the union of windows."""
        parts = merged(self.centres, self.half)
        low, high = (torch.tensor(side, device=generator.device) for side in zip(*parts, strict=True))
        lengths = high - low if self.half else torch.ones_like(low)
        place, where = torch.rand(2, batch, generator=generator, device=generator.device)
        edges = lengths.cumsum(0) / lengths.sum()
        part = torch.searchsorted(edges, place).clamp(max=len(parts) - 1)
        return low[part] + (high - low)[part] * where


def merged(centres: tuple[float, ...], half: float) -> list[tuple[float, float]]:
    """The union of windows as intervals that do not overlap, ascending."""
    intervals: list[tuple[float, float]] = []
    for centre in sorted(centres):
        if half and intervals and centre - half <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], centre + half)
        else:
            intervals.append((centre - half, centre + half))
    return intervals
