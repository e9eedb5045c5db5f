"""How large each figure is at each scale.

`paper` takes the optimiser of the program that the paper builds on, since the paper states none: AdamW(.99, .9), rate
.01 halved every fifth of 20k steps, each matrix's gradient clipped to .01, weights of size 1e-4 at first, and 20k
prompts drawn anew every 100 steps. `cpu` has fewer steps and smaller batches, whose gradients have heavier tails: there
the rate starts higher and ends lower, Adam's second moment forgets more slowly, and only outliers are clipped.
"""

from __future__ import annotations

from typing import Any

SHAPE: dict[str, Any] = {"d": 10, "n": 20}

PAPER_EXACT: dict[str, Any] = {
    "steps": 20_000, "rate": 0.01, "halve": 0.2, "betas": [0.99, 0.9], "clip": 0.01, "std": 1e-4,
}  # fmt: skip
PAPER_SAMPLED: dict[str, Any] = {**PAPER_EXACT, "batch": 20_000, "every": 100, "tests": 65_536, "prompt_seed": 0}
CPU_EXACT: dict[str, Any] = {**PAPER_EXACT, "steps": 3000}
CPU_SAMPLED: dict[str, Any] = {
    **PAPER_SAMPLED,
    "steps": 900,
    "rate": 0.03,
    "halve": 0.1,
    "betas": [0.9, 0.99],
    "clip": 1.0,
    "clip_looped": 10.0,
    "batch": 2000,
    "every": 2,
    "tests": 4096,
}
SMOKE_EXACT: dict[str, Any] = {**PAPER_EXACT, "steps": 20, "rate": 0.05}
SMOKE_SAMPLED: dict[str, Any] = {**CPU_SAMPLED, "steps": 10, "rate": 0.02, "batch": 32, "tests": 64}

DEPTH: dict[str, dict[str, Any]] = {
    "smoke": {
        "d": 3, "n": 6, "kappas": [2, 8], "depths": [1, 2], "seeds": 2, "exact": SMOKE_EXACT, "sampled": SMOKE_SAMPLED,
    },
    "cpu": {
        **SHAPE, "kappas": [2, 4, 8], "depths": [1, 2, 3, 4, 6, 8], "seeds": 2, "exact": CPU_EXACT,
        "sampled": {**CPU_SAMPLED, "steps": 800, "batch": 1500},
    },
    "paper": {
        **SHAPE, "kappas": [2, 4, 8], "depths": [1, 2, 3, 4, 6, 8], "seeds": 2, "exact": PAPER_EXACT,
        "sampled": PAPER_SAMPLED,
    },
}  # fmt: skip
"""Figure 1."""

HALVES = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
WINDOWS: dict[str, dict[str, Any]] = {
    "smoke": {
        "d": 3, "n": 6, "counts": [2, 5, 9], "depth": 2, "halves": [0.0, 0.25, 0.5], "seeds": 2, "exact": SMOKE_EXACT,
        "sampled": SMOKE_SAMPLED,
    },
    "cpu": {
        **SHAPE, "counts": [2, 5, 9], "depth": 8, "halves": HALVES, "seeds": 3, "exact": CPU_EXACT,
        "sampled": CPU_SAMPLED,
    },
    "paper": {
        **SHAPE, "counts": [2, 5, 9], "depth": 8, "halves": HALVES, "seeds": 3, "exact": PAPER_EXACT,
        "sampled": PAPER_SAMPLED,
    },
}  # fmt: skip
"""Figure 2; the paper does not state its depth."""

CHEBYSHEV: dict[str, dict[str, Any]] = {
    "smoke": {
        "d": 3, "kappa": 8, "depths": [1, 2], "seeds": 1, "isotropic": SMOKE_EXACT,
        "anisotropic": {**SMOKE_EXACT, "batch": 8, "tests": 64},
    },
    "cpu": {
        "d": 10, "kappa": 8, "depths": [1, 2, 3, 4, 6, 8], "seeds": 2, "isotropic": CPU_EXACT,
        "anisotropic": {**CPU_EXACT, "steps": 1500, "batch": 32, "tests": 2000},
    },
    "paper": {
        "d": 10, "kappa": 8, "depths": [1, 2, 3, 4, 5, 6, 7, 8], "seeds": 3, "isotropic": PAPER_EXACT,
        "anisotropic": {**PAPER_EXACT, "steps": 10_000, "batch": 256, "tests": 20_000},
    },
}  # fmt: skip
"""Whether training finds the Chebyshev weights."""

FORMS: dict[str, dict[str, Any]] = {
    "smoke": {
        "d": 3, "n": 6, "depth": 2, "count": 2, "halves": [0.0, 0.5], "seeds": 1, "steps": 5, "rate": 0.01,
        "halve": 0.1, "betas": [0.9, 0.99], "clip": 1.0, "batch": 16, "tests": 64, "std": {"unrestricted": 0.1},
        "prompts": "exact",
    },
    "cpu": {
        "d": 5, "n": 10, "depth": 4, "count": 2, "halves": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], "seeds": 3, "steps": 400,
        "rate": 0.02, "halve": 0.1, "betas": [0.9, 0.99], "clip": 1.0, "clip_looped": 5.0, "batch": 128, "tests": 8192,
        "std": {"unrestricted": 0.1},
        "prompts": "exact",
    },
    "paper": {
        "d": 5, "n": 10, "depth": 4, "count": 2, "halves": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], "seeds": 5, "steps": 5000,
        "rate": 0.01, "halve": 0.1, "betas": [0.9, 0.99], "clip": 1.0, "clip_looped": 5.0, "batch": 4096,
        "tests": 65_536,
        "std": {"unrestricted": 0.1},
        "prompts": "exact",
    },
}  # fmt: skip
"""Other forms of attention and of covariance."""
