"""Fixed points z = f(z), row by row: by plain iteration, or by Anderson's or Broyden's method, in fewer calls of f."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from looped.functional.counts import check_at_least

Function = Callable[[Tensor], Tensor]
"""(rows, numbers) -> (rows, numbers)."""


@dataclass(frozen=True, kw_only=True)
class Solver(ABC):
    """Iterates towards a fixed point; a fixed number of calls, so that nothing waits for the device."""

    @abstractmethod
    def iterates(
        self, function: Function, start: Float[Tensor, "rows numbers"], calls: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (z, f(z)), one for each call."""

    def solve(
        self, function: Function, start: Float[Tensor, "rows numbers"], *, calls: int
    ) -> Float[Tensor, "rows numbers"]:
        """The f(z) of each row whose |f(z) - z| is least; a method that overshoots loses nothing by going on."""
        best, least = start, start.new_full((len(start), 1), torch.inf)
        for z, value in self.iterates(function, start, calls):
            residual = (value - z).norm(dim=-1, keepdim=True)
            better = residual <= least  # false where it is not a number
            best, least = torch.where(better, value, best), torch.where(better, residual, least)
        return best


@dataclass(frozen=True, kw_only=True)
class Repeat(Solver):
    """z <- f(z)."""

    def iterates(self, function: Function, start: Tensor, calls: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One loop a call."""
        z = start
        for _ in range(calls):
            value = function(z)
            yield z, value
            z = value


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """Anderson mixing of the last `memory` iterates.

        z <- sum_i a_i ((1 - mixing) z_i + mixing f(z_i)),  a = argmin |sum_i a_i (f(z_i) - z_i)| with sum_i a_i = 1

    Ref: Walker and Ni 2011. The least squares are regularised by `ridge` times the mean squared residual.
    """

    memory: int = 5
    """Iterates that are mixed."""
    mixing: float = 1.0
    """How far from the iterates to their images; 1: all the way."""
    ridge: float = 1e-10
    """Keeps the coefficients finite where residuals are nearly parallel; at least ten roundings."""

    def __post_init__(self) -> None:
        check_at_least(1, memory=self.memory)
        if not 0 < self.mixing <= 1:
            raise ValueError(f"`mixing` must be above 0 and at most 1; got {self.mixing}.")
        check_at_least(0, ridge=self.ridge)

    def iterates(self, function: Function, start: Tensor, calls: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One mixture a call."""
        points: list[Tensor] = []
        images: list[Tensor] = []
        z = start
        for _ in range(calls):
            value = function(z)
            yield z, value
            points, images = [*points, z][-self.memory :], [*images, value][-self.memory :]
            weights = self._weights(torch.stack(images, 1) - torch.stack(points, 1))
            mixed = torch.stack([torch.lerp(old, new, self.mixing) for old, new in zip(points, images, strict=True)], 1)
            z = (weights[:, None] @ mixed)[:, 0]

    def _weights(self, residuals: Float[Tensor, "rows m numbers"]) -> Float[Tensor, "rows m"]:
        gram = residuals @ residuals.mT
        numbers = torch.finfo(gram.dtype)
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        ridge = (max(self.ridge, 10 * numbers.eps) * size).clamp_min(numbers.tiny**0.5)
        weights, _ = torch.linalg.solve_ex(gram + ridge * eye, gram.new_ones(*gram.shape[:-1], 1))
        return weights[..., 0] / weights.sum(-2)


@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """Broyden's good method on g(z) = f(z) - z, with rank-one updates of the inverse Jacobian.

        z <- z - B g(z),  B <- B + (s - B y) s'B / (s'B y),  s = change of z, y = change of g;  B = -I at first

    Ref: Broyden 1965. No line search: `solve` returns the best iterate.
    """

    memory: int = 10
    """Updates that are remembered; the next one starts anew from B = -I."""

    def __post_init__(self) -> None:
        check_at_least(1, memory=self.memory)

    def iterates(self, function: Function, start: Tensor, calls: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One quasi-Newton step a call."""
        lefts: list[Tensor] = []
        rights: list[Tensor] = []

        def apply(vector: Tensor, outer: list[Tensor], inner: list[Tensor]) -> Tensor:
            """-vector + sum_i outer_i (inner_i'vector), row by row."""
            terms = [a * (b * vector).sum(-1, keepdim=True) for a, b in zip(outer, inner, strict=True)]
            return torch.stack([-vector, *terms]).sum(0)

        z, value = start, function(start)
        yield z, value
        slope = value - z
        for _ in range(calls - 1):
            step = -apply(slope, lefts, rights)
            z = z + step
            value = function(z)
            yield z, value
            change, slope = value - z - slope, value - z
            right = apply(step, rights, lefts)  # B'step
            size = (right * change).sum(-1, keepdim=True)
            usable = size.abs() > torch.finfo(size.dtype).tiny ** 0.5
            left = torch.where(usable, (step - apply(change, lefts, rights)) / torch.where(usable, size, 1.0), 0.0)
            full = len(lefts) == self.memory
            lefts, rights = ([], []) if full else ([*lefts, left], [*rights, right])
