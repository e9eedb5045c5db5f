"""A few interrupts out of benchmarks/interrupts.py, which has hundreds."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "interrupts.py"


def test_interrupts_end_with_one_line_and_change_nothing():
    options = ["verify", "--each", "4", "--terms", "1", "--fresh", "0", "--jobs", "1"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"verify: 5 signals: .*; 0 troubles\n", result.stdout)
    assert result.stdout.endswith("all as if never interrupted\n")
