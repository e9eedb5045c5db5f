"""Random prompts, most of them degenerate, at models, baselines and judges."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's optimisers import it when first used, for seconds: no example's fault
from torch import Tensor

from fuzz.harness import Case, check_finite
from looped.baselines.gaussian_process import bayes
from looped.baselines.lasso import lasso
from looped.baselines.linear import averaging, least_squares, ridge
from looped.baselines.neighbours import nearest
from looped.baselines.network import two_layer
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.cli.output import interval_at
from looped.constructions.ready import READY
from looped.evaluation.curves import evaluate
from looped.evaluation.diagnose import diagnose
from looped.evaluation.identify import identify
from looped.files import finite
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.base import LoopedModel
from looped.models.decoder import DecoderConfig
from looped.models.exit_rules import StateChange
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.task import Task

D = 3
"""Dimension that the models read."""

BASELINES = {
    "least squares": least_squares,
    "ridge": partial(ridge, penalty=0.5),
    "ridge, hardly": partial(ridge, penalty=1e-30),
    "averaging": averaging,
    "neighbours": nearest,
    "lasso": lasso,
    "network": partial(two_layer, steps=5),
    "tree": greedy_tree,
    "tree on signs": on_signs(greedy_tree),
    "boosted": partial(boosted, trees=3),
}


@dataclass(frozen=True, kw_only=True)
class Given(Task):
    """A user's own task whose prompts are always these."""

    prompt: Any = None

    @property
    def label_variance(self) -> float:
        return 1.0

    def sample(self, *, batch, n, generator, dims=None) -> Prompt:
        repeats = -(-batch // len(self.prompt.xs))
        xs, ys = self.prompt.xs.repeat(repeats, 1, 1)[:batch], self.prompt.ys.repeat(repeats, 1)[:batch]
        return Prompt(xs, ys)


@functools.cache
def models() -> dict[str, LoopedModel]:
    """A model of every kind with random weights, larger than at their start, and the constructed ones."""
    torch.manual_seed(0)
    decoder = {"d": D, "width": 8, "heads": 2, "positions": 40, "loops": 3}
    part = Part(heads=2)
    made: dict[str, LoopedModel] = {
        f"decoder, {inject}": DecoderConfig(**decoder, inject=inject).build() for inject in ("add", "multiply", "none")
    }
    algoformer = AlgoFormerConfig(d=D, width=8, positions=40, loops=3, pre=part, loop=part, post=part)
    made["decoder, outside"] = DecoderConfig(**decoder, inside=False).build()
    made["decoder, float64"] = DecoderConfig(**decoder).build().double()
    made["algoformer"] = algoformer.build()
    with torch.no_grad():
        for parameter in (one for model in made.values() for one in model.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return {**made, **{name: build(D, 6, 4).model for name, build in READY.items()}}


def prompt(draw: random.Random, *, d: int | None = None) -> tuple[str, Prompt]:
    """A prompt and its kind in words."""
    dtype = draw.choice((torch.float32, torch.float64))
    batch, n = draw.choice((1, 1, 2, 5)), draw.choice((1, 2, 3, 7, 7, 7, 12))
    d = draw.choice((1, 2, D, D, D, D, 9, 30)) if d is None else d
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    xs = torch.randn(batch, n, d, generator=generator, dtype=torch.float64)
    ys = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    kinds = [draw.choice(list(KINDS)) for _ in range(draw.choice((1, 1, 2)))]
    for kind in kinds:
        xs = KINDS[kind](xs, draw, dtype)
    label_kind = draw.choice(
        ("normal", "normal", "normal", "normal", "constant", "zero", "huge", "tiny", "nan", "inf", "spiked")
    )
    ys = KINDS[label_kind](ys, draw, dtype)
    told = f"{dtype} {(batch, n, d)} x {' '.join(kinds)}, y {label_kind}"
    return told, Prompt(xs.to(dtype), ys.to(dtype))


def _scale(dtype: torch.dtype, draw: random.Random, sign: int) -> float:
    most = 37 if dtype == torch.float32 else 305
    return 10.0 ** (sign * draw.choice((3, 8, 18, most // 2, most)))


def _put(values: Tensor, draw: random.Random, what: float) -> Tensor:
    values = values.clone()
    flat = values.view(-1)
    flat[draw.randrange(len(flat))] = what
    return values


KINDS = {
    "normal": lambda v, draw, dtype: v,
    "constant": lambda v, draw, dtype: torch.full_like(v, draw.choice((1.0, -2.5, 1e-3))),
    "zero": lambda v, draw, dtype: torch.zeros_like(v),
    "duplicate": lambda v, draw, dtype: v[:, :1].expand_as(v).clone(),
    "collinear": lambda v, draw, dtype: v[..., :1] * torch.ones_like(v),
    "nearly collinear": lambda v, draw, dtype: v[..., :1] + 1e-9 * v,
    "whole": lambda v, draw, dtype: v.round(),
    "huge": lambda v, draw, dtype: v * _scale(dtype, draw, 1),
    "tiny": lambda v, draw, dtype: v * _scale(dtype, draw, -1),
    "mixed": lambda v, draw, dtype: torch.cat([one * _scale(dtype, draw, draw.choice((-1, 1))) for one in v.split(1, 1)], 1),  # noqa: E501
    "spiked": lambda v, draw, dtype: _put(v, draw, _scale(dtype, draw, 1)),
    "nan": lambda v, draw, dtype: _put(v, draw, float("nan")),
    "inf": lambda v, draw, dtype: _put(v, draw, draw.choice((float("inf"), -float("inf")))),
}  # fmt: skip


def predictions(draw: random.Random, folder: Path) -> Case:
    """A model's answers, by a number of loops or by an exit rule."""
    told, given = prompt(draw, d=D if draw.random() < 0.8 else None)
    name = draw.choice(list(models()))
    loops = draw.choice((1, 2, 2, 3, 3, 4, 4, 20, 0, -1, 10**15))

    def act() -> None:
        model = models()[name]
        if draw.random() < 0.3:
            settled = model.settle(given, StateChange(tolerance=1e-3), max_loops=loops)
            check_finite("settle", settled.predictions)
        else:
            check_finite("predict", model.predict(given, loops=loops))

    return Case(f"{name}, {loops} loops, on {told}", act)


def baselines(draw: random.Random, folder: Path) -> Case:
    """A baseline's answers: as many as labels, all finite."""
    told, given = prompt(draw)
    name = draw.choice([*BASELINES, "bayes"])

    def act() -> None:
        if name == "bayes":
            answers = bayes(given, GaussianProcess(d=given.d, eigenvalues=(1.0,) * given.d))
        else:
            answers = BASELINES[name](given)
        assert answers.shape == given.ys.shape
        check_finite(name, answers)

    return Case(f"{name} on {told}", act)


def judges(draw: random.Random, folder: Path) -> Case:
    """`evaluate`, `identify` and `diagnose` on a user's own task."""
    told, given = prompt(draw, d=D)
    task = Given(d=D, prompt=given)
    name, judge = draw.choice(list(models())), draw.choice(("evaluate", "evaluate", "identify", "diagnose"))
    points, prompts = given.num_examples, draw.choice((8, 9)) if draw.random() < 0.9 else draw.choice((1, 0, -1))
    loops = draw.choice((None, 5, 5, 5)) if draw.random() < 0.95 else 0

    def act() -> None:
        model = models()[name]
        if judge == "evaluate":
            found = evaluate(model, task, points=points, prompts=prompts, loops=loops)
            # a model that overflows is a finding: null in JSON, said in words; never a nan in a table
            json.dumps(finite(asdict(found)), allow_nan=False)
            curves = (*found.by_examples, found.by_loops)
            assert not any("nan" in interval_at(curve, x) for curve in curves for x in curve.x)
        elif judge == "identify":
            found = identify(
                _copy(model), task, points=points, prompts=prompts, loops=loops and min(loops, 2), max_steps=2
            )
            check_finite("identify", asdict(found))
        else:
            found = diagnose(model, task, points=points, prompts=prompts, loops=loops, starts=1)
            if "overflow" not in found.verdict:
                check_finite("diagnose", asdict(found))

    return Case(f"{judge} {name}, {prompts} prompts, {loops} loops, on {told}", act)


def _copy(model: LoopedModel) -> LoopedModel:
    """`identify` turns its model into float64."""
    again = model.config.build().double()
    again.load_state_dict(model.state_dict())
    return again
