"""What every theorem must do. A new theorem goes into `ROWS`; gao24's rows have tests of their own."""

import pytest

from looped.theorems.check import select

ROWS = {
    "chen24": "lem4.1=s lem4.3=s lem5.3=s lem5.5=s thm4.2=s thm4.4=pc thm4.5=ss thm5.8=s",
    "cheng24": "eq58=pc ex8=spc lemA.1=sp lemG.3=pc prop3.1=s prop3.4=pcpc propD.1=ss sec3.1.2=ss thm4.5=sspc "
    "thm4.6=ss",
    "gatmiry24": "exit=s lem1a=s lem1b=pc lem2=pc lem3=s lem3b=s lem4=pc rates=s thm1a=pc thm1b=s thm2=s thm3=pc "
    "thm4=pcc thm5=s thm6=pc thm7=pc thm8=pc thm8b=s",
}
"""Every result, and its rows in order: as stated, as printed, as corrected."""
FORMS = {
    f"{paper}.{name}": forms
    for paper, results in ROWS.items()
    for name, forms in (result.split("=") for result in results.split())
}
SLOW = {"cheng24.thm4.5", "cheng24.thm4.6"}
VERDICTS = {"as stated": "holds", "as printed": "fails as printed", "as corrected": "holds as corrected"}


def test_every_result_is_there():
    assert [result.name for paper in ROWS for result in select([paper])] == list(FORMS)


@pytest.mark.parametrize("name", [name for name in FORMS if name not in SLOW])
def test_results_hold_but_for_what_is_printed_wrong(name):
    rows = select([name])[0]()
    assert "".join(row.form.split()[1][0] for row in rows) == FORMS[name]
    for row in rows:
        assert row.verdict == VERDICTS[row.form], row
        assert row.instance
        if row.plot is not None:
            assert {"measured", "bound"} <= row.plot.lines.keys()
            assert {len(line) for line in row.plot.lines.values()} == {len(row.plot.x)}
