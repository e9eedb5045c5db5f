from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.functional.schedules import RandomDepth
from looped.models.decoder import DecoderConfig
from looped.models.exit_rules import Budget, StateChange
from looped.models.loop import settle, unroll
from looped.prompt import Prompt
from models.reference import random_model

TINY = DecoderConfig(d=2, width=8, heads=2, loops=5, positions=12)


class Pair(NamedTuple):
    """A state of two parts, the second handed on by every loop."""

    moving: torch.Tensor
    resting: torch.Tensor


def normal(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def decoder(**fields):
    return random_model(replace(TINY, **fields))


def some_prompt(batch=3, n=4, seed=0):
    return Prompt(normal(batch, n, 2, seed=seed), normal(batch, n, seed=seed + 1))


# unroll: gradients


class Problem:
    """A step with weights, a context and a first state, all of which want gradient."""

    def __init__(self, seed):
        self.weight = normal(3, 3, seed=seed).requires_grad_()
        self.start = Pair(normal(2, 3, seed=seed + 1).requires_grad_(), normal(2, 3, seed=seed + 2).requires_grad_())
        self.context = (normal(2, 3, seed=seed + 3).requires_grad_(),)
        self.inputs = (self.weight, *self.start, *self.context)

    def step(self, state, context, t):
        moving = torch.tanh(state.moving @ self.weight + context[0] + 0.1 * t * state.resting)
        return Pair(moving, state.resting)

    def collect(self, state, context):
        return (state.moving * state.resting + context[0]).sum(-1)

    def by_hand(self, loops, grad, keep):
        """The loop written out: the graph is cut once, before the last `grad` loops."""
        state, collected = self.start, []
        for t in range(loops):
            if t == loops - grad and t > 0:
                state = Pair(*(part.detach() for part in state))
            state = self.step(state, self.context, t)
            if t >= loops - keep:
                out = self.collect(state, self.context)
                collected.append(out if t >= loops - grad else out.detach())
        return torch.stack(collected)

    def gradients(self, outputs):
        weights = normal(*outputs.shape, seed=99)
        gradients = torch.autograd.grad((outputs * weights).square().sum(), self.inputs, allow_unused=True)
        return [
            torch.zeros_like(value) if gradient is None else gradient
            for gradient, value in zip(gradients, self.inputs, strict=True)
        ]


@settings(max_examples=60, deadline=None)
@given(loops=st.integers(1, 9), data=st.data(), seed=st.integers(0, 99))
def test_gradients_equal_a_loop_that_detaches_before_the_window(loops, data, seed):
    grad = data.draw(st.integers(1, loops))
    keep = data.draw(st.integers(1, grad))
    problem = Problem(seed)
    got = unroll(
        problem.step, problem.start, problem.context, loops=loops, grad=grad, keep=keep, collect=problem.collect
    )
    wanted = problem.by_hand(loops, grad, keep)
    assert got.shape == (keep, 2)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    for gradient, other in zip(problem.gradients(got), problem.gradients(wanted), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inject", ["add", "multiply"])
@pytest.mark.parametrize(("grad", "keep"), [(1, 1), (3, 2), (5, 5), (6, 6)])
def test_gradients_of_a_decoder_too(inject, grad, keep):
    model, prompt, loops = decoder(inject=inject), some_prompt(), 6
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = normal(keep, 3, 4, seed=5)
    got = torch.autograd.grad((model(prompt, loops=loops, grad=grad, keep=keep) * weights).sum(), parameters)
    context = model.embed(prompt)
    state, total = model.start(context), torch.zeros((), dtype=torch.float64)
    for t in range(loops):
        state = model.step(state.detach() if t == loops - grad else state, context, t)
        if t >= max(loops - keep, loops - grad):
            total = total + (model.readout(state, context) * weights[t - loops + keep]).sum()
    for name, gradient, other in zip(names, got, torch.autograd.grad(total, parameters), strict=True):
        assert (gradient - other).abs().max() <= 1e-12 * max(1, other.abs().max()), name


def test_no_window_means_gradient_through_all_loops():
    for loops in (1, 4):
        problem = Problem(1)
        run = [
            unroll(problem.step, problem.start, problem.context, loops=loops, grad=grad, collect=problem.collect)
            for grad in (None, loops)
        ]
        for gradient, other in zip(problem.gradients(run[0]), problem.gradients(run[1]), strict=True):
            assert torch.equal(gradient, other)
            assert gradient.abs().max() > 0


def test_what_is_predicted_depends_on_no_window_and_every_prediction_carries_gradient():
    model, prompt = decoder(), some_prompt()
    every = model(prompt, keep=5)
    for grad in (None, 1, 2, 5):
        for keep in (1, 2, 5):
            if keep > (grad or 5):
                with pytest.raises(ValueError, match=rf"`grad`={grad} is less than `keep`={keep}: the first"):
                    model(prompt, grad=grad, keep=keep)
                with torch.no_grad():
                    assert torch.equal(model(prompt, grad=grad, keep=keep), every[-keep:])
                continue
            out = model(prompt, grad=grad, keep=keep)
            assert torch.equal(out, every[-keep:])
            for prediction in out:
                assert torch.autograd.grad(prediction.sum(), model.read_in.weight, retain_graph=True)[0].any()


def test_steps_are_numbered_from_zero_on():
    seen = []

    def step(state, context, t):
        seen.append(t)
        return state + 1

    out = unroll(step, torch.zeros(2), (), loops=5, grad=3, keep=3, collect=lambda state, context: state)
    assert seen == [0, 1, 2, 3, 4]
    assert out.tolist() == [[3, 3], [4, 4], [5, 5]]


# unroll: memory


def saved_bytes(model, prompt, **windows):
    """What autograd keeps for the way back."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(prompt, **windows)
    return sum(sizes)


@pytest.mark.parametrize("inject", ["add", "multiply", "none"])
def test_the_prefix_saves_nothing(inject):
    model, prompt = decoder(inject=inject), some_prompt()
    short, long = (saved_bytes(model, prompt, loops=loops, grad=5, keep=3) for loops in (10, 100))
    assert short == long > 0
    assert saved_bytes(model, prompt, loops=5, grad=5, keep=3) == short
    assert saved_bytes(model, prompt, loops=10, keep=3) > 1.5 * short


def test_random_depth_costs_the_same_at_every_depth():
    depth, model, prompt = RandomDepth(low=3, high=12), decoder(), some_prompt()
    depths = {depth(step, 100) for step in range(40)}
    assert len(depths) == 10
    assert len({saved_bytes(model, prompt, loops=loops, grad=3, keep=3) for loops in depths}) == 1


# unroll: bad windows


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"loops": 0}, "`loops` must be at least 1; got 0"),
        ({"loops": -1}, "`loops` must be at least 1; got -1"),
        ({"loops": 4, "grad": 5}, r"`grad` must be in \[1, loops=4\]; got 5. Lower it or raise `loops`."),
        ({"loops": 4, "grad": 0}, r"`grad` must be in \[1, loops=4\]; got 0"),
        ({"loops": 4, "keep": 5}, r"`keep` must be in \[1, loops=4\]; got 5"),
        ({"loops": 4, "keep": 0}, r"`keep` must be in \[1, loops=4\]; got 0"),
        ({"loops": 4, "grad": -1}, r"`grad` must be in \[1, loops=4\]; got -1"),
    ],
)
def test_windows_that_do_not_fit_are_refused(windows, message):
    def never(*_):
        raise AssertionError("refuse before the first loop")

    with pytest.raises(ValueError, match=message):
        unroll(never, torch.zeros(2), (), collect=never, **windows)
    with pytest.raises(ValueError, match=message):
        decoder()(some_prompt(), **windows)


# settle


class Rates(NamedTuple):
    """Each prompt comes to rest at its own speed."""

    target: torch.Tensor
    rate: torch.Tensor
    extra: None = None


class Counted:
    """state <- target + rate (state - target), prompt by prompt; counts the rows it was given."""

    def __init__(self):
        self.rows = []

    def __call__(self, state, context, t):
        self.rows.append(len(state))
        assert len(context.target) == len(context.rate) == len(state)
        return context.target + context.rate[:, None] * (state - context.target)


def rates():
    rate = torch.tensor([0.9, 0.1, 0.5, 0.0, 0.7], dtype=torch.float64)
    return Rates(normal(5, 3, seed=1), rate), normal(5, 3, seed=2)


def collect(state, context):
    return 2 * state + context.target


def test_each_prompt_leaves_the_batch_as_if_it_were_alone():
    context, start = rates()
    step, rule = Counted(), StateChange(tolerance=1e-3)
    together = settle(step, start, context, rule, max_loops=200, collect=collect)
    assert together.finished.all()
    assert len(set(together.loops.tolist())) == 5
    most = int(together.loops.max())
    assert step.rows == [int((together.loops > t).sum()) for t in range(most)]
    assert sum(step.rows) == together.loops.sum()
    every = unroll(Counted(), start, context, loops=most, keep=most, collect=collect)
    assert torch.equal(together.predictions, every[together.loops - 1, torch.arange(5)])
    for i in range(5):
        single = Rates(context.target[i : i + 1], context.rate[i : i + 1])
        alone = settle(Counted(), start[i : i + 1], single, rule, max_loops=200, collect=collect)
        assert alone.loops[0] == together.loops[i]
        assert torch.equal(alone.predictions[0], together.predictions[i])


def test_state_change_is_relative_and_first_met_where_settle_stops():
    context, start = rates()
    tolerance = 1e-2
    out = settle(Counted(), start, context, StateChange(tolerance=tolerance), max_loops=200, collect=collect)
    states = [start, *unroll(Counted(), start, context, loops=200, keep=200, collect=lambda state, _: state)]
    for i, loops in enumerate(out.loops.tolist()):
        change = [((new[i] - old[i]).norm() / new[i].norm()).item() for old, new in pairwise(states)]
        assert change[loops - 1] <= tolerance
        assert all(value > tolerance for value in change[: loops - 1])


def test_state_change_reads_all_parts_of_a_state():
    def step(state, context, t):
        return Pair(state.moving, state.resting * (0.5 if t < 3 else 1))

    start = Pair(torch.zeros(2, 3), torch.ones(2, 3))
    out = settle(step, start, (), StateChange(tolerance=0.0), max_loops=9, collect=lambda state, _: state.resting)
    assert out.loops.tolist() == [4, 4]
    assert (out.predictions == 0.125).all()


def test_max_loops_is_flagged_and_at_least_one():
    context, start = rates()
    out = settle(Counted(), start, context, StateChange(tolerance=1e-3), max_loops=8, collect=collect)
    full = settle(Counted(), start, context, StateChange(tolerance=1e-3), max_loops=200, collect=collect)
    assert out.finished.tolist() == (full.loops <= 8).tolist()
    assert set(out.finished.tolist()) == {True, False}
    assert out.loops.tolist() == full.loops.clamp(max=8).tolist()
    last = unroll(Counted(), start, context, loops=8, collect=collect)[-1]
    assert torch.equal(out.predictions[~out.finished], last[~out.finished])
    assert settle(Counted(), start, context, Budget(loops=4), max_loops=4, collect=collect).finished.all()
    assert not settle(Counted(), start, context, Budget(loops=5), max_loops=4, collect=collect).finished.any()
    with pytest.raises(ValueError, match="`loops` must be at least 1; got 0"):
        settle(Counted(), start, context, Budget(loops=1), max_loops=0, collect=collect)


def test_a_state_that_is_not_finite_never_settles():
    def step(state, context, t):
        return state * torch.tensor([[1.0], [torch.inf]]) if t == 1 else state * 0.5

    out = settle(step, torch.ones(2, 3), (), StateChange(tolerance=0.1), max_loops=6, collect=lambda state, _: state)
    assert out.finished.tolist() == [True, False]
    assert out.loops.tolist() == [2, 6]


@pytest.mark.parametrize("loops", [1, 4])
def test_a_budget_is_unroll(loops):
    model, prompt = decoder(), some_prompt()
    out = model.settle(prompt, Budget(loops=loops), max_loops=50)
    assert out.loops.tolist() == [loops] * 3
    assert out.finished.all()
    assert not out.predictions.requires_grad
    torch.testing.assert_close(out.predictions, model.predict(prompt, loops=loops), rtol=0, atol=1e-14)


def test_a_decoder_settles_prompt_by_prompt():
    model, prompt = decoder(), some_prompt(batch=6)
    rule = StateChange(tolerance=0.05)
    out = model.settle(prompt, rule, max_loops=40)
    for i in range(6):
        row = prompt.rows(slice(i, i + 1))
        torch.testing.assert_close(
            out.predictions[i : i + 1], model.predict(row, loops=int(out.loops[i])), atol=1e-12, rtol=0
        )
        assert model.settle(row, rule, max_loops=40).loops[0] == out.loops[i]
