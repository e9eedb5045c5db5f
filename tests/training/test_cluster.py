"""A real Ray cluster of two local nodes: a worker is killed and a node is stopped, and nothing is lost or repeated.

The long form, with twelve trials, is benchmarks/cluster.py.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from looped.training.executors import Executor
from looped.training.sweep import sweep
from looped.training.trials import standing, trials

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cluster.py"


@pytest.fixture(scope="module")
def script():
    """The benchmark as a module; Ray and what it starts see no warnings turned into errors."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
        }.items():
            patch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("cluster_script", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.long
@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_and_a_stopped_node_lose_and_repeat_nothing(script, tmp_path):
    base = script.experiment(steps=150)
    asked, local, stacked = (trials(base, seeds=range(4), out=tmp_path / name) for name in ("ray", "local", "stack"))
    stands, deeds, wrong = script.on_two_nodes(asked)
    assert wrong == []
    assert len(deeds) == 2
    assert [one.status for one in stands] == ["finished"] * 4
    assert [standing(one.path).status for one in asked] == ["finished"] * 4
    assert {one.status for one in sweep(local, Executor(kind="processes", workers=1))} == {"finished"}
    assert script.differences(asked, local) == []
    assert {one.status for one in sweep(stacked)} == {"finished"}
    assert script.distance(asked, stacked) < 1e-5
