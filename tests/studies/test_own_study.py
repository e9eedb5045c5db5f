"""`looped reproduce my_file.py:fig1`: a study of the user's own, from the command line."""

import json
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_study.py"


def test_a_users_study_is_measured_judged_and_drawn(call, tmp_path):
    where = ("--scale", "smoke", "--out", tmp_path / "out", "--runs", tmp_path / "runs", "--device", "cpu")
    code, out, error = call("reproduce", f"{EXAMPLE}:widths", *where, "--json")
    assert code == 0, error
    assert {claim["id"] for claim in json.loads(out)} == {"widths.wider_is_better", "widths.stable"}
    assert (tmp_path / "out" / "figures" / "widths.smoke.svg").is_file()
    assert json.loads((tmp_path / "out" / "widths.smoke.json").read_text())["study"] == "widths"


def test_a_wrong_name_gets_one_line(call, tmp_path):
    code, _, error = call("reproduce", f"{EXAMPLE}:width", "--out", tmp_path)
    assert code == 2
    assert "Did you mean `widths`?" in error
    code, _, error = call("reproduce", f"{EXAMPLE}:widths", "--scale", "paper", "--out", tmp_path)
    assert code == 2
    assert "has no scale `paper`" in error
