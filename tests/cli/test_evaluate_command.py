import pytest

from looped.cli.evaluate import read_shift
from looped.tasks.shifts import NoisyOutputs, ScaledX, SkewedCovariance, shifts_by_name


def test_shifts_have_names():
    assert {"skewed-covariance", "scaled-x", "different-orthants"} <= set(shifts_by_name())
    assert len(shifts_by_name()) == 9
    assert read_shift("skewed") == SkewedCovariance()
    assert read_shift("scaled-x:factor=0.5") == ScaledX(factor=0.5)
    assert read_shift("noisy:std=2,rescale=false") == NoisyOutputs(std=2.0, rescale=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaled", "may be scaled-x or scaled-labels"),
        ("skewd", "Valid: .*skewed-covariance"),
        ("", "no shift is called"),
        ("scaled-x:fctor=2", "Did you mean `factor`"),
        ("scaled-x:factor=0", "must be between 1e-06"),
    ],
)
def test_a_shift_that_is_not_there_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_shift(text)
