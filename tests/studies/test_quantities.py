"""Quantities against numbers worked out by hand, and verdicts by intervals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from looped.evaluation.bootstrap import resampled_means
from looped.studies import (
    Cell,
    Learned,
    Published,
    Table,
    along,
    area,
    at,
    average,
    best,
    claim,
    curve,
    drift,
    gap,
    last,
    loops_to,
    mean,
    share,
    within_factor,
    worst,
)
from looped.studies.claims import judge
from looped.studies.expressions import NotMeasured

ERRORS = {(12, 5): [[1.0, 0.5, 0.4], [1.0, 0.7, 0.2]], (20, 5): [[1.0, 0.4, 0.1], [1.0, 0.2, 0.3]]}


@pytest.fixture
def table() -> Table:
    """Two cells of two seeds, and a baseline with an interval."""
    table = Table()
    for (b, window), runs in ERRORS.items():
        for seed, values in enumerate(runs):
            table.add(Cell(b=b, T=window), "by_examples", values, x=[0, 1, 2], seed=seed)
            table.add(Cell(b=b, T=window), "by_loops", [1.0, 0.5, 0.25 * (seed + 1)], x=[1, b, 100], seed=seed)
            table.add(Cell(b=b, T=window), "trained_loops", b, seed=seed)
    table.add(
        Cell(model="least squares"),
        "by_examples",
        [1.0, 0.3, 0.1],
        x=[0, 1, 2],
        low=[0.9, 0.2, 0.05],
        high=[1.1, 0.4, 0.2],
    )
    return table


def seeds(expression, table) -> list[float]:
    """The number of every seed."""
    return list(expression.value(table).by_seed)


def test_leaves_read_places_means_and_ends(table):
    assert seeds(at(1, b=20), table) == [0.4, 0.2]
    assert seeds(last(b=max), table) == [0.1, 0.3]
    assert seeds(area(b=12, between=(1, 2)), table) == pytest.approx([0.45, 0.45])
    assert seeds(curve(b=12).least(), table) == [0.4, 0.2]
    assert seeds(curve(b=12).largest(between=(1, math.inf)), table) == [0.5, 0.7]
    assert seeds(drift(b=20, T=5), table) == [0.5, 1.0]
    assert seeds(loops_to(0.5, b=min), table) == [12, 12]
    assert seeds(loops_to(0.01, b=min), table) == [math.inf, math.inf]
    assert seeds(loops_to(math.inf, b=min), table) == [math.inf, math.inf]  # an error that diverged is never reached
    lone = at(1, model="least squares").value(table)
    assert (lone.mean, lone.low, lone.high, lone.seeds) == (0.3, 0.2, 0.4, 0)


def test_interpolation_is_straight_in_the_logarithm(table):
    table.add(Cell(K="x"), "loss", [1.0, 0.01], x=[2, 4], seed=0)
    assert seeds(loops_to(0.1, "loss", interpolate=True, K="x"), table) == pytest.approx([3.0])


def test_arithmetic_is_seed_by_seed_and_place_by_place(table):
    assert seeds(at(2, b=20) / at(2, b=12), table) == pytest.approx([0.1 / 0.4, 0.3 / 0.2])
    assert seeds(at(2, b=20) / at(2, model="least squares"), table) == pytest.approx([1.0, 3.0])
    expected = np.max(np.array(ERRORS[20, 5]) - np.array([1.0, 0.3, 0.1]), axis=1)
    assert seeds(gap(curve(b=20), curve(model="least squares")), table) == pytest.approx(expected.tolist())
    assert seeds(abs(at(1, b=20) - 0.3), table) == pytest.approx([0.1, 0.1])
    assert seeds(2 * at(1, b=20) + 1, table) == pytest.approx([1.8, 1.4])


def test_a_lone_interval_goes_through_arithmetic(table):
    table.add(Cell(model="lone"), "by_examples", [0.6], x=[1], low=[0.5], high=[0.9], seed=0)
    ratio = (at(1, model="lone") / at(1, model="least squares")).value(table)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 0.5 / 0.4, 0.9 / 0.2))
    assert ratio.basis == "one seed, 90% interval over prompts"


def test_models_of_the_same_prompts_have_a_paired_interval():
    """Against a bootstrap of the quantity itself; ends that are combined at their worst are far wider."""
    errors = np.random.default_rng(0).lognormal(size=(64, 3)) @ np.array([[1.0, 1.0], [0.5, 0.6], [0.3, 0.2]])
    table, places = Table(), [1, 2]
    for name, values in (("first", errors), ("second", errors + 0.1 * errors**2)):
        means = resampled_means(torch.tensor(values), resamples=200, seed=1)
        low, high = np.quantile(means.numpy(), [0.05, 0.95], axis=0).tolist()
        numbers = {"low": low, "high": high, "draws": means.T.tolist()}
        table.add(Cell(model=name), "by_examples", values.mean(0).tolist(), x=places, seed=0, **numbers)
    table = Table.from_data(json.loads(json.dumps(table.to_data())))
    first, second = (curve(model=name) for name in ("first", "second"))
    rows = np.random.default_rng(1).integers(64, size=(4000, 64))
    resampled, other = errors[rows].mean(1), (errors + 0.1 * errors**2)[rows].mean(1)
    for quantity, draws in (
        (first.mean() / second.mean(), resampled.mean(1) / other.mean(1)),
        (gap(second, first), (other - resampled).max(1)),
        (abs(first.last() - second.last()), np.abs(resampled - other)[:, 1]),
    ):
        value, (low, high) = quantity.value(table), np.quantile(draws, [0.05, 0.95])
        assert (value.low, value.high) == pytest.approx((low, high), abs=0.3 * (high - low))
        unpaired = quantity.value(Table(replace(series, draws=None) for series in table))
        assert unpaired.high - unpaired.low > 2 * (value.high - value.low)
    # a place that is read off a curve has the spread of the curve
    reached = loops_to(float(errors[:, 1].mean()), "by_examples", model="first").value(table)
    assert (reached.low, reached.high) == (1, math.inf)


def test_labels_become_axes(table):
    assert seeds(worst(last(), over="b", among=(12, 20)), table) == pytest.approx([0.4, 0.3])
    assert seeds(best(last(), over="b"), table) == pytest.approx([0.1, 0.2])
    assert seeds(mean(last(), over="b"), table) == pytest.approx([0.25, 0.25])
    assert seeds(along(last(), over="b").geomean(), table) == pytest.approx([math.sqrt(0.04), math.sqrt(0.06)])
    assert seeds(along(last(), over="b").successive().largest(), table) == pytest.approx([0.25, 1.5])


def test_an_average_is_one_number_with_an_interval_over_seeds(table):
    for trial, value in enumerate([1.0, 2.0, 3.0, 2.0]):
        table.add(Cell(n=16), "kappa", value, seed=trial)
    value = average(curve("kappa", n=16)).value(table)
    assert (value.by_seed, value.seeds) == ((2.0,), 4)
    assert 1 < value.low < 2 < value.high < 3
    # two averages go with each other end by end, not seed by seed
    assert (average(curve("kappa", n=16)) / at(1, model="least squares")).value(table).by_seed == pytest.approx(
        (2 / 0.3,)
    )


def test_what_is_not_there_or_not_one_cell_is_said(table):
    with pytest.raises(NotMeasured, match="no cell has"):
        at(1, b=99).value(table)
    with pytest.raises(ValueError, match="means 3 cells"):
        at(1).value(table)
    with pytest.raises(ValueError, match="is a curve of 3 places"):
        curve(b=20).value(table)


def verdict(check, table, **options):
    """A claim's verdict."""
    options = {"study": "p.f", "scale": "paper", "preview": False, "learned": None, **options}
    return judge(claim("c", "what the paper says", check), table, **options)


def test_the_whole_interval_decides(table):
    ratio = at(2, b=20) / at(2, b=12)  # 0.25 and 1.5
    assert verdict(ratio <= 2, table).verdict == "holds"
    assert verdict(ratio <= 1, table).verdict == "undecided"
    assert verdict(ratio <= 0.2, table).verdict == "fails"
    assert verdict((ratio <= 2) & (ratio >= 2), table).verdict == "fails"
    assert verdict(within_factor(ratio, 5), table).verdict == "holds"
    lone = at(1, model="least squares")  # 0.3 [0.2, 0.4]
    assert [verdict(lone < bound, table).verdict for bound in (0.5, 0.3, 0.1)] == ["holds", "undecided", "fails"]


def test_nothing_infinite_holds(table):
    table.add(Cell(model="diverged"), "by_examples", [math.inf], x=[1], seed=0)
    assert verdict(at(1, model="diverged") >= 1, table).verdict == "fails"
    assert verdict(at(1, b=20) / at(1, model="diverged") <= 1, table).verdict == "fails"


def test_previews_and_missing_cells_have_no_verdict(table):
    result = verdict(at(1, b=20) <= 1, table, preview=True, scale="cpu")
    assert (result.verdict, result.value) == ("not judged", pytest.approx(0.3))
    assert "a preview at cpu scale" in result.note
    result = verdict(at(1, b=99) <= 1, table)
    assert (result.verdict, result.value) == ("not judged", None)


def test_models_that_have_not_learned_are_not_judged(table):
    """Halfway from 1 to the best baseline's last error, 0.1, is 0.55."""
    assert verdict(at(1, b=20) <= 1, table, learned=Learned()).verdict == "holds"
    table.add(Cell(b=50, T=5), "by_examples", [1.0, 0.9, 0.6], x=[0, 1, 2], seed=0)
    result = verdict(at(1, b=50) <= 1, table, learned=Learned())
    assert result.verdict == "not judged"
    assert "has error 0.6, needed 0.55" in result.note
    assert verdict(at(1, b=50) / at(1, b=20) <= 9, table, learned=Learned()).verdict == "holds"
    assert verdict(at(1, b=50) <= 1, table, learned=Learned(best=0.3)).verdict == "holds"
    assert "has error 0.9, needed 0.65" in verdict(at(1, b=50) <= 1, table, learned=Learned(at=1)).note
    assert "has error 0.9, needed 0.475" in verdict(at(1, b=50) <= 1, table, learned=Learned(at=1, way=0.75)).note


def test_a_model_worse_than_zero_takes_the_verdict_from_claims_that_read_it(table):
    """Of whichever seed; claims about other cells keep theirs, and so does one about a control."""
    for seed, error in enumerate((0.2, 1.1)):
        table.add(Cell(b=50, T=5), "by_examples", [1.0, 0.9, error], x=[0, 1, 2], seed=seed)
    result = verdict(at(1, b=50) / at(1, b=20) <= 9, table, learned=Learned())
    assert result.verdict == "not judged"
    assert result.note.startswith("a model predicts worse than zero: b = 50, T = 5, seed 1: 1.1, zero 1;")
    assert verdict(worst(last(), over="b", among=(12, 50)) <= 9, table, learned=Learned()).verdict == "not judged"
    assert verdict(at(1, b=12) / at(1, b=20) <= 9, table, learned=Learned()).verdict == "holds"
    assert verdict(at(1, b=50) / at(1, b=20) <= 9, table, learned=Learned(zero=1.2)).verdict == "holds"
    assert verdict(at(1, b=50) / at(1, b=20) <= 9, table, learned=Learned(controls={"b": 50})).verdict == "holds"


def test_models_may_be_held_to_the_trained_loops_or_at_every_place(table):
    table.add(Cell(b=3, T=1), "by_loops", [0.9, 0.1, 5.0], x=[1, 3, 100], seed=0)
    table.add(Cell(b=3, T=1), "trained_loops", 3, seed=0)
    diverges = last("by_loops", b=3) >= 2
    assert verdict(diverges, table, learned=Learned(of="by_loops")).verdict == "not judged"
    assert verdict(diverges, table, learned=Learned(of="by_loops", at="trained_loops")).verdict == "holds"
    table.add(Cell(h="exp"), "loss", [0.5, 2.0, 0.1], x=[1, 2, 3], seed=0)
    small = last("loss", h="exp") <= 0.2
    assert verdict(small, table, learned=Learned(of="loss")).verdict == "holds"
    assert verdict(small, table, learned=Learned(of="loss", every_place=True)).verdict == "not judged"


def test_texts_are_made_from_the_expression(table):
    check = at(2, b=20) / at(2, b=12) <= 1.5
    published = [Published(what="k = 2", number=".0242", ours=at(2, b=20))]
    result = judge(
        claim("c", "s", check, remark="because", published=published, beside={"elsewhere": at(1, b=12)}),
        table, study="p.f", scale="paper", preview=False, learned=None,
    )  # fmt: skip
    assert result.asked == "error by examples (b = 20) at 2 / error by examples (b = 12) at 2 at most 1.5"
    assert "mean of 2 seeds: 0.875 [0.25, 1.5]" in result.note
    assert "k = 2: published .0242, here 0.2 [0.1, 0.3]" in result.note
    assert "; elsewhere: 0.6 [0.5, 0.7]; " in result.note
    assert result.note.endswith("because")
    ratio = at(2, b=20) / at(2, b=12)
    assert str(ratio / last(b=20)).startswith("[error by examples (b = 20) at 2 / ")
    assert str(worst(ratio.called("ratio"), over="T")) == "largest over T of ratio"
    assert str(share(last(T=5) < 0.5, over="b") >= 0.5) == (
        "share of bs with [error by examples (T = 5) at the end below 0.5] at least 0.5"
    )
    assert str(within_factor(at(2, b=20), 2)) == "error by examples (b = 20) at 2 at most 2 and at least 0.5"
    assert drift(b=20).details(table)[0] == "error by loops (b = 20) at the end: 0.375 [0.25, 0.5]"


def test_a_share_counts_values_and_has_the_seeds_behind_them(table):
    assert seeds(share(last() < 0.35, over="b"), table) == [0.5, 1.0]
    table.add(Cell(b=50, T=5), "kappa", 0.6, low=[0.4], high=[0.8], seed=0)
    table.add(Cell(b=60, T=5), "kappa", 0.9, low=[0.7], high=[1.1], seed=0)
    value = share(curve("kappa") > 0.5, over="b").value(table)
    assert (value.by_seed, value.low, value.high, value.basis) == ((0.5,), 0.5, 0.5, "one seed")


def test_a_baseline_stands_in_for_no_model_that_was_not_trained():
    """Layers 1 and 2 at 8 heads, layer 1 alone at 4: at 4 heads there is no step, whatever the baseline has."""
    table = Table()
    for layers, heads, error in ((1, 8, 0.4), (2, 8, 0.3), (1, 4, 0.5)):
        table.add(Cell(L=layers, h=heads), "by_examples", [error], x=[1], seed=0)
    table.add(Cell(model="least squares"), "by_examples", [0.6], x=[1])
    steps = along(area(), over="L").successive().largest()
    assert worst(steps, over="h", among=(2, 4, 8)).value(table).mean == pytest.approx(0.75)
    with pytest.raises(NotMeasured):
        steps.value(table, {"h": 4})
    # asked for by its model it goes with every label
    assert (area() / area(model="least squares")).value(table, {"L": 1, "h": 4}).mean == pytest.approx(0.5 / 0.6)
