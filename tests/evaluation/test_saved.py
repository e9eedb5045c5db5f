import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from looped.evaluation.curves import Curve, Evaluation
from looped.evaluation.saved import evaluations, save_evaluation


@pytest.fixture
def run(tmp_path):
    return SimpleNamespace(path=tmp_path)


@pytest.fixture
def evaluation():
    curve = Curve(label="model", x=[0, 1], mean=[1.0, 0.5], low=[0.9, 0.4], high=[1.1, 0.6])
    task = {"task": "T()", "prompts": 8, "level": 0.9, "loops": 2, "trained_loops": 1}
    return Evaluation(**task, by_examples=[curve, replace(curve, label="least squares")], by_loops=curve)


def test_what_was_saved_comes_back_in_the_order_of_saving(run, evaluation):
    other = replace(evaluation, task="U()")
    for index in range(12):  # ten sorts after nine, not after one
        save_evaluation(run, f"Noisy labels, {index}", other if index else evaluation)
    saved = evaluations(run)
    assert list(saved) == [f"Noisy labels, {index}" for index in range(12)]
    assert saved["Noisy labels, 0"] == evaluation
    assert saved["Noisy labels, 11"] == other


def test_the_same_title_replaces_and_a_like_one_does_not(run, evaluation):
    first = save_evaluation(run, "noisy labels", evaluation)
    save_evaluation(run, "Noisy: labels", evaluation)
    assert save_evaluation(run, "noisy labels", replace(evaluation, prompts=9)) == first
    assert {name: kind.prompts for name, kind in evaluations(run).items()} == {
        "noisy labels": 9,
        "Noisy: labels": 8,
    }


def test_a_run_without_evaluations_has_none(run):
    assert evaluations(run) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_model_is_kept_as_not_a_number(run, evaluation, bad):
    loops = replace(evaluation.by_loops, mean=[1.0, bad])
    file = save_evaluation(run, "far", replace(evaluation, by_loops=loops))
    assert json.loads(file.read_text())["by_loops"]["mean"] == [1.0, None]
    assert math.isnan(evaluations(run)["far"].by_loops.mean[1])


@pytest.mark.parametrize("name", ["", "  "])
def test_a_title_is_needed(run, evaluation, name):
    with pytest.raises(ValueError, match="needs a `name`"):
        save_evaluation(run, name, evaluation)


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "循环", "a" * 500, "<script>"])
def test_any_title_stays_in_the_folder(run, evaluation, name):
    file = save_evaluation(run, name, evaluation)
    assert file.parent == run.path / "evaluations"
    assert list(evaluations(run)) == [name]


def damage(change):
    def spoil(data):
        change(data)
        return json.dumps(data)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: json.dumps(data)[:-20],
        lambda data: "[]",
        lambda data: "null",
        lambda data: "3",
        damage(lambda data: data.pop("name")),
        damage(lambda data: data.pop("level")),
        damage(lambda data: data.pop("by_loops")),
        damage(lambda data: data.update(name=3)),
        damage(lambda data: data.update(prompts="8")),
        damage(lambda data: data.update(loops=True)),
        damage(lambda data: data.update(by_examples=[])),
        damage(lambda data: data.update(by_examples=3)),
        damage(lambda data: data.update(other=1)),
        damage(lambda data: data["by_loops"].update(x=[])),
        damage(lambda data: data["by_loops"].update(x=None)),
        damage(lambda data: data["by_loops"].update(mean=[1.0])),
        damage(lambda data: data["by_loops"].update(mean=[1.0, "<b>"])),
        damage(lambda data: data["by_examples"][1].pop("label")),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it_and_saving_again_repairs_it(run, evaluation, spoil):
    file = save_evaluation(run, "noisy labels", evaluation)
    file.write_text(spoil(json.loads(file.read_text())))
    with pytest.raises(ValueError, match=r"01-noisy-labels\.json") as caught:
        evaluations(run)
    assert "\n" not in str(caught.value)
    save_evaluation(run, "noisy labels", evaluation)
    assert evaluations(run) == {"noisy labels": evaluation}
