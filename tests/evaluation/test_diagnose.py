import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from looped.constructions.gradient_descent import looped_descent
from looped.evaluation.curves import Curve
from looped.evaluation.diagnose import ROUNDING, WORSE, diagnose, diverging_loop, verdict
from looped.evaluation.radius import dominant, spectral_radius
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.models.base import LoopedModel, ModelConfig
from looped.models.decoder import DecoderConfig
from looped.models.kernel_transformer import restricted
from looped.prompt import Prompt
from looped.tasks.regression import LinearRegression

TASK = LinearRegression(d=3)
PART = Part(layers=1, heads=2)


class Labels(NamedTuple):
    ys: Tensor


class Pair(NamedTuple):
    answer: Tensor
    other: Tensor


@dataclass(frozen=True, kw_only=True)
class AffineConfig(ModelConfig):
    """y <- y + rate (label - y), and a second part that turns: a model whose Jacobian is known."""

    rate: float = 0.5
    turn: float = 0.9
    injected: bool = True

    @property
    def injects(self) -> bool:
        return self.injected

    def build(self) -> LoopedModel:
        return Affine(self)


class Affine(LoopedModel):
    config: AffineConfig

    def embed(self, prompt: Prompt) -> Labels:
        return Labels(prompt.ys)

    def start(self, context: Labels) -> Pair:
        return Pair(torch.zeros_like(context.ys), torch.ones_like(context.ys[:, :2]))

    def step(self, state: Pair, context: Labels, t: int) -> Pair:
        turned = self.config.turn * torch.stack((-state.other[:, 1], state.other[:, 0]), 1)
        return Pair(state.answer + self.config.rate * (context.ys - state.answer), turned)

    def readout(self, state: Pair, context: Labels) -> Tensor:
        return state.answer


def decoder(std=0.3, **fields):
    torch.manual_seed(0)
    model = DecoderConfig(**{"d": 3, "width": 8, "heads": 2, "loops": 4, "positions": 20, **fields}).build().double()
    return spread(model, std)


def spread(model, std):
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=std, generator=generator)
        if "norm" in name and name.endswith("weight"):
            torch.nn.init.ones_(parameter)
    return model


def algoformer(**fields):
    torch.manual_seed(0)
    config = AlgoFormerConfig(
        **{"d": 3, "width": 8, "loops": 4, "positions": 20, "pre": PART, "loop": PART, "post": PART, **fields}
    )
    return spread(config.build().double(), 0.2)


MODELS = {
    "added": decoder(),
    "wide": decoder(0.1, width=32),
    "two layers": decoder(layers=2),
    "tied": decoder(inject="none"),
    "outside": decoder(0.15, inside=False),
    "algoformer": algoformer(inject="add"),
    "full attention": algoformer(causal=False, query="last"),
    "descent": looped_descent(d=3, n=4, loops=3, rate=0.1).double(),
}


@pytest.mark.parametrize("name", MODELS)
def test_radius_is_that_of_the_dense_jacobian(name):
    """At states that are not fixed points too. With full attention many eigenvalues lie close together."""
    model = MODELS[name]
    prompt = TASK.sample(batch=3, n=5, generator=torch.Generator().manual_seed(0)).to(torch.float64)
    with torch.no_grad():
        context = model.embed(prompt)
        state = model.start(context)
        for t in range(6):
            state = model.step(state, context, t)
    found = spectral_radius(model, state, context, t=6, generator=torch.Generator().manual_seed(3))
    for row in range(3):
        own = type(context)(*(leaf[row : row + 1] for leaf in context))

        def step(flat, row=row, own=own):
            return model.step(flat.view_as(state[row : row + 1]), own, 6).flatten()

        dense = torch.autograd.functional.jacobian(step, state[row].flatten())
        expected = np.abs(np.linalg.eigvals(dense.numpy())).max()
        assert found[row].item() == pytest.approx(expected, rel=1e-4 if name == "full attention" else 1e-6)


def test_dominant_handles_complex_pairs_repeated_values_and_zero():
    turn = torch.tensor([[0.0, -1.3], [1.3, 0.0]], dtype=torch.float64)
    matrices = torch.zeros(5, 6, 6, dtype=torch.float64)
    matrices[0, :2, :2] = turn
    matrices[0, 2:, 2:] = 1.2 * torch.eye(4, dtype=torch.float64)
    matrices[1] = 0.7 * torch.eye(6, dtype=torch.float64)
    matrices[2] = torch.diag(torch.tensor([-2.0, 1.9, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64))
    matrices[3] = torch.eye(6, dtype=torch.float64).roll(1, 0) * 0.8  # six eigenvalues of one modulus
    skew = torch.linalg.qr(torch.randn(5, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    matrices = skew @ matrices @ skew.mT
    start = torch.randn(5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = dominant(lambda v: torch.einsum("bij,bj->bi", matrices, v), start, iterations=30, subspace=6)
    assert found.tolist() == pytest.approx([1.3, 0.7, 2.0, 0.8, 0.0], abs=1e-8)


def test_a_model_whose_diagnosis_is_known():
    found = diagnose(AffineConfig(loops=4).build(), TASK, points=5, prompts=16, loops=60)
    assert found.radius is not None
    assert found.radius.low == pytest.approx(0.9, abs=1e-4), "a complex pair in a state of two parts"
    assert found.radius.high == pytest.approx(0.9, abs=1e-4)
    assert found.repelled == 0
    assert (found.diverges_at, found.overflows_at, found.starts) == (None, None, 3)
    assert found.same == 1
    assert found.apart == pytest.approx(0, abs=1e-6)
    assert found.error.at(1) / found.error.at(2) == pytest.approx(4, rel=1e-3)
    assert found.error.x == found.change.x == list(range(1, 61))
    assert "Stable" in found.verdict
    assert "attracts" in found.verdict
    assert "Path independent" in found.verdict


def test_a_model_that_overshoots_diverges():
    """Error grows as 1.5^2 a loop from the first: the rule's loop is the first beyond twice the best."""
    found = diagnose(AffineConfig(loops=4, rate=2.5).build(), TASK, points=5, prompts=64, loops=12)
    assert found.best_loop == 1
    assert found.diverges_at in (2, 3)
    assert found.radius is not None
    assert found.radius.median == pytest.approx(1.5, abs=1e-4)
    assert found.repelled == 1
    assert found.same == 0
    for words in ("Unstable", "repels", "Path dependent", "Run it for 1 loops"):
        assert words in found.verdict


def test_an_overflow_is_said_and_nothing_else_measured():
    found = diagnose(AffineConfig(loops=2, rate=1e6).build(), TASK, points=5, prompts=4, loops=20)
    assert found.overflows_at is not None
    assert found.diverges_at is not None
    assert found.diverges_at <= found.overflows_at
    assert (found.radius, found.repelled, found.apart, found.starts) == (None, None, None, 0)
    assert f"overflows at loop {found.overflows_at}" in found.verdict


def test_without_injection_no_random_starts():
    found = diagnose(AffineConfig(loops=2, injected=False).build(), TASK, points=5, prompts=4)
    assert (found.starts, found.same) == (0, None)
    assert "first state alone" in found.verdict
    assert found.loops == 8


def test_a_state_that_keeps_moving_is_not_settled():
    found = diagnose(AffineConfig(loops=2, turn=1.0).build(), TASK, points=5, prompts=4, loops=50)
    assert found.settled == 0
    assert "keeps moving" in found.verdict
    assert found.diverges_at is None


def line(means, spread=0.0):
    x = list(range(1, len(means) + 1))
    return Curve(
        label="error", x=x, mean=means, low=[m * (1 - spread) for m in means], high=[m * (1 + spread) for m in means]
    )


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([1.0, 0.5, 0.1, 0.1, 0.1], None),
        ([1.0, 0.1, 0.15, 0.19, 0.19], None),
        ([1.0, 0.1, 0.15, 0.3, 0.5], 4),
        ([1.0, 0.1, 0.5, 0.1, 0.5], 5),
        ([1.0, 0.1, 0.5, 0.11, 0.12], None),
        ([0.1, math.inf, math.nan], 2),
        ([1e-9, 1e-7, 1e-7], None),
        ([math.nan, math.nan], 1),
        ([0.5], None),
    ],
)
def test_where_it_begins_to_diverge(means, expected):
    assert diverging_loop(line(means)) == expected


def test_wide_intervals_hold_the_rule_back():
    means = [0.1, 0.25, 0.3]
    assert diverging_loop(line(means)) == 2
    assert diverging_loop(line(means, spread=0.3)) is None
    assert WORSE == 2
    assert ROUNDING < 1e-5


def test_one_seed_gives_one_diagnosis_and_no_trace():
    model = decoder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one = diagnose(model, TASK, points=5, prompts=8, loops=6)
    assert one == diagnose(model, TASK, points=5, prompts=8, loops=6)
    assert one != diagnose(model, TASK, points=5, prompts=8, loops=6, seed=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_diagnosed_is_refused():
    cases = [
        (decoder(loops=1, layers=3), {}, "this model has one loop"),
        (restricted(d=3, loops=3, layers=3).build(), {}, "3 layers with weights of their own"),
        (decoder(), {"loops": 4}, "`loops` must be above the trained loops=4"),
        (decoder(), {"prompts": 1}, "`prompts` must be at least 2"),
        (decoder(), {"starts": 0}, "`starts` must be at least 1"),
    ]
    for model, arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            diagnose(model, TASK, **{"points": 5, "prompts": 4, **arguments})


def test_the_verdict_names_a_fixed_point_at_the_wrong_answer():
    """A contraction whose error is worse at the end than it was at a lucky first loop."""
    found = diagnose(AffineConfig(loops=4).build(), TASK, points=5, prompts=8, loops=20)
    error = line([0.01] + [1.0] * 19)
    assert "at the wrong answer" in verdict(replace(found, error=error, best_loop=1, diverges_at=2))


def test_the_verdict_tells_drift_from_stability():
    found = diagnose(AffineConfig(loops=4).build(), TASK, points=5, prompts=8, loops=20)
    for last, word in ((0.1, "Stable"), (0.12, "Stable"), (0.18, "Drifts")):
        error = line([0.1] * 19 + [last], spread=0.1)
        assert verdict(replace(found, error=error, best_loop=1)).startswith(word)
