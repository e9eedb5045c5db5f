import pytest

from looped.evaluation.claims import LEARNED, Claim, Figure, Measured, seeds_of


def figure(**fields) -> Figure:
    claim = Claim(
        id="a.b.c",
        statement="x is small",
        tolerance="below 1",
        judge=lambda data: Measured(value=data["x"], low=data["x"], high=data["x"], holds=data["x"] < 1, note="why"),
    )
    parts = {"settings": {"smoke": {}, "cpu": {}}, "measure": lambda s, t: {}, "draw": lambda f, d: None}
    return Figure(name="a.b", title="t", claims=(claim,), **parts, **fields)


@pytest.mark.parametrize(
    ("x", "verdict"), [(0.5, "holds"), (2.0, "fails"), (float("inf"), "fails"), (float("-inf"), "fails")]
)
def test_a_claim_holds_or_fails_and_never_holds_by_what_is_no_number(x, verdict):
    (judged,) = figure().judge({"x": x}, "cpu")
    assert (judged.verdict, judged.note) == (verdict, "why")


def test_nothing_is_judged_at_smoke_scale():
    (judged,) = figure().judge({"x": 0.5}, "smoke")
    assert (judged.verdict, judged.value) == ("not judged", None)


@pytest.mark.parametrize("error", [LEARNED, LEARNED + 0.01])
def test_nothing_is_judged_where_nothing_was_learned(error):
    (judged,) = figure(best_error=lambda data: error).judge({"x": 0.5}, "cpu")
    learned = error <= LEARNED
    assert judged.verdict == ("holds" if learned else "not judged")
    assert judged.value == 0.5
    assert ("no model has learned" in judged.note) != learned


def test_seeds_start_where_settings_were_not_tuned():
    assert list(seeds_of({"seeds": 3})) == [0, 1, 2]
    assert list(seeds_of({"seeds": 2, "first_seed": 3})) == [3, 4]
