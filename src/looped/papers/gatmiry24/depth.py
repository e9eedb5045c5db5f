"""Figure 1: loss against layers and against loops, for s uniform on [1, kappa]."""

from __future__ import annotations

from dataclasses import replace

from looped.papers.gatmiry24.covariances import Sampled
from looped.papers.gatmiry24.families import SETTINGS, SETUPS, Losses, Models, axis, best_of
from looped.papers.gatmiry24.training import KINDS, SAMPLED, Kind, spread
from looped.studies import Cell, Learned, Panels, Study, along, claim, last, loops_to, worst
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity

CPU_SAMPLED = (Sampled(batch=1500, every=2, tests=4096), replace(SAMPLED["cpu"], steps=800))
KAPPAS = {"smoke": (2, 8), "cpu": (2, 4, 8), "paper": (2, 4, 8)}
DEPTHS = {"smoke": (1, 2), "cpu": (1, 2, 3, 4, 6, 8), "paper": (1, 2, 3, 4, 6, 8)}
SOLVED = {"exact": 5e-3, "sampled": 0.25}
"""The loss that counts as solved; predicting zero costs 1."""


def cells(scale: str, kinds: tuple[Kind, ...] = KINDS) -> dict[Cell, Models]:
    """Every setting, kind and kappa, each at all depths."""
    setups = {**SETUPS[scale], **({"sampled": CPU_SAMPLED} if scale == "cpu" else {})}
    return {
        Cell(setting=setting, model=kind, kappa=kappa): Models(
            kind=kind, depths=DEPTHS[scale], windows=spread(kappa), covariance=covariance, training=training
        )
        for kind in kinds
        for setting, (covariance, training) in setups.items()
        for kappa in KAPPAS[scale]
    }


def needed(setting: str, model: str) -> Quantity:
    """The depth at which a model's loss falls to what counts as solved."""
    return loops_to(SOLVED[setting], of="loss", interpolate=True, setting=setting, model=model)


def loops_for_layers(setting: str, looped: str, multilayer: str) -> Quantity:
    """Loops needed over layers needed, worst over kappa."""
    return worst(needed(setting, looped) / needed(setting, multilayer), over="kappa")


def most_diverse(setting: str, looped: str, multilayer: str) -> Quantity:
    """Looped over multilayer loss at the largest kappa and depth."""
    labels = {"of": "loss", "setting": setting, "kappa": max}
    return last(model=looped, **labels) / last(model=multilayer, **labels)


def more_with_kappa(kind: Kind, what: str, setting: str) -> Claim:
    """The depth needed rises with kappa."""
    return claim(
        f"{setting}.more_with_kappa",
        f"The larger kappa, the more {what} are needed for a small loss (Section 5, Figure 1); {setting}.",
        along(needed(setting, kind), "kappa").successive().least() > 1,
        beside={"with the best weights": along(needed(setting, best_of(kind)), "kappa").successive().least()},
    )


PANELS = Panels(
    y="loss",
    axis=axis("layers L"),
    column="setting",
    colour="kappa",
    line="κ = {kappa}",
    reference="best possible",
    width=3.6,
)

FIG1A = Study(
    name="gatmiry24.fig1a",
    title="Test loss against layers for three ranges of covariances, multilayer",
    cells=lambda scale: cells(scale, ("multilayer",)),
    measure=lambda scale: Losses(seeds=2),
    panels=PANELS,
    learned=Learned(of="loss"),
    claims=tuple(more_with_kappa("multilayer", "layers", setting) for setting in SETTINGS),
)

FIG1B = Study(
    name="gatmiry24.fig1b",
    title="Test loss against loops for three ranges of covariances, looped",
    cells=cells,
    measure=lambda scale: Losses(seeds=2),
    panels=replace(
        PANELS,
        axis=axis("loops L, or layers"),
        only={"model": ("looped", "multilayer", best_of("looped"))},
        dash="model",
        line="{model}, κ = {kappa}",
    ),
    learned=Learned(of="loss"),
    claims=(
        *(more_with_kappa("looped", "loops", setting) for setting in SETTINGS),
        *(
            claim(
                f"{setting}.loops_close",
                f"The number of loops needed is very close to the number of layers (Figure 1b); {setting}.",
                loops_for_layers(setting, "looped", "multilayer") <= 1.5,
                beside={"with the best weights": loops_for_layers(setting, *map(best_of, ("looped", "multilayer")))},
            )
            for setting in SETTINGS
        ),
        *(
            claim(
                f"{setting}.competitive",
                f"L loops are very competitive with L layers even in the most diverse setting (Section 5); {setting}.",
                most_diverse(setting, "looped", "multilayer") <= 2,
                beside={"with the best weights": most_diverse(setting, *map(best_of, ("looped", "multilayer")))},
            )
            for setting in SETTINGS
        ),
    ),
)
