"""A sweep's points on held-out prompts: seeds put together, differences paired, the best point named."""

import json
from dataclasses import replace

import pytest
import torch

from looped.models.decoder import DecoderConfig
from looped.papers import yang24
from looped.report.sweep_figure import sweep_figure
from looped.sweep_results import evaluate_sweep, read_results, save_results
from looped.training.folder import Checkpoint
from looped.training.run import Run
from looped.training.trials import Standing, trials

BASE = yang24.linear("smoke")
TINY = replace(
    BASE,
    model=DecoderConfig(d=BASE.task.d, width=8, heads=2, loops=2, positions=2 * BASE.train.points),
    train=replace(BASE.train, window=1, depth=None),
)
DONE = Standing(status="finished")


def swept(folder, scales, seeds=(0, 1, 2)):
    """Trials whose answers are a fixed random model's, times a number that grows with the batch of its config."""
    grid = {"train.batch": list(scales)}
    asked = trials(TINY, grid, seeds=seeds, out=folder)
    for trial in asked:
        torch.manual_seed(trial.experiment.train.seed)
        model = trial.experiment.model.build()
        for weight in model.read_out.parameters():
            weight.data *= scales[trial.fields["train.batch"]]
        run = Run.create(trial.path, trial.experiment)
        run.save(Checkpoint(step=1, finished=True, tensors={f"model/{k}": v for k, v in model.state_dict().items()}))
    return asked


def test_seeds_are_put_together_and_the_best_point_is_named(tmp_path):
    asked = swept(tmp_path, {1: 0.0, 2: 3.0, 4: 30.0})
    results = evaluate_sweep(asked, [DONE] * len(asked), prompts=40, device="cpu")
    zero, _, large = results.points
    assert [point.fields for point in results.points] == [{"train.batch": size} for size in (1, 2, 4)]
    assert zero.seeds == [0, 1, 2]
    prompt = TINY.task.sample(batch=40, n=TINY.train.points, generator=torch.Generator().manual_seed(0))
    nothing = TINY.task.error(torch.zeros_like(prompt.ys), prompt)[:, -1]
    for number in (zero.error.mean, zero.error.low, zero.error.high):  # a read-out of zeros, whatever the seed
        assert number == pytest.approx(nothing.mean().item(), rel=1e-5)
    assert (zero.verdict, zero.difference, large.verdict) == ("best", None, "worse")
    by_hand = []
    for trial in asked[6:]:
        model = Run(trial.path, trial.experiment).model()
        with torch.no_grad():
            by_hand.append(TINY.task.error(model(prompt)[-1], prompt)[:, -1].double().mean().item())
    assert (large.error.low, large.error.high) == pytest.approx((min(by_hand), max(by_hand)), rel=1e-5)
    assert large.difference.mean == pytest.approx(large.error.mean - zero.error.mean, rel=1e-5)
    assert large.by_loops.x == list(range(1, 9))
    assert large.by_loops.at(2) == pytest.approx(large.error.mean, rel=1e-6)
    assert results.varied == ["train.batch"]
    again = read_results(save_results(tmp_path, results).parent)
    assert again == results
    assert len(sweep_figure(again).axes) == 2


def test_one_seed_has_a_bootstrap_and_unfinished_trials_are_left_out(tmp_path):
    asked = swept(tmp_path, {1: 0.0, 2: 3.0}, seeds=(5,))
    results = evaluate_sweep(asked, [DONE, Standing(status="failed")], prompts=40, device="cpu")
    [point] = results.points
    assert point.error.low < point.error.mean < point.error.high
    assert (point.seeds, point.verdict) == ([5], "")
    assert evaluate_sweep(asked, [Standing()] * 2, prompts=40, device="cpu") is None
    with pytest.raises(ValueError, match="`prompts` must be at least 2"):
        evaluate_sweep(asked, [DONE] * 2, prompts=1, device="cpu")


def test_points_with_prompts_of_their_own_are_not_paired(tmp_path):
    asked = swept(tmp_path / "a", {1: 0.0}, seeds=(0,))
    noisy = replace(TINY, task=replace(TINY.task, noise=1.0))
    other = trials(noisy, {"task.noise": [1.0]}, out=tmp_path / "b")
    model = noisy.model.build()
    tensors = {f"model/{key}": value for key, value in model.state_dict().items()}
    Run.create(other[0].path, other[0].experiment).save(Checkpoint(step=1, finished=True, tensors=tensors))
    results = evaluate_sweep([*asked, *other], [DONE] * 2, prompts=10, device="cpu")
    assert [(point.difference, point.verdict) for point in results.points] == [(None, "")] * 2


def test_damaged_results_are_one_line(tmp_path):
    (tmp_path / "results.json").write_text('{"prompts": 3, "points": [{"seeds": 3}]}')
    with pytest.raises(ValueError, match=r"results.json is damaged .* Sweep again."):
        read_results(tmp_path)
    assert read_results(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("by_loops", "low"), ["a", "b", "c", "d"], "'a' is no number"),
        (("by_loops", "mean"), [1.0], "as many numbers as places"),
        (("by_loops", "x"), 3, "not iterable"),
        (("error", "mean"), [1.0], "is no number"),
        (("late", "low"), True, "True is no number"),
    ],
)
def test_a_curve_or_an_estimate_that_holds_something_else_is_damage(place, value, reason, tmp_path):
    asked = swept(tmp_path / "a", {1: 0.0}, seeds=(0,))
    save_results(tmp_path, evaluate_sweep(asked, [DONE], prompts=10, device="cpu"))
    read_results(tmp_path)
    data = json.loads((tmp_path / "results.json").read_text())
    data["points"][0][place[0]][place[1]] = value
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"results.json is damaged .*{reason}.* Sweep again."):
        read_results(tmp_path)
