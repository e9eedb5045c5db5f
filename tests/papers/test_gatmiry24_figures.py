"""gatmiry24's figures: closed form against prompts, fast path against model, best polynomials, judges that can fail."""

import copy
import json
import math

import numpy as np
import pytest
import scipy.optimize
import torch
from looped.evaluation.claims import Settings

from looped.experiment import Experiment
from looped.functional.streams import stream
from looped.models.fast_losses.batch_last import to_last
from looped.models.kernel_transformer import restricted
from looped.papers.gatmiry24 import best, chebyshev, depth, forms, losses, windows
from looped.papers.gatmiry24 import looped as looped_recipe
from looped.papers.gatmiry24 import multilayer as multilayer_recipe
from looped.papers.gatmiry24.training import (
    Member,
    Prompts,
    losses_on_windows,
    mixture,
    rotations,
    spread,
    train,
    turned,
    wishart,
)
from looped.prompt import Prompt
from looped.recipes import recipes
from looped.tasks.isotropic import IsotropicRegression

D, N = 4, 7


def scores(models: int, layers: int) -> torch.Tensor:
    """Weights that are not symmetric: a transposed A must be noticed."""
    generator = torch.Generator().manual_seed(layers)
    return 0.2 * torch.randn(models, layers, D, D, dtype=torch.float64, generator=generator)


def model_of(score, loops):
    model = restricted(d=D, loops=loops, layers=score.shape[0]).build().double()
    model.put(score=score)
    return model


@pytest.mark.parametrize("layers", [1, 4])
def test_fast_path_is_the_models_own_forward(layers):
    """Predictions in the d-dimensional space against attention over all tokens, models of several depths."""
    task = IsotropicRegression(d=D, centres=(1.0, 3.0), half=0.5)
    prompt = task.sample(batch=12, n=N + 1, generator=torch.Generator().manual_seed(1)).to(torch.float64)
    depths, score = [4, 3, 1], scores(3, layers)
    s, w = prompt.truth["s"].double(), prompt.truth["w"].double()
    # labels again, in float64
    prompt = Prompt(prompt.xs, torch.einsum("bnd,bd->bn", prompt.xs, w))
    z = prompt.xs[:, :-1] / s.sqrt()[:, None, None]
    left = losses.residual(score, depths, to_last((z.mT @ z / N)[None]), s[None], w.T[None])
    fast = torch.einsum("bd,mdb->mb", prompt.xs[:, -1], w.T - left)
    for index, loops in enumerate(depths):
        own = model_of(score[index], loops).predict(prompt)[:, 0]
        torch.testing.assert_close(fast[index], own, rtol=1e-10, atol=1e-10)


def test_fast_gradients_are_the_models_own():
    covariance = wishart(9, N, D, torch.Generator().manual_seed(0)).double()
    score = scores(2, 3).requires_grad_()
    w = torch.randn(9, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scale = torch.rand(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 1
    fast = torch.autograd.grad(
        losses.sampled_loss(score, [3, 2], to_last(covariance[None]), scale, w.T[None]).sum(), score
    )[0]
    total = torch.zeros((), dtype=torch.float64)
    for index, layers in enumerate([3, 2]):
        e = w
        for t in range(layers):
            e = e - scale[index, :, None] * torch.einsum("bd,bde,ef->bf", e, covariance, score[index, t])
        total = total + e.square().sum(-1).mean() / D
    slow = torch.autograd.grad(total, score)[0]
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    assert torch.equal(fast[1, 2], torch.zeros(D, D, dtype=torch.float64))


@pytest.mark.parametrize("layers", [1, 3])
def test_closed_form_is_the_loss_on_whitened_prompts(layers):
    """Lemma 4: prompts with XX'/n = s I; the error is bilinear, so w and x_q along the axes give the expectation."""
    score, loops = scores(1, layers), 3
    for s in (0.7, 2.0, 5.0):
        task = IsotropicRegression(d=D, centres=(s,), half=0.0, exact=True)
        xs = task.sample(batch=1, n=N + 1, generator=torch.Generator().manual_seed(3)).xs.double()[:, :-1]
        values, vectors = torch.linalg.eigh(xs.mT @ xs / N)
        xs = xs @ (vectors / values.sqrt()[:, None] @ vectors.mT) * math.sqrt(s)  # the sampler whitens to float32
        total = 0.0
        for i in range(D):
            for j in range(D):
                w, query = torch.eye(D).double()[i] / math.sqrt(s), torch.eye(D).double()[j] * math.sqrt(s)
                pairs = torch.cat([xs, query[None, None]], 1)
                made = Prompt(pairs, pairs @ w)
                total += float(model_of(score[0], loops).predict(made)[0, 0] - made.ys[0, -1]) ** 2
        closed = losses.exact_loss(score, [loops], torch.tensor([[s]], dtype=torch.float64))
        assert float(closed) == pytest.approx(total / D, rel=1e-10)
        root = math.sqrt(s) * torch.eye(D, dtype=torch.float64)[None]
        assert float(losses.anisotropic_loss(score, [loops], root)) == pytest.approx(total / D, rel=1e-10)
        ones = torch.full((1, 1), s, dtype=torch.float64)
        eye = torch.eye(D, dtype=torch.float64)[None]
        assert float(losses.covariance_loss(score, [loops], eye, ones)) == pytest.approx(total / D, rel=1e-10)


def test_covariance_loss_is_the_mean_over_weights():
    score, covariance = scores(2, 2), wishart(5, N, D, torch.Generator().manual_seed(0)).double()
    scale = torch.full((1, 5), 1.7, dtype=torch.float64)
    axes = torch.eye(D, dtype=torch.float64)
    each = [
        losses.residual(score, [2, 1], to_last(covariance[None]), scale, one[None, :, None].expand(1, D, 5))
        .square()
        .sum(1)
        for one in axes
    ]
    found = losses.covariance_loss(score, [2, 1], covariance, scale)
    torch.testing.assert_close(found, torch.stack(each).sum(0) / D, rtol=1e-10, atol=1e-12)


def test_depths_must_descend():
    with pytest.raises(ValueError, match="deepest first"):
        losses.exact_loss(scores(2, 3), [1, 3], torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize("half", [0.0, 0.2, 0.6])
def test_windows_integrate_polynomials_over_the_union(half):
    centres = (1.0, 2.0, 4.0)
    points, weights = best.windows(centres, half, nodes=4)
    sampled = IsotropicRegression(d=2, centres=centres, half=half).scales(200_000, torch.Generator().manual_seed(0))
    for power in (1, 2, 7):
        assert float((weights * points**power).sum()) == pytest.approx(
            float(sampled.double().pow(power).mean()), rel=0.02
        )


def test_best_rates_against_least_squares():
    """The optimum over all polynomials with p(0) = 1, by NumPy, and over one rate, by SciPy."""
    points, weights = nodes = best.interval(1, 8, nodes=20)
    x, root = points.numpy(), weights.numpy() ** 0.5
    for layers in (1, 3, 5):
        powers = np.stack([x**k for k in range(1, layers + 1)], 1) * root[:, None]
        solution = np.linalg.lstsq(powers, -root, rcond=None)[0]
        expected = float(((root + powers @ solution) ** 2).sum())
        assert best.loss_of(best.best_rates(nodes, layers), nodes) == pytest.approx(expected, rel=1e-6)

        def one_rate(a: float, power: int = 2 * layers) -> float:
            return float((root**2 * (1 - a * x) ** power).sum())

        found = scipy.optimize.minimize_scalar(one_rate, bounds=(0, 1))
        rate = best.best_rate(nodes, layers)
        assert best.loss_of(torch.full((layers,), rate, dtype=torch.float64), nodes) == pytest.approx(
            found.fun, rel=1e-6
        )
    few = best.windows([1.0, 8.0], 0.0, nodes=3)
    assert best.loss_of(best.best_rates(few, 4), few) < 1e-25


def test_compressed_distributions_keep_their_moments():
    values = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    points, weights = best.compress((values, torch.full_like(values, 1 / 5000)), 6)
    assert len(points) == 6
    for power in range(12):
        assert float((weights * points**power).sum()) == pytest.approx(float(values.pow(power).mean()), rel=1e-10)
    assert float((weights * points**14).sum()) != pytest.approx(float(values.pow(14).mean()), rel=1e-10)


def test_turned_rotations_are_orthogonal_and_spread():
    pool = rotations(D, 0, count=300)
    made = turned(pool, 2000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(made @ made.mT, torch.eye(D, dtype=torch.float64).expand_as(made))
    torch.testing.assert_close(made.mean(0), torch.zeros(D, D, dtype=torch.float64), atol=0.06, rtol=0)


def test_loss_on_windows_is_read_off_a_polynomial_exactly():
    """The interpolated loss against evaluating every quadrature point on the same sample covariances."""
    members = [Member(depth=3, seed=0, **mixture(5)), Member(depth=2, seed=1, **spread(4))]
    sizes = {"d": D, "n": N, "tests": 32, "prompt_seed": 0}
    score = scores(2, 3) / 3
    found = losses_on_windows("sampled", score, members, [None, 0.3], sizes)
    covariance = wishart(32, N, D, torch.Generator().manual_seed(stream(0, "tests"))).double()
    for row, half in enumerate([None, 0.3]):
        for index, member in enumerate(members):
            points, weights = member.nodes(half)
            one = score[index : index + 1]
            each = [losses.covariance_loss(one, [member.depth], covariance, s.expand(1, 32)).mean() for s in points]
            assert float(found[row, index]) == pytest.approx(float((weights * torch.stack(each)).sum()), rel=1e-8)


def test_prompts_have_the_members_covariances():
    members = [Member(depth=1, seed=0, **mixture(2)), Member(depth=1, seed=0, **spread(4))]
    sizes = {"d": D, "n": N, "batch": 4000, "prompt_seed": 0}
    covariance, s, w = Prompts(members, sizes, torch.device("cpu"))(0)
    assert set(s[0].tolist()) == {1.0, 8.0}
    assert 1 <= float(s[1].min()) < 1.01 < 3.99 < float(s[1].max()) <= 4
    torch.testing.assert_close(covariance.mean((0, 3)), torch.eye(D), atol=0.05, rtol=0)
    torch.testing.assert_close(w[0] @ w[0].mT / 4000, torch.eye(D), atol=0.1, rtol=0)


def test_each_seed_has_its_own_prompts():
    """Models of one seed share prompts, models of two do not; a family of seeds equals each group by itself."""
    members = [Member(depth=L, seed=seed, **mixture(2)) for L in (2, 1) for seed in (0, 1)]
    covariance, s, w = Prompts(members, {"d": D, "n": N, "batch": 6, "prompt_seed": 0}, torch.device("cpu"))(0)
    assert not torch.equal(w[0], w[1])
    assert torch.equal(s[0], s[2])
    assert not torch.equal(s[0], s[1])
    score = scores(4, 2).float()
    together = losses.sampled_loss(score, [2, 2, 1, 1], covariance, s, w)
    for index, depth_of in enumerate([2, 2, 1, 1]):
        seed = slice(index % 2, index % 2 + 1)
        one = slice(index, index + 1)
        alone = losses.sampled_loss(score[one], [depth_of], covariance[seed], s[one], w[seed])
        torch.testing.assert_close(together[one], alone)
    with pytest.raises(ValueError, match="in turn"):
        Prompts(members[::-1], {"prompt_seed": 0}, torch.device("cpu"))


def test_training_reaches_the_best_polynomial_in_the_exact_setting(tmp_path):
    members = [Member(depth=3, seed=seed, **spread(4)) for seed in (0, 1)]
    sizes = {"d": 3, "steps": 250, "rate": 0.05, "halve": 0.1, "betas": [0.9, 0.99], "clip": 0.1, "std": 1e-2}
    for kind in ("looped", "multilayer"):
        score = train(kind, "exact", members, sizes, Settings(scale="cpu", runs=tmp_path), lambda share: None)
        nodes = members[0].nodes()
        expected = depth.best_loss(kind, 3, nodes)
        found = losses_on_windows("exact", score, members, [None], sizes)[0]
        assert expected * 0.999 < float(found.min()) < 1.05 * expected


FIGURES = (depth.fig1a, depth.fig1b, windows.fig2, chebyshev.beyond_chebyshev, forms.beyond_forms)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Every figure at smoke scale, through JSON."""
    settings = Settings(scale="smoke", runs=tmp_path_factory.mktemp("runs"))
    return {one.name: json.loads(json.dumps(one.measure(one.settings["smoke"], settings))) for one in FIGURES}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_every_claim_is_judged_and_every_figure_drawn(figure, measured):
    from matplotlib.figure import Figure

    data = measured[figure.name]
    judged = figure.judge(data, "cpu")
    assert len(judged) == len(figure.claims)
    assert {claim.verdict for claim in judged} <= {"holds", "fails"}
    assert {claim.verdict for claim in figure.judge(data, "smoke")} == {"not judged"}
    canvas = Figure(layout="constrained")
    figure.draw(canvas, data)
    assert all(ax.get_xlabel() or ax.get_subplotspec().rowspan.stop == 1 for ax in canvas.axes)
    assert len(canvas.legends) == 1


def verdicts(figure, data):
    return {claim.id.split(".", 2)[2]: claim.verdict for claim in figure.judge(data, "cpu")}


def depth_data(layers, loops):
    """Three kappas, two seeds, the given losses at depths 1, 2, 3."""
    both = {
        kind: {"loss": [[one, one] for one in curves], "best": curves}
        for kind, curves in (("multilayer", layers), ("looped", loops))
    }
    return {"kappas": [2, 4, 8], "depths": [1, 2, 3], "exact": both, "sampled": both}


def test_depth_judges_can_hold_and_fail():
    fine = [[0.3, 2e-3, 1e-4], [0.35, 4e-3, 2e-4], [0.4, 0.01, 1e-3]]
    held = verdicts(depth.fig1b, depth_data(fine, fine))
    assert set(held.values()) == {"holds"}
    assert set(verdicts(depth.fig1a, depth_data(fine, fine)).values()) == {"holds"}
    backwards = verdicts(depth.fig1b, depth_data(fine, fine[::-1]))
    assert backwards["exact.more_with_kappa"] == backwards["sampled.more_with_kappa"] == "fails"
    slow = [[0.6, 0.3, 2e-3], [0.7, 0.35, 3e-3], [0.8, 0.4, 4e-3]]
    late = verdicts(depth.fig1b, depth_data(fine, slow))
    assert {name: late[name] for name in late if "more" not in name} == {
        "exact.loops_close": "fails",
        "sampled.loops_close": "fails",
        "exact.competitive": "fails",
        "sampled.competitive": "fails",
    }
    never = verdicts(depth.fig1a, depth_data([[0.9, 0.8, 0.7]] * 3, fine))
    assert set(never.values()) == {"fails"}
    broken = json.loads(json.dumps(depth_data(fine, fine)))
    broken["exact"]["looped"]["loss"][-1][0][-1] = None
    assert verdicts(depth.fig1b, broken)["exact.competitive"] == "fails"


def window_data(multilayer, looped):
    each = {
        "multilayer": {"loss": [[multilayer, multilayer]] * 3, "best": [multilayer] * 3},
        "looped": {"loss": [[looped, looped]] * 3, "best": [looped] * 3},
    }
    return {"counts": [2, 5, 9], "halves": [0.0, 0.5], "depth": 8, "exact": each, "sampled": each}


def test_window_judges_can_hold_and_fail():
    assert set(verdicts(windows.fig2, window_data([1e-3, 0.5], [0.01, 0.0105])).values()) == {"holds"}
    assert set(verdicts(windows.fig2, window_data([0.001, 0.002], [0.01, 0.05])).values()) == {"fails"}
    # zero to rounding is not a division by zero, and a diverged model never holds
    assert verdicts(windows.fig2, window_data([0.0, 0.5], [0.01, 0.0105]))["exact.k2.grows_more"] == "holds"
    assert set(verdicts(windows.fig2, window_data([0.1, 0.2], [0.01, None])).values()) == {"fails"}


def test_chebyshev_judges_can_hold_and_fail(measured):
    data = copy.deepcopy(measured["gatmiry24.beyond_chebyshev"])
    for kind in chebyshev.KINDS:
        data[kind]["loss"] = [data["best"]]
        data[kind]["largest"] = [[(a * b) ** 0.5 for a, b in zip(data["lower"], data["upper"], strict=True)]]
        data[kind]["eigenvalues"] = [[rate] * 3 for rate in data["chebyshev_rates"]]
    data["best_rates"] = data["chebyshev_rates"]
    assert set(verdicts(chebyshev.beyond_chebyshev, data).values()) == {"holds"}
    for kind in chebyshev.KINDS:
        data[kind]["loss"] = [[1.2 * one for one in data["best"]]]
        data[kind]["largest"] = [[0.9 * one for one in data["lower"]]]
        data[kind]["eigenvalues"][0][1] *= 1.2
    assert set(verdicts(chebyshev.beyond_chebyshev, data).values()) == {"fails"}


def test_form_judges_can_hold_and_fail(measured):
    data = copy.deepcopy(measured["gatmiry24.beyond_forms"])
    for form in forms.MODELS:
        data[form] = {"multilayer": {"loss": [[[0.1, 0.3]]]}, "looped": {"loss": [[[0.1, 0.2]]]}}
    assert set(verdicts(forms.beyond_forms, data).values()) == {"holds"}
    for form in forms.MODELS:
        data[form] = {"multilayer": {"loss": [[[0.1, 0.2]]]}, "looped": {"loss": [[[0.1, 0.3]]]}}
    assert set(verdicts(forms.beyond_forms, data).values()) == {"fails"}


@pytest.mark.parametrize("form", ["linear", "anisotropic"])
def test_prompts_of_the_forms_have_their_covariance(form):
    """XX'/n has the drawn eigenvalues exactly, along the axes or turned, and the query's label has variance d."""
    sizes = {"d": D, "n": N, "count": 2}
    xs, ys = forms.prompts(form, 4000, 0.0, sizes, torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(xs[:, :-1].mT @ xs[:, :-1] / N)
    assert float(torch.minimum((values - 1).abs(), (values - 8).abs()).max()) < 1e-3
    spread_of = values[:, -1] - values[:, 0]
    assert (float(spread_of.max()) > 6) == (form == "anisotropic")
    assert float(ys[:, -1].square().mean()) == pytest.approx(D, rel=0.1)
    w = torch.linalg.lstsq(xs[:, :-1], ys[:, :-1, None]).solution
    torch.testing.assert_close((xs[:, -1:] @ w)[:, 0, 0], ys[:, -1], atol=1e-3, rtol=1e-3)


def test_depth_needed_is_interpolated():
    assert depth.needed([1, 2, 4], [1.0, 0.1, 0.001], 0.01) == pytest.approx(3.0)
    assert depth.needed([1, 2], [0.5, 0.1], 0.7) == 1.0
    assert depth.needed([1, 2], [0.5, 0.1], 0.01) == math.inf


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_recipes_are_found_and_are_data(scale):
    assert {"gatmiry24.looped", "gatmiry24.multilayer"} <= set(recipes())
    for recipe, layers in ((looped_recipe, 1), (multilayer_recipe, None)):
        made = recipe(scale)
        assert Experiment.from_data(json.loads(json.dumps(made.to_data()))) == made
        assert made.model.layers == (layers or made.model.loops)


def test_exact_prompts_are_whitened():
    task = IsotropicRegression(d=D, centres=(2.0, 5.0), half=0.5, exact=True)
    prompt = task.sample(batch=6, n=N + 1, generator=torch.Generator().manual_seed(0))
    examples = prompt.xs[:, :-1]
    expected = prompt.truth["s"][:, None, None] * torch.eye(D)
    torch.testing.assert_close(examples.mT @ examples / N, expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="Raise n"):
        task.sample(batch=2, n=D, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="above 0"):
        IsotropicRegression(centres=(1.0,), half=1.0)
