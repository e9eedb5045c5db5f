import json

import pytest
import torch

from looped.baselines.lasso import lasso
from looped.baselines.neighbours import nearest
from looped.cli import main
from looped.evaluation.curves import baselines_for, evaluate, slow_baselines_for
from looped.models.decoder import DecoderConfig
from looped.tasks.networks import ReLUNetwork
from looped.tasks.regression import LinearRegression, SparseRegression
from looped.tasks.shifts import NoisyOutputs, Shifted
from looped.tasks.trees import DecisionTree


def decoder(points):
    torch.manual_seed(0)
    return DecoderConfig(d=3, width=8, heads=2, loops=2, positions=2 * points).build()


@pytest.mark.parametrize(
    ("task", "quick", "slow"),
    [
        (LinearRegression(d=3), ["least squares", "averaging"], []),
        (SparseRegression(d=3, nonzero=1), ["least squares", "Lasso", "averaging"], []),
        (
            DecisionTree(d=3, depth=2),
            ["3-nearest neighbours", "least squares", "averaging"],
            ["greedy tree", "greedy tree on sign(x)", "XGBoost", "XGBoost on sign(x)"],
        ),
        (ReLUNetwork(d=3, hidden=4), ["least squares", "3-nearest neighbours", "averaging"], ["2-layer network"]),
        (
            Shifted(task=SparseRegression(d=3, nonzero=1), shifts=(NoisyOutputs(),)),
            ["least squares", "Lasso", "averaging"],
            [],
        ),
    ],
)
def test_each_task_has_those_its_figure_draws(task, quick, slow, generator):
    assert list(baselines_for(task)) == quick
    assert list(slow_baselines_for(task)) == slow
    prompt = task.sample(batch=3, n=5, generator=generator)
    for baseline in [*baselines_for(task).values(), *slow_baselines_for(task, at=[0]).values()]:
        answers = baseline(prompt)
        assert answers.shape == (3, 5)
        assert not answers[:, 0].any(), "nothing to go by yet"


def test_lasso_and_neighbours_are_the_papers(generator):
    prompt = SparseRegression(d=3, nonzero=1).sample(batch=3, n=6, generator=generator)
    assert torch.equal(baselines_for(SparseRegression(d=3, nonzero=1))["Lasso"](prompt), lasso(prompt, 0.01))
    assert torch.equal(baselines_for(DecisionTree(d=3))["3-nearest neighbours"](prompt), nearest(prompt, 3))


def test_a_curve_has_only_the_positions_that_were_asked_for():
    task = DecisionTree(d=3, depth=1)
    slow = slow_baselines_for(task, at=[0, 6, 19])
    picked = {name: slow[name] for name in ("greedy tree", "greedy tree on sign(x)")}
    result = evaluate(decoder(20), task, points=20, prompts=30, baselines={**baselines_for(task), **picked})
    named = {curve.label: curve for curve in result.by_examples}
    assert named["greedy tree"].x == [0, 6, 19]
    assert named["3-nearest neighbours"].x == list(range(20))
    assert named["greedy tree on sign(x)"].at(19) < 0.1 < 0.9 < named["greedy tree on sign(x)"].at(0) + 0.3


def test_the_command_draws_the_slow_ones_on_request_and_keeps_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed

    settings = ["--set", "train.steps=1", "--set", "task.d=2", "--set", "model.d=2"]
    made = call("train", "yang24.linear", "--scale", "smoke", *settings, "--out", tmp_path, "--json", "--quiet")
    run = json.loads(made.out)["run"]
    own = tmp_path / "own_tree_recipe.py"
    own.write_text(
        "from looped import DecoderConfig, Setup\n"
        "from looped.tasks.trees import DecisionTree\n"
        "def tree():\n"
        "    return Setup(name='tree', task=DecisionTree(d=2, depth=1), model=DecoderConfig(d=2, positions=8))\n"
    )
    command = ["evaluate", run, "--task", f"{own}:tree", "--points", 4, "--prompts", 6, "--json"]
    quick = json.loads(call(*command).out)
    assert [one["label"] for one in quick["by_examples"]][1:] == ["3-nearest neighbours", "least squares", "averaging"]
    assert not (tmp_path / "cache").exists()
    alone = json.loads(call(*command, "--no-baselines").out)
    assert alone["by_examples"] == quick["by_examples"][:1]
    assert alone["name"] != quick["name"]
    for _ in range(2):
        printed = call(*command, "--all-baselines")
        labels = [one["label"] for one in json.loads(printed.out)["by_examples"]]
        assert labels[4:] == ["greedy tree", "greedy tree on sign(x)", "XGBoost", "XGBoost on sign(x)"]
        assert "XGBoost on sign(x)" in printed.err
        assert len(list((tmp_path / "cache" / "baselines").iterdir())) == 4
