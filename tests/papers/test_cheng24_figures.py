"""cheng24's figures: the data, the families, the distances."""

import math
from dataclasses import replace

import pytest
import torch

from looped.baselines.gaussian_process import bayes
from looped.functional import kernels
from looped.functional.matrices import to_identity
from looped.models.fast_losses.cheng24_loss import predictions, prepare
from looped.models.kernel_transformer import functional
from looped.papers import cheng24
from looped.papers.cheng24 import families
from looped.papers.cheng24.families import Case, distances, outcomes, weights_of
from looped.papers.cheng24.figures import FIG1, FIG2, FIG5, TRAINING
from looped.papers.cheng24.protocols import HEADS, TASKS, Pool, Source
from looped.recipes import recipes
from looped.studies import Cell, Context, Table
from looped.studies.claims import judge
from looped.training.family import build_family
from looped.training.trainer import train

CPU = torch.device("cpu")


@pytest.mark.parametrize("protocol", ["paper", "released"])
@pytest.mark.parametrize("kind", ["linear", "relu", "exp", "mixed"])
def test_a_pool_draws_what_its_task_says(protocol, kind):
    pool = Pool(Source(protocol=protocol, data=kind, n=4, seed=3), 6, device=CPU)
    task = pool.source.task
    prompt = pool.all()
    gram = task.gram(prompt.xs.double())
    torch.testing.assert_close(pool.exact @ pool.exact.mT, gram, atol=1e-5, rtol=1e-5)
    expected = (bayes(prompt, task)[:, -1] - prompt.ys[:, -1]).square().mean()
    assert pool.bayes(prompt) == pytest.approx(float(expected), rel=1e-3, abs=1e-6)
    many, same = (pool.sample(20_000, *pool.source.generators(CPU)) for _ in range(2))
    assert torch.equal(many.xs[:5], same.xs[:5])
    again = task.gram(many.xs.double())
    # labels have the covariance of the prompt they come with, whatever the rotation
    whitened = torch.einsum("bi,bij,bj->b", many.ys.double(), torch.linalg.pinv(again, rtol=1e-6), many.ys.double())
    rank = float(torch.linalg.matrix_rank(again[:64], rtol=1e-6).double().mean())
    assert float(whitened.mean()) == pytest.approx(rank, rel=0.05)


def test_protocols_differ_as_the_digest_says():
    paper, released = TASKS["paper"], TASKS["released"]
    u = torch.nn.functional.normalize(torch.randn(3, 5, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(released["exp"].raw_gram(u), (u @ u.T / 2).exp())
    torch.testing.assert_close(paper["exp"].raw_gram(u), (u @ u.T).exp())
    torch.testing.assert_close(released["relu"].root, torch.eye(5, dtype=torch.float64))
    assert torch.linalg.eigvalsh(paper["relu"].root).square().tolist() == pytest.approx([0.25, 1, 1, 1, 2.25])


def test_distances_are_zero_at_the_theorem_s_points_and_one_far_from_them():
    matrix = torch.randn(4, 5, 5, dtype=torch.float64)
    best = min(float((matrix[0] - a * torch.eye(5)).norm() / matrix[0].norm()) for a in torch.linspace(-3, 3, 6001))
    assert float(to_identity(matrix)[0]) == pytest.approx(best, rel=1e-5)
    diagonal = torch.stack([2 * torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]))]).double()
    assert to_identity(diagonal).tolist() == pytest.approx([0, math.sqrt(2 / 14)])
    root = TASKS["paper"]["exp"].root
    model = functional(d=5, loops=2, layers=2, kernel=kernels.relu, models=1).build().double()
    model.put(key=torch.linalg.inv(root), query=3 * torch.linalg.inv(root), transform=0.2 * torch.eye(5), label=1.0)
    assert distances(model, root[None]).abs().max() < 1e-7
    assert distances(model, root[None]).shape == (1, 3)
    model.put(key=torch.eye(5))
    assert distances(model, root[None])[0, 0] > 0.1


def test_a_family_is_trained_as_each_alone(tmp_path):
    context = Context(scale="smoke", runs=tmp_path)
    training = replace(TRAINING["smoke"], steps=12, batch=32, resample=3, logged=3, seeds=(0, 1))
    cases = [Case(protocol="paper", data=kind, heads=("exp",), n=4, layers=2) for kind in ("relu", "exp")]
    together = outcomes(cases, training, context)
    alone = {case: outcomes([case], replace(training, seeds=(1,)), context)[case] for case in cases}
    for case in cases:
        assert together[case].losses[1] == pytest.approx(alone[case].losses[0], rel=1e-4)
        assert len(together[case].distances[0]) == len(training.logged_steps(case))
    assert [entry["train_seconds"] > 0 for entry in context.trainings] == [True] * 3


def test_a_finished_family_is_loaded(monkeypatch, tmp_path):
    case = Case(protocol="paper", data="exp", heads=("exp",), n=4, layers=2)
    training = replace(TRAINING["smoke"], steps=1)
    first = outcomes([case, case], training, Context(scale="smoke", runs=tmp_path))
    monkeypatch.setattr(families, "in_context_loss", None)  # nothing may be trained
    assert outcomes([case], training, Context(scale="smoke", runs=tmp_path)) == first


def test_a_figure_reads_what_another_trained_and_trains_the_rest(tmp_path):
    relu, exp = (Case(protocol="paper", data=kind, heads=("exp",), n=4, layers=2) for kind in ("relu", "exp"))
    training = replace(TRAINING["smoke"], steps=2)
    first = outcomes([relu], training, Context(scale="smoke", runs=tmp_path))
    context = Context(scale="smoke", runs=tmp_path)
    both = outcomes([relu, exp], training, context)
    assert both[relu] == first[relu]
    assert len(context.trainings) == 2
    assert len(list(tmp_path.glob("cheng24-*"))) == 2


def test_a_stays_0_in_the_first_third_and_moves_then(tmp_path):
    case = Case(protocol="paper", data="exp", heads=("exp",), n=4, layers=2)
    training = replace(TRAINING["smoke"], steps=9, resample=3, logged=9, held=1 / 3)
    outcome = outcomes([case], training, Context(scale="smoke", runs=tmp_path))[case]
    of_a = [reading[-1] for reading in outcome.distances[0]]  # the last matrix is A of layer 0
    assert of_a[:4] == [0.0] * 4
    assert min(of_a[4:]) > 0


def test_deep_models_take_their_own_number_of_steps():
    training = replace(TRAINING["smoke"], steps=3, deep=8, deep_steps=7)
    case = Case(protocol="paper", data="exp", heads=("exp",), n=4, layers=7)
    assert [training.steps_of(replace(case, layers=layers)) for layers in (7, 8)] == [3, 7]
    assert training.logged_steps(replace(case, layers=8))[-1] == 7


def test_rare_prompts_are_counted():
    errors = torch.ones(100).double()
    assert families.prompts_with_half(errors) == 50
    errors[7] = 1000.0
    assert families.prompts_with_half(errors) == 1


def test_the_figures_model_is_the_library_s():
    config = functional(d=5, loops=2, layers=2, kernel=(kernels.linear, kernels.exp))
    family = build_family(config, seeds=[0])
    prompt = Pool(Source(protocol="paper", data="mixed", n=6, seed=0), 8, device=CPU).all()
    weights = weights_of(family, 6)
    heads = (HEADS["linear"], HEADS["exp"])
    mine = predictions(weights, heads, prepare(prompt, heads))[0]
    model = functional(d=5, loops=2, layers=2, kernel=heads, mean=True).build()
    model.load_state_dict({name: value[0] for name, value in family.state_dict().items()})
    for head in (0, 1):  # A in a tenth of the units of r
        model.put(head, transform=0.1 * model.heads[head].transform.detach())
    torch.testing.assert_close(mine, model.predict(prompt)[:, 0], atol=1e-5, rtol=1e-4)


def test_recipes_train(tmp_path):
    own = {name: recipe for name, recipe in recipes().items() if name.startswith("cheng24.")}
    assert set(own) == {f"cheng24.{name}" for name in ("linear", "relu", "exp", "softmax", "two_heads")}
    for name, recipe in own.items():
        for scale in ("smoke", "cpu", "paper"):
            assert recipe(scale).name == name
    run = train(cheng24.exp("smoke"), out=tmp_path)
    assert math.isfinite(run.metrics()[-1]["loss"])
    assert cheng24.exp("paper").train.batch == 30_000


def test_scales_are_the_papers():
    paper = TRAINING["paper"]
    assert (paper.batch, paper.resample, len(paper.seeds)) == (30_000, 10, 3)
    assert {cell["n"] for cell in FIG1.cells("paper")} == {2, 4, 6, 8, 10, 12, 14}
    assert {cell["L"] for cell in FIG2.cells("paper")} == {1, 2, 3, 4, 6, 8}  # the paper's without 5 and 7
    assert {case.n for case in FIG5.cells("paper").values()} == {30}
    assert len(FIG5.cells("paper")) == 9


def test_a_diverged_model_counts_as_infinitely_bad():
    table = Table()
    for h, loss in {"exp": math.inf, "softmax": 0.5}.items():
        table.add(Cell(K="exp", h=h, L=3), "loss", [0.6, loss], x=[2, 14], seed=0)
    softmax_wins = FIG1.claims[2]
    options = {"study": FIG1.name, "scale": "paper", "preview": False, "learned": None}
    assert judge(softmax_wins, table, **options).verdict == "fails"
