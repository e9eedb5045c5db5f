"""gatmiry24's figures: prompts have their covariances, training finds the best weights, families are shared.

That every study measures, draws and judges, and that every claim can hold and fail, is in `studies/test_every_study`.
"""

import json
from dataclasses import replace

import pytest
import torch

from looped.experiment import Experiment
from looped.functional.quadrature import loss_of, product
from looped.functional.streams import stream
from looped.models.fast_losses import restricted_loss as losses
from looped.models.kernel_transformer import restricted
from looped.papers.gatmiry24 import chebyshev, figures, forms
from looped.papers.gatmiry24 import looped as looped_recipe
from looped.papers.gatmiry24 import multilayer as multilayer_recipe
from looped.papers.gatmiry24.covariances import Anisotropic, Exact, Sampled, rotated
from looped.papers.gatmiry24.families import Models, NearBest, best_weights, train
from looped.papers.gatmiry24.training import SAMPLED, Member, Training, Windows, mixture, spread
from looped.recipes import recipes
from looped.studies import Cell, Context, Table
from looped.tasks.isotropic import IsotropicRegression

D, N = 4, 7


def scores(models: int, layers: int) -> torch.Tensor:
    """Weights that are not symmetric: a transposed A must be noticed."""
    generator = torch.Generator().manual_seed(layers)
    return 0.2 * torch.randn(models, layers, D, D, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("half", [0.0, 0.2, 0.6])
def test_windows_integrate_polynomials_over_the_union(half):
    centres = (1.0, 2.0, 4.0)
    points, weights = Windows(centres=centres, half=half).nodes(4)
    sampled = IsotropicRegression(d=2, centres=centres, half=half).scales(200_000, torch.Generator().manual_seed(0))
    for power in (1, 2, 7):
        assert float((weights * points**power).sum()) == pytest.approx(
            float(sampled.double().pow(power).mean()), rel=0.02
        )


def test_rotations_are_orthogonal_and_spread():
    axes = rotated(D, 2000, torch.Generator().manual_seed(0), seed=0, dtype=torch.float64)
    torch.testing.assert_close(axes @ axes.mT, torch.eye(D, dtype=torch.float64).expand_as(axes))
    torch.testing.assert_close(axes.mean(0), torch.zeros(D, D, dtype=torch.float64), atol=0.06, rtol=0)


def test_anisotropic_covariances_have_eigenvalues_in_the_window():
    member = Member(depth=1, windows=spread(8), seed=0)
    root = Anisotropic(d=D).roots(member, 2000, torch.Generator().manual_seed(0), seed=0)
    values = torch.linalg.eigvalsh(root @ root)
    assert 1 <= float(values.min()) < 1.01 < 7.99 < float(values.max()) <= 8
    torch.testing.assert_close((root @ root).mean(0), 4.5 * torch.eye(D).double(), atol=0.15, rtol=0)


def test_loss_on_windows_is_read_off_a_polynomial_exactly():
    """The interpolated loss against evaluating every quadrature point on the same sample covariances."""
    members = [Member(depth=3, seed=0, windows=mixture(5)), Member(depth=2, seed=1, windows=spread(4))]
    score = scores(2, 3) / 3
    sampled = Sampled(d=D, n=N, spectra=100, tests=32)
    tested = sampled.losses(score, members, [None, 0.3])
    covariance, shares = sampled.covariances(32, torch.Generator().manual_seed(stream(0, "tests")), "tests")
    shares /= shares.sum()
    for row, half in enumerate([None, 0.3]):
        for index, member in enumerate(members):
            points, weights = member.windows.nodes(member.depth + 1, half)
            model = score[index : index + 1]
            at_s = [
                (losses.covariance_loss(model, [member.depth], covariance, s.expand(1, 32))[0] @ shares) for s in points
            ]
            assert float(tested[row, index]) == pytest.approx(float((weights * torch.stack(at_s)).sum()), rel=1e-8)


def test_prompts_have_the_members_covariances():
    members = [Member(depth=1, seed=0, windows=mixture(2)), Member(depth=1, seed=0, windows=spread(4))]
    sampled = Sampled(d=D, n=N, batch=8000, spectra=8000)
    covariance, s, w = sampled.prompts(members, torch.Generator().manual_seed(0))
    assert set(s[0].tolist()) == {1.0, 8.0}
    assert 1 <= float(s[1].min()) < 1.01 < 3.99 < float(s[1].max()) <= 4
    torch.testing.assert_close(w[0] @ w[0].mT / 8000, torch.eye(D), atol=0.1, rtol=0)
    weights = w[0].square().mean(0)  # E w'w / d is the prompt's weight
    torch.testing.assert_close((covariance[0] * weights).mean(-1), torch.eye(D), atol=0.1, rtol=0)


def test_seeds_have_their_own_prompts():
    """Models of one seed share prompts, models of two do not; a family of seeds equals each group by itself."""
    members = [Member(depth=L, seed=seed, windows=mixture(2)) for L in (2, 1) for seed in (0, 1)]
    sampled, generator = Sampled(d=D, n=N, batch=6, spectra=50), torch.Generator().manual_seed(0)
    covariance, s, w = sampled.prompts(members, generator)
    assert not torch.equal(w[0], w[1])
    assert torch.equal(s[0], s[2])
    assert not torch.equal(s[0], s[1])
    score = scores(4, 2).float()
    together = losses.sampled_loss(score, [2, 2, 1, 1], covariance, s, w)
    for index, depth in enumerate([2, 2, 1, 1]):
        model, seed = slice(index, index + 1), slice(index % 2, index % 2 + 1)
        alone = losses.sampled_loss(score[model], [depth], covariance[seed], s[model], w[seed])
        torch.testing.assert_close(together[model], alone)
    with pytest.raises(ValueError, match="in turn"):
        sampled.prompts(members[::-1], generator)


@pytest.mark.parametrize("kind", ["looped", "multilayer"])
def test_training_reaches_the_best_polynomial_in_the_exact_setting(kind, tmp_path):
    windows, covariance = spread(4), Exact(d=3)
    training = Training(steps=250, rate=0.05, halve=0.1, betas=(0.9, 0.99), clip=0.1, std=1e-2)
    models = Models(kind=kind, depths=(3,), windows=windows, covariance=covariance, training=training)
    members = [Member(depth=3, seed=seed, windows=windows) for seed in (0, 1)]
    score = train(models, members, Context(scale="cpu", runs=tmp_path))
    nodes = windows.nodes(4)
    expected = loss_of(best_weights(kind, 3, nodes), nodes)
    assert expected * 0.999 < float(covariance.losses(score, members, [None]).min()) < 1.05 * expected


@pytest.mark.parametrize("kind", ["looped", "multilayer"])
def test_training_on_prompts_reaches_the_least_loss_over_all_prompts(kind, tmp_path):
    windows, covariance = mixture(2), Sampled(d=3, n=6, batch=400, spectra=4000, tests=4096)
    training = replace(SAMPLED["cpu"], steps=150)
    models = Models(kind=kind, depths=(3,), windows=windows, covariance=covariance, training=training)
    members = [Member(depth=3, seed=seed, windows=windows) for seed in (0, 1)]
    score = train(models, members, Context(scale="cpu", runs=tmp_path))
    nodes = product(windows.nodes(4), covariance.spectrum(4))
    least = loss_of(best_weights(kind, 3, nodes), nodes)
    for loss in covariance.losses(score, members, [None])[0].tolist():
        assert 0.95 * least < loss < 1.1 * least


@pytest.mark.parametrize(
    ("best", "second_seed", "near"),
    [
        ([0.1, 0.01], [0.125, 0.0129], True),
        ([0.1, 0.01], [0.131, 0.0129], False),
        ([0.1, 0.01], [0.125, 0.0131], False),
        ([0.1, 0.01], [0.125, float("nan")], False),
        ([0.1, 1e-13], [0.125, 9e-9], True),
    ],
)
def test_claims_are_judged_where_every_model_is_near_the_best_weights(best, second_seed, near):
    """Of every seed and at every depth; a loss next to nothing will do."""
    table, cell, reference = Table(), Cell(model="looped", k=2), Cell(model="best looped", k=2)
    table.add(reference, "loss", best, x=(1, 2))
    for seed, values in enumerate((best, second_seed)):
        table.add(cell, "loss", values, x=(1, 2), seed=seed)
    guard = NearBest(of="loss")
    assert (guard.obstacle(table, {cell}) == "") == near
    assert guard.obstacle(table, {reference}) == ""


def test_figure_1b_uses_the_families_of_figure_1a(tmp_path):
    """And a training that differs in anything has a folder of its own."""
    noted = []
    for study in (figures.FIG1A, figures.FIG1B, figures.FIG2):
        context = Context(scale="smoke", runs=tmp_path)
        study.measure("smoke")(study.cells("smoke"), context)
        noted.append({training["run"] for training in context.trainings})
    assert noted[0] < noted[1]
    assert [len(runs) for runs in noted] == [4, 8, 4]  # in Figure 1 the largest kappa has depths of its own
    assert not noted[1] & noted[2]
    assert all(training["train_seconds"] > 0 and training["commit"] for training in context.trainings)


def test_learned_rates_are_compared_rank_by_rank():
    """Eigenvalues of all layers together are the wanted rates, each d times, in whatever order."""
    table, order = Table(), range(1, 7)
    chebyshev.LossesAndRates(seeds=1).add_references(table, chebyshev.cells("smoke"))
    [wanted] = table.where("rates", model=chebyshev.BEST)
    assert len(wanted.value) == 6
    table.add({"covariance": "isotropic"}, "rates", [*wanted.value[:5], 1.2 * wanted.value[5]], x=order, seed=0)
    apart = chebyshev.rates_apart(chebyshev.BEST, covariance="isotropic").value(table)
    assert apart.mean == pytest.approx(0.2)


@pytest.mark.parametrize("anisotropic", [False, True])
def test_prompts_of_the_forms_have_their_covariance(anisotropic):
    """XX'/n has the drawn eigenvalues exactly, along the axes or turned, and the query's label has variance d."""
    form = replace(next(iter(forms.cells("smoke").values())), model=restricted(d=D, loops=1), n=N)
    form = replace(form, anisotropic=anisotropic)
    xs, ys = form.prompts(4000, 0.0, torch.Generator().manual_seed(0))
    values = torch.linalg.eigvalsh(xs[:, :-1].mT @ xs[:, :-1] / N)
    assert float(torch.minimum((values - 1).abs(), (values - 8).abs()).max()) < 1e-3
    assert (float((values[:, -1] - values[:, 0]).max()) > 6) == anisotropic
    assert float(ys[:, -1].square().mean()) == pytest.approx(D, rel=0.1)
    w = torch.linalg.lstsq(xs[:, :-1], ys[:, :-1, None]).solution
    torch.testing.assert_close((xs[:, -1:] @ w)[:, 0, 0], ys[:, -1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_recipes_are_found_and_are_data(scale):
    assert {"gatmiry24.looped", "gatmiry24.multilayer"} <= set(recipes())
    for recipe, layers in ((looped_recipe, 1), (multilayer_recipe, None)):
        experiment = recipe(scale)
        assert Experiment.from_data(json.loads(json.dumps(experiment.to_data()))) == experiment
        assert experiment.model.layers == (layers or experiment.model.loops)


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
