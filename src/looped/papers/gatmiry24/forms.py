"""Beyond the paper: does the loop's robustness carry over to other forms of attention and of covariance.

Figure 2's question at a smaller size, asked of the models' own forward passes: restricted linear attention as in the
paper, the same with ReLU attention, unrestricted attention, and anisotropic covariances. All prompts are whitened to
their covariance, XX'/n = Sigma: with so few Gaussian examples the sampling noise hides windows of this width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.config import encode
from looped.functional import kernels
from looped.functional.streams import stream
from looped.models.kernel_transformer import KernelTransformerConfig, restricted, unrestricted
from looped.papers.gatmiry24.covariances import rotated
from looped.papers.gatmiry24.families import log_loss
from looped.papers.gatmiry24.figures import WIDEST
from looped.papers.gatmiry24.training import KINDS, Kind, Training, mixture
from looped.prompt import Prompt
from looped.studies import Cell, Context, Learned, Panels, Study, Table, at, claim, curve
from looped.studies.expressions import Quantity
from looped.training.family import build_family

LINEAR, RELU = "restricted linear", "restricted ReLU"
UNRESTRICTED, ANISOTROPIC = "unrestricted linear", "anisotropic Σ, linear"
FORMS = {"linear": LINEAR, "relu": RELU, "unrestricted": UNRESTRICTED, "anisotropic": ANISOTROPIC}
"""Name in a claim -> `form` label."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """One model and what it is trained on: k covariances s I, or covariances with d such eigenvalues."""

    kind: Kind
    """Whether layers share their weights."""
    model: KernelTransformerConfig
    """The model."""
    training: Training
    """How it is trained; first weights are the model's own."""
    n: int = 10
    """Examples in a prompt."""
    k: int = 2
    """How many values an eigenvalue has in training, from 1 to 8."""
    anisotropic: bool = False
    """Whether every direction has its own eigenvalue."""
    batch: int = 4096
    """Prompts in a step, for each seed."""

    def prompts(self, batch: int, half: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(xs, ys), XX'/n = Sigma, the query last; half-widths differ in the eigenvalues' place in the window alone.

        x = Sigma^{1/2} z,  w* = Sigma^{-1/2} w,  Sigma = s I, or d eigenvalues drawn like s, turned at random
        """
        d, n, device, dtype = self.model.d, self.n, generator.device, torch.float32
        centres = torch.tensor(mixture(self.k).centres, device=device, dtype=dtype)
        examples = rotated(n, batch, generator, seed=0, dtype=dtype)[..., :d] * n**0.5
        z = torch.cat([examples, torch.randn(batch, 1, d, generator=generator, device=device)], 1)
        w = torch.randn(batch, d, generator=generator, device=device)
        which, where = torch.rand(2, batch, d, generator=generator, device=device)
        values = centres[(which * len(centres)).long().clamp(max=len(centres) - 1)] + half * (2 * where - 1)
        ys = torch.einsum("bnd,bd->bn", z, w)
        if not self.anisotropic:
            return z * values[:, :1, None].sqrt(), ys
        # z and w are invariant under rotation: turning the axes last is turning Sigma
        return (z * values[:, None].sqrt()) @ rotated(d, batch, generator, seed=0, dtype=dtype), ys


@dataclass(frozen=True, kw_only=True)
class LossesByWindow:
    """`loss` by half-width of the test windows."""

    seeds: int
    """Models of each cell, from seed 0 on."""
    halves: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, WIDEST)
    """Half-widths of the test windows."""
    tests: int = 65_536
    """Prompts that every model is tested on, the same for each."""

    def __call__(self, cells: Mapping[Cell, Form], context: Context) -> Table:
        """Train a family for each cell, one model for each seed, and test all on every window."""
        table = Table()
        for index, (cell, form) in enumerate(cells.items()):
            family = train(form, self.seeds, context.part(str(cell), index, len(cells)))
            losses = torch.stack([self.losses(family, form, half, context.device) for half in self.halves], 1)
            for seed, values in enumerate(losses.tolist()):
                table.add(cell, "loss", values, x=self.halves, seed=seed)
        return table

    @torch.no_grad()
    def losses(self, family: Any, form: Form, half: float, device: torch.device) -> Float[Tensor, " seeds"]:
        """The loss of each model on windows of this half-width."""
        generator = torch.Generator(device).manual_seed(stream(1, "prompts"))
        blocks = max(1, self.tests // 1024)
        batches = (form.prompts(self.tests // blocks, half, generator) for _ in range(blocks))
        return torch.stack([squared_error(family, batch) for batch in batches]).mean(0)


def train(form: Form, seeds: int, context: Context) -> Any:
    """One model for each seed, each trained on its own prompts."""
    generator = torch.Generator(context.device).manual_seed(stream(0, "prompts"))

    def draw(step: int) -> tuple[Tensor, Tensor]:
        xs, ys = form.prompts(seeds * form.batch, 0.0, generator)
        return xs.unflatten(0, (seeds, -1)), ys.unflatten(0, (seeds, -1))

    return form.training.train(
        build_family(form.model, range(seeds), device=context.device),
        squared_error,
        kind=form.kind,
        identity={"form": encode(form), "seeds": seeds},
        context=context,
        draw=draw,
        generators=[generator],
    )


def squared_error(family: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error of each model at the query; predicting zero costs 1."""
    xs, ys = batch
    return (family(Prompt(xs, ys))[-1, ..., 0] - ys[..., -1]).square().mean(-1) / xs.shape[-1]


TRAINING = Training(steps=5000, halve=0.1, betas=(0.9, 0.99), clip=1.0, clip_looped=5.0)
TRAININGS = {
    "smoke": replace(TRAINING, steps=5, clip_looped=None),
    "cpu": replace(TRAINING, steps=400, rate=0.02),
    "paper": TRAINING,
}
SHAPES = {"smoke": (3, 6, 2, 16), "cpu": (5, 10, 4, 128), "paper": (5, 10, 4, 4096)}
"""Scale -> d, n, depth, batch."""
MEASURES = {
    "smoke": LossesByWindow(seeds=1, halves=(0.0, WIDEST), tests=64),
    "cpu": LossesByWindow(seeds=3, tests=8192),
    "paper": LossesByWindow(seeds=5),
}


def cells(scale: str) -> dict[Cell, Form]:
    """Every form, looped and multilayer."""
    d, n, depth, batch = SHAPES[scale]
    forms: dict[Cell, Form] = {}
    for kind in KINDS:
        shape: dict[str, Any] = {"d": d, "loops": depth, "layers": 1 if kind == "looped" else depth}
        models = {
            LINEAR: restricted(**shape, init_std=1e-4),
            RELU: restricted(**shape, init_std=1e-4, kernel=kernels.relu),
            UNRESTRICTED: unrestricted(**shape, init_std=0.1),
            ANISOTROPIC: restricted(**shape, init_std=1e-4),
        }
        forms |= {
            Cell(form=name, model=kind): Form(
                kind=kind, model=model, training=TRAININGS[scale], n=n, anisotropic=name == ANISOTROPIC, batch=batch
            )
            for name, model in models.items()
        }
    return forms


def growth(**labels: Any) -> Quantity:
    """The loss on the widest windows over that on none."""
    loss = curve("loss", **labels)
    return (loss.at(WIDEST) / loss.at(0.0)).called(f"growth to w = {WIDEST:g} of {loss}")


BEYOND_FORMS = Study(
    name="gatmiry24.beyond_forms",
    title="Figure 2's question with ReLU attention, the unrestricted form and anisotropic covariances, exact setting",
    cells=cells,
    measure=MEASURES.__getitem__,
    panels=Panels(y="loss", axis=log_loss("half-width w"), column="form", colour="model", share_y=False),
    learned=Learned(of="loss", at=0.0, best=0.0),
    claims=tuple(
        claim(
            f"{name}.grows_more",
            "Beyond the paper: trained on 2 covariances, the multilayer model's loss grows by a larger factor from "
            f"w = 0 to {WIDEST:g} than the looped model's; {form}, d = 5, n = 10, depth 4, exact setting.",
            growth(model="multilayer", form=form) / growth(model="looped", form=form) > 1,
            beside={f"{kind} loss at w = {WIDEST:g}": at(WIDEST, "loss", model=kind, form=form) for kind in KINDS},
        )
        for name, form in FORMS.items()
    ),
)
