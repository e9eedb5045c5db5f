from dataclasses import replace
from itertools import product

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
from looped.theorems.cheng24 import assumptions, kernel_prompts, slopes, stationary, structure
from looped.theorems.cheng24 import functional_descent as checks
from looped.theorems.cheng24.turns import circle, signed_shifts, turned

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


LAND = {"task": GaussianProcess(kernel=kernels.exp), "kernel": attention.softmax}
NUMBERS = torch.tensor([[-0.3, -0.2], [0.5, 0.7], [0.8, 1.2], [0.05, 0.02]]).double()


@pytest.mark.parametrize("d", [1, 2, 5])
def test_signed_shifts_are_a_group_with_the_mean_of_all_turns(d):
    turns = signed_shifts(d)
    assert len(turns) == 2**d * d == len({tuple(turn.flatten().tolist()) for turn in turns})
    products = (turns[:, None] @ turns).reshape(-1, d * d)
    assert {tuple(row) for row in products.tolist()} == {tuple(turn.flatten().tolist()) for turn in turns}
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close((turns.mT @ matrix @ turns).mean(0), matrix.trace() / d * torch.eye(d).double())


def test_the_circle_gives_the_moments_of_a_uniform_angle():
    turns = circle(16)
    torch.testing.assert_close(turns @ turns.mT, torch.eye(2).double().expand(32, 2, 2))
    assert turns.det().sum().item() == pytest.approx(0, abs=1e-12)
    moments = [(turns[:, 0, 0] ** k).mean().item() for k in range(1, 9)]
    assert moments == pytest.approx([0, 1 / 2, 0, 3 / 8, 0, 5 / 16, 0, 35 / 128], abs=1e-12)


@pytest.mark.parametrize("transform", [False, True])
def test_the_gradient_over_random_turns_tends_to_the_exact_one(transform):
    land = stationary.Landscape(**LAND, transform=transform)
    points, root = land.points(0), land.task.root
    weights = land.weights(NUMBERS[: 4 if transform else 3])
    expected = land.slopes(weights, turned(points, signed_shifts(5), root))
    random = torch.linalg.qr(torch.randn(4000, 5, 5, generator=torch.Generator().manual_seed(1)).double())[0]
    sampled = land.slopes(weights, turned(points, random, root))
    alone = land.slopes(weights, points)
    for name, slope in expected.items():
        if alone[name].ndim == 3 and alone[name].abs().max() > 1e-6:
            assert (sampled[name] - slope).norm() < 0.25 * (alone[name] - slope).norm(), name


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("kernel", [kernels.exp, attention.softmax])
def test_no_keys_and_no_queries_are_stationary_for_any_labels(whiten, kernel):
    land = stationary.Landscape(task=GaussianProcess(whiten=whiten), kernel=kernel, transform=True, layers=1)
    points = land.points(2)

    def weights(rate):
        return land.weights(torch.tensor([[rate], [0], [0], [0.1]], dtype=torch.float64))

    # the loss is a parabola in r
    low, zero, high = (float(land.loss(weights(rate), points)) for rate in (-1, 0, 1))
    gradient = land.slopes(weights((low - high) / (2 * (low + high - 2 * zero))), points)
    assert max(slope.abs().max() for slope in gradient.values()) < 1e-12


def test_the_best_point_has_keys_and_beats_what_is_near_it():
    land = stationary.Landscape(**LAND, transform=True)
    points = land.points(0)
    best = land.best(points)
    assert min(best[name].norm() for name in ("heads.0.key", "heads.0.query")) > 1
    least = land.loss(best, points)
    for name, value in best.items():
        for factor in (0.98, 1.02):
            assert land.loss(best | {name: factor * value}, points) > least


def test_the_loss_is_the_mean_over_labels():
    land = stationary.Landscape(**LAND, transform=True, num_sets=40)
    points, copies, generator = land.points(3), 2000, torch.Generator().manual_seed(0)
    many = Prompt(points.repeat(copies, 1, 1), draw(land.task.gram(points).repeat(copies, 1, 1), generator))
    weights = land.weights(NUMBERS)
    answers = functional_call(land.model, weights, (many,))[-1, :, 0]
    squares = (answers - many.ys[:, -1]).square().reshape(copies, 40).mean(1)
    error = squares.std() / copies**0.5
    assert abs(squares.mean() - land.loss(weights, points)) < 4 * error
    assert error < 0.01 * squares.mean()
    torch.testing.assert_close(
        slopes.product_loss(points, land.task.gram(points), weights, land.kernel), land.loss(weights, points)
    )


def test_slopes_are_finite_differences_of_the_loss():
    point = slopes.FormPoint.drawn(kernels.exp, attention.softmax, 0, transform=True)
    gradient, step = point.landscape.slopes(point.weights, point.points), 1e-4
    direction = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
    for name in "ABC":
        ends = [slopes.moved(point.weights, name, 1, sign * step * direction) for sign in (1, -1)]
        high, low = (float(point.landscape.loss(weights, point.points)) for weights in ends)
        expected = pytest.approx((high - low) / (2 * step), rel=1e-6)
        assert point.slope(name, 1, direction) == expected
        assert (gradient[slopes.MATRICES[name]][1] * direction).sum().item() == expected


def test_example_5_has_the_density_of_its_definition():
    xs = torch.tensor([[[0.3], [-1.2], [0.7]]]).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def normal(at):
        return np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)

    def density(clusters):
        total = 0.0
        for (first, first_weight), (second, second_weight) in product(zip(nodes, weights, strict=True), repeat=2):
            means = (first, second)
            points = zip(xs[0, :, 0].tolist(), clusters, strict=True)
            total += first_weight * second_weight * np.prod([normal(x - means[cluster]) for x, cluster in points])
        return total / (2 * np.pi)

    assert assumptions.log_density(xs, 1).exp().item() == pytest.approx(density((0, 0, 0)), rel=1e-9)
    both = np.mean([density(clusters) for clusters in product((0, 1), repeat=3)])
    assert assumptions.log_density(xs, 2).exp().item() == pytest.approx(both, rel=1e-9)


def test_example_8_has_the_covariance_of_random_networks():
    generator = torch.Generator().manual_seed(9)
    xs, networks, hidden = torch.randn(4, 5, generator=generator).double(), 20000, 6
    first = torch.randn(networks, hidden, 5, generator=generator).double()
    second = torch.randn(networks, hidden, generator=generator).double()
    labels = torch.einsum("km,kmi->ki", second, (first @ xs.T).relu())
    products = labels[:, :, None] * labels[:, None, :]
    errors = (products.mean(0) - hidden * assumptions.relu_moments(xs)).abs() / (products.std(0) / networks**0.5)
    assert errors.max() < 4


def test_the_steepest_direction_beats_random_ones():
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(1, 6, 3, generator=generator).double()
    gram, errors = kernels.exp(points, points), torch.randn(1, 3, generator=generator).double()
    best = structure.steepest(errors, gram)
    weights = torch.linalg.solve(gram, best)
    assert (weights @ gram[0] @ weights.mT).item() == pytest.approx(1)
    others = weights + 0.1 * torch.randn(1000, 6, generator=generator).double()
    others = others / torch.einsum("ri,ij,rj->r", others, gram[0], others).sqrt()[:, None]
    steepness = (others @ gram[0])[:, :3] @ errors[0]
    assert steepness.max() < (best[0, :3] @ errors[0]).item()
