"""Figure 2: trained on k covariances in [1, 8], tested on windows around them; looped against multilayer."""

from __future__ import annotations

from typing import Any

from looped.papers.gatmiry24.families import SETTINGS, SETUPS, Losses, Models, axis, best_of
from looped.papers.gatmiry24.training import KINDS, mixture
from looped.studies import Cell, Learned, Panels, Study, at, claim
from looped.studies.expressions import Quantity

COUNTS = (2, 5, 9)
"""How many covariances a model is trained on: k."""
DEPTH = {"smoke": 2, "cpu": 8, "paper": 8}
"""Layers, or loops; the paper does not state them."""
WIDEST = 0.5
"""Half the width of the widest test windows."""
HALVES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, WIDEST)
MEASURES = {
    "smoke": Losses(seeds=2, halves=(0.0, 0.25, WIDEST)),
    "cpu": Losses(seeds=3, halves=HALVES),
    "paper": Losses(seeds=3, halves=HALVES),
}


def cells(scale: str) -> dict[Cell, Models]:
    """Every setting, kind and k."""
    return {
        Cell(setting=setting, model=kind, k=count): Models(
            kind=kind, depths=(DEPTH[scale],), windows=mixture(count), covariance=covariance, training=training
        )
        for setting, (covariance, training) in SETUPS[scale].items()
        for kind in KINDS
        for count in COUNTS
    }


def growth(**labels: Any) -> Quantity:
    """The loss on the widest windows over that on none."""
    return at(WIDEST, "loss", **labels) / at(0.0, "loss", **labels)


def growths(multilayer: str = "multilayer", looped: str = "looped", **labels: Any) -> Quantity:
    """By how much more the multilayer model's loss grows than the looped one's."""
    return growth(model=multilayer, **labels) / growth(model=looped, **labels)


def looped_over_multilayer(multilayer: str = "multilayer", looped: str = "looped", **labels: Any) -> Quantity:
    """Looped over multilayer loss on the widest windows."""
    return at(WIDEST, "loss", model=looped, **labels) / at(WIDEST, "loss", model=multilayer, **labels)


BEST = {"multilayer": best_of("multilayer"), "looped": best_of("looped")}
WHERE = [(setting, count) for setting in SETTINGS for count in COUNTS]

FIG2 = Study(
    name="gatmiry24.fig2",
    title="Test loss against the width of windows around k training covariances, looped and multilayer",
    cells=cells,
    measure=MEASURES.__getitem__,
    panels=Panels(
        y="loss",
        axis=axis("half-width w of the test windows"),
        row="setting",
        column="k",
        colour="model",
        line="{model}",
        reference="{model} weights for w = 0",
    ),
    learned=Learned(of="loss", at=0.0),
    claims=(
        *(
            claim(
                f"{setting}.k{count}.grows_more",
                f"Trained on {count} covariances, the multilayer model's loss grows by a larger factor from w = 0 to "
                f"{WIDEST:g} than the looped model's (Figure 2), depth {DEPTH['paper']}, {setting}.",
                growths(setting=setting, k=count) > 1,
                remark="where the best multilayer loss at w = 0 is zero, the ratio says how far training got",
                beside={"with the best weights": growths(setting=setting, k=count, **BEST)},
            )
            for setting, count in WHERE
        ),
        *(
            claim(
                f"{setting}.k{count}.looped_lower",
                f"Trained on {count} covariances, the looped model generalises better in absolute terms: its loss at "
                f"w = {WIDEST:g} is the lower one (Section 5), depth {DEPTH['paper']}, {setting}.",
                looped_over_multilayer(setting=setting, k=count) < 1,
                beside={"with the best weights": looped_over_multilayer(setting=setting, k=count, **BEST)},
            )
            for setting, count in WHERE
        ),
        *(
            claim(
                f"{setting}.perfectly_robust",
                f"As k increases the looped model becomes perfectly robust (Section 5), k = 9, {setting}.",
                growth(setting=setting, model="looped", k=max) <= 1.1,
                beside={f"in the {other} setting": growth(setting=other, model="looped", k=max)},
            )
            for setting, other in (SETTINGS, SETTINGS[::-1])
        ),
    ),
)
