import numpy as np
import pytest
import torch
from scipy import stats

from looped.evaluation.bootstrap import bootstrap


@pytest.mark.parametrize("level", [0.9, 0.5])
def test_agrees_with_scipy_within_monte_carlo_error(level):
    values = np.random.default_rng(0).exponential(size=200)
    ours = bootstrap(torch.tensor(values), level=level, resamples=8000)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=8000, method="percentile", rng=np.random.default_rng(1)
    )
    # standard error of a quantile of the resampled means, sqrt(p (1-p) / resamples) / density, on both sides
    spread = values.std() / len(values) ** 0.5
    tail = (1 - level) / 2
    error = (2 * tail * (1 - tail) / 8000) ** 0.5 / (stats.norm.pdf(stats.norm.ppf(tail)) / spread)
    assert ours.mean.item() == pytest.approx(values.mean(), rel=1e-12)
    assert ours.low.item() == pytest.approx(theirs.confidence_interval.low, abs=4 * error)
    assert ours.high.item() == pytest.approx(theirs.confidence_interval.high, abs=4 * error)
    assert theirs.standard_error == pytest.approx(spread, rel=0.05)


def test_a_resample_is_the_mean_of_drawn_prompts():
    """The same draws, one by one."""
    values = torch.tensor(np.random.default_rng(2).normal(size=(7, 3)))
    draws = torch.randint(7, (50, 7), generator=torch.Generator().manual_seed(5))
    means = np.stack([values[row].mean(0).numpy() for row in draws])
    ours = bootstrap(values, level=0.8, resamples=50, seed=5)
    np.testing.assert_allclose(ours.low.numpy(), np.quantile(means, 0.1, axis=0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.high.numpy(), np.quantile(means, 0.9, axis=0), rtol=1e-10, atol=1e-12)


def test_a_90_percent_interval_covers_the_truth_nine_times_in_ten():
    data = torch.tensor(np.random.default_rng(3).normal(loc=1.0, size=(100, 500)))  # 500 experiments of 100 prompts
    interval = bootstrap(data)
    covered = ((interval.low < 1) & (interval.high > 1)).double().mean().item()
    assert covered == pytest.approx(0.9, abs=4 * (0.9 * 0.1 / 500) ** 0.5 + 0.01)


def test_curves_are_resampled_together_and_keep_their_shape():
    values = torch.tensor(np.random.default_rng(4).normal(size=(40, 3, 5)))
    interval = bootstrap(values)
    assert interval.mean.shape == interval.low.shape == interval.high.shape == (3, 5)
    assert (interval.low < interval.mean).all()
    assert (interval.mean < interval.high).all()
    alone = bootstrap(values[:, 1, 2])
    assert alone.low.item() == pytest.approx(interval.low[1, 2].item(), rel=1e-10)


def test_constant_data_has_no_width():
    interval = bootstrap(torch.full((30, 4), 0.3))
    for part in interval:
        torch.testing.assert_close(part, torch.full((4,), 0.3, dtype=torch.float64), rtol=1e-7, atol=0)


def test_a_higher_level_is_wider():
    values = torch.tensor(np.random.default_rng(5).normal(size=60))
    widths = [
        (interval.high - interval.low).item() for interval in (bootstrap(values, level=p) for p in (0.5, 0.9, 0.99))
    ]
    assert widths == sorted(widths)
    assert len(set(widths)) == 3


def test_a_seed_names_the_interval():
    values = torch.tensor(np.random.default_rng(6).normal(size=60))
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1), "tensors of one number compare as numbers"
    assert bootstrap(values, seed=1).low != bootstrap(values, seed=2).low
