"""How large cheng24's figures are measured at each scale.

The paper says Adam with clipping, batch 30000, a new minibatch every 10 steps, 3 seeds, and neither rate nor steps. The
released program's steps have length .1/(9-i)^2 in layer i, too short for a run of minutes; these are longer and shrink
to 0. `clip` is the largest gradient norm times (9-i)^2.
"""

from __future__ import annotations

from typing import Any

ADAM = {"rate": 0.02, "clip": 10.0, "betas": [0.9, 0.95], "decay": 0.9}
_PAPER: dict[str, Any] = {
    "batch": 30_000,
    "resample": 10,
    "steps": 600,
    "seeds": [0, 1, 2],
    "test": 60_000,
    "pool": 60_000,
    "kept": 50,
    "optimizer": ADAM,
}
TRAIN: dict[str, dict[str, Any]] = {
    "smoke": {**_PAPER, "batch": 8, "resample": 2, "steps": 3, "seeds": [0], "test": 32, "pool": 16, "kept": 2},
    "cpu": {**_PAPER, "batch": 256, "steps": 800, "seeds": [0, 1], "test": 16_384, "pool": 8192, "kept": 25},
    "paper": _PAPER,
}
"""`cpu`: the same training on minibatches of 256."""
LOSSES: dict[str, dict[str, Any]] = {
    "smoke": {**TRAIN["smoke"], "n": [2, 14], "depth": 2, "layers": [1, 2], "fixed_n": [14, 6]},
    "cpu": {**TRAIN["cpu"], "n": [2, 6, 14], "depth": 3, "layers": [1, 3, 6], "fixed_n": [14, 6]},
    "paper": {
        **TRAIN["paper"],
        "n": [2, 4, 6, 8, 10, 12, 14],
        "depth": 3,
        "layers": [1, 2, 3, 4, 6, 8],
        "fixed_n": [14, 6],
    },
}
MATRICES: dict[str, dict[str, Any]] = {
    "smoke": {**TRAIN["smoke"], "n": 6},
    "cpu": {**TRAIN["cpu"], "n": 14},
    "paper": {**TRAIN["paper"], "n": 30},
}
"""`cpu` has 14 examples for 30, so that Figure 6 shares its models with Figure 1."""
