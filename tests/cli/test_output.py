import json
import math

import pytest
from rich.table import Table

from looped.cli.output import interval, number, show


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00001234, "1.23e-05"), (0.98765, "0.988"), (12.0, "12"), (math.nan, "not finite"), (None, "not finite")],
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_an_interval_without_a_mean_is_said_in_words():
    assert interval(0.5, 0.4, 0.61234) == "0.5 [0.4, 0.612]"
    assert interval(math.inf, 0.4, math.inf) == "not finite"


def test_results_and_notes_go_apart(capsys):
    table = Table("name [of a column]", "value")
    table.add_row("a", "1")
    show({"a": math.nan}, table, "one [line]", notes=["Next: [nothing]"], json=False, quiet=False)
    out, error = capsys.readouterr()
    assert "value" in out
    assert out.endswith("one [line]\n")
    assert error == "Next: [nothing]\n"
    show({"a": math.nan}, table, notes=["Next"], json=True, quiet=True)
    out, error = capsys.readouterr()
    assert (json.loads(out), error) == ({"a": None}, "")
    show({}, table, notes=["Next"], json=False, quiet=True)
    assert capsys.readouterr() == ("", "")
