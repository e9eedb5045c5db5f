"""Readings: what a study reads from trained models is kept, and stands for their weights."""

import gzip
import shutil
from dataclasses import replace

import pytest

from looped.experiment import training
from looped.files import log, read_json
from looped.papers.yang24 import linear
from looped.papers.yang24.variants import only_least_squares
from looped.reproduce import reproduce, select
from looped.studies import Cell, Curves, Panels, Study, measures
from looped.studies.table import Table
from looped.training.run import Run

MEASURE = Curves(seeds=(0, 1), prompts=16, loops=8, baselines=only_least_squares)
CELLS = {Cell(d=d): training(linear("smoke"), steps=steps) for d, steps in (("few", 2), ("more", 3))}


def study(measure=MEASURE, cells=CELLS):
    return Study(
        name="own.fig", title="", cells=lambda scale: cells, measure=lambda scale: measure, panels=Panels(y="by_loops")
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The runs of the study, and what it measured."""
    folder = tmp_path_factory.mktemp("trained")
    reproduce(study(), "smoke", out=folder, runs=folder / "runs")
    return folder / "runs", read_json(folder / "own.fig.smoke.json")


@pytest.fixture
def readings(trained, tmp_path, monkeypatch):
    """A folder of runs that holds the readings alone; a training is an error."""
    monkeypatch.setattr(measures, "train_grid", lambda *_, **__: pytest.fail("weights are asked for"))
    shutil.copytree(trained[0] / "readings", tmp_path / "runs" / "readings")
    return tmp_path / "runs"


def measured(what, runs, out, **options):
    reproduce(what, "smoke", out=out, runs=runs, **options)
    return read_json(out / f"{what.name}.smoke.json")


def test_a_figure_from_readings_alone_is_the_one_from_weights_bit_for_bit(trained, readings, tmp_path):
    again = measured(study(), readings, tmp_path)
    assert again["table"] == trained[1]["table"]
    assert again["provenance"]["trainings"] == trained[1]["provenance"]["trainings"]
    assert {path.name for path in readings.iterdir()} == {"readings"}
    for entry in MEASURE.readings(CELLS, trained[0]):
        table, run = Table(), Run.open(trained[0] / entry.experiment.folder)
        MEASURE.add_model(table, entry.cell, run.experiment.train.seed, run.experiment, run.model())
        assert [series.to_data() for series in entry.read().series] == table.to_data()


@pytest.mark.parametrize("name", ["yang24.fig6", "yang24.fig8"])
def test_so_are_figures_of_other_kinds(name, tmp_path, monkeypatch):
    [figure] = select([name])
    first = measured(figure, tmp_path / "runs", tmp_path / "first")
    monkeypatch.setattr(measures, "train_grid", lambda *_, **__: pytest.fail("weights are asked for"))
    assert measured(figure, tmp_path / "runs", tmp_path / "second")["table"] == first["table"]


def test_draws_are_kept_for_one_seed_and_dropped_for_several(trained, readings, tmp_path):
    assert not any("draws" in series for series in trained[1]["table"])
    one_seed = measured(study(replace(MEASURE, seeds=(1,))), readings, tmp_path)["table"]
    assert {series["quantity"] for series in one_seed if "draws" in series} == {"by_examples", "by_loops"}
    curves = [series for series in one_seed if series.get("seed") == 1]
    assert [{**series, "draws": 0} for series in curves] == [
        {**series, "draws": 0} for series in trained[1]["table"] if series.get("seed") == 1
    ]


@pytest.mark.parametrize(
    ("measure", "label"),
    [
        (replace(MEASURE, prompts=17), "few"),
        (replace(MEASURE, at_own_loops=True), "few"),
        (replace(MEASURE, prompt_seed=2), "few"),
        (MEASURE, "fewer"),
    ],
)
def test_another_setting_or_label_is_another_reading(trained, measure, label, tmp_path):
    files = {path.name for path in (trained[0] / "readings").iterdir()}
    runs = shutil.copytree(trained[0], tmp_path / "runs")
    cells = {Cell(d=label): CELLS[Cell(d="few")]}
    entries = measure.readings(cells, runs)
    assert files.isdisjoint(entry.file.name for entry in entries)
    measured(study(measure, cells), runs, tmp_path)
    assert {path.name for path in (runs / "readings").iterdir()} == files | {entry.file.name for entry in entries}


def test_seeds_and_baselines_are_no_part_of_a_reading(trained):
    files = {entry.file for entry in MEASURE.readings(CELLS, trained[0])}
    assert files == {*(trained[0] / "readings").iterdir()}
    fewer = replace(MEASURE, seeds=(1,), baselines=None).readings(CELLS, trained[0])
    assert len(fewer) == 2
    assert {entry.file for entry in fewer} < files


@pytest.mark.parametrize("damage", ["cut", "foreign", "of another run", "no object"])
def test_a_damaged_reading_is_measured_again_with_one_line(trained, damage, tmp_path, monkeypatch):
    runs = shutil.copytree(trained[0], tmp_path / "runs")
    [first, second, *_] = [entry.file for entry in MEASURE.readings(CELLS, runs)]
    whole, lines = first.read_bytes(), []
    contents = {"cut": whole[:-40], "foreign": b"{}", "of another run": second.read_bytes()}
    first.write_bytes(contents.get(damage) or gzip.compress(b"[]"))
    monkeypatch.setattr(log, "warning", lines.append)
    assert measured(study(), runs, tmp_path)["table"] == trained[1]["table"]
    assert first.read_bytes() == whole
    assert len(lines) == 1
    assert first.name in lines[0]


def test_again_measures_anew_and_replaces_the_readings(trained, tmp_path):
    runs = shutil.copytree(trained[0], tmp_path / "runs")
    entries = MEASURE.readings(CELLS, runs)
    for entry in entries:
        reading = entry.read()
        zero = tuple(replace(series, value=(0.0,) * len(series.value)) for series in reading.series)
        entry.file.write_bytes(replace(reading, series=zero).to_bytes())
    assert measured(study(), runs, tmp_path)["table"] != trained[1]["table"]
    assert measured(study(), runs, tmp_path, again=True)["table"] == trained[1]["table"]
    assert all(entry.read().series[0].value[0] > 0 for entry in entries)
