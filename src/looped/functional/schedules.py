"""Schedules are functions of the step, so that resuming needs no replay."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A number for every training step."""

    @abstractmethod
    def __call__(self, step: int, steps: int) -> float:
        """The value at `step` (from 0) of a run of `steps`."""

    def bounds(self, steps: int) -> tuple[float, float]:
        """The least and the largest value in a run of `steps`, read at 1000 steps; exact where it only climbs."""
        values = [self(step, steps) for step in (*range(0, steps, 1 + steps // 1000), steps - 1)]
        return min(values), max(values)


@dataclass(frozen=True, kw_only=True)
class Staircase(Schedule):
    """From `start` to `stop`, `by` more every `every` steps. Ref: Garg et al. 2022, and yang24's loops."""

    start: int
    """First value."""
    stop: int
    """Last value, kept from then on."""
    by: int
    """Height of a stair."""
    every: int
    """Steps on a stair."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"`every` must be at least 1 step; got {self.every}.")
        if self.by < 1 or self.stop < self.start:
            raise ValueError(f"a staircase climbs; got start={self.start}, stop={self.stop}, by={self.by}.")

    def __call__(self, step: int, steps: int) -> int:
        """min(stop, start + by floor(step / every))."""
        return min(self.stop, self.start + self.by * (step // self.every))

    def bounds(self, steps: int) -> tuple[int, int]:
        """The first and the last value."""
        return self(0, steps), self(steps - 1, steps)


@dataclass(frozen=True, kw_only=True)
class Ramp(Schedule):
    """From `start` to `stop` in whole numbers, evenly over the first `share` of the run."""

    start: int
    """First value."""
    stop: int
    """Last value, kept from then on."""
    share: float
    """Share of the run that the climb takes."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"`share` must be in (0, 1]; got {self.share}.")
        if self.stop < self.start:
            raise ValueError(f"a ramp climbs; got start={self.start}, stop={self.stop}.")

    def __call__(self, step: int, steps: int) -> int:
        """Climb in equal stairs."""
        stairs = self.stop - self.start + 1
        return self.start + min(stairs - 1, int(stairs * step / (self.share * steps)))

    def bounds(self, steps: int) -> tuple[int, int]:
        """The first and the last value."""
        return self(0, steps), self(steps - 1, steps)


@dataclass(frozen=True, kw_only=True)
class RandomDepth(Schedule):
    """A whole number drawn anew at each step, uniformly from [low, high].

    As `train.depth` it makes a model stable past the trained loops: with low=-4, high=4 a step has b - 4 to b + 4.
    """

    low: int
    """Least value."""
    high: int
    """Largest value."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"`low` must be at most high={self.high}; got {self.low}.")

    def __call__(self, step: int, steps: int) -> int:
        """Drawn from the step alone: nothing to save, no device, and the seeds in one stack share it."""
        return random.Random(step).randint(self.low, self.high)

    def bounds(self, steps: int) -> tuple[int, int]:
        """What may be drawn."""
        return self.low, self.high


@dataclass(frozen=True, kw_only=True)
class Trapezoid(Schedule):
    """A factor: up from 0 over the first `warmup` of the run, 1, then down over the last `decay` to `floor`."""

    warmup: float = 0.0
    """Share of the run for the way up."""
    decay: float = 0.0
    """Share of the run for the way down."""
    floor: float = 0.0
    """Value at the end."""

    def __post_init__(self) -> None:
        if min(self.warmup, self.decay) < 0 or self.warmup + self.decay > 1:
            raise ValueError(f"`warmup` + `decay` must be in [0, 1]; got {self.warmup} and {self.decay}.")
        if self.floor and not self.decay:
            raise ValueError(f"`floor` is where the decay ends, and `decay` is 0; got {self.floor}. Raise `decay`.")

    def __call__(self, step: int, steps: int) -> float:
        """min(1, (step + 1) / (warmup steps), (steps - step) / (decay steps)), at least `floor` on the way down."""
        up = (step + 1) / (self.warmup * steps) if self.warmup else 1.0
        down = (steps - step) / (self.decay * steps) if self.decay else 1.0
        return max(min(1.0, up, down), self.floor if down < 1 else 0.0)
