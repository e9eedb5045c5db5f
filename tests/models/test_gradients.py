"""Gradient rules against backpropagation through all loops, in float64."""

import numpy as np
import pytest
import torch

from looped.functional.fixed_points import Anderson, Broyden, Repeat
from looped.models.decoder import DecoderConfig
from looped.models.gradients import Implicit, Phantom, Truncated, jacobian_penalty
from looped.models.loop import unroll
from looped.prompt import Prompt
from models.reference import random_model
from models.test_loop import Problem, saved_bytes


def contraction(seed=0, **fields):
    """A decoder whose loop has a fixed point: its prompt is large beside its state."""
    model = random_model(DecoderConfig(d=2, width=8, heads=2, loops=5, positions=12, **fields), seed)
    with torch.no_grad():
        model.read_in.weight.mul_(6)
    return model


def some_prompt(seed=0):
    rng = np.random.default_rng(seed)
    return Prompt(torch.tensor(rng.normal(size=(3, 4, 2))), torch.tensor(rng.normal(size=(3, 4))))


def gradients(model, outputs):
    """Of a random combination of the outputs, for every weight."""
    weights = torch.tensor(np.random.default_rng(9).normal(size=tuple(outputs.shape)))
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(
        (outputs * weights).sum(), list(model.parameters()), allow_unused=True), strict=True))  # fmt: skip


def assert_same(got, wanted, tolerance):
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 1e-6, name
        assert (got[name] - gradient).abs().max() <= tolerance * max(1, gradient.abs().max()), name


# implicit differentiation


@pytest.mark.parametrize("solver", [Repeat(), Anderson(), Broyden(memory=30)], ids=lambda rule: type(rule).__name__)
def test_implicit_gradients_are_those_of_full_backpropagation_at_a_fixed_point(solver):
    model, prompt = contraction(), some_prompt()
    full = model(prompt, loops=150)
    assert (full[-1] - model(prompt, loops=149)[-1]).abs().max() < 1e-12, "the loops have settled"
    implicit = model(prompt, loops=120, gradient=Implicit(solver=solver, adjoint=solver, back=120))
    torch.testing.assert_close(implicit, full, rtol=0, atol=1e-9)
    assert_same(gradients(model, implicit), gradients(model, full), 1e-8)


def test_before_it_has_converged_it_is_not_that_gradient():
    model, prompt = contraction(), some_prompt()
    full = gradients(model, model(prompt, loops=150))
    short = gradients(model, model(prompt, loops=120, gradient=Implicit(solver=Repeat(), back=1)))
    assert max(float((short[name] - full[name]).abs().max()) for name in full) > 1e-3


def test_memory_does_not_grow_with_the_loops():
    model, prompt = contraction(), some_prompt()
    for rule in (Implicit(), Implicit(solver=Broyden()), Phantom(back=3), Truncated(back=2)):
        few, many = (saved_bytes(model, prompt, loops=loops, gradient=rule) for loops in (10, 100))
        assert few == many > 0, rule
    assert saved_bytes(model, prompt, loops=100, gradient=Implicit()) < 2 * saved_bytes(model, prompt, loops=1)


def test_the_models_of_a_stack_have_fixed_points_of_their_own():
    from looped.models.blocks import stack

    models, prompt, rule = [contraction(seed) for seed in (0, 1)], some_prompt(), Implicit(adjoint=Anderson(), back=20)
    stacked = stack(models)
    pair = Prompt(torch.stack([prompt.xs, prompt.xs]), torch.stack([prompt.ys, prompt.ys]))
    together = stacked(pair, loops=20, gradient=rule)
    slopes = gradients(stacked, together)
    weights = torch.tensor(np.random.default_rng(9).normal(size=tuple(together.shape)))
    for index, model in enumerate(models):
        alone = model(prompt, loops=20, gradient=rule)
        torch.testing.assert_close(together[:, index], alone, rtol=1e-8, atol=1e-9)
        (alone * weights[:, index]).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(slopes[name][index], parameter.grad, rtol=1e-6, atol=1e-8)


# phantom gradients and truncation


def test_phantom_gradients_are_those_of_the_damped_loops_written_out():
    model, prompt, rule = contraction(), some_prompt(), Phantom(back=3, damping=0.4)
    got = model(prompt, loops=7, gradient=rule)
    context = model.embed(prompt)
    with torch.no_grad():
        state = model.start(context)
        for t in range(4):
            state = model.step(state, context, t)
    for t in range(4, 7):
        state = 0.6 * state + 0.4 * model.step(state, context, t)
    wanted = model.readout(state, context)[None]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert_same(gradients(model, got), gradients(model, wanted), 1e-12)


def test_undamped_phantom_gradients_are_those_of_a_window():
    model, prompt = contraction(), some_prompt()
    phantom, window = model(prompt, loops=6, gradient=Phantom(back=2, damping=1.0)), model(prompt, loops=6, grad=2)
    torch.testing.assert_close(phantom, window, rtol=0, atol=1e-12)
    assert_same(gradients(model, phantom), gradients(model, window), 1e-12)


@pytest.mark.parametrize(("loops", "keep", "back"), [(6, 3, 2), (6, 6, 2), (5, 2, 9), (4, 4, 1), (1, 1, 3)])
def test_truncation_takes_each_loss_back_through_its_own_loops(loops, keep, back):
    """The sum over losses: each alone is a window of `back` that ends at its loop."""
    problem = Problem(3)
    weights = torch.tensor(np.random.default_rng(9).normal(size=(keep, 2)))
    got = torch.stack(
        Truncated(back=back)(
            problem.step, problem.start, problem.context, loops=loops, keep=keep, collect=problem.collect
        )
    )
    alone = [
        unroll(problem.step, problem.start, problem.context, loops=last, grad=min(back, last), collect=problem.collect)
        for last in range(loops - keep + 1, loops + 1)
    ]
    wanted = torch.cat(alone)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    slopes = [
        torch.autograd.grad((outputs * weights).sum(), problem.inputs, allow_unused=True, materialize_grads=True)
        for outputs in (got, wanted)
    ]
    for gradient, other in zip(*slopes, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-12)


# the Jacobian's penalty


def test_the_penalty_is_the_gain_of_the_whole_jacobian_and_so_is_its_gradient():
    model, prompt = contraction(), some_prompt()
    context = model.embed(prompt)
    state = model.step(model.start(context), context, 0).detach()
    direction = torch.tensor(np.random.default_rng(4).normal(size=tuple(state.shape)))

    def by_whole_matrix():
        rows = []
        for i in range(3):
            part = type(context)(context.tokens[i : i + 1])
            jacobian = torch.autograd.functional.jacobian(
                lambda z, part=part: model.step(z[None], part, 0)[0], state[i], create_graph=True
            ).reshape(64, 64)
            rows.append((direction[i].flatten() @ jacobian).square().mean())
        return torch.stack(rows)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = by_whole_matrix()
    got = jacobian_penalty(model.step, state, context, 0, direction, batch_axes=1)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    left, right = (torch.autograd.grad(value.sum(), model.blocks[0].mlp.fc.weight)[0] for value in (got, wanted))
    assert left.abs().max() > 1e-6
    torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


# what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Truncated(back=0), "`back` must be at least 1; got 0"),
        (lambda: Phantom(back=0), "`back` must be at least 1; got 0"),
        (lambda: Phantom(damping=1.5), "`damping` must be above 0 and at most 1; got 1.5"),
        (lambda: Implicit(back=0), "`back` must be at least 1; got 0"),
        (lambda: contraction()(some_prompt(), keep=2, gradient=Implicit()), "to the last loop alone; got keep=2"),
        (lambda: contraction()(some_prompt(), grad=2, gradient=Implicit()), "`grad` and `gradient`"),
        (lambda: contraction()(some_prompt(), loops=4, keep=4, grad=2), "`grad`=2 is less than `keep`=4"),
        (
            lambda: Phantom()(lambda *_: None, (torch.zeros(1),), (), loops=2, collect=lambda *_: None),
            "needs a state that is one tensor; got tuple",
        ),
    ],
)
def test_rules_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
