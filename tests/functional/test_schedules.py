import pytest
from scipy import stats

from looped.functional.schedules import Ramp, RandomDepth, Staircase, Trapezoid


def values(schedule, steps):
    return [schedule(step, steps) for step in range(steps)]


def test_staircase_of_the_published_program():
    """Dims 5 to 20 by 1, points 11 to 41 by 2 every 5000 steps; loops 15 to 20 by 2 every 500."""
    dims = Staircase(start=5, stop=20, by=1, every=5000)
    points = Staircase(start=11, stop=41, by=2, every=5000)
    loops = Staircase(start=15, stop=20, by=2, every=500)
    for step in (0, 4999, 5000, 74_999, 75_000, 499_999):
        stair = step // 5000
        assert dims(step, 500_000) == min(20, 5 + stair)
        assert points(step, 500_000) == min(41, 11 + 2 * stair)
    ends = [loops(step, 500_000) for step in (0, 499, 500, 999, 1000, 1499, 1500, 99_999)]
    assert ends == [15, 15, 17, 17, 19, 19, 20, 20]


def test_staircase_does_not_depend_on_the_length_of_the_run():
    stairs = Staircase(start=1, stop=4, by=1, every=3)
    assert values(stairs, 15) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4]
    assert values(stairs, 5) == values(stairs, 15)[:5]


@pytest.mark.parametrize(("share", "steps"), [(0.3, 1000), (1.0, 12), (0.5, 16)])
def test_ramp_climbs_in_equal_stairs_and_then_stays(share, steps):
    climb = values(Ramp(start=2, stop=5, share=share), steps)
    end = round(share * steps)
    assert [climb[:end].count(value) for value in (2, 3, 4, 5)] == pytest.approx([end / 4] * 4, abs=1)
    assert climb == sorted(climb)
    assert set(climb[end:]) <= {5}
    assert all(isinstance(value, int) for value in climb)


def test_ramp_of_one_value_is_flat():
    assert set(values(Ramp(start=3, stop=3, share=0.5), 10)) == {3}


def test_random_depth_is_even_and_takes_every_value():
    drawn = values(RandomDepth(low=4, high=12), 9000)
    counts = [drawn.count(value) for value in range(4, 13)]
    assert sum(counts) == 9000, "never outside [low, high]"
    assert stats.chisquare(counts).pvalue > 0.01


def test_random_depth_of_neighbouring_steps_is_unrelated():
    drawn = values(RandomDepth(low=1, high=8), 5000)
    assert abs(stats.pearsonr(drawn[:-1], drawn[1:]).statistic) < 4 / 5000**0.5


def test_random_depth_belongs_to_the_step():
    """A resumed run draws what an uninterrupted one would, in any order and for any length of run."""
    depth = RandomDepth(low=4, high=12)
    assert [depth(step, 100) for step in reversed(range(50))] == list(reversed(values(depth, 50)))
    assert depth(7, 100) == RandomDepth(low=4, high=12)(7, 5000)
    assert set(values(RandomDepth(low=3, high=3), 20)) == {3}


def test_trapezoid_without_slopes_is_one():
    assert set(values(Trapezoid(), 10)) == {1.0}


def test_trapezoid_goes_up_stays_and_comes_down():
    shape = values(Trapezoid(warmup=0.2, decay=0.5), 20)
    assert shape == pytest.approx([0.25, 0.5, 0.75, 1.0] + [1.0] * 7 + [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert min(shape) > 0, "no step is wasted on a rate of zero"


def test_trapezoid_ends_at_its_floor():
    shape = values(Trapezoid(warmup=0.2, decay=0.5, floor=0.35), 20)
    assert shape[-3:] == [0.35] * 3
    assert shape[0] == pytest.approx(0.25), "the floor is for the way down"
    assert max(shape) == 1


def test_trapezoid_of_a_short_run_stays_positive():
    for steps in (1, 2, 3):
        shape = values(Trapezoid(warmup=0.03, decay=0.5), steps)
        assert all(0 < value <= 1 for value in shape)


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (Staircase, {"start": 1, "stop": 2, "by": 1, "every": 0}, "`every` must be at least 1 step; got 0"),
        (Staircase, {"start": 3, "stop": 2, "by": 1, "every": 1}, "a staircase climbs; got start=3, stop=2, by=1"),
        (Staircase, {"start": 1, "stop": 2, "by": 0, "every": 1}, "a staircase climbs"),
        (Ramp, {"start": 1, "stop": 2, "share": 0.0}, r"`share` must be in \(0, 1\]; got 0.0"),
        (Ramp, {"start": 1, "stop": 2, "share": 1.1}, r"`share` must be in \(0, 1\]; got 1.1"),
        (Ramp, {"start": 5, "stop": 2, "share": 0.5}, "a ramp climbs; got start=5, stop=2"),
        (RandomDepth, {"low": 3, "high": 2}, "`low` must be at most high=2; got 3"),
        (Trapezoid, {"floor": 0.5}, "`floor` is where the decay ends, and `decay` is 0; got 0.5"),
        (Trapezoid, {"warmup": -0.1}, r"`warmup` \+ `decay` must be in \[0, 1\]"),
        (Trapezoid, {"warmup": 0.6, "decay": 0.6}, r"`warmup` \+ `decay` must be in \[0, 1\]; got 0.6 and 0.6"),
    ],
)
def test_bad_fields_are_refused(make, fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields)


@pytest.mark.parametrize("steps", [1, 7, 5000])
def test_bounds_are_the_least_and_the_largest_value(steps):
    schedules = [
        Staircase(start=-3, stop=4, by=2, every=9),
        Ramp(start=-2, stop=5, share=0.7),
        Trapezoid(warmup=0.2, decay=0.4, floor=0.1),
    ]
    for schedule in schedules:
        values = [schedule(step, steps) for step in range(steps)]
        assert schedule.bounds(steps) == pytest.approx((min(values), max(values)), rel=0.01)
    assert RandomDepth(low=-3, high=2).bounds(steps) == (-3, 2)
