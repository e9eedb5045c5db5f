"""The benchmark's machinery, rehearsed on the CPU in this process."""

import argparse
import importlib.util
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "time_to_quality.py"


def test_a_training_is_timed_whole_or_not_at_all(tmp_path):
    spec = importlib.util.spec_from_file_location("time_to_quality", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = argparse.Namespace(
        recipe="yang24.linear", scale="smoke", device="cpu", out=tmp_path, seed=3, began=time.time()
    )
    result = script.one_seed(options)
    assert result["met"] is None  # the published errors are of another size
    assert set(result["errors"]) == {4, 8}
    assert result["seconds"] >= result["compile"] + result["training"] > 0
    with pytest.raises(ValueError, match="would not be timed whole"):
        script.one_seed(options)
