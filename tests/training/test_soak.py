"""Twenty kills out of benchmarks/soak.py, which has two hundred."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"

pytestmark = pytest.mark.xdist_group("kill")


@pytest.mark.long
def test_twenty_kills_change_nothing():
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "20", "--seed", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.match(r"seed 1: 20 kills \(.*\); \d+ runs and grids came to their end\nall bit-equal\n$", result.stdout)
