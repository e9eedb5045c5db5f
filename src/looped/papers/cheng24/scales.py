"""How large cheng24's figures are measured at each scale."""

from __future__ import annotations

from typing import Any

ADAM = {"rate": 0.02, "clip": 1.0, "betas": [0.9, 0.99], "decay": 0.9}
TRAIN: dict[str, dict[str, Any]] = {
    "smoke": {
        "batch": 16,
        "resample": 2,
        "steps": 4,
        "seeds": [0, 1],
        "test": 64,
        "pool": 32,
        "kept": 2,
        "optimizer": ADAM,
    },
    "cpu": {
        "batch": 256,
        "resample": 10,
        "steps": 1500,
        "seeds": [0, 1],
        "test": 16384,
        "pool": 4096,
        "kept": 30,
        "optimizer": ADAM,
    },
    "paper": {
        "batch": 30000,
        "resample": 10,
        "steps": 1000,
        "seeds": [0, 1, 2],
        "test": 60000,
        "pool": 60000,
        "kept": 50,
        "optimizer": ADAM,
    },
}
LOSSES: dict[str, dict[str, Any]] = {
    "smoke": {**TRAIN["smoke"], "n": [2, 14], "depth": 2, "layers": [1, 2], "fixed_n": [14, 6]},
    "cpu": {**TRAIN["cpu"], "n": [2, 6, 14], "depth": 3, "layers": [1, 3, 6], "fixed_n": [14, 6]},
    "paper": {
        **TRAIN["paper"],
        "n": [2, 4, 6, 8, 10, 12, 14],
        "depth": 3,
        "layers": [1, 2, 3, 4, 5, 6, 7, 8],
        "fixed_n": [14, 6],
    },
}
MATRICES: dict[str, dict[str, Any]] = {
    "smoke": {**TRAIN["smoke"], "n": 6},
    "cpu": {**TRAIN["cpu"], "n": 14},
    "paper": {**TRAIN["paper"], "n": 30},
}
