"""The pieces that random tables are put together from: columns, functions, noise, targets.

Shapes never depend on what was drawn, and nothing waits for the device: a captured training step can draw them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

BESIDE = 128
"""Rows drawn beside every prompt, which standardise it and are thrown away: by its own mean and deviation a prompt
would tell its last label to whoever knows the others."""


class Draws(NamedTuple):
    """Where a piece gets its random numbers and sizes from."""

    generator: torch.Generator
    batch: int
    rows: int

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers of shape (batch, *shape)."""
        return torch.randn(self.batch, *shape, generator=self.generator, device=self.generator.device)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers of shape (batch, *shape)."""
        draws = torch.rand(self.batch, *shape, generator=self.generator, device=self.generator.device)
        return low + (high - low) * draws

    def whole(self, *shape: int, high: int) -> Tensor:
        """Whole numbers from 0 to high - 1, of shape (batch, *shape)."""
        device = self.generator.device
        return torch.randint(high, (self.batch, *shape), generator=self.generator, device=device)

    def select(self, options: Sequence[Tensor]) -> Tensor:
        """One of the options for every prompt, each as likely; all have the shape (batch, ...)."""
        if len(options) == 1:
            return options[0]
        index = self.whole(high=len(options)).view(1, -1, *[1] * (options[0].ndim - 1))
        return torch.stack(list(options)).take_along_dim(index, 0)[0]


class Covariates(NamedTuple):
    """The features of a table, as its reader sees them and as the function reads them."""

    shown: Float[Tensor, "batch rows d"]
    read: Float[Tensor, "batch rows d"]


@dataclass(frozen=True)
class Columns:
    """Features of mixed kinds, correlated in half of the prompts.

    A Gaussian z becomes, column by column: z itself, heavy-tailed (sign(z) |z|^1.8), skewed (exp(0.8 z)), a class of
    two (z > threshold), rounded, or a category: a code for an interval of z, in an order that means nothing.
    """

    plain: float = 0.4
    """Share of prompts in which all columns are Gaussian; in the rest each kind is as likely."""
    correlated: float = 0.5
    """Share of prompts whose columns have up to 3 common factors."""
    clustered: float = 0.3
    """Share of prompts whose rows come in 2 to 6 groups; how far apart differs from column to column."""
    missing: float = 0.2
    """Share of prompts with missing values, shown as the column's mean; up to 30% of their entries are."""

    KINDS: ClassVar[int] = 6
    LEVELS: ClassVar[int] = 6
    GROUPS: ClassVar[int] = 6

    def __call__(self, draws: Draws, d: int) -> Covariates:
        """Columns with mean 0 and variance 1."""
        rows = draws.rows
        share = draws.uniform(1, 1, high=0.95) * (draws.uniform(1, 1) < self.correlated)
        loadings = draws.normal(3, d)
        factors = draws.normal(rows, 3) @ (loadings / loadings.norm(dim=1, keepdim=True))
        z = (1 - share).sqrt() * draws.normal(rows, d) + share.sqrt() * factors
        groups = 2 + draws.whole(1, high=self.GROUPS - 1)
        group = (draws.uniform(rows) * groups).long()
        centres = draws.normal(self.GROUPS, d).take_along_dim(group[..., None], 1)
        apart = draws.uniform(1, d) * draws.uniform(1, 1, low=0.4) * (draws.uniform(1, 1) < self.clustered)
        z = (1 - apart).sqrt() * z + apart.sqrt() * centres
        # a category's code is its place in a random order, and the function reads a random number for it
        levels = 2 + draws.whole(1, d, high=self.LEVELS - 1)
        level = ((0.5 * (1 + torch.erf(z / 2**0.5))) * levels).long().clamp(min=0).minimum(levels - 1)
        keys = draws.uniform(self.LEVELS, d)
        keys = keys + (torch.arange(self.LEVELS, device=z.device)[:, None] >= levels)
        codes = keys.argsort(1).argsort(1).to(z.dtype)
        effects = draws.normal(self.LEVELS, d)
        threshold = draws.uniform(1, d, low=-1.2, high=1.2)
        grid = draws.uniform(1, d, low=0.3, high=1.5)
        shown = [
            z,
            z.sign() * z.abs() ** 1.8,
            (0.8 * z).exp(),
            (z > threshold).to(z.dtype),
            (z / grid).round(),
            codes.gather(1, level),
        ]
        kind = draws.whole(1, d, high=self.KINDS) * (draws.uniform(1, 1) >= self.plain)
        seen = torch.stack(shown).take_along_dim(kind[None], 0)[0]
        # of a heavy-tailed or skewed column the function reads what is shown, or z behind it
        behind = (kind == 1) | (kind == 2)
        read = torch.where(behind & (draws.uniform(1, d) < 0.5), z, seen)
        read = torch.where(kind == self.KINDS - 1, effects.gather(1, level), read)
        shown_columns = standardized_beside(seen)
        share_missing = draws.uniform(1, 1, high=0.3) * (draws.uniform(1, 1) < self.missing)
        shown_columns = shown_columns * (draws.uniform(rows, d) >= share_missing)
        return Covariates(shown_columns, standardized_beside(read))


@dataclass(frozen=True)
class Function(ABC):
    """A random function of the features, a fresh one for every prompt."""

    @abstractmethod
    def __call__(self, xs: Float[Tensor, "batch rows d"], draws: Draws) -> Float[Tensor, "batch rows"]:
        """Its values, in any unit; columns that it may not read are zero everywhere."""


@dataclass(frozen=True)
class Linear(Function):
    """w'x with normal w, whose sizes fall off at a random rate: from all alike to a few that matter."""

    def __call__(self, xs: Tensor, draws: Draws) -> Tensor:
        """w'x."""
        d = xs.shape[-1]
        # sizes fall off from one column that it reads to the next: the others come last
        places = (draws.uniform(d) + (xs == 0).all(1)).argsort(-1).argsort(-1)
        w = draws.normal(d) * (-(draws.uniform(1, high=1.0) ** 2) * places).exp()
        return torch.einsum("bnd,bd->bn", xs, w)


@dataclass(frozen=True)
class Network(Function):
    """v' act(A x + a): two layers with random weights, from almost linear to rough."""

    activation: Literal["relu", "sine", "tanh"] = "relu"
    """Of its hidden units."""
    hidden: int = 24
    """Hidden units, of which a random number is used."""

    def __call__(self, xs: Tensor, draws: Draws) -> Tensor:
        """The network's values."""
        d = xs.shape[-1]
        active = (xs != 0).any(1).sum(-1).clamp(min=1).view(-1, 1, 1)
        sizes = draws.normal(d, 1).abs() * draws.normal(d, self.hidden)
        # sine units of a high frequency would be noise to anybody with so few rows
        scale = draws.uniform(1, 1, low=0.3, high=1.5 if self.activation == "sine" else 2.5)
        units = xs @ (scale * sizes / active.sqrt()) + draws.normal(1, self.hidden)
        units = {"relu": torch.relu, "sine": torch.sin, "tanh": torch.tanh}[self.activation](units)
        used = draws.uniform(self.hidden) < draws.uniform(1, low=0.15)
        return torch.einsum("bnh,bh->bn", units, draws.normal(self.hidden) * used) + 1e-3 * xs.sum(-1)


@dataclass(frozen=True)
class Trees(Function):
    """A sum of small trees: every level of a tree asks whether one feature is above a threshold."""

    trees: int = 6
    """Trees, of falling size."""
    depth: int = 3
    """Questions of a tree."""

    def __call__(self, xs: Tensor, draws: Draws) -> Tensor:
        """The sum of the leaves' values."""
        count = self.trees * self.depth
        active = (xs != 0).any(1).to(xs.dtype)[:, None]
        feature = (draws.uniform(count, xs.shape[-1]) * active).argmax(-1)
        asked = xs.gather(-1, feature[:, None].expand(-1, xs.shape[1], -1))
        answers = (asked > 0.8 * draws.normal(1, count)).unflatten(-1, (self.trees, self.depth))
        bits = 2 ** torch.arange(self.depth, device=xs.device)
        leaf = (answers * bits).sum(-1)
        sizes = (-draws.uniform(1, 1) * torch.arange(self.trees, device=xs.device)).exp()
        return (draws.normal(2**self.depth, self.trees).gather(1, leaf) * sizes).sum(-1) + 1e-3 * xs.sum(-1)


@dataclass(frozen=True)
class Additive(Function):
    """A smooth curve of each feature, and a few products of pairs."""

    products: int = 3
    """Products of two features."""

    def __call__(self, xs: Tensor, draws: Draws) -> Tensor:
        """sum_j a_j sin(b_j x_j + c_j) + e_j x_j^2 + sum_k f_k x_i x_j."""
        d = xs.shape[-1]
        active = (xs != 0).any(1).to(xs.dtype)[:, None]
        clipped = xs.clamp(-3, 3)
        waves = torch.sin(draws.uniform(1, d, low=0.3, high=2.0) * clipped + 3 * draws.normal(1, d))
        curves = draws.normal(1, d) * waves + 0.4 * draws.normal(1, d) * clipped.square()
        places = (draws.uniform(1, d) + 1 - active).argsort(-1).argsort(-1)
        sizes = (-2 * draws.uniform(1, 1) * places).exp()
        pairs = (draws.uniform(2 * self.products, d) * active).argmax(-1)
        left, right = clipped.gather(-1, pairs[:, None].expand(-1, xs.shape[1], -1)).chunk(2, -1)
        interact = (left * right * draws.normal(1, self.products)).sum(-1) * draws.uniform(1)
        return (curves * sizes * active).sum(-1) + interact


@dataclass(frozen=True)
class Prototypes(Function):
    """A number for each of some rows; every other row has that of the row nearest to it, or a mixture."""

    most: int = 12
    """The largest number of prototypes."""

    def __call__(self, xs: Tensor, draws: Draws) -> Tensor:
        """sum_p softmax_p(-sharpness |x - x_p|^2) effect_p."""
        weighed = xs * draws.uniform(1, xs.shape[-1], low=0.2)
        near = -torch.cdist(weighed, weighed[:, -self.most :]).square()
        near = near / near.mean((1, 2), keepdim=True).abs().clamp(min=1e-3)
        used = torch.arange(self.most, device=xs.device) < 2 + draws.whole(1, high=self.most - 1)
        sharpness = (draws.uniform(1, 1, low=1.0, high=5.0)).exp()
        share = (sharpness * near).masked_fill(~used[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bnp,bp->bn", share, draws.normal(self.most)) + 1e-3 * xs.sum(-1)


@dataclass(frozen=True)
class Target(ABC):
    """What is asked for: a label made from the function's value with its noise."""

    @abstractmethod
    def __call__(self, values: Float[Tensor, "batch rows"], draws: Draws) -> Float[Tensor, "batch rows"]:
        """The labels, in any unit; the values have mean 0 and variance 1."""


@dataclass(frozen=True)
class Number(Target):
    """The value itself, or skewed by exp in a quarter of the prompts."""

    skewed: float = 0.25
    """Share of prompts whose labels are skewed."""

    def __call__(self, values: Tensor, draws: Draws) -> Tensor:
        """v, or exp(a v)."""
        skew = (draws.uniform(1, low=0.2, high=1.0) * values.clamp(-3, 3)).exp()
        return torch.where(draws.uniform(1) < self.skewed, skew, values)


@dataclass(frozen=True)
class Classes(Target):
    """Ordered classes: how many thresholds, drawn at random, lie below the value; two classes mostly."""

    most: int = 5
    """The largest number of classes."""
    two: float = 0.8
    """Share of prompts with two classes."""

    def __call__(self, values: Tensor, draws: Draws) -> Tensor:
        """The class as a whole number."""
        thresholds = 0.7 * draws.normal(self.most - 1)
        used = torch.arange(self.most - 1, device=values.device) < 1 + draws.whole(1, high=self.most - 1) * (
            draws.uniform(1) >= self.two
        )
        return ((values[..., None] > thresholds[:, None]) & used[:, None]).sum(-1).to(values.dtype)


@dataclass(frozen=True)
class OneClass(Target):
    """1 where the value lies in an interval, else 0: one class, which may have others on both sides of it."""

    inner: float = 0.4
    """Share of prompts in which the interval ends on both sides."""

    def __call__(self, values: Tensor, draws: Draws) -> Tensor:
        """low < v, and v <= high where the interval ends there too."""
        low = draws.normal(1)
        high = low + draws.uniform(1, low=0.3, high=2.0)
        inside = (values > low) & ((values <= high) | (draws.uniform(1) >= self.inner))
        return inside.to(values.dtype)


@dataclass(frozen=True)
class Noise:
    """Normal or heavy-tailed noise with a random share of the variance."""

    most: float = 1.0
    """The largest share of the noise in the variance of values; uniform from 0."""
    heavy: float = 0.2
    """Share of prompts whose noise is heavy-tailed: Student's t with 3 degrees of freedom, cut at 5 deviations."""
    none: float = field(default=0.0, metadata={"later": True})
    """Share of prompts without noise."""

    def __call__(self, values: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Values with noise, of variance 1; and the share of noise."""
        share = draws.uniform(1, high=self.most)
        if self.none:
            share = share * (draws.uniform(1) >= self.none)
        rows = values.shape[1]
        normal, chi = draws.normal(rows), draws.normal(3, rows).square().mean(1)
        heavy = (normal / (chi.sqrt() * 3**0.5)).clamp(-5, 5)
        noise = torch.where(draws.uniform(1) < self.heavy, heavy, normal)
        return (1 - share).sqrt() * values + share.sqrt() * noise, share[:, 0]


def standardized_beside(values: Float[Tensor, "batch rows columns"]) -> Float[Tensor, "batch rows columns"]:
    """Columns with mean 0 and variance 1 in the last `BESIDE` rows; a constant column becomes zero."""
    mean, deviation = units_beside(values)
    # a number that is rare beside must not become huge
    return ((values - mean) / deviation).clamp(-10, 10)


def units_beside(values: Float[Tensor, "batch rows columns"]) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of every column in the last `BESIDE` rows."""
    beside = values[:, -BESIDE:]
    return beside.mean(1, keepdim=True), beside.std(1, keepdim=True).clamp(min=1e-3)
