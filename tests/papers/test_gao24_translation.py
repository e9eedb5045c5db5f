"""gao24's table: the checkpoint is chosen on one half of the validation pairs and judged on the other."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.evaluation.translation import cross_entropies, frequency_cross_entropies, halves
from looped.experiment import Experiment
from looped.papers.gao24 import translation_table
from looped.papers.gao24.translation_table import CHECKPOINTS, TABLE, translators
from looped.papers.gao24.variants import ALGOFORMER, LOOPED, STANDARD
from looped.studies import Cell, Context, Table
from looped.tasks.translation import Translation
from looped.training.folder import read_checkpoint
from looped.training.run import Run
from tasks import tiny_text

SENTENCES = 7


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The table at smoke scale on small text, and its runs by model."""
    folder = tmp_path_factory.mktemp("translation")
    tiny_text.write(folder / "data" / "translation" / "multi30k")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(folder / "cache"))
        patch.setenv("LOOPED_DATA", str(folder / "data"))
        context = Context(scale="smoke", runs=folder / "runs")
        table = replace(TABLE.measure("smoke"), sentences=SENTENCES)(TABLE.cells("smoke"), context)
        runs = {Run.open(path).experiment.name: Run.open(path) for path in (folder / "runs").iterdir()}
        by_model = {cell["model"]: runs[experiment.name] for cell, experiment in TABLE.cells("smoke").items()}
        yield table, by_model, context


def number(table, quantity, **labels):
    [series] = table.where(quantity, **labels)
    return series.value[0]


def test_halves_share_no_pair_and_leave_none_out():
    first, second = halves(1013, 0)
    assert sorted(torch.cat((first, second)).tolist()) == list(range(1013))
    assert abs(len(first) - len(second)) == 1
    assert torch.equal(first, halves(1013, 0)[0])
    assert not torch.equal(first, halves(1013, 1)[0])
    with pytest.raises(ValueError, match="has no two halves"):
        halves(1, 0)


def test_guessing_by_frequency_is_the_entropy_of_counts(smoke):
    """Against a plain count of the English tokens."""
    _, runs, _ = smoke
    task = runs[ALGOFORMER].experiment.task
    assert isinstance(task, Translation)
    n, coder = runs[ALGOFORMER].experiment.train.points, task.tokenizer()

    def english(split):
        texts = coder.encode_batch(replace(task, split=split).texts()[1], add_special_tokens=False)
        return [[*text.ids, 3] for text in texts]

    counts = Counter(token for line in english("train") for token in line)
    total = sum(counts.values()) + task.vocabulary
    rows = torch.tensor([0, 3, 5])
    expected = [sum(-np.log((counts[token] + 1) / total) for token in english("val")[row]) for row in rows]
    sums, tokens = frequency_cross_entropies(replace(task, split="val"), n=n, rows=rows)
    assert sums.tolist() == pytest.approx(expected)
    assert tokens.tolist() == [len(english("val")[row]) for row in rows]


def test_the_chosen_checkpoint_is_judged_on_the_other_half(smoke):
    table, runs, _ = smoke
    for model, run in runs.items():
        assert len(run.steps) == CHECKPOINTS["smoke"]
        validation, n = replace(run.experiment.task, split="val"), run.experiment.train.points
        choosing, judged = halves(SENTENCES, 0)

        def entropy(step, rows, run=run, validation=validation, n=n):
            sums, counts = cross_entropies(run.model_of(read_checkpoint(run.path, step)), validation, n=n, rows=rows)
            return float(sums.sum() / counts.sum())

        [choice] = table.where("choice", model=model)
        assert choice.value == pytest.approx([entropy(step, choosing) for step in run.steps])
        step = choice.x[choice.value.index(min(choice.value))]
        assert number(table, "chosen_step", model=model) == step
        assert number(table, "cross_entropy", model=model) == pytest.approx(entropy(step, judged))
        assert number(table, "last_cross_entropy", model=model) == pytest.approx(entropy(run.steps[-1], judged))
    for quantity, of in (("difference", "cross_entropy"), ("last_difference", "last_cross_entropy")):
        apart = number(table, of, model=ALGOFORMER) - number(table, of, model=LOOPED)
        assert number(table, quantity, model=ALGOFORMER, minus=LOOPED) == pytest.approx(apart)


def test_every_seed_is_judged(smoke, monkeypatch):
    """Two seeds: numbers of their own, the same halves, and a claim that has both."""
    alone, _, context = smoke
    monkeypatch.setattr(translation_table, "translate", lambda model, task, *, n, rows: ["a b c d"] * len(rows))
    measure = replace(TABLE.measure("smoke"), sentences=SENTENCES, seeds=(0, 1))
    table = measure(TABLE.cells("smoke"), context)
    for quantity, labels in (("cross_entropy", {}), ("difference", {"minus": LOOPED}), ("chosen_step", {})):
        first, second = table.where(quantity, model=ALGOFORMER, **labels)
        assert (first.seed, second.seed) == (0, 1)
        assert first.value[0] == number(alone, quantity, model=ALGOFORMER, **labels)
    _, ours = table.where("cross_entropy", model=ALGOFORMER)
    _, theirs = table.where("cross_entropy", model=LOOPED)
    _, difference = table.where("difference", model=ALGOFORMER, minus=LOOPED)
    assert difference.value[0] == pytest.approx(ours.value[0] - theirs.value[0])
    assert {claim.seeds for claim in TABLE.judge(table, "smoke")} == {2}
    assert len(list(table.where("by_frequency", model=ALGOFORMER))) == 1


def test_overfitting_after_the_best_checkpoint_does_not_count(smoke, monkeypatch):
    """AlgoFormer is best in the middle of training and worst at its end: it is ahead."""
    _, runs, context = smoke
    entropy_by_step = {ALGOFORMER: (3.0, 1.0, 4.0), LOOPED: (3.0, 2.0, 1.5), STANDARD: (3.0, 2.0, 2.5)}
    names = {run.experiment.name: model for model, run in runs.items()}
    entropies, original = {}, Run.model_of

    def model_of(run, checkpoint, device="cpu"):
        model = original(run, checkpoint, device)
        entropies[model] = entropy_by_step[names[run.experiment.name]][run.steps.index(checkpoint.step)]
        return model

    def planted(model, task, *, n, rows):
        counts = torch.full((len(rows),), 10.0, dtype=torch.float64)
        return entropies[model] * counts, counts

    monkeypatch.setattr(Run, "model_of", model_of)
    monkeypatch.setattr(translation_table, "cross_entropies", planted)
    monkeypatch.setattr(translation_table, "translate", lambda model, task, *, n, rows: ["a b c d"] * len(rows))
    table = TABLE.measure("smoke")(TABLE.cells("smoke"), context)
    claims = {claim.id.rpartition(".")[2]: claim for claim in TABLE.judge(table, "paper")}
    assert [claim.verdict for claim in claims.values()] == ["holds", "holds", "holds"]
    assert claims["algoformer_beats_looped"].value == pytest.approx(-0.5)
    assert "difference at the last step: 2.5" in claims["algoformer_beats_looped"].note


def test_a_run_of_one_checkpoint_leaves_nothing_to_choose(smoke, monkeypatch):
    _, _, context = smoke
    monkeypatch.setattr(Run, "steps", property(lambda run: [3]))
    with pytest.raises(ValueError, match="has one checkpoint"):
        TABLE.measure("smoke")(TABLE.cells("smoke"), context)


@pytest.mark.parametrize(("entropy", "verdict"), [(2.0, "fails"), (4.0, "not judged")])
def test_models_that_translate_no_better_than_by_frequency_are_not_judged(entropy, verdict):
    table = Table()
    for model in (ALGOFORMER, LOOPED, STANDARD):
        table.add(Cell(model=model), "cross_entropy", entropy, seed=0)
        table.add(Cell(model=model), "by_frequency", 6.0)
    for better, worse in ((ALGOFORMER, LOOPED), (ALGOFORMER, STANDARD), (LOOPED, STANDARD)):
        table.add(Cell(model=better, minus=worse), "difference", 0.1, low=[0.05], high=[0.15], seed=0)
    assert {claim.verdict for claim in TABLE.judge(table, "paper")} == {verdict}


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_every_checkpoint_stays(scale):
    for experiment in translators(scale).values():
        assert isinstance(experiment, Experiment)
        train = experiment.train
        assert train.steps // train.checkpoint_every == train.keep_checkpoints == CHECKPOINTS[scale]
