"""What every theorem must do: its rows hold but for what is printed wrong, and every row can fail."""

import pkgutil

import plants_chen24
import plants_cheng24
import plants_gao24
import plants_gatmiry24
import pytest

from looped.theorems.check import select

ROWS = {
    "chen24": "def3.3=pc lem4.1=s lem4.3=s lem5.3=s lem5.5=s lem5.6=sss sec1=ss thm4.2=s thm4.4=pcc thm4.5=ss thm5.8=s",
    "cheng24": "eq58=rc ex5=ss ex7=pc ex8=spc lemA.1=sr lemG.3=src prop3.1=s prop3.4=srrc propD.1=ss propE.3=src "
    "propF.3=s propF.4=src sec3.1.2=ss thm4.5=ss thm4.6=s",
    "gao24": "lemA.1=sss lemA.2=ss lemA.3=ss lemA.4=sss lemA.5=sspcp sec2.2=ss sec3.1=sss sec5.4=spc "
    "thm3.1=sss thm3.2=sss thm3.3=sspcs thm4.1=ssspcs thm4.2=sss",
    "gatmiry24": "exit=s lem1a=ss lem1b=ppc lem2=pc lem3=ss lem3b=s lem4=pc rates=s thm1a=pccs thm1b=s thm2=s thm3=pc "
    "thm4=pcc thm5=s thm6=sprc thm7=pc thm8=pc thm8b=pc wasserstein=s",
}
"""Every result, and its rows in order: as stated, as printed, as corrected, in the proof (r, for remark)."""
FORMS = {
    f"{paper}.{name}": forms
    for paper, results in ROWS.items()
    for name, forms in (result.split("=") for result in results.split())
}
LETTERS = {"s": "as stated", "p": "as printed", "c": "as corrected", "r": "in the proof"}
VERDICTS = {
    "as stated": "holds",
    "as printed": "fails as printed",
    "as corrected": "holds as corrected",
    "in the proof": "fails in the proof",
}
PLANTS = [*plants_chen24.PLANTS, *plants_cheng24.PLANTS, *plants_gao24.PLANTS, *plants_gatmiry24.PLANTS]


def test_every_result_is_there():
    assert [result.name for result in select()] == list(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_results_hold_but_for_what_is_printed_wrong(name):
    rows = select([name])[0]()
    assert [row.form for row in rows] == [LETTERS[letter] for letter in FORMS[name]]
    for row in rows:
        assert row.verdict == VERDICTS[row.form], row
        assert row.instance
        if row.plot is not None:
            assert {"measured", "bound"} <= row.plot.lines.keys()
            assert {len(line) for line in row.plot.lines.values()} == {len(row.plot.x)}


@pytest.mark.parametrize("name", FORMS)
def test_every_row_has_a_planted_failure(name):
    """What fails as it is printed needs none."""
    planted = {row for plant in PLANTS if plant.theorem == name for row in plant.rows}
    missing = [row for row, letter in enumerate(FORMS[name]) if letter in "sc" and row not in planted]
    assert not missing


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.theorem}: {plant.why}")
def test_a_planted_failure_is_found(monkeypatch, plant):
    monkeypatch.setattr(plant.target, plant.change(pkgutil.resolve_name(plant.target)))
    rows = select([plant.theorem])[0]()
    assert [row for row in plant.rows if rows[row].holds] == []
