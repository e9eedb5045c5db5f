import copy
import math

import pytest
import torch

from looped.baselines.gaussian_process import bayes
from looped.evaluation.claims import Settings
from looped.functional import kernels
from looped.models.kernel_loss import predictions, prepare
from looped.models.kernel_transformer import functional
from looped.papers import cheng24
from looped.papers.cheng24 import judges, losses, matrices, training
from looped.papers.cheng24.scales import LOSSES, MATRICES
from looped.papers.cheng24.training import Case, Outcome, distances, kept_steps, outcomes, to_identity, weights_of
from looped.papers.cheng24.worlds import HEADS, TASKS, Pool, Source
from looped.recipes import recipes
from looped.report.drawing import blank, save_figure
from looped.training.family import build_family
from looped.training.trainer import train

FIGURES = [
    getattr(module, f"fig{k}{end}")
    for module, ks in ((losses, (1, 2, 4)), (matrices, (3, 5, 6)))
    for k in ks
    for end in ("", "_released")
]
CPU = torch.device("cpu")


def line(*values):
    """Two seeds around each value."""
    return [[0.99 * v for v in values], [1.01 * v for v in values]]


def loss_data():
    """Numbers under which every sentence of the paper about Figures 1, 2 and 4 holds."""
    fig1 = {
        "panels": [
            {
                "data": k,
                "axis": "n",
                "x": [2, 6, 14],
                "lines": {h: line(1.0, 0.9, 0.5 if h == k else 0.7) for h in ("linear", "relu", "exp")}
                | {"softmax": line(1, 0.8, 0.4)},
                "bayes": line(0.5, 0.3, 0.2),
            }
            for k in ("linear", "relu", "exp")
        ]
    }
    fig2 = {
        "panels": [
            {
                "data": k,
                "axis": "L",
                "n": n,
                "x": [1, 3, 6],
                "bayes": line(0.2, 0.2, 0.2),
                "lines": {h: line(1.0, 0.6, 0.3 if h == k else 0.5) for h in ("linear", "relu", "exp")}
                | {"softmax": line(0.9, 0.5, 0.31)},
            }
            for n in (14, 6)
            for k in ("relu", "exp")
        ]
    }
    fig2["extra"] = [
        {
            "data": "linear",
            "axis": "L",
            "n": 14,
            "x": [6],
            "bayes": line(1e-9),
            "lines": {h: line(0.1 if h == "linear" else 0.2) for h in ("linear", "relu", "exp")},
        }
    ]
    fig4 = {
        "panels": [
            {
                "data": k,
                "axis": "L",
                "n": 14,
                "x": [1, 3],
                "bayes": line(0.1, 0.1),
                "lines": {
                    "linear": line(1, 0.5),
                    "exp": line(1, 0.5),
                    "linear+exp": line(1, 0.51 if k != "mixed" else 0.4),
                },
            }
            for k in ("linear", "exp", "mixed")
        ]
    }
    return {1: fig1, 2: fig2, 4: fig4}


def spoil(data, panel, name, place, value):
    """The same numbers but for one line at one place."""
    changed = copy.deepcopy(data)
    every = [*changed["panels"], *changed.get("extra", [])]
    for seed in every[panel]["lines"][name]:
        seed[place] = value
    return changed


SPOILT = {
    1: {
        "matching_linear": (0, "relu", 2, 0.4),
        "matching_relu": (1, "exp", 2, 0.4),
        "softmax_wins": (2, "exp", 1, 0.7),
    },
    2: {
        "matching_linear": (4, "linear", 0, None),
        "matching_relu": (2, "linear", 2, 0.2),
        "matching_exp": (1, "relu", 2, 0.2),
        "bayes": (3, "exp", 2, 0.6),
        "softmax_gap": (1, "softmax", 2, 0.4),
        "exp_wins": (3, "softmax", 2, 0.29),
        "relu_gap": (0, "relu", 1, 0.21),
    },
    4: {"pure_linear": (0, "linear", 1, 0.4), "pure_exp": (1, "linear+exp", 1, 0.6), "mixed": (2, "exp", 1, 0.39)},
}


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("end", ["", "_released"])
def test_loss_claims_hold_on_numbers_that_obey_them_and_fail_on_one_that_does_not(number, end):
    figure, data = getattr(losses, f"fig{number}{end}"), loss_data()[number]
    assert {claim.id.rpartition(".")[2] for claim in figure.claims} == set(SPOILT[number])
    for claim in figure.claims:
        good = claim.judge(data)
        assert good.holds, claim.id
        assert good.low <= good.high
        bad = claim.judge(spoil(data, *SPOILT[number][claim.id.rpartition(".")[2]]))
        assert not bad.holds, claim.id
    verdicts = {one.verdict for one in figure.judge(data, "cpu")}
    assert verdicts == {"holds"}


def test_matrix_claims():
    def data(finals):
        return {
            "steps": [0, 1],
            "panels": [
                {"title": str(k), "distances": [[[1.0, 1.0], [final, final]] for _ in range(2)]}
                for k, final in enumerate(finals)
            ],
        }

    most = matrices.fig5.claims[0].judge
    assert most(data([0.05] * 5 + [0.2] * 4)).holds
    assert most(data([0.05] * 5 + [0.2] * 4)).value == pytest.approx(5 / 9)
    assert not most(data([0.05] * 4 + [0.2] * 5)).holds
    assert not most(data([0.05] * 4 + [None] * 5)).holds
    both = matrices.fig3.claims[0].judge
    assert both(data([0.05, 0.09])).holds
    assert not both(data([0.05, 0.11])).holds


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_every_figure_is_measured_and_drawn(figure, tmp_path):
    sizes = {**figure.settings["smoke"], "steps": 2, "batch": 4, "test": 8, "pool": 8}
    data = figure.measure(sizes, Settings(scale="smoke", runs=tmp_path))
    assert (
        len(data["panels"])
        == {"fig1": 3, "fig2": 4, "fig4": 3, "fig3": 2, "fig5": 9, "fig6": 9}[
            figure.name.split(".")[1].removesuffix("_released")
        ]
    )
    with blank((6, 3)) as canvas:
        figure.draw(canvas, data)
    assert all(ax.get_yscale() == "log" and ax.get_title() for ax in canvas.axes)
    assert len(canvas.legends) == 1
    assert save_figure(canvas, tmp_path / "figure.svg").stat().st_size > 10_000
    assert {one.verdict for one in figure.judge(data, "smoke")} == {"not judged"}
    assert set(figure.settings) == {"smoke", "cpu", "paper"}


def test_scales_are_the_paper_s():
    for settings in (LOSSES["paper"], MATRICES["paper"]):
        assert (settings["batch"], settings["resample"], len(settings["seeds"])) == (30_000, 10, 3)
    assert LOSSES["paper"]["n"] == [2, 4, 6, 8, 10, 12, 14]
    assert LOSSES["paper"]["layers"] == [1, 2, 3, 4, 6, 8]  # the paper's without 5 and 7
    assert MATRICES["paper"]["n"] == 30
    assert (LOSSES["cpu"]["n"], LOSSES["cpu"]["layers"]) == ([2, 6, 14], [1, 3, 6])


@pytest.mark.parametrize("world", ["paper", "released"])
@pytest.mark.parametrize("kind", ["linear", "relu", "exp", "mixed"])
def test_a_pool_draws_what_its_task_says(world, kind):
    pool = Pool(Source(world=world, data=kind, n=4, seed=3), 6, device=CPU)
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


def test_worlds_differ_as_the_digest_says():
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
    root = TASKS["paper"]["exp"].root
    model = functional(d=5, loops=2, layers=2, kernel=kernels.relu, models=1).build().double()
    model.put(key=torch.linalg.inv(root), query=3 * torch.linalg.inv(root), transform=0.2 * torch.eye(5), label=1.0)
    assert distances(model, root[None]).abs().max() < 1e-7
    assert distances(model, root[None]).shape == (1, 3)
    model.put(key=torch.eye(5))
    assert distances(model, root[None])[0, 0] > 0.1


def test_a_family_is_trained_as_each_alone(tmp_path):
    settings = Settings(scale="smoke", runs=tmp_path)
    sizes = {**LOSSES["smoke"], "steps": 12, "batch": 32, "resample": 3, "kept": 3, "seeds": [0, 1]}
    cases = [Case(world="paper", data=kind, heads=("exp",), n=4, layers=2) for kind in ("relu", "exp")]
    training._done.clear()
    together = outcomes(cases, sizes, settings)
    training._done.clear()
    alone = {case: outcomes([case], {**sizes, "seeds": [1]}, settings)[case] for case in cases}
    for case in cases:
        assert together[case].losses[1] == pytest.approx(alone[case].losses[0], rel=1e-4)
        assert len(together[case].distances[0]) == len(kept_steps(sizes))


def test_what_figures_share_is_trained_once(monkeypatch, tmp_path):
    settings = Settings(scale="smoke", runs=tmp_path)
    sizes, calls = {**LOSSES["smoke"], "steps": 1}, []
    training._done.clear()
    outcome = Outcome(losses=[1.0], bayes=[1.0], distances=[], first=1.0)
    monkeypatch.setattr(training, "_train", lambda group, *_: calls.append(group) or [outcome] * len(group))
    case = Case(world="paper", data="exp", heads=("exp",), n=4, layers=2)
    for _ in range(2):
        outcomes([case, case], sizes, settings)
    assert calls == [[case]]
    training._done.clear()


def test_the_figures_model_is_the_library_s():
    config = functional(d=5, loops=2, layers=2, kernel=(kernels.linear, kernels.exp))
    family = build_family(config, seeds=[0])
    prompt = Pool(Source(world="paper", data="mixed", n=6, seed=0), 8, device=CPU).all()
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


def test_a_diverged_line_counts_as_infinitely_bad():
    data = loss_data()[1]
    worse = spoil(data, 2, "softmax", 2, None)
    found = losses.fig1.claims[2].judge(worse)
    assert not found.holds
    assert math.isinf(found.value)
    assert judges.over_seeds([[1.0, 2.0], [3.0, 2.0]]) == (2.0, 2.0, 3.0)
