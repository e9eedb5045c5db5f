from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from looped.constructions.gradient_descent import functional_descent
from looped.functional import attention, kernels
from looped.models.kernel_transformer import Head, KernelTransformer, functional
from looped.models.patterns import BlockValue, FullScores
from looped.prompt import Prompt
from looped.tasks.gaussian_process import GaussianProcess, draw
from looped.theorems.check import select
from looped.theorems.cheng24 import functional_descent as checks
from looped.theorems.cheng24 import kernel_prompts, stationary, structure

NUMPY = {
    kernels.linear: lambda u, v: u @ v,
    kernels.relu: lambda u, v: max(u @ v, 0.0),
    kernels.exp: lambda u, v: np.exp(u @ v),
    kernels.rbf: lambda u, v: np.exp(-((u - v) @ (u - v)) / 2),
}


def first_verdict(name):
    return next(select([name])[0].check()).verdict


def reference(xs, ys, query, rates, pairs):
    """Functional descent with the kernel sum_s K_s(G_s u, G_s v), its values held at the examples and the query."""

    def kernel(u, v):
        return sum(NUMPY[kernel](g @ u, g @ v) for kernel, g in pairs)

    points, values, reached = [*xs, query], np.zeros(len(xs) + 1), []
    for rate in rates:
        wrong = ys - values[:-1]
        values = values + rate * np.array([wrong @ [kernel(x, p) for x in xs] for p in points])
        reached.append(values[-1])
    return np.array(reached)


def drawn(n, d, loops, seed):
    rng = np.random.default_rng(seed)
    xs, ys = rng.normal(size=(n + 1, d)) / d**0.5, rng.normal(size=n + 1)
    prompt = Prompt(torch.tensor(xs)[None], torch.tensor(ys)[None])
    return rng, xs[:-1], ys[:-1], xs[-1], prompt


SIZES = {"n": st.integers(1, 6), "d": st.integers(1, 5), "loops": st.integers(1, 8), "seed": st.integers(0, 9999)}


@settings(max_examples=30, deadline=None)
@given(**SIZES, kernel=st.sampled_from(list(NUMPY)))
def test_proposition_3_1_to_rounding_for_any_size_kernel_and_rates(n, d, loops, seed, kernel):
    rng, xs, ys, query, prompt = drawn(n, d, loops, seed)
    rates = rng.uniform(0.01, 0.3, loops)
    expected = reference(xs, ys, query, rates, [(kernel, np.eye(d))])
    model = functional_descent(d=d, rates=rates.tolist(), kernel=kernel)
    got = kernel_prompts.predictions(model, prompt)[:, 0].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(**SIZES, heads=st.lists(st.sampled_from(list(NUMPY)), min_size=1, max_size=3))
def test_proposition_d_1_to_rounding_with_maps_that_are_not_symmetric(n, d, loops, seed, heads):
    rng, xs, ys, query, prompt = drawn(n, d, loops, seed)
    maps = [rng.normal(size=(d, d)) / d**0.5 for _ in heads]
    rates = rng.uniform(0.01, 0.2, loops)
    expected = reference(xs, ys, query, rates, list(zip(heads, maps, strict=True)))
    model = functional_descent(
        d=d, rates=rates.tolist(), kernel=tuple(heads), maps=[torch.tensor(through) for through in maps]
    )
    got = kernel_prompts.predictions(model, prompt)[:, 0].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def sign_flipped(model):
    for s, head in enumerate(model.heads):
        model.put(s, label=-head.get_parameter("label").detach())


def unscaled(model):
    for s in range(len(model.heads)):
        model.put(s, label=-1.0)


def transposed(model):
    for s, head in enumerate(model.heads):
        model.put(s, key=head.get_parameter("key").detach().mT.clone())


@pytest.mark.parametrize(
    ("mutate", "caught_by"),
    [
        (sign_flipped, {"cheng24.prop3.1", "cheng24.propD.1", "cheng24.sec3.1.2"}),
        (unscaled, {"cheng24.prop3.1", "cheng24.propD.1", "cheng24.sec3.1.2"}),
        (transposed, {"cheng24.propD.1"}),  # where B = C = I, a transpose is no mutation: see the next test
    ],
)
def test_a_wrong_weight_fails_the_exact_checks(mutate, caught_by, monkeypatch):
    def mutated(**fields):
        model = functional_descent(**fields)
        mutate(model)
        return model

    monkeypatch.setattr(checks, "transformer", mutated)
    for name in caught_by:
        assert first_verdict(name) == "fails"


def test_a_transposed_key_fails_proposition_3_1(monkeypatch):
    put = KernelTransformer.put

    def wrong(self, head=0, **weights):
        put(self, head, **{name: value.mT if name == "key" else value for name, value in weights.items()})

    monkeypatch.setattr(KernelTransformer, "put", wrong)
    assert first_verdict("cheng24.prop3.1") == "fails"


def test_lemma_a_1_needs_scores_that_do_not_read_labels():
    prompt = kernel_prompts.normal_prompts(20, 5, 3, 0)
    config = functional(d=3, loops=2, layers=2, kernel=kernels.linear)
    hidden, seen = structure.both_runs(config, prompt)
    torch.testing.assert_close(hidden, seen, atol=1e-12, rtol=1e-12)
    whole = replace(config, heads=(Head(value=BlockValue(), scores=FullScores()),), init_std=0.5)
    hidden, seen = structure.both_runs(whole, prompt)
    assert (hidden - seen).abs().max() > 1e-3


def test_softmax_attention_is_exp_attention_divided_by_its_mass():
    _, xs, ys, query, prompt = drawn(6, 3, 1, 4)
    model = functional_descent(d=3, rates=[0.7], kernel=attention.softmax)
    weights = np.exp(xs @ query)
    assert model.predict(prompt).item() == pytest.approx(0.7 * (weights / weights.sum()) @ ys, abs=1e-12)


def test_features_are_those_of_the_quadratic_kernel():
    xs = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    features = checks.features(xs)
    torch.testing.assert_close(features @ features.mT, checks.quadratic(xs, xs))


def test_the_bayes_limit_is_scipys_solution():
    task = GaussianProcess(kernel=kernels.exp, whiten=False)
    prompt = kernel_prompts.process_prompts(task, 3, 3, 0)
    step = 1.5 / torch.linalg.matrix_norm(kernels.exp(prompt.xs[:, :3], prompt.xs[:, :3]), 2)
    reached = kernel_prompts.descent_predictions(prompt, step, kernels.exp, 600)[-1].numpy()
    for b in range(3):
        xs, ys = prompt.xs[b].numpy(), prompt.ys[b].numpy()
        gram = np.exp(xs @ xs.T)
        assert reached[b] == pytest.approx(gram[3, :3] @ np.linalg.solve(gram[:3, :3], ys[:3]), abs=1e-6)


LAND = {"task": GaussianProcess(kernel=kernels.exp), "kernel": attention.softmax, "samples": 1000}


@pytest.mark.parametrize("transform", [False, True])
def test_the_gradient_vanishes_at_the_theorems_point_and_not_at_others_of_its_kind(transform):
    land = stationary.Landscape(**LAND, transform=transform)
    model, prompt = land.model(), land.prompts(0)
    for through, zero in ((torch.linalg.inv(land.task.root), True), (torch.eye(5).double(), False)):
        numbers = land.best(model, prompt, through)
        norm, error = land.gradient(model, prompt, land.weights(numbers, through))
        assert (norm < stationary.NUM_ERRORS * error) == zero, (norm, error)


def test_the_loss_is_the_mean_over_labels():
    land = stationary.Landscape(**(LAND | {"samples": 40}), transform=True)
    model, prompt = land.model(), land.prompts(3)
    copies, generator = 2000, torch.Generator().manual_seed(0)
    gram = prompt.truth["gram"].repeat(copies, 1, 1)
    many = Prompt(prompt.xs.repeat(copies, 1, 1), draw(gram, generator))
    weights = land.weights(torch.tensor([[-0.3, -0.2], [0.5, 0.7], [0.05, 0.02]]).double(), land.task.root)
    answers = functional_call(model, weights, (many,))[-1, :, 0]
    squares = (answers - many.ys[:, -1]).square().reshape(copies, 40).mean(1)
    error = squares.std() / copies**0.5
    assert abs(squares.mean() - land.loss(model, weights, prompt)) < 4 * error
    assert error < 0.01 * squares.mean()


def test_the_gradient_is_the_derivative_of_the_loss_and_its_error_shrinks():
    land = stationary.Landscape(**(LAND | {"samples": 40}), transform=True)
    model, prompt, through = land.model(), land.prompts(1), torch.linalg.inv(land.task.root)
    numbers = torch.tensor([[-0.1, -0.2], [0.5, 0.7], [0.05, 0.02]], dtype=torch.float64)
    weights = land.weights(numbers, through)
    norm, error = land.gradient(model, prompt, weights)
    total, step = 0.0, 1e-5
    for name, value in weights.items():
        for index in np.ndindex(*value.shape):
            moved = [dict(weights), dict(weights)]
            for sign, side in zip((1, -1), moved, strict=True):
                side[name] = value.clone()
                side[name][index] += sign * step
            high, low = (float(land.loss(model, side, prompt)) for side in moved)
            total += ((high - low) / (2 * step)) ** 2
    assert norm == pytest.approx(total**0.5, rel=1e-5)
    many = stationary.Landscape(**LAND, transform=True)
    assert many.gradient(model, many.prompts(1), weights)[1] < error / 2


def test_the_stationary_rows_say_how_large_the_error_is(monkeypatch):
    monkeypatch.setattr(stationary, "PAIRS", ((kernels.relu, kernels.relu),))
    at, moved = stationary.stationary(transform=False)
    assert (at.verdict, moved.verdict) == ("holds", "holds")
    assert "+-" in at.instance
    assert at.tolerance
