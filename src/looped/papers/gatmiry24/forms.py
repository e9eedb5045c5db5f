"""Beyond the paper: does the loop's robustness carry over to other forms of attention and of covariance.

Figure 2's question at a smaller size, asked of the models' own forward passes: restricted linear attention as in the
paper, the same with ReLU attention, unrestricted attention, and anisotropic covariances. All prompts are whitened to
their covariance, XX'/n = Sigma: with so few Gaussian examples the sampling noise hides windows of this width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from looped.evaluation.claims import Claim, Data, Figure, Measured, Settings
from looped.evaluation.lines import finish, log_y, seeds_line
from looped.functional import kernels
from looped.functional.streams import stream
from looped.models.kernel_transformer import KernelTransformerConfig, restricted, unrestricted
from looped.papers.gatmiry24.depth import listed
from looped.papers.gatmiry24.sizes import FORMS
from looped.papers.gatmiry24.training import Kind, Sizes, folder_of, mixture, optimizer, rotations, turned
from looped.papers.gatmiry24.windows import KINDS, grows_more
from looped.prompt import Prompt
from looped.training.family import build_family, train_family

Make = Callable[..., KernelTransformerConfig]
MODELS: dict[str, tuple[Make, dict[str, Any]]] = {
    "linear": (restricted, {}),
    "relu": (restricted, {"kernel": kernels.relu}),
    "unrestricted": (unrestricted, {}),
    "anisotropic": (restricted, {}),
}
TITLES = {
    "linear": "restricted linear",
    "relu": "restricted ReLU",
    "unrestricted": "unrestricted linear",
    "anisotropic": "anisotropic Σ, linear",
}


def measure(sizes: Sizes, settings: Settings) -> Data:
    """The loss of every form, seed and window, `[1][seed][half]`, for both kinds."""
    data: Data = {"halves": sizes["halves"], "count": sizes["count"], "depth": sizes["depth"]}
    jobs: list[tuple[str, Kind]] = [(form, kind) for form in MODELS for kind in KINDS]
    for index, (form, kind) in enumerate(jobs):

        def report(done: int, what: str = f"{form}, {kind}", index: int = index) -> None:
            settings.progress(what, (index + done / sizes["steps"]) / len(jobs))

        losses = train_and_test(form, kind, sizes, settings, report)
        data.setdefault(form, {})[kind] = {"loss": [listed(losses.T)]}
    return data


def train_and_test(form: str, kind: Kind, sizes: Sizes, settings: Settings, report: Callable[[int], None]) -> Tensor:
    """Train one model a seed, each on its own prompts, then test all on every window, (halves, seeds)."""
    make, fields = MODELS[form]
    depth, seeds = sizes["depth"], sizes["seeds"]
    config = make(
        d=sizes["d"],
        loops=depth,
        layers=1 if kind == "looped" else depth,
        init_std=sizes["std"].get(form, 1e-4),
        **fields,
    )
    family = build_family(config, range(seeds), device=settings.device)
    generator = torch.Generator(settings.device).manual_seed(stream(0, "prompts"))

    def own(step: int) -> tuple[Tensor, Tensor]:
        xs, ys = prompts(form, seeds * sizes["batch"], 0.0, sizes, generator)
        return xs.unflatten(0, (seeds, -1)), ys.unflatten(0, (seeds, -1))

    trained = train_family(
        family,
        error,
        **folder_of(f"forms-{form}-{kind}", [], sizes, settings),
        steps=sizes["steps"],
        draw=own,
        generators=[generator],
        log_every=max(1, sizes["steps"] // 100),
        progress=report,
        graph=True,
        **optimizer(kind, sizes),
    )
    settings.trained(trained.folder)
    found = []
    for half in sizes["halves"]:
        generator = torch.Generator(settings.device).manual_seed(stream(1, "prompts"))
        blocks = max(1, sizes["tests"] // 1024)
        with torch.no_grad():
            each = [
                error(trained.family, prompts(form, sizes["tests"] // blocks, half, sizes, generator))
                for _ in range(blocks)
            ]
        found.append(torch.stack(each).mean(0))
    return torch.stack(found)


def error(family: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error of each model at the query; predicting zero costs 1."""
    xs, ys = batch
    return (family(Prompt(xs, ys))[-1, ..., 0] - ys[..., -1]).square().mean(-1) / xs.shape[-1]


def prompts(form: str, batch: int, half: float, sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(xs, ys), XX'/n = Sigma, the query last; half-widths differ in the eigenvalues' place in the window alone.

    x = Sigma^{1/2} z,  w* = Sigma^{-1/2} w,  Sigma = s I, or d eigenvalues drawn like s, turned at random
    """
    d, n, device = sizes["d"], sizes["n"], generator.device
    centres = torch.tensor(mixture(sizes["count"])["centres"], device=device, dtype=torch.float32)
    examples = turned(_pool(n, device), batch, generator)[..., :d] * n**0.5
    z = torch.cat([examples, torch.randn(batch, 1, d, generator=generator, device=device)], 1)
    w = torch.randn(batch, d, generator=generator, device=device)
    which, where = torch.rand(2, batch, d, generator=generator, device=device)
    values = centres[(which * len(centres)).long().clamp(max=len(centres) - 1)] + half * (2 * where - 1)
    ys = torch.einsum("bnd,bd->bn", z, w)
    if form != "anisotropic":
        return z * values[:, :1, None].sqrt(), ys
    # z and w are invariant under rotation: turning the axes last is turning Sigma
    return (z * values[:, None].sqrt()) @ turned(_pool(d, device), batch, generator), ys


@cache
def _pool(d: int, device: torch.device) -> Tensor:
    return rotations(d, 0).to(device, torch.float32)


def draw(figure: Any, data: Data) -> None:
    """Loss against w, a panel for each form."""
    figure.set_size_inches(9.4, 2.9)
    for ax, form in zip(figure.subplots(1, len(MODELS)), MODELS, strict=True):
        for index, kind in enumerate(KINDS):
            seeds_line(ax, index, data["halves"], data[form][kind]["loss"][0], kind, marker="o", markersize=3)
        log_y(ax)
        ax.set(title=TITLES[form], xlabel="half-width w")
    figure.axes[0].set(ylabel="test loss (predicting zero = 1)")
    finish(figure, columns=2)


def _judge(form: str) -> Callable[[Data], Measured]:
    def judge(data: Data) -> Measured:
        each = {kind: {**data[form][kind], "best": [[math.nan, math.nan]]} for kind in KINDS}
        found = grows_more(form, 0)({form: each})
        last = {kind: [run[-1] for run in data[form][kind]["loss"][0]] for kind in KINDS}
        shown = ", ".join(f"{kind} {_mean(values):.3g}" for kind, values in last.items())
        growth = found.note.split(";")[0]
        return Measured(
            value=found.value,
            low=found.low,
            high=found.high,
            holds=found.holds,
            note=f"{growth}; loss at w = 0.5: {shown}",
        )

    return judge


def _mean(values: list[float | None]) -> float:
    return sum(math.inf if value is None else value for value in values) / len(values)


beyond_forms = Figure(
    name="gatmiry24.beyond_forms",
    title="Figure 2's question with ReLU attention, the unrestricted form and anisotropic covariances, exact setting",
    settings=FORMS,
    measure=measure,
    draw=draw,
    claims=tuple(
        Claim(
            id=f"gatmiry24.beyond_forms.{form}.grows_more",
            statement="Beyond the paper: trained on 2 covariances, the multilayer model's loss grows by a larger "
            f"factor from w = 0 to 0.5 than the looped model's; {TITLES[form]}, d = 5, n = 10, depth 4, exact setting.",
            tolerance="growth of multilayer / growth of looped above 1, geometric mean over seeds",
            judge=_judge(form),
        )
        for form in MODELS
    ),
)
