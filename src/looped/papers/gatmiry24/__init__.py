"""gatmiry24, On the role of depth and looping for in-context learning with task diversity: recipes, figures, claims.

Recipes run in the ordinary trainer on sampled prompts. The figures train whole families at once in the d-dimensional
space (`losses`), in the `exact` and the `sampled` setting (`training`).
"""

from dataclasses import replace

from looped.experiment import AdamW, Experiment, Scale, TrainConfig
from looped.models.kernel_transformer import KernelTransformerConfig, restricted
from looped.papers.gatmiry24.training import Halving
from looped.tasks.isotropic import IsotropicRegression

PAPER = TrainConfig(
    steps=20_000,
    batch=20_000,
    points=21,
    optimizer=AdamW(learning_rate=0.01, betas=(0.99, 0.9), clip=0.01, schedule=Halving()),
    log_every=100,
    checkpoint_every=2000,
)
"""As in the program that the paper builds on; that one draws prompts every 100 steps, and clips matrix by matrix."""
CPU = replace(
    PAPER,
    steps=600,
    batch=512,
    optimizer=replace(PAPER.optimizer, betas=(0.9, 0.99), clip=1.0, schedule=Halving(share=0.1)),
    log_every=20,
    checkpoint_every=200,
)
SMOKE = replace(CPU, steps=10, batch=16, points=7, log_every=5)


def looped(scale: Scale = "cpu") -> Experiment:
    """One restricted linear attention layer in a loop, s uniform on [1, 8] (Fig. 1b)."""
    return _recipe("gatmiry24.looped", scale, looped=True)


def multilayer(scale: Scale = "cpu") -> Experiment:
    """Restricted linear attention layers with weights of their own, s uniform on [1, 8] (Fig. 1a)."""
    return _recipe("gatmiry24.multilayer", scale, looped=False)


def _recipe(name: str, scale: Scale, *, looped: bool) -> Experiment:
    d, depth, train = {"smoke": (3, 2, SMOKE), "cpu": (10, 4, CPU), "paper": (10, 8, PAPER)}[scale]
    model: KernelTransformerConfig = restricted(d=d, loops=depth, layers=1 if looped else depth, init_std=1e-4)
    return Experiment(name=name, task=IsotropicRegression(d=d), model=model, train=train)
