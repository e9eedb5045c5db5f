"""The planted failure of every claim: what is changed in a table for which it holds, and then it fails.

A claim fails for the reason that its sentence names: the model that it praises is worse, the curve that it calls flat
rises. `test_every_study.py` holds that no claim is missing here, and that every plant fails.
"""

from looped.papers import chen24, parts
from studies.planted import plant

LOOPED, UNLOOPED = "looped transformer", "transformer"

CHEN24 = {
    "chen24.fig1.below_bound": plant("has the other sign", "excess", model=chen24.PRECISE),
    "chen24.fig1.faster": plant("is smaller", "decay_rate", model=chen24.PRECISE, n=max),
    "chen24.fig1.kappa": plant("is larger", "kappa", model=chen24.FLOAT64),
    "chen24.fig1.gap": plant("is larger", "decay_rate", model=chen24.PRECISE, n=max),
}

CHENG24 = {
    "cheng24.fig1.matching_linear": plant("is larger", "loss", K="linear", h="linear"),
    "cheng24.fig1.matching_relu": plant("is larger", "loss", K="relu", h="relu"),
    "cheng24.fig1.softmax_wins": plant("is larger", "loss", K="exp", h="softmax"),
    "cheng24.fig2.matching_linear": plant("is larger", "loss", K="linear", h="linear"),
    "cheng24.fig2.matching_relu": plant("is larger", "loss", K="relu", h="relu"),
    "cheng24.fig2.matching_exp": plant("is larger", "loss", K="exp", h="exp"),
    "cheng24.fig2.bayes": plant("rises", "loss", K="exp", h="exp"),
    "cheng24.fig2.softmax_gap": plant("is larger", "loss", K="exp", h="softmax", n=14),
    "cheng24.fig2.exp_wins": plant("is larger", "loss", K="exp", h="exp", n=6),
    "cheng24.fig2.relu_gap": plant("is smaller", "loss", K="relu", h="relu", n=14),
    "cheng24.fig4.pure_linear": plant("is larger", "loss", K="linear", h="linear+exp"),
    "cheng24.fig4.pure_exp": plant("is larger", "loss", K="exp", h="linear+exp"),
    "cheng24.fig4.mixed": plant("is larger", "loss", K="mixed", h="linear+exp"),
    "cheng24.fig3.converged": plant("is larger", "distance"),
    "cheng24.fig5.converged": plant("is larger", "distance"),
    "cheng24.fig6.converged": plant("is larger", "distance"),
}

GAO24 = {
    "gao24.fig2.regression.beats_looped": plant("is larger", "by_examples", task="regression", model="AlgoFormer"),
    "gao24.fig2.regression.beats_standard": plant("is larger", "by_examples", task="regression", model="AlgoFormer"),
    "gao24.fig2.autoregression.beats_looped": plant(
        "is larger", "by_examples", task="autoregression", model="AlgoFormer"
    ),
    "gao24.fig2.autoregression.beats_standard": plant(
        "is larger", "by_examples", task="autoregression", model="AlgoFormer"
    ),
    "gao24.fig2.chain_of_thought.beats_looped": plant(
        "is larger", "by_examples", task="chain_of_thought", model="AlgoFormer"
    ),
    "gao24.fig2.chain_of_thought.beats_standard": plant(
        "is larger", "by_examples", task="chain_of_thought", model="AlgoFormer"
    ),
    "gao24.fig2.chain_of_thought.standard_beats_looped": plant(
        "is larger", "by_examples", task="chain_of_thought", model="standard"
    ),
    **{
        f"gao24.fig2.{task}.falls_with_examples": plant("rises", "by_examples", task=task, model="AlgoFormer")
        for task in ("regression", "autoregression", "chain_of_thought")
    },
    "gao24.fig2.fewer_parameters": plant("is larger", "parameters", model="AlgoFormer"),
    "gao24.fig3.larger_window_is_steadier": plant("rises", "by_loops", dT=max),
    "gao24.fig3.more_loops": plant("is larger", "by_examples", T=max),
    "gao24.fig4.more_layers": plant("is larger", "by_examples", L=max),
    "gao24.fig4.more_heads": plant("is larger", "by_examples", h=max),
    "gao24.fig4.largest_is_not_best": plant("is smaller", "by_examples", L=max, h=max),
    "gao24.fig4_standard.equal_layers": plant("is larger", "by_examples", model="AlgoFormer"),
    "gao24.fig5.early_beats_gradient": plant("is larger", "by_loops", noise=0.0, T=max),
    "gao24.fig5.early_beats_newton": plant("is larger", "by_loops", noise=0.0, T=max),
    "gao24.fig5.newton_ends_at_zero": plant("is smaller", "by_loops", noise=0.0, T=max),
    "gao24.fig5.noisy_beats_gradient": plant("is larger", "by_loops", noise=1.0, T=max),
    "gao24.fig5.noisy_beats_newton": plant("is larger", "by_loops", noise=1.0, T=max),
    "gao24.table.algoformer_beats_looped": plant(
        "has the other sign", "difference", model="AlgoFormer", minus="looped"
    ),
    "gao24.table.algoformer_beats_standard": plant(
        "has the other sign", "difference", model="AlgoFormer", minus="standard"
    ),
    "gao24.table.looped_beats_standard": plant("has the other sign", "difference", model="looped", minus="standard"),
}

GATMIRY24 = {
    "gatmiry24.beyond_chebyshev.isotropic.finds_best": plant("is larger", "loss", covariance="isotropic"),
    "gatmiry24.beyond_chebyshev.anisotropic.finds_best": plant("is larger", "loss", covariance="anisotropic"),
    "gatmiry24.beyond_chebyshev.isotropic.finds_best_rates": plant("is larger", "rates", covariance="isotropic"),
    "gatmiry24.beyond_chebyshev.isotropic.finds_chebyshev_rates": plant("is larger", "rates", covariance="isotropic"),
    "gatmiry24.beyond_chebyshev.anisotropic.finds_best_rates": plant("is larger", "rates", covariance="anisotropic"),
    "gatmiry24.beyond_chebyshev.anisotropic.finds_chebyshev_rates": plant(
        "is larger", "rates", covariance="anisotropic"
    ),
    "gatmiry24.beyond_chebyshev.within_bounds": plant("is larger", "loss_at_worst_s", covariance="isotropic"),
    "gatmiry24.fig1a.exact.more_with_kappa": plant(
        "is smaller", "loss", setting="exact", model="multilayer", kappa=max
    ),
    "gatmiry24.fig1a.sampled.more_with_kappa": plant(
        "is smaller", "loss", setting="sampled", model="multilayer", kappa=max
    ),
    "gatmiry24.fig1b.exact.more_with_kappa": plant("is smaller", "loss", setting="exact", model="looped", kappa=max),
    "gatmiry24.fig1b.sampled.more_with_kappa": plant(
        "is smaller", "loss", setting="sampled", model="looped", kappa=max
    ),
    "gatmiry24.fig1b.exact.loops_close": plant("is larger", "loss", setting="exact", model="looped"),
    "gatmiry24.fig1b.sampled.loops_close": plant("is larger", "loss", setting="sampled", model="looped"),
    "gatmiry24.fig1b.exact.L8.competitive": plant("is larger", "loss", model="looped", setting="exact", kappa=max),
    **{
        f"gatmiry24.fig1b.sampled.L{depth}.competitive": plant(
            "is larger", "loss", model="looped", setting="sampled", kappa=max
        )
        for depth in (4, 8, 12, 14, 16)
    },
    **{
        f"gatmiry24.fig2.{setting}.k{k}.{name}": plant(
            "is larger", "loss_on_widest", model="looped", setting=setting, k=k
        )
        for setting in ("exact", "sampled")
        for k in (2, 5, 9)
        for name in ("grows_more", "looped_lower")
    },
    "gatmiry24.fig2.exact.L8.perfectly_robust": plant(
        "is larger", "loss_on_widest", setting="exact", model="looped", k=max
    ),
    **{
        f"gatmiry24.fig2.sampled.L{depth}.perfectly_robust": plant(
            "is larger", "loss_on_widest", setting="sampled", model="looped", k=max
        )
        for depth in (4, 8, 12, 14, 16)
    },
    "gatmiry24.beyond_forms.linear.grows_more": plant("falls", "loss", model="multilayer", form="restricted linear"),
    "gatmiry24.beyond_forms.relu.grows_more": plant("falls", "loss", model="multilayer", form="restricted ReLU"),
    "gatmiry24.beyond_forms.unrestricted.grows_more": plant(
        "falls", "loss", model="multilayer", form="unrestricted linear"
    ),
    "gatmiry24.beyond_forms.anisotropic.grows_more": plant(
        "falls", "loss", model="multilayer", form="anisotropic Σ, linear"
    ),
}

YANG24 = {
    "yang24.fig7.layers_converge_faster": plant("is larger", "by_loops", model=LOOPED, L=max),
    "yang24.fig7.more_loops_than_layers": plant("is smaller", "by_loops", model=LOOPED, L=1),
    "yang24.fig7.width_saturates": plant("is smaller", "by_loops", D=max),
    "yang24.fig7.middle_heads_best": plant("is smaller", "by_loops", h=min),
    "yang24.fig8.gradient.refined": plant("rises", "probe_error", kind="probe", model=LOOPED, target="X'y"),
    "yang24.fig8.gradient.unlooped_turns": plant("falls", "probe_error", kind="probe", model=UNLOOPED, target="X'y"),
    "yang24.fig8.least_squares.refined": plant("rises", "probe_error", kind="probe", model=LOOPED, target="w_ols"),
    "yang24.fig8.least_squares.unlooped_turns": plant(
        "falls", "probe_error", kind="probe", model=UNLOOPED, target="w_ols"
    ),
    "yang24.fig8.control": plant("is larger", "probe_error", kind="probe"),
    "yang24.fig11.every_sparsity": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig10a.outperforms": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig10a.beats_lasso_early": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig10b.matches": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig10b.beats_baselines": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig10c.matches": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig2.fixed_point": plant("rises", "by_loops", model=LOOPED),
    "yang24.fig2.matches_12_layers": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig2.near_least_squares": plant("is larger", "by_examples", model=LOOPED),
    "yang24.fig2.parameters": plant("is larger", "parameters", model=LOOPED),
    "yang24.fig3.injection_flat": plant("rises", "by_loops", model=LOOPED),
    "yang24.fig3.tying_diverges": plant("falls", "by_loops", model="weight tying"),
    "yang24.fig4.linear.fixed_point": plant("rises", "by_loops", task="linear regression", T=max, b=max),
    "yang24.fig4.low_b_diverges": plant("falls", "by_loops", b=min),
    "yang24.fig4.saturates": plant("falls", "by_loops", b=max, T=max),
    "yang24.fig4.12_loops_fall_short": plant("is smaller", "by_loops", b=min),
    "yang24.fig4.rate_saturates": plant("is larger", "by_loops", b=40, T=15),
    "yang24.fig9.sparse_easier": plant("rises", "by_loops", task="sparse linear regression", b=20),
    "yang24.fig9.relu_needs_few": plant("rises", "by_loops", task="2-layer ReLU network", b=min),
    "yang24.fig12.linear.fixed_point": plant("rises", "by_loops", task="linear regression", T=max, b=max),
    "yang24.fig12.linear.window": plant("is smaller", "by_examples", task="linear regression", b=max, T=min),
    "yang24.fig12.sparse.fixed_point": plant("rises", "by_loops", task="sparse linear regression", T=max, b=max),
    "yang24.fig12.sparse.window": plant("is smaller", "by_examples", task="sparse linear regression", b=max, T=min),
    "yang24.fig13.tree.fixed_point": plant("rises", "by_loops", task="decision tree", T=max, b=max),
    "yang24.fig13.tree.window": plant("is smaller", "by_examples", task="decision tree", b=max, T=min),
    "yang24.fig13.relu.fixed_point": plant("rises", "by_loops", task="2-layer ReLU network", T=max, b=max),
    "yang24.fig13.relu.window": plant("is smaller", "by_examples", task="2-layer ReLU network", b=max, T=min),
    "yang24.fig13.tree_needs_more": plant("rises", "by_loops", task="decision tree", T=max, b=max),
    "yang24.large_window.unstable": plant("is smaller", "by_loops", kind="not clipped, float32"),
    "yang24.large_window.safe_if_steadied": plant("is larger", "by_loops", kind="clipped, bfloat16", T=20),
    "yang24.fig17.no_difference": plant("is larger", "by_examples", kind="with scheduling"),
    "yang24.fig17.tree_gains": plant("is larger", "by_examples", task="decision tree", kind="with scheduling"),
    "yang24.table2.not_below_chance": plant("is smaller", "accuracy", model=LOOPED),
    "yang24.table2.learns": plant("is smaller", "accuracy", model=LOOPED),
    "yang24.table2.pollen_is_noise": plant("is smaller", "accuracy", model=LOOPED, task="871_pollen"),
    "yang24.table2.comparable": plant("has the other sign", "behind_looped", model=UNLOOPED),
    "yang24.fig5.fewer_prompts": plant("is larger", "by_prompts", model=LOOPED),
    "yang24.fig14.fewer_prompts": plant("is larger", "by_prompts", model=LOOPED),
    "yang24.published.end": plant("is larger", "by_examples", weights="end of training"),
    "yang24.published.best": plant("is larger", "by_examples", weights="lowest logged loss"),
    "yang24.published.fixed_point": plant("rises", "by_loops", weights="lowest logged loss"),
    "yang24.published_end.float32": plant("is larger", "by_examples", kind="float32"),
    "yang24.published_end.clipped": plant("is larger", "by_examples", kind="clipped, bfloat16"),
    "yang24.fig6.skewed_better": plant("is larger", "by_examples", model=LOOPED, shift="skewed covariance"),
    "yang24.fig6.noisy_peak": plant("is larger", "by_examples", model=LOOPED, shift="noisy output"),
    "yang24.fig6.scaled_worse": plant("is smaller", "by_examples", model=LOOPED, shift="x scaled by 3"),
    "yang24.fig15.skewed.deeper_better": plant(
        "is larger", "by_examples", model=UNLOOPED, shift="skewed covariance", L=max
    ),
    "yang24.fig15.skewed.looped_matches": plant("is larger", "by_examples", model=LOOPED, shift="skewed covariance"),
    "yang24.fig15.subspace.deeper_better": plant(
        "is larger", "by_examples", model=UNLOOPED, shift="d/2-dimensional subspace", L=max
    ),
    "yang24.fig15.subspace.looped_matches": plant(
        "is larger", "by_examples", model=LOOPED, shift="d/2-dimensional subspace"
    ),
    "yang24.fig15.orthants.deeper_better": plant(
        "is larger", "by_examples", model=UNLOOPED, shift="different orthants", L=max
    ),
    "yang24.fig15.orthants.looped_matches": plant("is larger", "by_examples", model=LOOPED, shift="different orthants"),
    "yang24.fig15.orthogonal.alike": plant("is larger", "by_examples", model=LOOPED, shift="orthogonal query"),
    "yang24.fig15.equal.alike": plant("is larger", "by_examples", model=LOOPED, shift="query matches an example"),
    "yang24.fig15.noisy.peak_of_4_layers": plant("is larger", "by_examples", model=UNLOOPED, shift="noisy output", L=4),
    "yang24.fig15.noisy.looped_peak": plant("is larger", "by_examples", model=LOOPED, shift="noisy output", b=100),
    "yang24.fig16.scaled_y": plant("is larger", "by_examples", model=LOOPED, shift="y scaled by 1/2"),
    "yang24.fig16.scaled_by_2": plant("is larger", "by_examples", model=LOOPED, shift="x scaled by 2"),
}

TABLES = {
    f"tables.{study}.rows_{rows}": plant("is larger", "ratio", model="looped transformer")
    for study in ("held_out", "classes", "held_out_classes")
    for rows in (20, 40, 100)
} | {
    **{
        f"tables.development.rows_{rows}": plant("is smaller", "margin", model="looped transformer")
        for rows in (20, 40, 100)
    },
    "tables.development.rows_300": plant("is larger", "ratio", model="looped transformer"),
    "tables.pieces.regressions_help": plant("is smaller", "ratio", without="kernel regressions"),
    "tables.development.best_on_half": plant("is smaller", "best_on", model="looped transformer"),
    "tables.development.intervals_cover": plant("is smaller", "coverage", model="looped transformer"),
}

RELEASED = {
    name.replace(figure, f"{figure}_released"): change
    for name, change in CHENG24.items()
    for figure in (name.split(".")[1],)
}
"""The same claims on the released program's settings."""

PARTS = {
    f"parts.compared.{recipe.__name__}": plant("is larger", "by_loops", part=part)
    for part, recipe in parts.PARTS.items()
    if part != parts.PLAIN
}

PLANTS = {**CHEN24, **CHENG24, **RELEASED, **GAO24, **GATMIRY24, **TABLES, **YANG24, **PARTS}
"""Claim -> its planted failure."""


def published_errors(examples: float) -> float:
    """An error that falls by examples through the two numbers that the authors' logs have."""
    return 0.0242 * (7.8e-4 / 0.0242) ** (examples / 20 - 1)


HOLDING = {
    "yang24.published.end": {"by_examples": published_errors},
    "yang24.published.best": {"by_examples": published_errors},
    "yang24.published_end.float32": {"by_examples": published_errors},
    "yang24.published_end.clipped": {"by_examples": published_errors},
}
"""Claim -> quantity -> its numbers by place, where they must be just so for the claim to hold."""
