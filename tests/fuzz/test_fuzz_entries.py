"""A short form of benchmarks/fuzz.py at every entry point; a failure names the example, which can be run alone."""

from pathlib import Path

import pytest

from fuzz.entries import ENTRIES
from fuzz.harness import run_example

SEED = 1
EXAMPLES = {
    "commands": 60,
    "runs": 15,
    "checkpoints": 20,
    "hostile": 20,
    "own-things": 25,
    "sizes": 15,
    "texts": 25,
    "imports": 15,
    "results": 8,
    "sweeps": 15,
    "baselines": 20,
}
"""For most entry points 30; fewer where each takes a tenth of a second."""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ENTRIES)
def test_bad_input_is_answered_or_refused_in_one_line(name, tmp_path):
    count = EXAMPLES.get(name, 30)
    found = [run_example(name, ENTRIES[name], SEED, number, tmp_path) for number in range(count)]
    failed = [str(one) for one in found if one.kind == "failed"]
    assert not failed, "\n".join(["run again with: python benchmarks/fuzz.py --entry " + one for one in failed])
    kinds = {one.kind for one in found}
    assert "refused" in kinds, "input this bad cannot all be right"
    assert "answered" in kinds, "something must get through, or only the first check is tried"


def test_the_documentation_says_what_is_tried_at_every_entry_point():
    text = (Path(__file__).resolve().parents[2] / "docs" / "fuzzing.md").read_text()
    assert [name for name in ENTRIES if f"| `{name}` |" not in text] == []
