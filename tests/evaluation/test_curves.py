from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from looped import LoopedModel, ModelConfig, Prompt
from looped.baselines.linear import averaging, least_squares, ridge
from looped.evaluation import errors
from looped.evaluation.curves import baselines_for, evaluate
from looped.models.decoder import DecoderConfig
from looped.tasks.gaussian_process import GaussianProcess
from looped.tasks.regression import LinearRegression, SparseRegression


class Labels(NamedTuple):
    ys: Tensor


@dataclass(frozen=True, kw_only=True)
class ZeroConfig(ModelConfig):
    """A user's own model, with nothing to train: it answers `answer`."""

    answer: float = 0.0

    def build(self) -> LoopedModel:
        return Zero(self)


class Zero(LoopedModel):
    def embed(self, prompt: Prompt) -> Labels:
        return Labels(prompt.ys)

    def start(self, context: Labels) -> Tensor:
        return torch.zeros_like(context.ys)

    def step(self, state: Tensor, context: Labels, t: int) -> Tensor:
        return state

    def readout(self, state: Tensor, context: Labels) -> Tensor:
        return state + self.config.answer


class Halving(Zero):
    """The label, but for half the error with every loop: a cheat whose curves are known."""

    def step(self, state: Tensor, context: Labels, t: int) -> Tensor:
        return (state + context.ys) / 2


class Nosy(Zero):
    """Remembers the prompts it was shown."""

    def __init__(self, config: ZeroConfig):
        super().__init__(config)
        self.seen: list[Prompt] = []

    def embed(self, prompt: Prompt) -> Labels:
        self.seen.append(prompt)
        return super().embed(prompt)


TASK = LinearRegression(d=3)


def decoder(**fields):
    torch.manual_seed(0)
    return DecoderConfig(**{"d": 3, "width": 8, "heads": 2, "loops": 3, "positions": 12, **fields}).build()


@pytest.mark.parametrize("task", [TASK, LinearRegression(d=2, noise=1.0), SparseRegression(d=4, nonzero=1)])
def test_predicting_zero_scores_one(task):
    result = evaluate(ZeroConfig(loops=2).build(), task, points=6, prompts=4000, max_loops=4)
    model = result.by_examples[0]
    assert model.mean == pytest.approx([1] * 6, abs=0.15)
    for i in range(6):
        assert model.low[i] < 1.06
        assert model.high[i] > 0.94
    assert result.by_loops.mean == [model.mean[-1]] * 4, "whatever the loops"


def test_a_task_in_its_own_units_scores_exactly_one():
    """Labels of size sqrt(label_variance) each: then zero costs exactly 1, and the interval has no width."""

    class Signs(LinearRegression):
        def sample(self, **sizes):
            prompt = super().sample(**sizes)
            return Prompt(prompt.xs, prompt.ys.sign() * self.label_variance**0.5)

    result = evaluate(ZeroConfig().build(), Signs(d=4), points=5, prompts=20)
    for line in (result.by_examples[0], result.by_loops):
        for values in (line.mean, line.low, line.high):
            assert values == pytest.approx([1] * len(values), abs=1e-6)


def test_curves_of_a_model_whose_error_is_known():
    result = evaluate(Halving(ZeroConfig(loops=3)), TASK, points=5, prompts=50, loops=2, max_loops=6)
    zero = evaluate(ZeroConfig(loops=3).build(), TASK, points=5, prompts=50)
    assert result.by_examples[0].mean == pytest.approx([value / 16 for value in zero.by_examples[0].mean], rel=1e-4)
    last = zero.by_examples[0].mean[-1]
    assert result.by_loops.x == [1, 2, 3, 4, 5, 6]
    assert result.by_loops.mean == pytest.approx([last / 4**t for t in range(1, 7)], rel=1e-3)
    assert (result.loops, result.trained_loops, result.prompts, result.level) == (2, 3, 50, 0.9)


@pytest.mark.parametrize("loops", [None, 1, 5])
def test_both_curves_meet(loops):
    """By loops at `loops` is by examples at the last pair: mean and interval."""
    result = evaluate(decoder(), TASK, points=5, prompts=40, loops=loops)
    at = result.loops - 1
    assert result.loops == (3 if loops is None else loops)
    for part in ("mean", "low", "high"):
        assert getattr(result.by_loops, part)[at] == getattr(result.by_examples[0], part)[-1]
    assert result.by_loops.at(result.loops) == result.by_examples[0].at(4)
    assert len(result.by_loops.x) == 12, "four times the trained loops"
    assert result.by_examples[0].x == [0, 1, 2, 3, 4]


def test_model_and_baselines_judge_the_same_prompts():
    model, shown = Nosy(ZeroConfig()), []

    def baseline(prompt):
        shown.append(prompt)
        return torch.zeros_like(prompt.ys)

    result = evaluate(model, TASK, points=5, prompts=600, seed=3, baselines={"zero": baseline})
    assert len(model.seen) > 1, "in chunks"
    assert torch.equal(torch.cat([part.xs for part in model.seen]), shown[0].xs)
    assert torch.equal(torch.cat([part.ys for part in model.seen]), shown[0].ys)
    assert len(shown[0].xs) == 600
    zero, other = result.by_examples
    assert (zero.mean, zero.low, zero.high) == (other.mean, other.low, other.high)
    assert [curve.label for curve in result.by_examples] == ["looped transformer", "zero"]


def test_chunks_change_nothing(monkeypatch):
    whole = evaluate(decoder(), TASK, points=5, prompts=30)
    monkeypatch.setattr(errors, "CHUNK", 7)
    parts = evaluate(decoder(), TASK, points=5, prompts=30)
    assert parts.by_examples[0].mean == pytest.approx(whole.by_examples[0].mean, rel=1e-5)
    assert parts.by_loops.high == pytest.approx(whole.by_loops.high, rel=1e-5)


def test_a_seed_names_the_evaluation():
    assert evaluate(decoder(), TASK, points=5, prompts=20) == evaluate(decoder(), TASK, points=5, prompts=20)
    other = evaluate(decoder(), TASK, points=5, prompts=20, seed=1)
    assert other.by_examples[1].mean != evaluate(decoder(), TASK, points=5, prompts=20).by_examples[1].mean


def test_baselines_by_task(generator):
    assert list(baselines_for(TASK)) == ["least squares", "averaging"]
    found = baselines_for(LinearRegression(d=3, noise=0.5))
    prompt = TASK.sample(batch=4, n=6, generator=generator)
    (name,) = [name for name in found if name.startswith("ridge")]
    assert torch.equal(found[name](prompt), ridge(prompt, 0.25))
    assert torch.equal(found["least squares"](prompt), least_squares(prompt))
    assert torch.equal(found["averaging"](prompt), averaging(prompt))


def test_baselines_score_as_they_should():
    result = evaluate(ZeroConfig().build(), LinearRegression(d=3, noise=0.5), points=9, prompts=2000)
    named = {curve.label.split(" (")[0]: curve for curve in result.by_examples}
    for name in ("ridge", "averaging", "looped transformer"):
        assert named[name].at(0) == pytest.approx(named["least squares"].at(0), rel=1e-6), "nothing to go by yet"
    assert named["ridge"].at(8) < named["least squares"].at(8) < 0.2 < named["averaging"].at(8) < 1


def test_any_task_of_the_right_dimension_can_be_judged():
    for task in (SparseRegression(d=3, nonzero=1), GaussianProcess(d=3, eigenvalues=(1.0, 1.0, 2.0))):
        result = evaluate(decoder(), task, points=4, prompts=10)
        assert type(task).__name__ in result.task
        assert all(value >= 0 for curve in result.by_examples for value in curve.mean)


def test_evaluating_leaves_no_gradient_and_no_trace():
    model = decoder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(model, TASK, points=4, prompts=10)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loops": 0}, "`loops` must be at least 1; got 0"),
        ({"loops": -2}, "`loops` must be at least 1; got -2"),
        ({"loops": 5, "max_loops": 4}, "`max_loops` must be at least loops=5; got 4"),
        ({"max_loops": 2}, "`max_loops` must be at least loops=3; got 2"),
        ({"prompts": 1}, "`prompts` must be at least 2, for an interval; got 1"),
        ({"points": 0}, "at least one prompt, example and dimension"),
        ({"points": 7}, "at most 6 examples here; got 7"),
        ({"level": 1.0}, r"`level` must be between 0 and 1; got 1\.0"),
        ({"level": 90.0}, r"`level` must be between 0 and 1; got 90\.0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(decoder(), TASK, **{"points": 5, "prompts": 10, **arguments})


def test_a_task_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="dimension 3; got 2"):
        evaluate(decoder(), LinearRegression(d=2), points=4, prompts=10)


class LastPair(LinearRegression):
    """Linear regression that scores the last pair alone."""

    def sample(self, **sizes):
        prompt = super().sample(**sizes)
        weights = torch.zeros_like(prompt.ys)
        weights[:, -1] = 1
        return Prompt(prompt.xs, prompt.ys, weights)


def test_positions_of_weight_zero_are_left_out():
    task = LastPair(d=3)
    model = decoder(loops=2)
    judged = evaluate(model, task, points=6, prompts=8)
    assert [curve.x for curve in judged.by_examples] == [[5]] * len(judged.by_examples)
    prompt = task.sample(batch=8, n=6, generator=torch.Generator().manual_seed(0))
    expected = task.error(model.predict(prompt), prompt)[:, -1].mean()
    assert judged.by_examples[0].mean[0] == pytest.approx(float(expected))
