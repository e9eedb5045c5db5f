"""Dropout: what it does to a block, and that trainings with it go on, stack and are judged as without."""

import pytest
import torch

from looped.experiment import training
from looped.models.blocks import Block
from looped.papers import yang24
from looped.recipes import experiment
from looped.training.dropout import Dropout
from looped.training.stopping import Interrupted
from looped.training.trainer import train, train_seeds
from training.tiny import assert_same_run, stop_at

TINY = training(yang24.linear("smoke"), steps=6, log_every=1, checkpoint_every=2, dropout=0.3)


def test_a_share_is_zero_and_the_rest_scaled_so_that_the_mean_stays():
    x = torch.full((40, 1000), 3.0, requires_grad=True)
    dropped = Dropout(0.3, [torch.Generator().manual_seed(0)])(x)
    assert {round(value, 4) for value in dropped.unique().tolist()} == {0.0, round(3 / 0.7, 4)}
    # 40,000 draws: the standard deviation of the share is .0023
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    [slope] = torch.autograd.grad(dropped.sum(), x)
    torch.testing.assert_close(slope, dropped.detach() / 3)


def test_both_parts_of_a_block_drop_and_a_pass_without_gradient_does_not():
    torch.manual_seed(0)
    block, x = Block(8, heads=2), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = block(x)
    block.drop = lambda term: torch.zeros_like(term)
    torch.testing.assert_close(block(x), x, rtol=0, atol=0)
    block.drop = Dropout(0.5, [torch.Generator().manual_seed(0)])
    assert not torch.allclose(block(x), plain)
    with torch.no_grad():
        torch.testing.assert_close(block(x), plain, rtol=0, atol=0)


def test_a_run_that_was_stopped_goes_on_with_the_draws_of_one_that_was_not(tmp_path):
    with pytest.raises(Interrupted):
        train(TINY, out=tmp_path / "parts", progress=stop_at(3))
    parts, whole = train(TINY, out=tmp_path / "parts"), train(TINY, out=tmp_path / "whole")
    assert_same_run(parts, whole)
    without = train(training(TINY, dropout=0.0), out=tmp_path / "whole")
    assert without.metrics()[0]["loss"] != whole.metrics()[0]["loss"]


def test_models_of_a_stack_draw_as_they_do_alone(tmp_path):
    stacked = train_seeds(TINY, [0, 1], out=tmp_path / "stack")
    for seed, run in enumerate(stacked):
        alone = train(training(TINY, seed=seed), out=tmp_path / "alone")
        losses = [[line["loss"] for line in each.metrics()] for each in (run, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_model_without_blocks_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"`dropout` is for models of transformer blocks; got 0\.5"):
        train(training(experiment("gatmiry24.looped", "smoke"), dropout=0.5), out=tmp_path)
    with pytest.raises(ValueError, match="`dropout` must be at least 0 and below 1; got 1"):
        training(TINY, dropout=1.0)
