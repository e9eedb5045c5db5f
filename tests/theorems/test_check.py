import json
import math

import pytest
import torch

from looped.theorems import check


def finding(**fields):
    return check.Finding(**({"measured": 1.0, "bound": 2.0, "instance": "one"} | fields))


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "holds"),
        ({"measured": 3.0}, "fails"),
        ({"measured": math.nan}, "fails"),
        ({"measured": 3.0, "at_least": True}, "holds"),
        ({"at_least": True}, "fails"),
        ({"measured": 3.0, "form": "as printed"}, "fails as printed"),
        ({"form": "as printed"}, "holds"),
        ({"form": "as corrected"}, "holds as corrected"),
        ({"measured": 3.0, "form": "as corrected"}, "fails"),
        ({"measured": 3.0, "form": "in the proof"}, "fails in the proof"),
    ],
)
def test_verdicts(fields, verdict):
    assert finding(**fields).verdict == verdict


def test_margin_is_above_one_exactly_where_it_holds():
    assert finding().margin == 2
    assert finding(measured=4.0).margin == 0.5
    assert finding(measured=4.0, at_least=True).margin == 2
    assert finding(measured=0.0).margin == math.inf


def test_worst_is_by_ratio_and_prefers_what_is_not_a_number():
    measured, bound = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([10.0, 20.0, 4.0])
    assert check.worst(measured, bound) == (2.0, 4.0)
    assert check.worst(measured, 2.0, at_least=True) == (1.0, 2.0)
    assert math.isnan(check.worst(torch.tensor([1.0, math.nan]), 1.0)[0])
    assert check.worst(torch.tensor([1.0, -5.0]), 1.0, at_least=True)[0] == -5


def test_names_papers_and_patterns_select():
    known = check.theorems()
    assert [result.name for result in check.select()] == list(known)
    assert {result.paper for result in check.select(["gatmiry24"])} == {"gatmiry24"}
    assert [result.name for result in check.select(["gatmiry24.thm2"])] == ["gatmiry24.thm2"]
    assert {result.name for result in check.select(["gatmiry24.lem*"])} >= {"gatmiry24.lem1a", "gatmiry24.lem4"}
    assert len(check.select(["gatmiry24.thm2", "gatmiry24", "gatmiry24.thm2"])) == len(check.select(["gatmiry24"]))


@pytest.mark.parametrize(("name", "near"), [("gatmiry24.thm22", "gatmiry24.thm2"), ("gatmiri24", "gatmiry24")])
def test_an_unknown_name_is_told_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"no theorem is called `{name}`. The nearest is `{near}"):
        check.verify([name])


def test_rows_are_json_with_finite_numbers_or_null():
    plot = check.Plot(x_label="x", y_label="y", x=[0.0, 1.0], lines={"measured": [1.0, math.inf]})

    @check.theorem("paper.thm1", "One is one.")
    def thm1():
        yield finding(measured=math.inf, plot=plot, form="as printed")
        yield finding(measured=0.0, form="as corrected", tolerance=True, statement="One is two.")

    before = torch.random.get_rng_state()
    printed, corrected = (json.loads(json.dumps(row.as_dict(), allow_nan=False)) for row in thm1())
    assert torch.equal(before, torch.random.get_rng_state())
    assert printed.keys() >= {"name", "paper", "statement", "measured", "bound", "verdict", "seconds"}
    assert (printed["measured"], printed["verdict"], printed["paper"]) == (None, "fails as printed", "paper")
    assert printed["plot"]["lines"]["measured"] == [1.0, None]
    assert (corrected["margin"], corrected["bound_is"]) == (None, "numerical tolerance")
    assert (printed["statement"], corrected["statement"]) == ("One is one.", "One is two.")


def test_progress_hears_every_name():
    heard = []
    check.verify(["gatmiry24.lem3"], progress=lambda *args: heard.append(args))
    assert heard == [("gatmiry24.lem3", 0, 1), ("", 1, 1)]
