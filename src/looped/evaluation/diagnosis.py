"""What a diagnosis holds, and by which limits it is made."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from jaxtyping import Bool, Float
from torch import Tensor

from looped.evaluation.bootstrap import bootstrap
from looped.evaluation.curves import Curve, Findings

WORSE = 2.0
"""The error diverges where it is surely more than this factor above the best one..."""
ROUNDING = 1e-6
"""... and by more than this, in units of predicting zero: below that it is rounding."""
MARGIN = 0.05
"""The error stays when it surely rises by less than this fraction of its best; it rises when it surely rises more."""
SETTLED = 1e-3
"""A loop leaves a state where it is when it moves it by less than this fraction of its length."""
SAME = 1e-2
"""Predictions, or states a quarter of the loops apart, are the same when they differ by less than this fraction."""
GROWN = 10.0
"""A state diverges when it ends this many times as far from the trained loops' state as that one is long."""
MOST_PERIOD = 8
"""The longest cycle that is looked for."""
BEHAVIOURS = ("settles", "cycles", "keeps moving", "diverges")
"""What the state of a prompt may do; it does one of these."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a number is distributed over prompts."""

    median: float
    """The median."""
    low: float
    """The 5% quantile."""
    high: float
    """The 95% quantile."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean or a share over prompts, with its interval."""

    mean: float
    """The mean."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end."""

    @classmethod
    def of(cls, values: Float[Tensor, " batch"], level: float, seed: int) -> "Estimate":
        """The mean of `values` with a bootstrap interval; of paired differences, a paired one."""
        return cls(**{key: float(part) for key, part in bootstrap(values, level=level, seed=seed)._asdict().items()})

    @classmethod
    def share(cls, which: Bool[Tensor, " batch"], level: float) -> "Estimate":
        """The share of True with Wilson's interval, which says something at 0 and 1 too."""
        n, mean, z = len(which), float(which.double().mean()), NormalDist().inv_cdf((1 + level) / 2)
        middle, half = mean + z**2 / (2 * n), z * math.sqrt(mean * (1 - mean) / n + (z / (2 * n)) ** 2)
        return cls(mean=mean, low=(middle - half) / (1 + z**2 / n), high=(middle + half) / (1 + z**2 / n))


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Findings):
    """How a model behaves when it is looped far beyond its trained loops."""

    trained_loops: int
    """The loops the model was trained with."""
    loops: int
    """The loops it was run for."""
    looped: bool
    """Whether loops apply the same weights; False: there is one loop, or each has weights of its own."""
    injects: bool
    """Whether a loop reads the prompt beside the state."""
    error: Curve
    """Error by loop, at the last pair, or over all scored tokens of a sequence."""
    change: Curve
    """|state - previous| / |state| by loop."""
    zero: float
    """The error of predicting zero on the same prompts."""
    gain: Estimate
    """Error of predicting zero minus the model's after the trained loops, paired over prompts."""
    help: Estimate
    """Error after one loop minus that after the trained loops, paired."""
    rise: Estimate
    """Error after the last loop minus the best loop's, paired; a prompt's best loop is chosen on other prompts."""
    between_prompts: float
    """How far answers to different prompts are apart, over their size: 0 is one answer for all."""
    between_loops: float
    """How far the answers after one loop and after the trained loops are apart, over the size of the latter."""
    best_loop: int
    """The loop of the smallest mean error."""
    diverges_at: int | None
    """The first loop from which the error stays surely above `WORSE` times the best one's; None: there is none."""
    overflows_at: int | None
    """The first loop after which some state, or its error, is not finite."""
    shares: dict[str, Estimate]
    """Share of the prompts whose state does each of `BEHAVIOURS`; empty where loops share no weights."""
    settled_stay: bool | None = None
    """Whether the error of the prompts that settle surely stays; None where fewer than 2 settle."""
    period: int | None = None
    """Loops of the commonest cycle, if any prompt cycles."""
    radius: Spread | None = None
    """Spectral radius of the step's Jacobian at the last state, over the prompts that settle."""
    repelled: float | None = None
    """Share of the settled prompts whose radius is above 1 + `SETTLED`: a disturbance of their last state grows."""
    starts: int = 0
    """How many random starts were tried; 0 where the prompt enters by the first state alone, or nothing settles."""
    apart: float | None = None
    """Root mean square distance of settled prompts' predictions from random starts to the usual ones, over their size;
    None where it is not finite."""
    same: float | None = None
    """Share of the settled prompts whose predictions from every random start are within `SAME` of the usual ones."""
    kind: str = ""
    """The diagnosis in a word or two."""
    verdict: str = ""
    """The diagnosis in a few sentences."""
