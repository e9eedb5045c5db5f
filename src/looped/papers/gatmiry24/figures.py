"""Figure 1: loss against layers and loops. Figure 2: trained on k covariances, tested on windows around them."""

from dataclasses import replace
from typing import Any

from looped.papers.gatmiry24.covariances import Covariance, Exact, Sampled
from looped.papers.gatmiry24.families import LossCurves, Models, NearBest, log_loss
from looped.papers.gatmiry24.training import EXACT, KINDS, SAMPLED, Kind, Training, mixture, spread
from looped.studies import Cell, Panels, Study, along, at, claim, curve, loops_to, worst
from looped.studies.claims import Claim
from looped.studies.expressions import Quantity

SETTINGS = ("exact", "sampled")
SETUPS: dict[str, dict[str, tuple[Covariance, Training]]] = {
    "smoke": {
        "exact": (Exact(d=3), EXACT["smoke"]),
        "sampled": (Sampled(d=3, n=6, batch=32, spectra=256, tests=64), SAMPLED["smoke"]),
    },
    "cpu": {
        "exact": (Exact(), EXACT["cpu"]),
        "sampled": (Sampled(batch=1000, spectra=32_768, tests=4096), SAMPLED["cpu"]),
    },
    "paper": {"exact": (Exact(), EXACT["paper"]), "sampled": (Sampled(batch=2000, tests=8192), SAMPLED["paper"])},
}
"""Scale -> setting -> covariances and training."""
KAPPAS = {"smoke": (2, 8), "cpu": (2, 4, 8), "paper": (2, 4, 8)}
COMPARED = {"exact": (8,), "sampled": (4, 8, 12, 14, 16)}
"""Setting -> depths at which looped and multilayer models are compared; the paper does not state its depth."""
DEPTHS = {
    "smoke": {setting: (1, 2, *depths) for setting, depths in COMPARED.items()},
    "cpu": dict.fromkeys(SETTINGS, (1, 2, 3, 4, 6, 8)),
    "paper": {"exact": tuple(range(1, 9)), "sampled": (*range(1, 9), 12, 14, 16)},
}
"""Scale -> setting -> depths of Figure 1."""
SOLVED = {"exact": (5e-3, 5e-2, 2e-2, 2e-3, 1e-3), "sampled": (0.25, 0.4, 0.3, 0.2, 0.15)}
"""The loss that counts as solved, predicting zero being 1; then others, to be shown beside it."""
CLOSE = 1.5
"""So many times the layers still count as close."""
BEST = {"looped": "best looped", "multilayer": "best multilayer"}
"""Kind -> `model` label of its best weights."""


def by_depth(scale: str, kinds: tuple[Kind, ...] = KINDS) -> dict[Cell, Models]:
    """Every setting, kind and kappa, each at all depths."""
    return {
        Cell(setting=setting, model=kind, kappa=kappa): Models(
            kind=kind, depths=DEPTHS[scale][setting], windows=spread(kappa), covariance=covariance, training=training
        )
        for kind in kinds
        for setting, (covariance, training) in SETUPS[scale].items()
        for kappa in KAPPAS[scale]
    }


def needed(setting: str, model: str, solved: float) -> Quantity:
    """The depth at which a model's loss falls to what counts as solved."""
    return loops_to(solved, of="loss", interpolate=True, setting=setting, model=model)


def rise(setting: str, model: str) -> Quantity:
    """The least factor by which the depth needed rises from one kappa to the next."""
    return along(needed(setting, model, SOLVED[setting][0]), "kappa").successive().least()


def loops_for_layers(setting: str, solved: float, looped: str = "looped", multilayer: str = "multilayer") -> Quantity:
    """Loops needed over layers needed, worst over kappa."""
    return worst(needed(setting, looped, solved) / needed(setting, multilayer, solved), over="kappa")


def widest_range(setting: str, depth: int, looped: str = "looped", multilayer: str = "multilayer") -> Quantity:
    """Looped over multilayer loss at the largest kappa."""
    labels: dict[str, Any] = {"of": "loss", "setting": setting, "kappa": max}
    return at(depth, model=looped, **labels) / at(depth, model=multilayer, **labels)


def more_with_kappa(kind: Kind, what: str, setting: str) -> Claim:
    """The depth needed rises with kappa."""
    return claim(
        f"{setting}.more_with_kappa",
        f"The larger kappa, the more {what} are needed for a small loss (Section 5, Figure 1); {setting}.",
        rise(setting, kind) > 1,
        beside={"with the best weights": rise(setting, BEST[kind])},
    )


FIG1_PANELS = Panels(
    y="loss",
    axis=log_loss("layers L"),
    column="setting",
    colour="kappa",
    line="κ = {kappa}",
    reference="best possible",
    share_y=False,
    width=3.6,
)

FIG1A = Study(
    name="gatmiry24.fig1a",
    title="Test loss against layers for three ranges of covariances, multilayer",
    cells=lambda scale: by_depth(scale, ("multilayer",)),
    measure=lambda scale: LossCurves(seeds=2),
    panels=FIG1_PANELS,
    learned=NearBest(of="loss"),
    claims=tuple(more_with_kappa("multilayer", "layers", setting) for setting in SETTINGS),
)

FIG1B = replace(
    FIG1A,
    name="gatmiry24.fig1b",
    title="Test loss against loops for three ranges of covariances, looped",
    cells=by_depth,
    panels=replace(
        FIG1_PANELS,
        axis=log_loss("loops L, or layers"),
        dash="model",
        only={"model": ("looped", "multilayer", BEST["looped"])},
        line="{model}, κ = {kappa}",
    ),
    claims=(
        *(more_with_kappa("looped", "loops", setting) for setting in SETTINGS),
        *(
            claim(
                f"{setting}.loops_close",
                "The number of loops needed is very close to the number of layers (Figure 1b): at most "
                f"{CLOSE:g} times as many for a loss of {SOLVED[setting][0]:g}; {setting}.",
                loops_for_layers(setting, SOLVED[setting][0]) <= CLOSE,
                remark="the paper names no loss that counts as solved, and the factor grows as less is allowed",
                beside={
                    "with the best weights": loops_for_layers(setting, SOLVED[setting][0], **BEST),
                    **{
                        f"for a loss of {solved:g}": loops_for_layers(setting, solved) for solved in SOLVED[setting][1:]
                    },
                },
            )
            for setting in SETTINGS
        ),
        *(
            claim(
                f"{setting}.L{depth}.competitive",
                "L loops are very competitive with L layers even in the most diverse setting (Section 5): at most "
                f"twice the loss, depth {depth}, {setting}.",
                widest_range(setting, depth) <= 2,
                beside={"with the best weights": widest_range(setting, depth, **BEST)},
            )
            for setting in SETTINGS
            for depth in COMPARED[setting]
        ),
    ),
)

COUNTS = (2, 5, 9)
"""How many covariances a model of Figure 2 is trained on: k."""
WIDEST = 0.5
"""Half the width of the widest test windows."""
HALVES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, WIDEST)


def by_window(scale: str) -> dict[Cell, Models]:
    """Every setting, kind and k, each at the depths that are compared."""
    return {
        Cell(setting=setting, model=kind, k=count): Models(
            kind=kind,
            depths=tuple(depth for depth in COMPARED[setting] if scale != "cpu" or depth <= 8),
            windows=mixture(count),
            covariance=covariance,
            training=training,
        )
        for setting, (covariance, training) in SETUPS[scale].items()
        for kind in KINDS
        for count in COUNTS
    }


def growth(**labels: Any) -> Quantity:
    """The loss on the widest windows over that on none, by depth."""
    return curve("loss_on_widest", **labels) / curve("loss_as_trained", **labels)


def growth_ratio(looped: str = "looped", multilayer: str = "multilayer", **labels: Any) -> Quantity:
    """The growth of the multilayer model's loss over that of the looped one's, by depth."""
    return growth(model=multilayer, **labels) / growth(model=looped, **labels)


def widest_ratio(looped: str = "looped", multilayer: str = "multilayer", **labels: Any) -> Quantity:
    """Looped over multilayer loss on the widest windows, by depth."""
    return curve("loss_on_widest", model=looped, **labels) / curve("loss_on_widest", model=multilayer, **labels)


def depths_of(setting: str) -> str:
    """The depths of a setting in words."""
    return f"depth {', '.join(map(str, COMPARED[setting]))}"


FIG2_PANELS = Panels(
    y="loss",
    axis=log_loss("half-width w", places=False),
    row="depth",
    column="k",
    colour="model",
    line="{model}",
    reference="{model} weights for w = 0",
    share_y=False,
    height=2.3,
)

FIG2 = Study(
    name="gatmiry24.fig2",
    title="Test loss against the width of windows around k training covariances, looped and multilayer",
    cells=by_window,
    measure=lambda scale: (
        LossCurves(seeds=1, halves=(0.0, WIDEST)) if scale == "smoke" else LossCurves(seeds=3, halves=HALVES)
    ),
    panels=[
        replace(
            FIG2_PANELS,
            y="loss_on_widest",
            axis=log_loss("layers L, or loops", f"test loss at w = {WIDEST:g}"),
            only={"setting": "sampled"},
            row=None,
            title="sampled, k = {k}",
        ),
        *(
            replace(FIG2_PANELS, only={"setting": setting}, title=f"{setting}, depth {{depth}}, k = {{k}}")
            for setting in SETTINGS
        ),
    ],
    learned=NearBest(of="loss_as_trained"),
    claims=(
        *(
            claim(
                f"{setting}.k{count}.grows_more",
                f"Trained on {count} covariances, the multilayer model's loss grows by a larger factor from w = 0 to "
                f"{WIDEST:g} than the looped model's (Figure 2), {depths_of(setting)}, {setting}.",
                growth_ratio(setting=setting, k=count).least() > 1,
                remark="where the best multilayer loss at w = 0 is zero, the ratio says how far training got",
                beside={"with the best weights": growth_ratio(setting=setting, k=count, **BEST).least()},
            )
            for setting in SETTINGS
            for count in COUNTS
        ),
        *(
            claim(
                f"{setting}.k{count}.looped_lower",
                f"Trained on {count} covariances, the looped model generalises better in absolute terms: its loss at "
                f"w = {WIDEST:g} is the lower one (Section 5), {depths_of(setting)}, {setting}.",
                widest_ratio(setting=setting, k=count).largest() < 1,
                remark="our reading of a sentence that names no depth; where several weights lose nothing at w = 0, it "
                "depends on which of them training finds",
                beside={
                    "at the depth where it is least": widest_ratio(setting=setting, k=count).least(),
                    "with the best weights": widest_ratio(setting=setting, k=count, **BEST).largest(),
                },
            )
            for setting in SETTINGS
            for count in COUNTS
        ),
        *(
            claim(
                f"{setting}.L{depth}.perfectly_robust",
                "As k increases the looped model becomes perfectly robust (Section 5): its loss grows by at most a "
                f"tenth to w = {WIDEST:g}, k = 9, depth {depth}, {setting}.",
                growth(setting=setting, model="looped", k=max).at(depth) <= 1.1,
                beside={
                    "with the best weights": growth(setting=setting, model=BEST["looped"], k=max).at(depth),
                    "trained on 2 covariances": growth(setting=setting, model="looped", k=min).at(depth),
                },
            )
            for setting in SETTINGS
            for depth in COMPARED[setting]
        ),
    ),
)
