"""Listing hundreds of finished points reads no more of each than it needs, and a report no more runs than it shows."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from looped.cli.report import MOST
from looped.queue.predictions import MOST_READ

COUNT = 300
_opened: list[Path] | None = None


def _hear(event, arguments):
    if event == "open" and _opened is not None and isinstance(arguments[0], (str, Path)):
        _opened.append(Path(arguments[0]))


sys.addaudithook(_hear)


@pytest.fixture(scope="module")
def benchmark():
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "many_points.py"
    spec = importlib.util.spec_from_file_location("many_points", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(benchmark, tmp_path_factory):
    place = tmp_path_factory.mktemp("points")
    benchmark.write_points(place, COUNT)
    return place


@pytest.fixture
def opened(call, folder, monkeypatch):
    """Run a command where the points are: how often it opened each kind of file in run folders, and in how many."""
    global _opened

    def run(words):
        global _opened
        monkeypatch.chdir(folder)
        _opened = []
        code, out, error = call(*words)
        opened, _opened = _opened, None
        assert code == 0, error
        names: dict[str, list[str]] = {}
        for path in opened:
            parts = path.absolute().relative_to(folder).parts if path.absolute().is_relative_to(folder) else ()
            if len(parts) > 2 and parts[0] == "runs" and parts[1].startswith("yang24.linear-"):
                names.setdefault(parts[2], []).append(parts[1])
        return {name: Counter(runs) for name, runs in names.items()}, out

    yield run
    _opened = None


def test_a_sweep_is_listed_from_the_end_of_each_run_alone(benchmark, opened):
    files, out = opened(benchmark.commands(COUNT)["sweep --list"])
    assert f"{COUNT} points: {COUNT} finished" in out
    assert set(files) == {"checkpoints", "metrics.jsonl"}
    assert all(len(runs) == COUNT and set(runs.values()) == {1} for runs in files.values())
    assert out.count(" finished ") <= 201  # the table shows 200


def test_the_queue_reads_the_newest_runs_alone(benchmark, opened):
    files, _ = opened(benchmark.commands(COUNT)["queue"])
    assert len(files["config.json"]) in (MOST_READ, MOST_READ + 1)  # a figure asks for one of the older ones


def test_a_report_reads_the_runs_that_it_shows(benchmark, opened, folder):
    files, out = opened(benchmark.commands(COUNT)["report"])
    assert out == f"report.html: {MOST} runs, 1 sweep.\n"
    assert len(files["config.json"]) == len(files["provenance.json"]) == MOST
    page = (folder / "report.html").read_text()
    assert f"{COUNT - MOST} older runs are left out" in page
    assert f"{COUNT} points: {COUNT} finished" in page
    assert "100 points of larger error are left out" in page
    assert page.count('<section class="run"') == MOST
