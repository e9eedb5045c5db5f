"""What fuzzing found, each once and small: a finite answer, or one line that says why not."""

import math
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import looped
from looped import DecoderConfig, Experiment, LinearRegression, TrainConfig
from looped.baselines.linear import averaging, least_squares
from looped.cli.output import interval_at
from looped.config import parse_value
from looped.constructions.gradient_descent import looped_descent
from looped.evaluation.curves import Curve
from looped.evaluation.diagnose import diagnose
from looped.evaluation.identify import identify
from looped.models.exit_rules import StateChange
from looped.models.loop import MOST_LOOPS
from looped.prompt import Prompt
from looped.tasks.task import Task
from looped.training.trainer import train_seeds
from looped.training.trials import MAX_TRIALS, trials


@dataclass(frozen=True, kw_only=True)
class Given(Task):
    """Prompts that are always these."""

    prompt: Any = None

    @property
    def label_variance(self) -> float:
        return 1.0

    def sample(self, *, batch, n, generator, dims=None):
        rows = torch.arange(batch) % len(self.prompt.xs)
        return Prompt(self.prompt.xs[rows], self.prompt.ys[rows])


@pytest.fixture
def prompt(generator):
    return Prompt(torch.randn(4, 9, 3, generator=generator), torch.randn(4, 9, generator=generator))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DecoderConfig(d=3, width=8, heads=2, positions=20, loops=2).build()


def spoiled(prompt, part, value):
    xs, ys = prompt.xs.clone(), prompt.ys.clone()
    (xs if part == "xs" else ys).view(-1)[5] = value
    return Prompt(xs, ys)


@pytest.mark.parametrize("part", ["xs", "ys"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_prompt_that_is_not_finite_is_refused_by_name(part, value, prompt, model):
    bad = spoiled(prompt, part, value)
    task = Given(d=3, prompt=bad)
    for answer in (
        lambda: model.predict(bad),
        lambda: model.settle(bad, StateChange(tolerance=0.1), max_loops=3),
        lambda: least_squares(bad),
        lambda: identify(model.double(), task, points=9, prompts=8, loops=1, max_steps=1),
        lambda: diagnose(model, task, points=9, prompts=4),
    ):
        with pytest.raises(ValueError, match=f"`{part}` of a prompt must be finite; got {value}"):
            answer()


def test_answers_that_overflow_are_refused_where_a_person_asks(prompt):
    model = looped_descent(d=3, n=8, loops=2, rate=0.1)
    huge = Prompt(1e200 * prompt.xs.double(), prompt.ys.double())
    with pytest.raises(ValueError, match="predictions are not finite"):
        model.predict(huge)
    assert not bool(model(huge).isfinite().all())  # whoever studies divergence still sees it
    with pytest.raises(ValueError, match="`averaging` overflows"):
        averaging(Prompt(1e200 * prompt.xs.double(), 1e200 * prompt.ys.double()))


def test_a_diagnosis_of_prompts_that_are_too_large_says_so_in_words(prompt):
    model = looped_descent(d=3, n=8, loops=2, rate=0.1)
    huge = Given(d=3, prompt=Prompt(1e120 * prompt.xs.double(), 1e40 * prompt.ys.double()))
    found = diagnose(model, huge, points=9, prompts=4)
    assert found.overflows_at is not None
    assert "overflows" in found.verdict
    assert (found.radius, found.apart) == (None, None)
    assert "nan" not in found.verdict


def test_a_state_of_zeros_has_settled(prompt):
    zeros = Given(d=3, prompt=Prompt(0 * prompt.xs.double(), 0 * prompt.ys.double()))
    found = diagnose(looped_descent(d=3, n=8, loops=2, rate=0.1), zeros, points=9, prompts=4)
    assert found.overflows_at is None
    assert found.change.mean[-1] == 0
    assert found.shares["settles"].mean == 1


def test_an_error_that_is_not_finite_is_said_in_words():
    curve = Curve(label="model", x=[1, 2], mean=[0.5, math.nan], low=[0.4, math.nan], high=[0.6, math.nan])
    assert interval_at(curve, 1) == "0.5 [0.4, 0.6]"
    assert interval_at(curve, 2) == "not finite"


def test_brackets_without_end_are_text():
    assert parse_value("[" * 100_000) == "[" * 100_000


def test_what_would_never_end_is_refused(prompt, model):
    with pytest.raises(ValueError, match="`loops` must be at most 1,000,000"):
        model.predict(prompt, loops=MOST_LOOPS + 1)
    with pytest.raises(ValueError, match="`steps` must be at most 1,000,000,000"):
        TrainConfig(steps=10**9 + 1)
    base = Experiment(task=LinearRegression(d=2), model=DecoderConfig(d=2), train=TrainConfig())
    with pytest.raises(ValueError, match="a sweep has at most 100,000 trials"):
        trials(base, {"model.loops": list(range(1, 401))}, seeds=range(10**15))
    assert MAX_TRIALS == 100_000


@pytest.mark.usefixtures("unchecked")
def test_names_in_place_of_things_are_refused_with_what_gives_the_thing(model, tmp_path):
    task = LinearRegression(d=3)
    for ask, message in (
        (lambda: looped.evaluate("yang24.linear", task, points=5), "`model` must be a `LoopedModel`; got str. Use `lo"),
        (lambda: looped.evaluate(model, "linear", points=5), "`task` must be a `Task`; got str. Use such as `Linear"),
        (lambda: looped.train("yang24.linear", out=tmp_path), "`experiment` must be an `Experiment`; got str. A rec"),
        (lambda: train_seeds("yang24.linear", [0], out=tmp_path), "`experiment` must be an `Experiment`; got str. A"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            ask()
    assert not list(tmp_path.iterdir())
