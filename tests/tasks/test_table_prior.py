"""The prior of random tables: its pieces one by one, its loss, and that a captured step could draw it."""

import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from looped.functional.quantiles import pinball, quantile_levels
from looped.prompt import Prompt
from looped.tasks.table_pieces import (
    BESIDE,
    Classes,
    Columns,
    Draws,
    Function,
    Linear,
    Noise,
    Number,
    OneClass,
    Prototypes,
    Trees,
    standardized_beside,
)
from looped.tasks.table_prior import FUNCTIONS, ClassPrior, TablePrior

PLAIN = Columns(plain=1.0, correlated=0.0, clustered=0.0, missing=0.0)
NOISELESS = Noise(most=0.0)


def draws(batch=200, rows=300, seed=0):
    return Draws(torch.Generator().manual_seed(seed), batch, rows)


def explained(prompt):
    """R2 of least squares on the prompt's own rows."""
    xs = torch.cat([prompt.xs, torch.ones_like(prompt.xs[..., :1])], -1).double()
    ys = prompt.ys.double()
    # some columns are zero in a whole prompt
    solution = torch.linalg.pinv(xs) @ ys[..., None]
    left = ys - (xs @ solution)[..., 0]
    return 1 - left.square().sum(1) / (ys - ys.mean(1, keepdim=True)).square().sum(1)


def linear_task(**fields):
    pieces = {"columns": PLAIN, "functions": (Linear(),), "noise": NOISELESS, "targets": (Number(skewed=0.0),)}
    return TablePrior(d=4, **{**pieces, "irrelevant": 0.0, "blended": 0.0, **fields})


def sample(task, batch=200, n=200, seed=0):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed))


def test_a_linear_function_without_noise_is_linear_and_noise_has_its_share():
    assert explained(sample(linear_task())).min() > 1 - 1e-3  # the widest labels are cut
    prompt = sample(linear_task(noise=Noise(most=0.95, heavy=0.0)), n=2000)
    torch.testing.assert_close(1 - explained(prompt), prompt.truth["noise"].double(), rtol=0, atol=0.12)
    heavy = Noise(most=0.9, heavy=1.0)(torch.zeros(200, 300), draws())[0]
    assert heavy.abs().max() <= 5


def test_missing_values_are_the_mean_and_hide_what_the_function_reads():
    columns = Columns(plain=1.0, correlated=0.0, missing=1.0)
    shown, read = columns(draws(), 5)
    hidden = shown == 0
    share = hidden.float().mean((1, 2))
    assert 0.1 < share.mean() < 0.2
    assert share.max() < 0.35
    torch.testing.assert_close(shown[~hidden], read[~hidden])
    assert read[hidden].std() == pytest.approx(1, abs=0.05)


def test_columns_are_of_all_kinds_standardised_and_correlated_where_they_should_be():
    shown, read = Columns(plain=0.0, clustered=0.0, missing=0.0)(draws(batch=400), 3)
    distinct = torch.tensor([len(column.unique()) for column in shown.transpose(1, 2).reshape(-1, 300)])
    assert {2} < set(distinct.tolist()), "classes of two"
    assert (distinct == 300).any()
    assert ((distinct > 2) & (distinct < 15)).any()
    few = (distinct >= 3) & (distinct <= 6)
    # of a category the function reads another number than the code that is shown
    assert not torch.allclose(shown.transpose(1, 2).reshape(-1, 300)[few], read.transpose(1, 2).reshape(-1, 300)[few])
    torch.testing.assert_close(shown[:, -BESIDE:].mean(1), torch.zeros(400, 3), atol=0.05, rtol=0)
    correlated, alone = (replace(PLAIN, correlated=share)(draws(), 3).read for share in (1.0, 0.0))
    products = [(xs[..., 0] * xs[..., 1]).mean(1).abs().mean() for xs in (correlated, alone)]
    assert products[0] > 3 * products[1]


def test_rows_come_in_groups_where_they_should():
    """Rows of a group are closer to each other than to the rest, so that distances differ more."""
    spread = []
    for share in (1.0, 0.0):
        xs = replace(PLAIN, clustered=share)(draws(batch=100, rows=150), 20).read
        distances = torch.cdist(xs, xs).square()
        spread.append((distances.std((1, 2)) / distances.mean((1, 2))).mean())
    assert spread[0] > 1.05 * spread[1]


def test_one_class_is_an_interval_of_the_value_and_its_error_is_the_log_loss():
    values = draws().normal(300)
    for inner, changes in ((0.0, 1), (1.0, 2)):
        inside = OneClass(inner=inner)(values, draws(seed=1)).gather(1, values.argsort(1))
        assert set(inside.unique().tolist()) == {0.0, 1.0}
        assert inside.diff(dim=1).abs().sum(1).max() == changes
    prompt = sample(ClassPrior(d=4), n=50)
    assert prompt.ys.mean() == pytest.approx(ClassPrior(d=4).label_variance, abs=0.03)
    log_odds = torch.randn(200, 3)
    ones, chance = prompt.ys[:, -3:], 1 / (1 + (-log_odds).exp())
    expected = -(ones * chance.log() + (1 - ones) * (1 - chance).log()) / math.log(2)
    torch.testing.assert_close(ClassPrior(d=4).error(log_odds, prompt), expected)
    torch.testing.assert_close(ClassPrior(d=4).error(0 * log_odds, prompt), torch.ones(200, 3))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: repr(function))
def test_functions_read_their_columns_and_no_others(function):
    xs = draws(seed=1).normal(300, 4)
    used = xs * torch.tensor([1.0, 1.0, 0.0, 0.0])
    values = function(used, draws(seed=2))
    assert values.shape == (200, 300)
    assert (values.std(1) > 0).all()
    # a function is the same for every row: equal rows have equal values
    again = function(torch.cat([used[:, :150], used[:, :150]], 1), draws(seed=2))
    torch.testing.assert_close(again[:, :150], again[:, 150:], rtol=1e-4, atol=1e-4)


def test_trees_have_few_values_and_classes_have_few_labels():
    xs = draws(seed=1).normal(300, 4)
    steps = Trees(trees=1, depth=2)(xs, draws()) - 1e-3 * xs.sum(-1)
    assert max(len(values.mul(1e4).round().unique()) for values in steps) <= 4
    labels = Classes(most=5, two=0.5)(xs[..., 0], draws())
    counts = [len(values.unique()) for values in labels]
    assert max(counts) <= 5
    assert {2, 3} <= set(counts)


def test_a_row_has_the_number_of_its_nearest_prototype():
    xs = draws(batch=50, seed=1).normal(300, 2)
    values = Prototypes(most=2)(xs, draws(batch=50)) - 1e-3 * xs.sum(-1)
    # of two prototypes, which are the last two rows, one is nearest: far from the border there are two values
    spread = (values - values[:, -1:]).abs().minimum((values - values[:, -2:-1]).abs())
    assert (spread < 0.05 * (values[:, -1:] - values[:, -2:-1]).abs()).float().mean() > 0.6


def test_some_tables_have_no_noise_and_the_answers_of_a_query_differ_by_noise_alone():
    pieces = {"targets": (Number(skewed=0.0),), "answers": 5, "d": 3}
    calm, mixed = (
        sample(TablePrior(noise=Noise(most=1.0, heavy=0.0, none=none), **pieces), batch=400, n=12)
        for none in (1.0, 0.5)
    )
    assert calm.truth["noise"].count_nonzero() == 0
    torch.testing.assert_close(calm.truth["answers"], calm.ys[..., None].expand(-1, -1, 5))
    assert (mixed.truth["noise"] == 0).float().mean() == pytest.approx(0.5, abs=0.08)
    answers = mixed.truth["answers"]
    torch.testing.assert_close(answers[..., 0], mixed.ys)
    assert (answers.var(-1).mean(1) - mixed.truth["noise"]).abs().mean() < 0.1


@pytest.mark.parametrize("kind", [TablePrior, ClassPrior])
def test_the_loss_of_several_answers_is_the_mean_of_their_losses(kind):
    task = kind(d=3, answers=4, **({"quantiles": 2} if kind is TablePrior else {}))
    prompt = sample(task, batch=6, n=9).head(7)
    shape = (2, 6, 3, 3) if kind is TablePrior else (2, 6, 3)
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    losses = [
        task.error(outputs, Prompt(prompt.xs, prompt.truth["answers"][:, :7, index])) for index in range(task.answers)
    ]
    torch.testing.assert_close(task.error(outputs, prompt), torch.stack(losses).mean(0))


def test_irrelevant_features_change_nothing_but_what_is_shown():
    all_matter, some = (sample(replace(linear_task(irrelevant=share), d=8), n=150) for share in (0.0, 1.0))
    effects = [
        (torch.linalg.pinv(prompt.xs.double()) @ prompt.ys.double()[..., None]).abs().gt(1e-2).sum(1).double().mean()
        for prompt in (all_matter, some)
    ]
    assert effects[1] < 0.8 * effects[0]


def test_labels_do_not_tell_the_last_one():
    """Standardised by the prompt itself, the sum of all labels would be zero."""
    prompt = sample(linear_task(noise=Noise()), n=20)
    assert prompt.ys.mean(1).std() > 0.1
    values = torch.randn(3, BESIDE + 5, 2, generator=torch.Generator().manual_seed(0)) * 7 + 3
    scaled = standardized_beside(values)
    torch.testing.assert_close(scaled[:, 5:].mean(1), torch.zeros(3, 2), atol=1e-5, rtol=0)
    moved = standardized_beside(torch.cat([values[:, :5] + 1, values[:, 5:]], 1))
    torch.testing.assert_close(moved[:, 5:], scaled[:, 5:])


def test_nothing_in_it_waits_for_the_device_or_has_a_shape_that_was_drawn():
    """Fake tensors have shapes and no numbers: reading one, as a captured step cannot, raises."""
    with FakeTensorMode():
        prompt = TablePrior(d=6).sample(batch=3, n=8, generator=torch.Generator())
    assert prompt.xs.shape == (3, 8, 6)


def test_its_loss_is_the_squared_error_of_the_mean_and_the_pinball_loss():
    task, plain = TablePrior(d=3, quantiles=2), TablePrior(d=3)
    prompt = Prompt(torch.zeros(1, 2, 3), torch.tensor([[9.0, 1.0]]))
    mean = torch.tensor([[[3.0]]])
    outputs = torch.tensor([[[[3.0, 0.0, 2.0]]]])
    expected = plain.error(mean, prompt) + (0.25 * 1 + 0.25 * 1) / 2
    torch.testing.assert_close(task.error(outputs, prompt), expected)
    torch.testing.assert_close(task.error(mean, prompt), plain.error(mean, prompt))


def test_the_pinball_loss_is_least_at_the_quantile():
    ys = torch.randn(20_001, generator=torch.Generator().manual_seed(0)).double()
    candidates = torch.linspace(-3, 3, 601).double()
    levels = quantile_levels(4)
    assert levels == (0.125, 0.375, 0.625, 0.875)
    losses = torch.stack([pinball(value.expand(len(ys), 4), ys, levels).mean(0) for value in candidates])
    torch.testing.assert_close(
        candidates[losses.argmin(0)], ys.quantile(torch.tensor(levels).double()), atol=0.011, rtol=0
    )


def test_a_piece_of_your_own_and_bad_pieces():
    class Step(Function):
        def __call__(self, xs, draws):
            return (xs[..., 0] > 0).float()

    prompt = sample(linear_task(functions=(Step(),), targets=(Number(skewed=0.0),)), n=50)
    assert all(len(ys.unique()) <= 2 for ys in prompt.ys)
    with pytest.raises(ValueError, match="`functions` must name at least one piece"):
        TablePrior(functions=())
    with pytest.raises(ValueError, match="`quantiles` must be at least 0; got -1"):
        TablePrior(quantiles=-1)
    with pytest.raises(ValueError, match="`answers` must be at least 1; got 0"):
        TablePrior(answers=0)
