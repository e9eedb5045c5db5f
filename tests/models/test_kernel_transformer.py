from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.functional import attention, kernels
from looped.models.exit_rules import Budget, StateChange
from looped.models.kernel_transformer import functional, restricted, unrestricted, vector
from looped.prompt import Prompt

SIZES = {
    "batch": st.integers(1, 3),
    "n": st.integers(1, 7),
    "d": st.integers(1, 5),
    "loops": st.integers(1, 4),
    "seed": st.integers(0, 999),
}


def prompt_of(batch, n, d, seed):
    rng = np.random.default_rng(seed)
    return Prompt(torch.tensor(rng.normal(size=(batch, n + 1, d))), torch.tensor(rng.normal(size=(batch, n + 1))))


def build(config, seed=0):
    torch.manual_seed(seed)
    return config.build().double()


def columns(prompt, b, hidden=True):
    """The paper's Z, tokens as columns."""
    labels = prompt.ys[b].numpy().copy()
    labels[-1] = 0 if hidden else labels[-1]
    return np.vstack([prompt.xs[b].numpy().T, labels[None]])


def scores(kernel, left, right):
    """h(U, W) of the paper, columns in, entry by entry; the softmax is masked."""
    table = {kernels.linear: lambda s: s, kernels.relu: lambda s: np.maximum(s, 0), kernels.exp: np.exp}
    raw = left.T @ right
    if kernel is attention.softmax:
        weights = np.exp(raw)
        weights[-1] = 0
        return weights / weights.sum(0)
    return table[kernel](raw)


@settings(max_examples=25, deadline=None)
@given(**SIZES, kernel=st.sampled_from([kernels.linear, kernels.relu]), shared=st.booleans(), whole=st.booleans())
def test_gatmiry24_equation_2(batch, n, d, loops, seed, kernel, shared, whole):
    prompt, layers = prompt_of(batch, n, d, seed), 1 if shared else loops
    make = unrestricted(d=d, loops=loops, layers=layers, kernel=kernel)
    if not whole:
        make = restricted(d=d, loops=loops, layers=layers, kernel=kernel, tilted=True)
    model = build(make, seed)
    got = model(prompt, keep=loops).detach().numpy()
    weights = {name: value.detach().numpy() for name, value in model.heads[0].named_parameters()}
    mask = np.diag([1.0] * n + [0.0])
    for b in range(batch):
        z = columns(prompt, b)
        for t in range(loops):
            layer = 0 if shared else t
            p, q = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
            if whole:
                p, q = weights["value"][layer], weights["score"][layer]
            else:
                p[d, :d], p[d, d], q[:d, :d] = weights["tilt"][layer], 1, weights["score"][layer]
            z = z - p @ z @ mask @ scores(kernel, z, q @ z) / n
            assert got[t, b, 0] == pytest.approx(-z[d, n], abs=1e-11)


@settings(max_examples=25, deadline=None)
@given(
    **SIZES,
    heads=st.lists(
        st.sampled_from([kernels.linear, kernels.relu, kernels.exp, attention.softmax]), min_size=1, max_size=3
    ),
    transform=st.booleans(),
)
def test_cheng24_equation_26(batch, n, d, loops, seed, heads, transform):
    prompt = prompt_of(batch, n, d, seed)
    model = build(functional(d=d, loops=loops, layers=loops, kernel=tuple(heads), transform=transform), seed)
    got = model(prompt, keep=loops).detach().numpy()
    mask = np.diag([1.0] * n + [0.0])
    for b in range(batch):
        z = columns(prompt, b)
        for t in range(loops):
            update = np.zeros_like(z)
            for head, kernel in zip(model.heads, heads, strict=True):
                weights = {name: value.detach().numpy()[t] for name, value in head.named_parameters()}
                v = np.zeros((d + 1, d + 1))
                v[d, d] = weights["label"]
                if transform:
                    v[:d, :d] = weights["transform"]
                update += v @ z @ mask @ scores(kernel, weights["key"] @ z[:d], weights["query"] @ z[:d])
            z = z + update
            # states of the exp kernel can grow to 1e11 and beyond, where 1e-10 is below rounding
            assert got[t, b, 0] == pytest.approx(-z[d, n], abs=1e-10, rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(**SIZES)
def test_chen24_definition_3_6_with_its_causal_mask(batch, n, d, loops, seed):
    prompt = prompt_of(batch, n, d, seed)
    model = build(vector(d=d, loops=loops, layers=loops), seed)
    got = model(prompt).detach().numpy()[-1]
    value, score = (model.heads[0].get_parameter(name).detach().numpy() for name in ("value", "score"))
    mask = np.zeros((n + 1, n + 1))
    mask[n, :n] = 1
    for b in range(batch):
        z = columns(prompt, b, hidden=False).T
        for t in range(loops):
            z = z - (mask * (z @ score[t].T @ z.T)) @ z @ value[t].T
        np.testing.assert_allclose(got[b], -z[n, :d], atol=1e-11)


def test_layers_follow_the_loop_count_and_the_last_repeats():
    prompt = prompt_of(2, 5, 3, 0)
    deep = build(restricted(d=3, loops=4, layers=2))
    flat = build(restricted(d=3, loops=4, layers=4))
    flat.put(score=deep.heads[0].score[[0, 1, 1, 1]])
    torch.testing.assert_close(deep(prompt, keep=4), flat(prompt, keep=4))


def test_many_models_equal_each_alone():
    config = functional(d=3, loops=3, layers=3, kernel=(kernels.relu, attention.softmax))
    many = build(replace(config, models=4))
    shared = prompt_of(5, 6, 3, 1)
    own = Prompt(torch.randn(4, 5, 7, 3).double(), torch.randn(4, 5, 7).double())
    for i in range(4):
        one = build(config)
        one.load_state_dict({name: value[i] for name, value in many.state_dict().items()})
        torch.testing.assert_close(many(shared)[:, i], one(shared), atol=1e-13, rtol=1e-13)
        torch.testing.assert_close(many(own)[:, i], one(Prompt(own.xs[i], own.ys[i])), atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize(
    "config",
    [
        restricted(d=3, loops=2, layers=2, tilted=True),
        unrestricted(d=3, loops=2),
        functional(d=3, loops=2, layers=2, kernel=(kernels.exp, kernels.relu)),
        vector(d=3, loops=2),
    ],
)
def test_every_parameter_receives_gradient_and_hidden_labels_stay_hidden(config):
    model, prompt = build(config), prompt_of(4, 6, 3, 2)
    model(prompt).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    changed = Prompt(prompt.xs, torch.cat([prompt.ys[:, :-1], prompt.ys[:, -1:] + 1], 1))
    assert torch.equal(model(changed), model(prompt)) == config.hide_label


def test_settle_drops_finished_prompts_and_agrees_with_the_plain_loop():
    prompt = prompt_of(6, 9, 3, 3)
    model = build(restricted(d=3, loops=50))
    model.put(score=0.5 * torch.eye(3))
    by_budget = model.settle(prompt, Budget(loops=7), max_loops=50)
    torch.testing.assert_close(by_budget.predictions, model.predict(prompt, loops=7))
    settled = model.settle(prompt, StateChange(tolerance=1e-3), max_loops=500)
    assert settled.finished.all()
    assert len(settled.loops.unique()) > 1
    for b in range(6):
        alone = model.predict(prompt.rows(slice(b, b + 1)), loops=int(settled.loops[b]))
        torch.testing.assert_close(settled.predictions[b : b + 1], alone)


def test_errors_say_what_came_and_what_to_do():
    with pytest.raises(ValueError, match="`layers` must be at least 1; got 0"):
        restricted(d=3, loops=2, layers=0)
    model = build(restricted(d=3, loops=2))
    with pytest.raises(ValueError, match=r"reads `d`=3; got a prompt with d=4"):
        model(prompt_of(1, 3, 4, 0))
    with pytest.raises(ValueError, match=r"head 0 has no weight `scores`; it has \['score'\]"):
        model.put(scores=1.0)
    with pytest.raises(ValueError, match="at least 2 pairs"):
        model(prompt_of(1, 0, 3, 0))
    with pytest.raises(ValueError, match="Raise it to 5"):
        build(unrestricted(d=3, loops=1, positions=4))(prompt_of(1, 5, 3, 0))
    with pytest.raises(ValueError, match="`registers` and `positions` must be 0; got 2 and 0"):
        restricted(d=3, loops=1, registers=2)
