"""`train.lengths`: each step's prompts are cut to one of some lengths."""

from dataclasses import replace

import pytest
import torch

from looped.experiment import training
from looped.papers.tables import regressor
from looped.tasks.sequences import AutoRegression
from looped.training.batches import Batches
from looped.training.run import Run
from looped.training.trainer import Trainer, train


def batches(experiment):
    return Batches(experiment, [0], device=torch.device("cpu"), dtype=torch.float32, causal=False)


def test_every_length_is_drawn_by_the_step_alone():
    experiment = regressor("smoke")
    drawn = [batches(experiment).num_pairs(step) for step in range(60)]
    assert set(drawn) == set(experiment.train.lengths)
    assert drawn == [batches(experiment).num_pairs(step) for step in range(60)]
    here = batches(experiment)
    assert here.draw(here.now(0), here.num_pairs(0)).ys.shape == (experiment.train.batch, drawn[0])
    assert batches(training(experiment, lengths=())).num_pairs(0) is None


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    experiment = training(regressor("smoke"), steps=6, checkpoint_every=3)
    whole = train(experiment, out=tmp_path / "whole")
    trainer = Trainer([Run.create(tmp_path / "cut", experiment)], torch.device("cpu"))
    for step in range(3):
        trainer.step(step)
        trainer.done += 1
    trainer.save()
    cut = train(experiment, folder=tmp_path / "cut")
    for name, value in whole.model().state_dict().items():
        assert torch.equal(value, cut.model().state_dict()[name]), name


def test_bad_lengths_are_refused():
    experiment = regressor("smoke")
    with pytest.raises(ValueError, match=r"`lengths` must be in \[1, points=14\]; got \(10, 20\)"):
        training(experiment, lengths=(10, 20))
    with pytest.raises(ValueError, match=r"`task\.quantiles` and `model\.quantiles` must agree"):
        replace(experiment, task=replace(experiment.task, quantiles=3))
    with pytest.raises(ValueError, match="`lengths` counts the pairs of a prompt, and a sequence has none"):
        replace(
            experiment,
            task=AutoRegression(d=4, order=1),
            model=replace(experiment.model, quantiles=0),
        )
