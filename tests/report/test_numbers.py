import math

import pytest

from looped.report.numbers import duration, number


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.03124, 3, "0.0312"),
        (0.09996, 3, "0.100"),
        (1.0, 3, "1.00"),
        (847.4, 2, "850"),
        (8725.1, 3, "8,730"),
        (123456.0, 3, "1.23×10⁵"),
        (5.42e-15, 3, "5.42×10⁻¹⁵"),
        (1e-4, 1, "10⁻⁴"),
        (2e-4, 1, "2×10⁻⁴"),
        (0.001, 1, "0.001"),
        (-0.5, 2, "−0.50"),
        (0.0, 3, "0"),
        (None, 3, "–"),
        (math.nan, 3, "–"),
        (math.inf, 3, "∞"),
        (-math.inf, 3, "−∞"),
    ],
)
def test_numbers(value, digits, text):
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.43, "0.4 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (125, "2 min 5 s"), (7320, "2 h 2 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
